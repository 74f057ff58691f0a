"""Parsers, options and checks that turn the words of a command into a checked job.

Nothing is started here, and no code of the user is run.
"""
