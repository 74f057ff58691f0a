"""The workers of a script: their agents, torchrun's rounds, and synchronization."""
