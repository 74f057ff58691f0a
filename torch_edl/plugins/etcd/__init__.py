"""Keeps the state of a master in etcd."""
