"""Models of Keras on parameter servers: dense parameters and rows."""
