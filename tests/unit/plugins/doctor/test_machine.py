"""The checks of this machine, under limits and faults that are real."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.other_user import STRANGER, needs_root
from tests.schemas import require_valid
from torch_edl.cli.__main__ import main
from torch_edl.cli.terminal import stdout
from torch_edl.plugins.doctor import command, disk, machine, network, software
from torch_edl.plugins.doctor.cgroups import room
from torch_edl.plugins.doctor.finding import Finding, ok, warning

PAGE = Path(__file__).parents[4] / "docs" / "operations.md"


def one(findings: list[Finding], check: str) -> Finding:
    return next(each for each in findings if each.check == check)


def test_each_documented_check_is_made_and_says_what_to_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    code = main(["doctor", "--json", "--output", str(tmp_path / "new")])
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["can_run"] else 1)
    require_valid("doctor", report)
    page = PAGE.read_text().partition("## The folder of a job")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    documented = re.findall(r"`([^`]+)`", " ".join(cells))
    assert [each["check"] for each in report["findings"]] == documented
    for each in report["findings"]:
        assert each["found"]
        assert bool(each["fix"]) == (each["state"] != "ok"), each
    values = {each["check"]: each["values"] for each in report["findings"]}
    assert values["torch"]["import_s"] > 0
    assert values["loopback"]["bytes_per_s"] > 1e6
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_a_finding_is_shown_before_the_next_check_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def second() -> Iterator[Finding]:
        assert "ok       one: found\n" in capsys.readouterr().out
        yield warning("two", "found", "change it")

    for each in command._run({"one": lambda: iter([ok("one", "found")]), "two": second}):
        command._show(each, stdout())
    assert capsys.readouterr().out.splitlines() == ["warning  two: found", "         change it"]


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (str(tmp_path / "file"), "/proc/none"):
        [found] = disk.output(folder)
        assert (found.state, bool(found.fix)) == ("problem", True), found
        assert folder in found.found


@needs_root
def test_the_limits_of_a_user_who_is_not_root() -> None:
    program = f"""
import os, resource
from torch_edl.plugins.doctor import disk, machine
resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
os.seteuid({STRANGER})
print(list(machine.limits())[1].state, next(disk.output("/root/models")).state)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["problem", "problem"], done.stderr


def test_a_torch_that_cannot_be_imported_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    [found] = software.torch()
    assert found.state == "problem"
    assert "libcudart.so: cannot open" in found.found


def test_a_core_that_cannot_be_imported_names_the_compiler_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with_core = list(software.core())
    assert one(with_core, "compiler").state == "ok"
    (tmp_path / "numpy.py").write_text("raise ImportError('GLIBCXX_3.4.99 not found')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    without = one(list(software.core()), "compiled core")
    assert without.state == "problem"
    assert "GLIBCXX_3.4.99 not found" in without.found
    assert without.fix.startswith("install a C++ compiler")


def test_packages_that_are_missing_or_old_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "torch_edl-9.dist-info"
    info.mkdir()
    needs = ["no-such-package>=3", "numpy>=999", "pyarrow>=1", "absent; extra == 'x'"]
    lines = ["Name: torch-edl", "Version: 9", *(f"Requires-Dist: {each}" for each in needs)]
    (info / "METADATA").write_text("\n".join(lines).replace("'", '"'))
    monkeypatch.syspath_prepend(str(tmp_path))
    [found] = software.packages()
    assert found.state == "problem"
    assert found.fix == "pip install 'no-such-package>=3' 'numpy>=999'"


@pytest.mark.parametrize(("files", "state"), [(25, "problem"), (500, "warning"), (2000, "ok")])
def test_a_limit_of_open_files(files: int, state: str) -> None:
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))\n"
        "from torch_edl.plugins.doctor.machine import limits\n"
        "print(next(limits()).state)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == state, done.stderr


def test_memory_that_no_other_process_can_map_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(machine.shared_memory()).state == "ok"
    monkeypatch.setattr(machine, "_MAPPED", 0)  # the core rejects empty memory
    found = next(machine.shared_memory())
    assert (found.state, bool(found.fix)) == ("warning", True)
    assert "not sealed memory" in found.found


def test_an_address_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_LOOPBACK", "192.0.2.1")  # RFC 5737: of no machine
    assert [each.state for each in network.ports()] == ["problem"]
    assert [each.state for each in network.loopback()] == ["problem"]


@pytest.mark.parametrize("version", [1, 2])
def test_the_room_of_control_groups(tmp_path: Path, version: int) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/a/b\n3:cpu:/x\n" if version == 1 else "0::/a/b\n")
    root = tmp_path / "sys"
    outer = root / ("memory/a" if version == 1 else "a")
    inner = outer / "b"
    inner.mkdir(parents=True)
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    for folder, most, now, dropped in ((outer, 1000, 700, 100), (inner, 5000, 600, 0)):
        (folder / limit).write_text(f"{most}\n")
        (folder / used).write_text(f"{now}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {dropped}\n")
    assert room("memory", default=9, root=root, groups=groups) == 400
    (outer / limit).write_text("max\n")
    assert room("memory", default=9, root=root, groups=groups) == 4400
    assert room("pids", default=9, root=root, groups=groups) == 9
