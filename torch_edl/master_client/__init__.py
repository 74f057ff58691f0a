"""A worker's connection to the master: its session, heartbeat and leases.

No torch here, and no training.
"""
