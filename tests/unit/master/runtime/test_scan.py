"""What the master learns about data before it cuts tasks, and in which process."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest

from master.runtime.scan import count, scan
from master.state.actions import DataScanned
from tests.waiting import HANG_S
from torch_edl.config import DataConfig, JobConfig
from torch_edl.config.environment import ENV_PROCESS, ENV_TOKEN
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


def job(*train: str, **data: Any) -> JobConfig:
    return JobConfig(name="j", model_file="/m.py", data=DataConfig(train=train, **data))


def test_objects_are_counted_in_the_order_of_their_names() -> None:
    found = count(job("memory://scan"))
    assert found.error == ""
    assert [(s.name, s.records) for s in found.shards["train"]] == [
        (f"memory:///scan/{number:02d}.csv", number) for number in range(40)
    ]


def test_an_object_that_cannot_be_read_is_named() -> None:
    with fsspec.open("memory://scan/20.csv", "w") as file:
        file.write("n\n1,2\n")
    found = count(job("memory://scan/*.csv"))
    assert "memory:///scan/20.csv at byte 2: a row of 2 fields" in found.error


def test_names_that_were_expanded_are_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand objects once took twenty thousand requests, one after the other."""
    names = tuple(expand(["memory://scan"]))
    for call in ("exists", "isdir", "find", "glob", "ls"):
        monkeypatch.setattr(fsspec.filesystem("memory"), call, None)
    found = count(job(*names, expanded=True))
    assert found.error == ""
    assert [shard.name for shard in found.shards["train"]] == list(names)


def test_data_are_counted_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "b.csv").write_text("n\n1,2\n3\n")
    sound, damaged = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    assert scan(job(sound)) == count(job(sound))
    assert f"{damaged} at byte 2: line 2: a row of 2 fields" in scan(job(sound, damaged)).error
    found = scan(job(sound, damaged, skip_damaged=True))
    assert ([s.records for s in found.shards["train"]], found.damaged) == ([2, 1], 1)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_source_that_ends_its_reader_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A store that does not answer holds the reader up, as a file does at which a library fails."""
    monkeypatch.setenv(ENV_TOKEN, "t")
    monkeypatch.setenv(ENV_PROCESS, "master-0")
    (tmp_path / "a.csv").write_text("n\n1\n")
    found: list[DataScanned] = []
    with socket.create_server(("127.0.0.1", 0)) as store:
        store.settimeout(HANG_S)
        url = f"http://127.0.0.1:{store.getsockname()[1]}/b.csv"
        # The evaluation data are counted after the training data; objects in parallel.
        config = job(str(tmp_path / "a.csv"), eval=(url,), expanded=True)
        thread = threading.Thread(target=lambda: found.append(scan(config)), daemon=True)
        thread.start()
        with store.accept()[0]:
            (reader,) = (
                child
                for child in psutil.Process().children()  # other tests left some
                if child.status() != psutil.STATUS_ZOMBIE
                and "master.runtime.scan" in child.cmdline()
            )
            # It is none of the processes that a job finds by its token, and ends with the thread.
            assert not {ENV_TOKEN, ENV_PROCESS} & set(reader.environ())
            reader.send_signal(number)
            thread.join(HANG_S)
    assert found[0].shards == {}
    assert found[0].error.startswith(f"{url}: ")
    assert number.name in found[0].error
