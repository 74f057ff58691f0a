"""What a master does in its pod: launches pods, keeps its state, and tells how the job ended.

``pod_workers.py`` runs in the pods that several workers share.
"""
