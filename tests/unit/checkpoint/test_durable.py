"""Files and folders that are replaced whole and durably, in one place."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_edl.checkpoint.durable import rename, replacing, replacing_path, write_text

ROOT = Path(__file__).parents[3]
PACKAGES = ("torch_edl", "master", "tf_compat", "examples", "benchmarks", "tools")
RENAMES = {"os.replace", "os.rename", "os.renames", "shutil.move"}


def renames(path: Path) -> Iterator[str]:
    """The calls of a module that rename files: ``Path.replace`` and ``Path.rename`` have one
    argument, other methods of that name have none or several."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        alone = len(node.args) == 1 and not isinstance(node.args[0], ast.Starred)
        of_path = called.endswith((".replace", ".rename")) and alone and not node.keywords
        if called in RENAMES or (of_path and called != "files.rename"):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {called}"


def test_nothing_else_renames() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(modules) > 300
    found = [line for path in modules for line in renames(path)]
    assert found
    assert [line for line in found if not line.startswith("torch_edl/checkpoint/durable.py:")] == []


TRACED = """
import json, os, sys
from pathlib import Path
seen = []

def traced(name):
    real = getattr(os, name)

    def call(first, *rest):
        path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
        seen.append([name, Path(path).name.partition(".part")[0].rpartition(".")[0] or
                     Path(path).name])
        return real(first, *rest)

    setattr(os, name, call)

for name in ("fsync", "replace", "rename"):
    traced(name)
from torch_edl.checkpoint import durable as files
root = Path(sys.argv[1])
exec(sys.argv[2])
print(json.dumps(seen))
"""


def traced(root: Path, code: str) -> list[list[str]]:
    """What a process forces to the disk and renames, in its order."""
    command = [sys.executable, "-c", TRACED, str(root), code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path: Path) -> None:
    seen = traced(tmp_path, "files.write_text(root / 'a', 'text')")
    assert seen == [["fsync", ".a"], ["replace", ".a"], ["fsync", tmp_path.name]]


def test_all_of_a_folder_is_on_the_disk_before_its_name_is(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    seen = traced(
        tmp_path,
        "with files.replacing_path(root / 'out') as new:\n"
        "    (new / 'in').mkdir(parents=True)\n"
        "    (new / 'in' / 'file').touch()",
    )
    assert [name for name, _ in seen] == ["fsync"] * 3 + ["rename"] * 2 + ["fsync"]
    assert [path for _, path in seen[:3]] == ["file", "in", ".out"]
    assert seen[-1] == ["fsync", tmp_path.name]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "in", "out"]


def test_a_name_is_on_the_disk_when_the_rename_returns(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    seen = traced(tmp_path, "files.rename(root / 'a', root / 'b')")
    assert seen == [["rename", "a"], ["fsync", tmp_path.name]]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "new").mkdir()
    with pytest.raises(OSError, match="full"):
        rename(tmp_path / "new", tmp_path / "full")


@pytest.mark.parametrize("folder", [False, True])
def test_what_was_there_stays_if_the_block_raises(tmp_path: Path, folder: bool) -> None:
    (tmp_path / "a").mkdir() if folder else (tmp_path / "a").write_text("old")
    with contextlib.suppress(ZeroDivisionError), replacing_path(tmp_path / "a") as new:
        new.mkdir() if folder else new.write_text("new")
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert folder or (tmp_path / "a").read_text() == "old"


def test_a_link_to_a_folder_on_another_disk_stays(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "old").touch()
    (tmp_path / "out").symlink_to("big")
    with replacing_path(tmp_path / "out") as new:
        new.mkdir()
        (new / "file").touch()
    assert (tmp_path / "out").is_symlink()
    assert os.listdir(tmp_path / "big") == ["file"]


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "text")
        with replacing(tmp_path / "b", 0o600) as file:
            file.write(b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
