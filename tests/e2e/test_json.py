"""What commands print with ``--json`` is as docs/schemas/ says. The verdicts of audits and storms,
the report of an evaluation and that of the doctor are validated where other tests make them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.place import Place
from tests.schemas import FOLDER, load, require_valid
from tests.waiting import COMMAND_S, wait_for
from torch_edl.cli.__main__ import main
from torch_edl.cli.arguments.parser import build_parser
from torch_edl.launch.jobs.status import as_dict
from torch_edl.wire import master_pb2 as pb

PAGE = FOLDER.parent / "json.md"
MODEL = """
import torch
from torch.nn import Linear, functional as F
def model(): return Linear(1, 1)
def loss(labels, predictions): return F.mse_loss(predictions, labels)
def optimizer(params): return torch.optim.SGD(params, lr=0.1)
def feed(records, mode, metadata):
    return tuple(torch.tensor(records[n].to_numpy()).float()[:, None] for n in ("x", "y"))
"""


def described(schema: Any, place: str = "") -> Iterator[str]:
    """The properties without a description."""
    if isinstance(schema, list):
        for each in schema:
            yield from described(each, place)
    if isinstance(schema, dict):
        properties = schema.get("properties")
        for name, each in properties.items() if isinstance(properties, dict) else ():
            if not each.get("description"):
                yield f"{place}.{name}"
        for name, each in schema.items():
            yield from described(each, f"{place}.{name}")


@pytest.mark.parametrize("name", [path.stem for path in sorted(FOLDER.glob("*.json"))])
def test_a_schema_is_valid_and_describes_each_field(name: str) -> None:
    Draft202012Validator.check_schema(load(name))
    assert load(name)["$id"] == f"{name}.json"
    assert load(name)["description"]
    assert not list(described(load(name)))


def test_each_verb_with_json_has_a_schema_and_a_row_of_the_document() -> None:
    verbs = next(a for a in build_parser()._actions if a.dest == "verb").choices
    having = {name for name, verb in verbs.items() if "--json" in verb._option_string_actions}
    linked = set(re.findall(r"\]\(schemas/(\w+)\.json\)", PAGE.read_text()))
    schemas = {path.stem for path in FOLDER.glob("*.json")}
    assert linked == schemas == having | {"summary"}


def test_a_field_that_is_not_documented_is_found() -> None:
    require_valid("stop", {"job": "a", "state": "stopped"})
    with pytest.raises(AssertionError, match="'more' was unexpected"):
        require_valid("stop", {"job": "a", "state": "stopped", "more": 1})
    with pytest.raises(AssertionError, match="'state' is a required property"):
        require_valid("list", [{"job": "a"}])


def test_a_status_has_the_documented_fields_of_its_messages() -> None:
    """This needs no job: who adds a field finds its place here."""
    full = pb.GetStatusResponse(
        kind="train", state="running", processes=[pb.ProcessStatus(role="ps", state="running")],
        evaluations=[pb.EvaluationResult(steps=1)], losses=[pb.LossCounts(role="ps")],
    )  # fmt: skip
    full.best.metric = "loss"
    counts = full.processes[0].counts
    counts.tables.add()
    for each in (counts.pull_s, counts.push_s, counts.staleness):
        each.sum = 1.0
    require_valid("status", as_dict(full))


@pytest.fixture
def running(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A job of a worker and a server that trains until it is stopped."""
    (place / "model.py").write_text(MODEL)
    rows = "\n".join(f"{i / 500},{i / 250}" for i in range(500))
    (place / "line.csv").write_text(f"x,y\n{rows}\n")
    words = "run model.py --data line.csv --ps 1 --workers 1 --epochs 1000000"
    more = "--checkpoint-dir steps --job-name line --summary s.json"
    yield place.edl(*words.split(), *more.split())
    place.close()


def test_what_commands_print_is_as_documented(
    place: Place,
    running: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("TORCH_EDL_HOME", place.env["TORCH_EDL_HOME"])

    def shown(line: str) -> Any:
        code = main([*line.split(), "--json"])
        out, told = capsys.readouterr()
        assert code == 0, told
        if line.startswith("logs"):
            return [json.loads(line) for line in out.splitlines()]
        found = json.loads(out)
        require_valid(line.split()[0], found)
        return found

    file = Path(place.env["TORCH_EDL_HOME"]) / "jobs" / "line" / "status.json"

    def seen() -> Any:
        return json.loads(file.read_text()) if file.exists() else {}

    wait_for(lambda: seen().get("steps"), seen)

    def pulls() -> int:
        [server] = [each for each in shown("status line")["processes"] if each["role"] == "ps"]
        return sum(server["counts"]["pull_s"]["counts"]) if server["counts"] else 0

    wait_for(pulls)  # the server's heartbeat tells of them, which may be later than the worker's
    assert [each["job"] for each in shown("list")] == ["line"]
    stacks = shown("stack line")["workers"]
    assert [each["id"] for each in stacks] == [0]
    assert "Thread" in stacks[0]["stacks"]
    scaled = shown("scale line --workers 1:2")
    assert (scaled["min_workers"], scaled["max_workers"], scaled["servers"]) == (1, 2, None)
    assert shown("stop line") == {"job": "line", "state": "stopped"}
    running.communicate(timeout=COMMAND_S)
    require_valid("summary", place.json("s.json"))
    lines = shown("logs line")
    for each in lines:
        require_valid("logs", each)
    assert {"master-0", "ps-0", "worker-0", "events"} <= {each["log"] for each in lines}
    assert shown("status line")["state"] == "stopped"
    exported = shown("export line model.pt")
    assert (place / "model.pt").exists()
    assert exported["file"] == "model.pt"
    home = Path(place.env["TORCH_EDL_HOME"])
    assert shown("clean --dry-run") == {
        "dry_run": True,
        "removed": [{"job": "line", "place": str(home / "jobs" / "line")}],
    }
    assert shown("clean line")["dry_run"] is False
    assert shown("clean --days 0") == {"dry_run": False, "removed": []}
