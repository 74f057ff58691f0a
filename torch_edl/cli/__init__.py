"""The command ``torch-edl``: its verbs and their output on the terminal.

No training, scheduling or model code lives here: verbs start a master, call the master of a running
job, or read the folder of a job.
Torch is imported only for scripts, `export` and a dry run.
"""
