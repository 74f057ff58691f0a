"""Decides which arguments of ``torch-edl run`` belong to a model file or to a training script.

The file is read and not run. This module does not import torch, so that a job of a model file
starts without that delay.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence

from torch_edl.cli import config_file, user_file
from torch_edl.cli.options import script_flags
from torch_edl.errors import UsageError

# torchrun's environment variables for --no-python and --module.
_NO_FILE = ("PET_NO_PYTHON", "PET_MODULE")

log = logging.getLogger(__name__)

DRY_RUN = "--dry-run"
_DATA = "--data"

# Accepted only before the script: many scripts have options of these names that their source does
# not show.
_BEFORE_ONLY = (config_file.FLAG, DRY_RUN)
# Options of torch-edl that may also follow a script, and whether each takes a value.
OWN_OPTIONS = {flag: value for flag, value in script_flags().items() if flag not in _BEFORE_ONLY}


def script_words(words: Sequence[str], run: argparse.ArgumentParser) -> list[str] | None:
    """Return the arguments for the parser of scripts; None if the parser of model files applies.

    Args:
        words: the arguments of ``run``.
        run: the parser of ``run`` for model files.

    Raises:
        UsageError: an option before a script that only model files take, or a file that is not
            Python.
    """
    known = run._option_string_actions
    if "--help-torchrun" in words:
        return ["--help"]
    before: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        if word in ("-h", "--help"):
            return None
        if word == "--" or not word.startswith("-"):
            break
        flag, equals, _ = word.partition("=")
        if flag not in known:
            _check_behind_torchruns(words[place:])
            return list(words)  # torchrun's parser rejects the option if it is unknown there too
        before.append(flag)
        place += 1
        if equals or known[flag].nargs == 0:
            continue
        if known[flag].nargs is None:
            place += 1
            continue
        while place < len(words) and not words[place].startswith("-"):
            place += 1
    is_cut = words[place : place + 1] == ["--"]
    place += is_cut
    if place < len(words) and any(os.environ.get(name, "0") != "0" for name in _NO_FILE):
        return list(words)  # the program need not be a Python file
    if place >= len(words) or not os.path.exists(words[place]):
        return None  # the parser of model files names what is missing
    file, rest = words[place], list(words[place + 1 :])
    ours = [] if is_cut else _before_cut(rest)
    has_data = "--data" in before or any(w.partition("=")[0] == "--data" for w in ours)
    kind = user_file.kind_of(file, has_data=has_data)
    if not (kind.is_script or is_cut):
        return None
    for flag in before:
        if flag not in OWN_OPTIONS and flag not in _BEFORE_ONLY:
            raise UsageError(
                f"{flag}: {file} is a training script ({kind.reason}): {why_not(flag)}"
            )
    if is_cut:
        return list(words)
    uses_torch_edl = user_file.uses_torch_edl(file)
    if kind.absent and not uses_torch_edl:
        log.warning(
            "%s runs as a training script, since %s; a model file defines both", file, kind.reason
        )
    if before or not uses_torch_edl:
        _check_swallowed(file, ours)
        return list(words)
    return _own_first(file, rest)


def _own_first(file: str, rest: list[str]) -> list[str]:
    """Move options of torch-edl that directly follow the script in front of the script.

    An option that the script itself names belongs to the script, with all arguments after it.
    """
    named = user_file.named_options(file)
    own: list[str] = []
    while rest:
        flag, equals, _ = rest[0].partition("=")
        if flag not in OWN_OPTIONS or flag in named:
            break
        count = 2 if OWN_OPTIONS[flag] and not equals else 1
        own += rest[:count]
        rest = rest[count:]
    _check_swallowed(file, _before_cut(rest))
    if rest[:1] == ["--"]:
        rest = rest[1:]
    return [*own, file, *rest]


def _check_behind_torchruns(words: Sequence[str]) -> None:
    for place, word in enumerate(words):
        if word.endswith(".py") and os.path.isfile(word):
            _check_swallowed(word, _before_cut(words[place + 1 :]))
            return


def _before_cut(words: Sequence[str]) -> Sequence[str]:
    return words[: words.index("--")] if "--" in words else words


def _check_swallowed(file: str, words: Sequence[str]) -> None:
    """Warn about arguments after a script that are options of torch-edl.

    Arguments that the source of the script names are not reported.

    Raises:
        UsageError: ``--dry-run``: the script would train.
    """
    given = [word.partition("=")[0] for word in words]
    for flag in given:
        if flag not in (*OWN_OPTIONS, _DATA, DRY_RUN) or flag in user_file.named_options(file):
            continue
        if flag == DRY_RUN:
            raise would_train(file)
        hint = "options of torch-edl go before the script"
        if flag == _DATA:
            hint = "a training script; a model file defines model and loss"
        log.warning("%s is passed to %s, which does not name the option (%s)", flag, file, hint)


def would_train(file: str) -> UsageError:
    """Return the error for a dry run of a script on this machine."""
    return UsageError(
        f"{DRY_RUN}: {file} is a training script and would train; for pods, --platform kubernetes "
        f"{DRY_RUN} before the script prints the YAML. On this machine, try the script on few "
        f"records; if the script itself takes the option, write {file} -- {DRY_RUN}"
    )


def why_not(flag: str) -> str:
    """Return the reason why a script does not accept an option of model files."""
    if flag in ("--data", "--eval-data", "--format", "--epochs", "--batch-size"):
        return "a script reads its own data; its own options go after the script"
    if flag == "--processes-per-pod":
        return "write --nproc-per-node N, which says how many workers of a script a pod has"
    return "the option is for model files; see torch-edl run --help-torchrun"
