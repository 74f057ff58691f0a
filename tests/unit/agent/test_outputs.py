from __future__ import annotations

from pathlib import Path

from torch_edl.agent.outputs import Outputs
from torch_edl.agent.workers import Worker
from torch_edl.wire import master_pb2 as pb


class Seen:
    """What is shown."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, bytes]] = []

    def status(self, status: pb.GetStatusResponse) -> None:
        raise AssertionError(status)

    def output(self, rank: int, stream: str, line: bytes) -> None:
        self.lines.append((rank, stream, line))


def running(rank: int, file: Path) -> Worker:
    return Worker(
        local_rank=rank,
        rank=rank,
        pid=1,
        stdout=str(file),
        stderr="",
        error_file="",
        started_at=0.0,
    )


def test_the_file_of_a_worker_that_was_replaced_is_read_to_its_end_and_left(tmp_path: Path) -> None:
    seen = Seen()
    outputs = Outputs(seen)
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    outputs.follow([running(0, first), running(1, other)])
    first.write_text("a\nunfinished")
    other.write_text("b\n")
    outputs.look()
    outputs.follow([running(0, second), running(1, other)])
    first.write_text("a\nunfinished and later\n")
    second.write_text("c\n")
    outputs.look(final=True)
    assert seen.lines == [
        (0, "stdout", b"a"),
        (1, "stdout", b"b"),
        (0, "stdout", b"unfinished"),
        (0, "stdout", b"c"),
    ]
