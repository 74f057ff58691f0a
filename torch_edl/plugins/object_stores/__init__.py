"""Files in object stores and behind HTTP, read in ranges by fsspec."""
