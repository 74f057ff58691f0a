"""Engine of the strategy ``allreduce``: a ring of replicas that survives the loss of members.

The package has no parameter servers and no data loop. A gradient passes through ``engine`` (one
update), ``reducer`` (backward), ``buckets`` and ``process_group`` (collectives, with
``control_flags`` attached). A process joins through ``membership``, ``rendezvous`` (list of
members), ``process_group`` (sockets) and ``recovery`` (state of the other members).

Only ``torch_model``, ``reducer``, ``buckets`` and ``process_group`` import torch. The other modules
use the interfaces in ``replicated`` (model) and ``group`` (connections). Without torch,
``stream_group`` sums arrays over the streams that ``meeting`` accepts.
"""
