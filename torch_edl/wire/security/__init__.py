"""Who may connect: keys and certificates from the token of the job, and limits for strangers.

Nothing here sends or answers a call.
"""
