"""What there is to do: tasks and their leases, evaluations, and the pass that fits columns."""
