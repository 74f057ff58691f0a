"""Jobs on Kubernetes: the objects of a job as manifests, and the processes of a job as pods.

Manifests are plain dicts with the keys of the YAML; the functions that make them are pure. Only
:mod:`torch_edl.kubernetes.api` and :mod:`~torch_edl.kubernetes.event_stream` import the official
client, an extra, and only when it is used. Pure functions interpret the state of a pod as the API
sent it; the launcher owns the threads and the clock. No module imports torch. The callers decide
how many pods there are.
"""
