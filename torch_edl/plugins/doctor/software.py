"""Checks of the software: Python, the packages, torch, the compiled core and the compiler.

What may be broken is imported in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch_edl
from torch_edl.plugins.doctor.finding import Finding, ok, problem, size, warning

_LEAST_PYTHON = (3, 11)
# An import of torch from a cold network file system takes minutes.
_IMPORT_TIMEOUT_S = 300.0
_SLOW_IMPORT_S = 10.0
_COMPILE_TIMEOUT_S = 60.0
_REINSTALL = "pip install --force-reinstall --no-deps torch-edl (in a checkout: pip install -e .)"
_NVIDIA = Path("/proc/driver/nvidia/version")

_IMPORT_TORCH = """
import json, resource, time
began = time.perf_counter()
import torch
took = time.perf_counter() - began
gpus, error = [], ""
try:
    for number in range(torch.cuda.device_count()):
        assert torch.ones(8, device=f"cuda:{number}").sum().item() == 8
        gpus.append(torch.cuda.get_device_name(number))
except Exception as raised:
    error = str(raised).partition("\\n")[0]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps({"version": torch.__version__, "import_s": round(took, 2), "memory_bytes": peak,
                  "cuda": torch.version.cuda or "", "gpus": gpus, "gpu_error": error}))
"""
_USE_CORE = """
import json
import numpy as np
from torch_edl import _core
ids = np.array([7, 3, 7], np.int64)
hashes = _core.hash_integers(ids, None, np.zeros(1, np.uint64))
assert hashes[0] == hashes[2] != hashes[1]
print(json.dumps({"file": _core.__file__}))
"""
# What an installation from the source needs: C++17 and the headers of Python.
_PROGRAM = "#include <Python.h>\n#include <optional>\nstd::optional<int> f() { return 1; }\n"


def python() -> Iterator[Finding]:
    """Check the interpreter and the system."""
    version = platform.python_version()
    found = f"{version}, {sys.prefix}"
    if sys.version_info < _LEAST_PYTHON:
        fix = "make an environment of Python 3.11 or newer, and install torch-edl there"
        yield problem("python", found, fix, version=version)
    elif sys.platform != "linux" or sys.maxsize < 1 << 32:
        fix = "use a 64-bit Linux, on a machine, in a container or in WSL 2"
        system = f"{platform.system()} {platform.machine()}"
        yield problem("python", f"{found}, {system}", fix, version=version)
    else:
        yield ok("python", found, version=version)


def packages() -> Iterator[Finding]:
    """Check that the packages which torch-edl requires are installed, and are new enough."""
    wrong, wanted, count = [], [], 0
    for line in metadata.requires("torch-edl") or ():
        if "extra ==" in line:
            continue
        count += 1
        name, least = re.match(r"([\w.-]+)(?:>=([\d.]+))?", line).groups()  # type: ignore[union-attr]
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or (least and _numbers(version) < _numbers(least)):
            wrong.append(f"{name} {version or 'is missing'}")
            wanted.append(f"'{line}'")
    if wrong:
        yield problem("packages", "; ".join(wrong), f"pip install {' '.join(wanted)}", wrong=wrong)
    else:
        yield ok("packages", f"{count} required packages are installed", count=count)


def torch() -> Iterator[Finding]:
    """Import torch in a new process, as each worker does, and use each GPU."""
    found, error = _in_process(_IMPORT_TORCH)
    if error:
        fix = "reinstall torch until python -c 'import torch' works: pip install torch"
        yield problem("torch", f"the import failed: {error}", fix)
        return
    text = f"{found['version']}, imported in {found['import_s']:.1f} s"
    text += f", {size(found['memory_bytes'])} per process"
    values = {key: found[key] for key in ("version", "import_s", "memory_bytes")}
    if found["import_s"] > _SLOW_IMPORT_S:
        fix = (
            "every start of a job and of a pod takes this long: put the environment on a local disk"
        )
        yield warning("torch", text, fix, **values)
    else:
        yield ok("torch", text, **values)
    yield _gpus(found)


def _gpus(found: dict[str, Any]) -> Finding:
    names = found["gpus"]
    values = {"gpus": names, "cuda": found["cuda"]}
    if found["gpu_error"]:
        fix = "repair the driver or torch until python -c 'import torch; torch.ones(1).cuda()' "
        fix += "works; to train on the CPU, set CUDA_VISIBLE_DEVICES to nothing"
        return problem("gpu", found["gpu_error"], fix, **values)
    if not names and _NVIDIA.exists():
        cause = "was built without CUDA" if not found["cuda"] else "sees no GPU"
        fix = (
            "install a torch with CUDA (pip install torch from PyTorch's index for CUDA)"
            if not found["cuda"]
            else "unset CUDA_VISIBLE_DEVICES, or pass the GPU to the container (--gpus all)"
        )
        text = f"the machine has an NVIDIA driver, but torch {cause}"
        return warning("gpu", text, fix, **values)
    return ok("gpu", ", ".join(names) or "none; jobs train on the CPU", **values)


def core() -> Iterator[Finding]:
    """Use the compiled core, and look for a compiler if it needs one."""
    found, error = _in_process(_USE_CORE)
    compiler, lacks = _compiler()
    fix = f"compile it again: {_REINSTALL}"
    if lacks:
        fix = f"{lacks}, and then {fix}"
    if error:
        yield problem("compiled core", error, fix)
    else:
        library = Path(found["file"])
        values = {"file": str(library)}
        newer = [each.name for each in _sources() if each.stat().st_mtime > library.stat().st_mtime]
        if newer:
            text = f"compiled before these sources changed: {', '.join(sorted(newer)[:3])}"
            yield warning("compiled core", text, fix, **values)
        else:
            yield ok("compiled core", library.name, **values)
    if lacks:
        text = f"{compiler}; only an installation from source needs a compiler"
        yield ok("compiler", text, usable=False)
    else:
        yield ok("compiler", compiler, usable=True)


def _sources() -> Iterator[Path]:
    """Yield the sources of the core of a checkout."""
    folder = Path(torch_edl.__file__).parent
    if (folder.parent / "setup.py").is_file():
        yield from (folder / "csrc").glob("*.*")


def _compiler() -> tuple[str, str]:
    """Return the version of the compiler, and what to install; empty if it works."""
    name = os.environ.get("CXX") or "g++"
    path = shutil.which(name.split()[0])
    if path is None:
        return f"no {name}", "install a C++ compiler (Debian: apt-get install g++)"
    words = [*name.split(), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    words += ["-I", sysconfig.get_paths()["include"]]
    done = _done(words, _COMPILE_TIMEOUT_S, stdin=_PROGRAM)
    if done.returncode:
        reason = "it has no headers of Python" if "Python.h" in done.stderr else "it fails"
        fix = "a compiler of C++17 with the headers of Python"
        return f"{path}: {reason}", f"install {fix} (Debian: apt-get install g++ python3-dev)"
    first = _done([*name.split(), "--version"], _COMPILE_TIMEOUT_S).stdout.partition("\n")[0]
    return first.strip() or path, ""


def _in_process(program: str) -> tuple[dict[str, Any], str]:
    """Run a program of Python, and return the object that it prints, or the reason of its end."""
    done = _done([sys.executable, "-P", "-c", program], _IMPORT_TIMEOUT_S)
    if done.returncode < 0:
        return {}, f"signal {-done.returncode} ended the process"
    lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
    if done.returncode or not lines:
        return {}, lines[-1] if lines else f"exit code {done.returncode}"
    result: dict[str, Any] = json.loads(lines[-1])
    return result, ""


def _done(words: list[str], timeout_s: float, stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"did not end within {timeout_s:.0f} s")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (2, 4) of ``2.4rc1``."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
