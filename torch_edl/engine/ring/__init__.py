"""Engine of the strategy ``allreduce``: a ring of replicas that survives the loss of members.

The package has no parameter servers, no data loop and no framework. ``engine`` makes one update,
with the ``control_flags`` that travel beside the gradients. A process joins a ring through
``membership``, ``rendezvous`` (list of members) and ``recovery`` (state of the other members).

Models and connections are known by the interfaces in ``replicated`` and ``group``. The model, the
gradient buckets and the collectives of torch are in ``torch_edl.pytorch.ring``. For a framework
without collectives, ``stream_group`` sums arrays over the streams that ``stream_listener`` accepts.
"""
