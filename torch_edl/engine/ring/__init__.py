"""Engine of the strategy ``allreduce``: a ring of replicas that survives the loss of members.

The package has no parameter servers, no data loop and no framework. ``engine`` makes one
update. A process joins a ring through ``rendezvous`` (list of members) and ``membership`` (state of
the other members, and the control numbers that travel beside the gradients).

Models and connections are known by the interfaces in ``replicated``. The model, the
gradient buckets and the collectives of torch are in ``torch_edl.pytorch.ring``.
"""
