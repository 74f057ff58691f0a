"""Jobs of this machine: their folders, logs and status, and their master processes.

The package does not train or schedule. It knows a job by its folder, and
calls the job's master.
"""
