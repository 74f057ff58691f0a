"""Files on a local disk: replacement that survives a loss of power, and scratch folders.

This package knows neither the formats nor the places of the files of a job.
"""
