"""The command ``torch-edl``: one small file per verb, and what they show on the terminal.

No training, scheduling or model code: a verb starts or asks a master. No torch but in `export`.
"""
