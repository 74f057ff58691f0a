"""The work of a job: tasks and their leases, evaluations, snapshots, and fitted preprocessing."""
