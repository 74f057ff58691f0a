"""Models of torch on parameter servers: dense parameters, rows, ids and learning rates."""
