"""Faults on purpose: kills and pauses processes of a job, and judges how the job took them.

``plan``, ``storm`` and ``verdict`` are pure: what happens when is a function of the plan and its
seed, with time and processes passed in. ``targets`` and ``run`` act on processes. Nothing here
knows how a job recovers.
"""
