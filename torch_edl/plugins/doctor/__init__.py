"""``torch-edl doctor``: checks before the first job that a machine, or a cluster, can run one.

Each module checks one subject and yields findings; only ``command`` prints.
"""
