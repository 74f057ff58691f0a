"""Jobs on Kubernetes: the objects of a job as manifests, and the processes of a job as pods.

Manifests are plain dicts, camelCase as YAML has them; the functions that make them are pure. Only
:mod:`torch_edl.kubernetes.api` and its :mod:`~torch_edl.kubernetes.event_stream` import the
official client, an extra, and only when it is used. What a pod's state means is decided by pure
functions over what the API sent; threads and the clock are the launcher's. Nothing of torch, no
policy: how many pods there should be is decided by the callers.
"""
