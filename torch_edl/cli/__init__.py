"""The command ``torch-edl``: its verbs, and what they show on the terminal.

No training, scheduling or model code: a verb starts or asks a master. Torch is imported for
scripts, `export` and a dry run only.
"""
