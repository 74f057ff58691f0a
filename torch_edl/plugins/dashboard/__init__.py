"""A page that shows a job: its curves, its processes and what their deaths cost, events and logs.

``view`` reads a job through its :class:`~torch_edl.interfaces.platform.JobHandle`, only while a
browser asks; ``marks``, ``lanes`` and ``incidents`` are pure. ``recorder`` is an observer that
keeps the curves of every job in its folder, so that the page of an ended job is complete.
"""
