"""The command ``torch-edl``: its verbs and their output on the terminal.

No training, scheduling or model code lives here: a verb starts a master or sends a request to one.
Torch is imported only for scripts, `export` and a dry run.
"""
