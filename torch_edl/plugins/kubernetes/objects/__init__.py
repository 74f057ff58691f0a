"""The objects of a job as manifests: pure functions of the configuration.

``submit.py`` creates them, all or none.
"""
