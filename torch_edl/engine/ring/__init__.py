"""The engine of the strategy ``allreduce``: a ring of replicas that survives its members.

No parameter servers here, and no loop over data. The way of a gradient: ``engine`` (one update) ->
``reducer`` (backward) -> ``buckets`` -> ``process_group`` (collectives), with ``control_flags`` on
board. The way into a ring: ``membership`` -> ``rendezvous`` (who is in it) -> ``process_group``
(sockets) -> ``recovery`` (the state of the others). Only ``torch_model``, ``reducer``, ``buckets``
and ``process_group`` are of torch; the others know a model by ``replicated``, and the connections
of a ring by ``group``. Without torch, ``stream_group`` sums arrays over the streams that
``meeting`` brings together.
"""
