"""Fault injection: kills and pauses processes of a job, and checks how the job recovers.

``plan``, ``storm`` and ``verdict`` are pure: the times and targets of faults follow from the plan
and its seed, with time and processes passed in. ``run`` injects the faults through a ``site``:
signals on a ``machine``, deleted pods on a ``cluster``. No module here depends on how a job
recovers.
"""
