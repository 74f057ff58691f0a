"""Models of torch in a ring: the process group, gradient buckets and their reduction."""
