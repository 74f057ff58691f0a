"""A cluster in simulated time, in which the real master of torch-edl runs jobs.

What lives here: a model of the machines and their scheduler (``machines``, ``scheduler``), of the
speed and the processes of training (``workers``), and of what a run uses (``usage``). The master is
not modelled: ``jobs`` drives ``master.state`` through its own interface, events in and actions out,
and the workers lease with the real ``LeaseClient``. Everything is a pure function of a seed.

The programs: ``two_jobs``, ``beside_nginx``, ``many_workers``; each prints one JSON line and draws
a picture.
"""
