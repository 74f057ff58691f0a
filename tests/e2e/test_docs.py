"""Runs what the documents say: their files are written, their commands executed as they stand.

A comment before a fenced block says what the block is:

- ``file: NAME``: the content of a file; ``add: NAME``: what is appended to it;
- ``run``: commands, all of a document in one shell, which stops at the first that fails;
- ``output``: lines that the commands before it print, in this order. ``...`` stands for any
  lines, any number for any other, and blanks for each other.

``until: COMMAND`` needs no block: the shell continues when the command succeeds.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from tests.waiting import COMMAND_S
from torch_edl.cli.arguments.parser import build_parser
from torch_edl.wire import services

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_PART = re.compile(
    r"<!-- (?P<kind>file|add|run|output|until)(?:: (?P<what>.*?))? -->\n"
    r"(?:```\w*\n(?P<body>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = r"-?\d[\d,.:]*(?:e-?\d+)?"
_ANY = {"...": ".*"}


@dataclass(frozen=True)
class Part:
    """A marked block of a document."""

    kind: str
    what: str
    body: str
    line: int


def parts_of(path: Path) -> list[Part]:
    text = path.read_text(encoding="utf-8")
    parts = [
        Part(m["kind"], m["what"] or "", m["body"] or "", text.count("\n", 0, m.start()) + 1)
        for m in _PART.finditer(text)
    ]
    for part in parts:
        assert part.body or part.kind == "until", f"{path.name}:{part.line}: no block follows"
    return parts


def script_of(parts: list[Part]) -> str:
    """One shell script; what it prints tells by ``@@ LINE`` which part it is in."""
    script = ["set -eu"]
    for part in parts:
        script.append(f"echo '@@ {part.line}'")
        if part.kind in ("file", "add"):
            arrow = ">" if part.kind == "file" else ">>"
            script.append(f"mkdir -p {shlex.quote(os.path.dirname(part.what) or '.')}")
            script.append(f"cat {arrow} {shlex.quote(part.what)} <<'@@ END'\n{part.body}@@ END")
        elif part.kind == "until":
            script.append(f"until {part.what}; do sleep 0.1; done")
        elif part.kind == "run":
            script.append(part.body)
    return "\n".join([*script, "echo '@@ 0'\n"])


def run(path: Path, folder: Path) -> None:
    """Executes a document in a folder and compares what it prints."""
    parts = parts_of(path)
    log = folder / "output.log"
    env = {
        **os.environ,
        "TORCH_EDL_HOME": str(folder / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    (folder / "script.sh").write_text(script_of(parts))
    with open(log, "wb") as output:
        shell = subprocess.Popen(
            ["bash", folder / "script.sh"], cwd=folder, env=env,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = shell.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            # Its group is still its own, or empty; jobs that it left behind are in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = log.read_text(errors="replace")
    at = re.findall(r"^@@ (\d+)$", text, re.MULTILINE)[-1]
    assert code == 0, f"{path.name}:{at} ended with {code}:\n{text[-4000:]}"
    _compare(path, parts, text)


def _compare(path: Path, parts: list[Part], text: str) -> None:
    pieces = re.split(r"^@@ (\d+)\n", text, flags=re.MULTILINE)
    printed = dict(zip(map(int, pieces[1::2]), pieces[2::2], strict=True))
    before = ""
    for part in parts:
        if part.kind == "run":
            before = printed[part.line]
        elif part.kind == "output":
            rest = before.splitlines()
            for line in part.body.splitlines():
                if line.strip() in ("", "..."):
                    continue
                wanted = _pattern(line)
                while rest and not wanted.fullmatch(rest[0].strip()):
                    rest.pop(0)
                assert rest, f"{path.name}:{part.line}: {line!r} is not printed in\n{before}"
                rest.pop(0)


def _pattern(line: str) -> re.Pattern[str]:
    words = []
    for word in line.split():
        pieces = re.split(rf"({_NUMBER}|\.\.\.)", word)
        kept = (_ANY.get(p, _NUMBER) if i % 2 else re.escape(p) for i, p in enumerate(pieces))
        words.append("".join(kept))
    return re.compile(r"\s+".join(words))


@pytest.mark.timeout(COMMAND_S + 20)
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        # tests/faults/test_chaos.py has a job of the same model under the same command.
        pytest.param("examples/counting/README.md", marks=pytest.mark.slow),
        "docs/extending.md",
        # They start a dozen jobs.
        pytest.param("docs/preprocessing.md", marks=pytest.mark.slow),
        pytest.param("docs/recommenders.md", marks=pytest.mark.slow),
        pytest.param("docs/tensorflow.md", marks=pytest.mark.slow),
        pytest.param("docs/tutorial.md", marks=pytest.mark.slow),
        pytest.param("docs/trainer.md", marks=pytest.mark.slow),
    ],
)
def test_what_a_document_says_works(name: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run(ROOT / name, tmp_path)


def test_the_readme_shows_what_make_quickstart_runs() -> None:
    """Its first commands are those of the recipe."""
    makefile = _words((ROOT / "Makefile").read_text().replace("$(BIN)/", ""))
    commands = next(p.body for p in parts_of(ROOT / "README.md") if p.kind == "run")
    for command in commands.replace("\\\n", " ").splitlines():
        assert _words(command) in makefile


def _words(text: str) -> str:
    return " ".join(text.replace("\\\n", " ").split())


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_what_a_document_names_is_there(path: Path) -> None:
    """Links, files of the repository, targets of make and options."""
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / link).exists(), link
    files = r"`((?:torch_edl|master|tests|examples|benchmarks|tools|docs)/[\w/.-]*)`"
    for file in re.findall(files, text):
        assert (ROOT / file).exists(), file
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    known: set[str] = set()
    for verb in next(a for a in build_parser()._actions if a.dest == "verb").choices.values():
        known.update(verb._option_string_actions)
    # Scripts take torchrun's options.
    known.update(get_args_parser()._option_string_actions)
    known.update({"--help-torchrun", "--nproc"})  # --nproc_per_node, as far as it matches below
    # Options of pip.
    known.update({"--no-build-isolation", "--no-deps", "--quiet", "--target", "--wheel-dir"})
    # Options of kubectl.
    known.update({"--delete-emptydir-data", "--server-side"})
    # Options of etcd.
    known.update({"--auto-compaction-retention", "--data-dir", "--max-request-bytes"})
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", _no_comments(text))) <= known


def _no_comments(text: str) -> str:
    return re.sub(r"<!--.*?-->", "", text)


def test_the_protocol_document_names_every_call() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    every = services.methods(services.PSERVER + services.REPLICAS + services.MASTER)
    assert not [name for name in every if f"`{name}`" not in text]


def test_the_architecture_document_names_every_floor() -> None:
    """In the order in which setup.cfg holds them."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    config = (ROOT / "setup.cfg").read_text()
    listed = re.search(r"name = The floors of torch_edl\ntype = layers\nlayers =\n(.*?)\n\n",
                       config, re.DOTALL)  # fmt: skip
    assert listed
    layers = re.findall(r"torch_edl\.(\w+)", listed[1])
    table = text[text.index("<!-- layers -->") : text.index("<!-- end of layers -->")]
    assert re.findall(r"`torch_edl\.(\w+)`", table) == layers


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200
