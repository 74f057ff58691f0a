"""The API server of a cluster: calls, watches, forwarded ports, and the state of pods.

Nothing here knows what a job is made of.
"""
