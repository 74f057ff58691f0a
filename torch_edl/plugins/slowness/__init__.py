"""Slow workers and servers: finds them by comparing rates, names the likely cause, and requests
their replacement if ``--replace-slow`` is set.

``watch`` runs in the master and uses ``rates``; both are pure. ``pressure`` and ``speed`` are
probes, which run in each worker and server: ``pressure`` reads the kernel's counts of what keeps a
process from running, and ``speed`` measures the machine.
"""
