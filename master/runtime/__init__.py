"""What acts for the state of a job: the service, the loop, effects and the store.

No decisions here.
"""
