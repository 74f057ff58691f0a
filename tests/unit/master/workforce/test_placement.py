"""Which node starts which process, as a table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from master.state.workforce.placement import Room, place
from torch_edl.processes.launcher import ProcessSpec


def room(name: str, has: str = "", *, slots: int = 2, host: str = "") -> Room:
    """A node with processes such as ``w0 s1``: worker-0 and ps-1."""
    return Room(
        name=name, host=host or name, slots=slots, processes=[key(each) for each in has.split()]
    )


def key(text: str) -> tuple[str, int]:
    return {"w": "worker", "s": "ps"}[text[0]], int(text[1:])


def spec(text: str) -> ProcessSpec:
    """``s3/0,2!a``: ps-3, apart from ps-0 and ps-2, not on machine a if possible."""
    text, _, avoid = text.partition("!")
    text, _, apart = text.partition("/")
    role, id = key(text)
    ids = [int(each) for each in apart.split(",") if each]
    return ProcessSpec(role=role, id=id, module="m", apart=ids, avoid=[avoid] if avoid else [])


def placed(wanted: str, rooms: Sequence[Room]) -> str:
    """``w0:a w1:b``: the processes that have room, and their nodes."""
    found = place([spec(each) for each in wanted.split()], rooms)
    return " ".join(
        f"{'w' if role == 'worker' else 's'}{id}:{at}" for (role, id), at in found.items()
    )


A, B, C = room("a"), room("b"), room("c")
TABLE = {
    "one machine takes as many workers as it has slots": ("w0 w1 w2", [A], "w0:a w1:a"),
    "no machine": ("w0 s0", [], ""),
    "workers are spread evenly": ("w0 w1 w2 w3", [A, B], "w0:a w1:b w2:a w3:b"),
    "a machine with more slots is filled first": (
        "w0 w1 w2",
        [A, room("b", slots=4)],
        "w0:b w1:b w2:a",
    ),
    "a replacement takes the free slot": ("w4", [room("a", "w0 w1"), room("b", "w2")], "w4:b"),
    "servers are spread, and take no slot": (
        "s0 s1 s2 w0 w1",
        [room("a", slots=1), room("b", slots=1), room("c", slots=0)],
        "s0:a s1:b s2:c w0:a w1:b",
    ),
    "servers have room where no slot is": ("s0", [room("a", "w0 w1")], "s0:a"),
    "four servers in a ring on three machines: no neighbours on one": (
        "s0 s1/0 s2/1 s3/0,2",
        [A, B, C],
        "s0:a s1:b s2:c s3:b",
    ),
    "neighbours named by the later one only": ("s1/0 s0", [A, B], "s1:a s0:b"),
    "the successor of a lost server is not beside its copy": (
        "s9/1,2",
        [room("a", "s1 w0"), room("b", "s2 w1"), room("c", "s3 s4 w2")],
        "s9:c",
    ),
    "neighbours share the only machine": ("s0 s1/0", [A], "s0:a s1:a"),
    "two nodes of one machine are one place": (
        "s0 s1/0 s2",
        [room("a1", host="a"), room("a2", host="a"), B],
        "s0:a1 s1:b s2:a2",
    ),
    "and two places where there is no other": (
        "s0 s1/0",
        [room("a1", host="a"), room("a2", host="a")],
        "s0:a1 s1:a2",
    ),
    "a machine to avoid is the last one": ("w0!a w1 s0!b", [A, B], "w0:b w1:a s0:a"),
    "and is used if no other has room": ("w3!b", [room("a", "w0 w1"), B], "w3:b"),
    "workers prefer the machine with fewer servers": ("w0", [room("a", "s0"), B], "w0:b"),
    "servers prefer the machine with fewer workers": ("s0", [room("a", "w0"), B], "s0:b"),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_table(case: str) -> None:
    wanted, rooms, expected = TABLE[case]
    assert placed(wanted, rooms) == expected


def test_a_ring_of_any_length_has_no_neighbours_on_one_of_three_machines() -> None:
    for shards in range(2, 30):
        wanted = []
        for shard in range(shards):
            near = {(shard - 1) % shards, (shard + 1) % shards} - {shard}
            wanted.append(f"s{shard}/" + ",".join(str(n) for n in near if n < shard))
        found = place([spec(each) for each in wanted], [A, B, C])
        at = [found["ps", shard] for shard in range(shards)]
        assert all(at[shard] != at[(shard + 1) % shards] for shard in range(shards)), at
