"""Which processes a job of a model file should have: workers, spares and parameter servers."""
