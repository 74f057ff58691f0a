"""A log at a peer server: what is sent to the peer, and what a server keeps as the peer of another.

Nothing here knows the order of a log; the peer keeps records without applying them.
"""
