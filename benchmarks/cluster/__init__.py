"""A cluster in simulated time, in which the real master of torch-edl runs jobs.

What lives here: a model of the machines and their scheduler (``machines``, ``scheduler``), of the
speed of training (``speed``), of what else runs there (``service``, ``spot``), and of the processes
of a job (``servers``, ``workers``). The master is not modelled: ``jobs`` drives ``master.state``
through its own interface, events in and actions out, and the workers lease with the real
``LeaseClient``. Everything is a pure function of a seed.

The programs: ``two_jobs``, ``beside_nginx``, ``many_workers``; each prints one JSON line and draws
a picture.
"""
