"""The contract of a model file: its framework, its functions, and their arguments.

This package trains nothing and imports no framework.
"""
