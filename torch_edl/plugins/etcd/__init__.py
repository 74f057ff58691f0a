"""The state of a master in an etcd."""
