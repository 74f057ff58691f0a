"""The processes that a job should have: workers, spares and parameter servers."""
