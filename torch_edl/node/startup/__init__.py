"""The folder of the module ``sitecustomize`` that makes a Python process a fork server of its own
program. Only that module lives here, because the folder stands in PYTHONPATH."""
