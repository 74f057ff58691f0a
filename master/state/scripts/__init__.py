"""The workers of a script: their ends, torchrun's rounds, and synchronization."""
