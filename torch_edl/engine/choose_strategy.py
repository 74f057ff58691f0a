"""Choice of a strategy by the embeddings of the model and the number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy with the reason for its choice."""

    name: str
    reason: str


def choose(
    wanted: str,
    embeddings: Sequence[pb.EmbeddingReport],
    *,
    max_workers: int,
    large_embedding: int,
    optimizer_error: str = "",
    trains: bool = True,
    script: bool = False,
) -> Choice:
    """Choose the strategy of a job.

    Args:
        wanted: ``auto``, ``ps``, ``allreduce`` or ``local``.
        large_embedding: number of elements above which a table is stored on servers.
        optimizer_error: reason why the servers cannot run the optimizer; empty if they can.
        trains: False for an evaluation or a prediction, which have no gradients.
        script: True for a training script, whose single worker is a ring that others may join.

    Raises:
        UsageError: the requested strategy is impossible for this job.
    """
    if wanted == "local" and max_workers > 1:
        raise UsageError(
            f"--workers {max_workers}: the strategy local runs one worker; "
            "use --workers 1, --strategy allreduce or --strategy ps"
        )
    if wanted == "allreduce":
        _check_allreduce(embeddings, trains)
    choice = _from_model(
        wanted, embeddings, max(2, max_workers) if script else max_workers, large_embedding, trains
    )
    if choice.name == "allreduce" and script and wanted == "auto":
        choice = Choice(name="allreduce", reason="no large embedding")
    if choice.name == "ps" and optimizer_error:
        # A replicated model works with any torch optimizer; the rows of a table need a kernel.
        dynamic = any(e.dynamic for e in embeddings)
        alone = max_workers == 1 and not script
        other = "local" if alone else "allreduce"
        raise UsageError(
            optimizer_error + ("" if dynamic else f", or train with --strategy {other}")
        )
    return choice


def _check_allreduce(embeddings: Sequence[pb.EmbeddingReport], trains: bool) -> None:
    if not trains:
        raise UsageError(
            "--strategy allreduce: it is for training; use --strategy ps, or --strategy local "
            "with one worker"
        )
    for embedding in embeddings:
        if embedding.dynamic:
            bound = "" if embedding.num_embeddings else " has no bound and"
            raise UsageError(
                f"--strategy allreduce: embedding {embedding.name}{bound} is a table of torch-edl, "
                "whose rows live on servers; use --strategy ps, or an Embedding of the framework"
            )


def _from_model(
    wanted: str,
    embeddings: Sequence[pb.EmbeddingReport],
    max_workers: int,
    large_embedding: int,
    trains: bool,
) -> Choice:
    if wanted != "auto":
        # These options imply the strategy ps; see torch_edl/cli/arguments/options.py.
        others = ", --ps, --durability or --epochs stream" if wanted == "ps" else ""
        return Choice(name=wanted, reason=f"asked for with --strategy {wanted}{others}")
    for embedding in embeddings:
        if embedding.dynamic and not embedding.num_embeddings:
            return Choice(name="ps", reason=f"embedding {embedding.name} has no bound")
        if embedding.dynamic and max_workers > 1:
            return Choice(name="ps", reason=f"embedding {embedding.name} is a torch_edl.nn module")
        if embedding.num_embeddings * embedding.dim > large_embedding:
            return Choice(
                name="ps",
                reason=f"embedding {embedding.name} of {embedding.num_embeddings:,} x "
                f"{embedding.dim} is large",
            )
    if max_workers == 1:
        return Choice(name="local", reason="no large embedding, and one worker")
    if not trains:
        return Choice(name="ps", reason=f"up to {max_workers} workers share one model")
    return Choice(name="allreduce", reason=f"no large embedding, and up to {max_workers} workers")
