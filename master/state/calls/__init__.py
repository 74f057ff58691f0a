"""The calls of the other processes and of users, as events of a job."""
