"""The state of a job, as pure state machines: events in, actions out.

No sockets, threads, clocks, files or processes here; an import contract holds that.
"""
