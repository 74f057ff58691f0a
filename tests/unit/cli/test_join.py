"""What ``torch-edl join`` checks before a machine becomes a node, and where it finds the code."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from master.runtime.machines import Machines
from tests.machine import SeveralMachines
from tests.place import EDL
from tests.waiting import COMMAND_S, wait_for
from torch_edl.cli.arguments.parser import parse
from torch_edl.cli.join import _model_file
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

MODEL = b"import part.layers\n"
LAYERS = b"WIDTH = 3\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    return tmp_path


def job(path: Path, **code: bytes) -> pb.JobOfNode:
    """A job whose model file has a path on the machine of the master."""
    digest = hashlib.sha256(MODEL).hexdigest()
    sent = {name.replace("__", "/") + ".py": content for name, content in code.items()}
    return pb.JobOfNode(name="clicks", model_file=str(path), digest=digest, code=sent)


def test_the_model_file_is_the_one_of_the_path_if_its_text_is_the_same(home: Path) -> None:
    (home / "model.py").write_bytes(MODEL)
    assert _model_file(job(home / "model.py"), "") == home / "model.py"
    (home / "copy.py").write_bytes(MODEL)
    assert _model_file(job(home / "model.py"), str(home / "copy.py")) == home / "copy.py"


def test_code_that_is_not_here_is_written(home: Path) -> None:
    (home / "model.py").write_bytes(b"# another version\n")
    sent = job(home / "model.py", model=MODEL, part__layers=LAYERS)
    file = _model_file(sent, "")
    assert file.read_bytes() == MODEL
    assert (file.parent / "part" / "layers.py").read_bytes() == LAYERS
    assert _model_file(sent, "") == file, "and found again"
    other = job(home / "model.py", model=MODEL, part__layers=b"WIDTH = 4\n")
    assert _model_file(other, "").parent != file.parent


@pytest.mark.parametrize("name", ["../../etc/cron", "/tmp/anywhere"])
def test_code_is_not_written_elsewhere(home: Path, name: str) -> None:
    sent = job(home / "none.py", model=MODEL)
    sent.code[name] = b"x"
    with pytest.raises(UsageError, match="not a path below"):
        _model_file(sent, "")


def test_another_text_is_refused(home: Path) -> None:
    (home / "other.py").write_bytes(b"# another\n")
    with pytest.raises(UsageError, match=r"--model-file .*other.py: its text differs"):
        _model_file(job(home / "none.py", model=MODEL), str(home / "other.py"))


def test_without_code_the_fix_is_named(home: Path) -> None:
    with pytest.raises(UsageError, match=r"copy it here and name it with --model-file"):
        _model_file(job(home / "none.py"), "")


def test_the_words_of_the_command() -> None:
    args = parse(["join", "node0:29400", "--nproc-per-node", "3"])
    assert (args.endpoint, args.nproc_per_node, args.model_file) == ("node0:29400", 3, "")
    with pytest.raises(UsageError, match="HOST:PORT: missing; name the --rdzv-endpoint of the job"):
        parse(["join"])


@pytest.fixture
def place(home: Path) -> Iterator[SeveralMachines]:
    made = SeveralMachines(home, timeout_s=10.0)
    yield made
    made.close()


def join(place: SeveralMachines, *words: str, token: str | None = None) -> tuple[int, str]:
    env = {**os.environ, ENV_TOKEN: place.env[ENV_TOKEN] if token is None else token}
    done = subprocess.run(
        [*EDL, "join", *(words or [place.env[ENV_MASTER]])],
        env=env,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    return done.returncode, done.stderr


def test_errors_come_before_anything_started(place: SeveralMachines, home: Path) -> None:
    model = home / "model.py"
    model.write_bytes(MODEL)
    place.launcher(model_file=str(model), mark=home / "elsewhere" / ".mark")
    endpoint = place.env[ENV_MASTER]
    for words, token, told in (
        (["nowhere"], None, "nowhere: not an endpoint; write HOST:PORT"),
        ([endpoint], "", f"{endpoint}: something listens there"),
        ([endpoint], "short", "TORCH_EDL_TOKEN: 5 characters"),
        ([endpoint, "--nproc-per-node", "0"], None, "--nproc-per-node 0: must be 1 or more"),
        ([endpoint, "--model-file", "none.py"], None, "--model-file none.py: no such file"),
        ([endpoint], None, "must be on a file system that all machines share"),
    ):
        code, error = join(place, *words, token=token)
        assert (code, told in " ".join(error.split())) == (2, True), error


def test_a_machine_joins_and_leaves_with_the_job(place: SeveralMachines, home: Path) -> None:
    launcher = place.launcher(model_file=str(home / "model.py"))
    (home / "model.py").write_bytes(MODEL)
    assert isinstance(launcher, Machines)
    endpoint = place.env[ENV_MASTER]
    env = {**os.environ, ENV_TOKEN: place.env[ENV_TOKEN]}
    with subprocess.Popen([*EDL, "join", endpoint], env=env, stderr=subprocess.PIPE) as node:
        wait_for(lambda: launcher.poll() or node.poll() is not None)
        launcher.nodes.over("no records left", failed=True)
        launcher.stop_all(grace_s=0)
        _, error = node.communicate(timeout=COMMAND_S)
    assert node.returncode == 1
    assert "joining job ctr" in error.decode()
    assert "no records left" in error.decode()
