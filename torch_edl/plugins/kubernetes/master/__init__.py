"""What a master does in its pod: launches pods, keeps its state, and tells how the job ended."""
