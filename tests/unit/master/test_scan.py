"""What the master learns about data before it cuts tasks."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest

from master.runtime.scan import scan
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.sources import expand


@pytest.fixture(autouse=True)
def store() -> Iterator[None]:
    with fsspec.open("memory://scan/_SUCCESS", "w") as file:
        file.write("")
    for number in range(40):
        with fsspec.open(f"memory:///scan/{number:02d}.csv", "w") as file:
            file.write("n\n" + "1\n" * number)
    yield
    fsspec.filesystem("memory").store.clear()


def test_objects_are_counted_in_the_order_of_their_names() -> None:
    found = scan(JobConfig(name="j", model_file="/m.py", data=DataConfig(train=("memory://scan",))))
    assert found.error == ""
    assert [(s.name, s.records) for s in found.shards["train"]] == [
        (f"memory:///scan/{number:02d}.csv", number) for number in range(40)
    ]


def test_an_object_that_cannot_be_read_is_named() -> None:
    with fsspec.open("memory://scan/20.csv", "w") as file:
        file.write("n\n1,2\n")
    found = scan(
        JobConfig(name="j", model_file="/m.py", data=DataConfig(train=("memory://scan/*.csv",)))
    )
    assert "memory:///scan/20.csv at byte 2: a row of 2 fields" in found.error


def test_names_that_were_expanded_are_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand objects that took twenty thousand requests, one after the other."""
    names = tuple(expand(["memory://scan"]))
    for call in ("exists", "isdir", "find", "glob", "ls"):
        monkeypatch.setattr(fsspec.filesystem("memory"), call, None)
    found = scan(
        JobConfig(name="j", model_file="/m.py", data=DataConfig(train=names, expanded=True))
    )
    assert found.error == ""
    assert [shard.name for shard in found.shards["train"]] == list(names)
