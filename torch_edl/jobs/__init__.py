"""The jobs of this machine: their folders and logs, and the processes that run their masters.

No training and no scheduling: a job is known here by its folder, and asked through its master.
"""
