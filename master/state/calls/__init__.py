"""Calls of other processes and of users: each is an event of a job, and returns an answer.

An answer of None means no answer yet: the service repeats the call after a change.
"""
