"""Which strategy a model gets, and which wishes cannot be had."""

from __future__ import annotations

import pytest

from torch_edl.engine.choose_strategy import Choice, choose
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

SMALL = pb.EmbeddingReport(name="small", num_embeddings=10, dim=4, dynamic=False)
LARGE = pb.EmbeddingReport(name="large", num_embeddings=1000, dim=4, dynamic=False)
BOUNDED = pb.EmbeddingReport(name="bounded", num_embeddings=10, dim=4, dynamic=True)
UNBOUNDED = pb.EmbeddingReport(name="rows", num_embeddings=0, dim=4, dynamic=True)


def pick(wanted: str = "auto", *embeddings: pb.EmbeddingReport, workers: int = 2, **more) -> Choice:
    return choose(wanted, embeddings, max_workers=workers, large_embedding=100, **more)


@pytest.mark.parametrize(
    ("embeddings", "workers", "name", "why"),
    [
        ((), 1, "local", "no large embedding, and one worker"),
        ((), 4, "allreduce", "no large embedding, and up to 4 workers"),
        ((SMALL,), 2, "allreduce", "no large embedding, and up to 2 workers"),
        ((BOUNDED,), 2, "ps", "embedding bounded is a torch_edl.nn module"),
        ((BOUNDED,), 1, "local", "no large embedding, and one worker"),
        ((SMALL, LARGE), 2, "ps", "embedding large of 1,000 x 4 is large"),
        ((LARGE,), 1, "ps", "embedding large of 1,000 x 4 is large"),
        ((UNBOUNDED,), 1, "ps", "embedding rows has no bound"),
    ],
)
def test_auto(
    embeddings: tuple[pb.EmbeddingReport, ...], workers: int, name: str, why: str
) -> None:
    assert pick("auto", *embeddings, workers=workers) == Choice(name=name, reason=why)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("embedding", "name"),
    [(SMALL, "allreduce"), (LARGE, "ps"), (BOUNDED, "ps"), (UNBOUNDED, "ps")],
)
def test_a_script_is_in_a_ring_or_on_servers(
    embedding: pb.EmbeddingReport, name: str, workers: int
) -> None:
    """Also with one worker: others may join."""
    assert pick("auto", embedding, workers=workers, script=True).name == name


def test_a_script_is_not_told_to_train_locally() -> None:
    with pytest.raises(UsageError, match=r"cannot run it, or train with --strategy allreduce"):
        pick("auto", LARGE, workers=1, script=True, optimizer_error="cannot run it")


def test_nothing_is_reduced_where_nothing_is_trained() -> None:
    assert pick(workers=2, trains=False).name == "ps"
    assert pick(workers=1, trains=False).name == "local"
    with pytest.raises(UsageError, match="it is for training"):
        pick("allreduce", trains=False)


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [("ps", "--ps or --strategy ps"), ("allreduce", "--strategy allreduce")],
)
def test_an_explicit_wish_counts(wanted: str, flags: str) -> None:
    choice = pick(wanted, LARGE, workers=1)
    assert choice == Choice(name=wanted, reason=f"asked for with {flags}")


def test_rows_of_ours_cannot_be_in_a_ring() -> None:
    with pytest.raises(UsageError, match=r"embedding bounded is a table of torch-edl"):
        pick("allreduce", SMALL, BOUNDED)
    with pytest.raises(UsageError, match=r"embedding rows has no bound.*use --strategy ps"):
        pick("allreduce", SMALL, UNBOUNDED)


def test_local_runs_one_worker() -> None:
    with pytest.raises(UsageError, match="--strategy allreduce or --strategy ps"):
        pick("local", workers=2)


def test_any_optimizer_will_do_but_on_servers() -> None:
    error = "--strategy ps: LBFGS is none of sgd"
    assert pick(optimizer_error=error).name == "allreduce"
    with pytest.raises(UsageError, match="or train with --strategy allreduce"):
        pick("ps", optimizer_error=error)
    with pytest.raises(UsageError, match="or train with --strategy local"):
        pick("ps", workers=1, optimizer_error=error)
    with pytest.raises(UsageError, match=r"none of sgd$"):
        pick("auto", UNBOUNDED, optimizer_error=error)
