"""The workers of a script: its agents, and the rounds of torchrun."""
