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


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        ("ps", "--strategy ps, --ps, --durability or --epochs stream"),
        ("allreduce", "--strategy allreduce"),
    ],
)
def test_an_explicit_wish_counts(wanted: str, flags: str) -> None:
    choice = pick(wanted, LARGE, workers=1)
    assert choice == Choice(name=wanted, reason=f"asked for with {flags}")


def test_what_trains_nothing_or_has_an_optimizer_of_its_own() -> None:
    assert pick(workers=2, trains=False).name == "ps"
    assert pick(workers=1, trains=False).name == "local"
    assert pick(optimizer_error=ERROR).name == "allreduce"


ERROR = "--strategy ps: LBFGS is none of sgd"


@pytest.mark.parametrize(
    ("wanted", "embeddings", "more", "message"),
    [
        ("allreduce", [], {"trains": False}, "it is for training"),
        ("allreduce", [SMALL, BOUNDED], {}, "embedding bounded is a table of torch-edl"),
        ("allreduce", [SMALL, UNBOUNDED], {}, "embedding rows has no bound.*use --strategy ps"),
        ("local", [], {"workers": 2}, "--strategy allreduce or --strategy ps"),
        ("ps", [], {"optimizer_error": ERROR}, "or train with --strategy allreduce$"),
        ("ps", [], {"optimizer_error": ERROR, "workers": 1}, "or train with --strategy local$"),
        ("auto", [UNBOUNDED], {"optimizer_error": ERROR}, "none of sgd$"),
        # A script is in a ring, which others may join.
        (
            "auto",
            [LARGE],
            {"optimizer_error": ERROR, "workers": 1, "script": True},
            "none of sgd, or train with --strategy allreduce$",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    wanted: str, embeddings: list[pb.EmbeddingReport], more: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pick(wanted, *embeddings, **more)
