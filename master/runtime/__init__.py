"""Execution of what the state of a job decides: service, loop, effects, store. No decisions
here."""
