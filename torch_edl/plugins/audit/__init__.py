"""The proof that each record counted once: the ledger of tasks, which the master keeps by an entry
point, and ``torch-edl audit``, which checks it from the folder of the job alone.

``ledger``, ``replay``, ``tasks`` and ``passes`` are pure. No module here depends on how a job
recovers.
"""
