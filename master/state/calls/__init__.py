"""Calls of other processes and of users: each is an event of a job, and returns an answer."""
