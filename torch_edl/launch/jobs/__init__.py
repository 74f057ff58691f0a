"""Jobs of this machine and of clusters: their folders, logs and status, and their master processes.

The package does not train or schedule. It knows a job by its folder or its Kubernetes objects, and
calls the job's master.
"""
