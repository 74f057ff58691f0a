"""Decides which arguments of ``torch-edl run`` belong to a model file or to a training script, and
parses those of a script: the options of torchrun with those of torch-edl.

The file is read and not run. torch is imported for scripts only, so that a job of a model file
starts without that delay.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
from collections.abc import Sequence
from typing import NoReturn

from torch_edl.cli.arguments import config_file, user_file
from torch_edl.cli.arguments.options import add_options, flags, plain
from torch_edl.errors import UsageError

# torchrun's environment variables for --no-python and --module.
_NO_FILE = ("PET_NO_PYTHON", "PET_MODULE")

log = logging.getLogger(__name__)

DRY_RUN = "--dry-run"
_HELP = "--help-torchrun"
ONE_MACHINE = ("1", "1:1")
"""Values of --nnodes for a single machine."""

# Options of torchrun that model files have too.
_TORCHRUNS = ("--nnodes", "--nproc-per-node", "--rdzv-endpoint")


def script_words(words: Sequence[str], run: argparse.ArgumentParser) -> list[str] | None:
    """Return the arguments for the parser of scripts; None if the parser of model files applies.

    Args:
        words: the arguments of ``run``.
        run: the parser of ``run`` for model files.

    All words after a script belong to the script, even if they are names of options.

    Raises:
        UsageError: an option before a script that only model files take, or a file that is not
            Python.
    """
    known = run._option_string_actions
    before: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        if word in ("-h", "--help"):
            return None
        if word == _HELP:
            return list(words)
        if word == "--" or not word.startswith("-"):
            break
        flag, equals, _ = word.partition("=")
        if flag not in known:
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
        if is_cut and place < len(words) and words[place].endswith(".py"):
            raise UsageError(f"{words[place]}: no such file; after `--` comes a training script")
        return None  # the parser of model files names what is missing
    file = words[place]
    kind = user_file.kind_of(file)
    if not (kind.is_script or is_cut):
        return None
    of_scripts = flags("script")
    for flag in before:
        if flag not in (*of_scripts, *_TORCHRUNS):
            raise UsageError(
                f"{flag}: {file} is a training script ({kind.reason}): {why_not(flag)}"
            )
    if kind.absent and not is_cut and not user_file.uses_torch_edl(file):
        log.warning(
            "%s runs as a training script, since %s; a model file defines both", file, kind.reason
        )
    return list(words)


def rejection_hint(script: str, words: Sequence[str]) -> str:
    """Return the advice for a script that may have rejected its arguments; empty if none of them is
    an option of torch-edl or of torchrun."""
    # Imported here: torch's parser comes with all of torch.
    from torch_edl.launch.torchrun.options import torchrun_parser

    given = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
    of_scripts = {*flags("script"), *torchrun_parser()._option_string_actions}
    misplaced = [flag for flag in given if flag in of_scripts]
    of_model_files = [flag for flag in flags("train") if flag in given and flag not in of_scripts]
    hints = []
    if misplaced:
        text = "options of torch-edl go before the script"
        hints.append(f"{', '.join(misplaced)}: passed to {script}; {text}")
    if of_model_files:
        text = "a training script; a model file defines model and loss"
        hints.append(f"{', '.join(of_model_files)}: passed to {script}, {text}")
    return "\n".join(hints)


def would_train(file: str) -> UsageError:
    """Return the error for a dry run of a script on this machine."""
    return UsageError(
        f"{DRY_RUN}: {file} is a training script and would train; for pods, --platform kubernetes "
        f"{DRY_RUN} before the script prints the YAML. On this machine, try the script on few "
        "records"
    )


def why_not(flag: str) -> str:
    """Return the reason why a script does not accept an option of model files."""
    if flag in ("--data", "--eval-data", "--format", "--epochs", "--batch-size"):
        return "a script reads its own data; its own options go after the script"
    if flag == "--processes-per-pod":
        return "write --nproc-per-node N, which says how many workers of a script a pod has"
    return "the option is for model files; see torch-edl run --help-torchrun"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of ``torch-edl run`` for a script.

    Returns:
        The options of torchrun and of torch-edl; ``before`` holds the words in front of the script
        with those of ``--config``, and ``places`` maps each option of ``--config`` to its place in
        the file.

    Raises:
        UsageError: an unknown option, an option of model files, or options that exclude each other.
    """
    # Imported here: torch's parser comes with all of torch.
    from torch_edl.launch.torchrun.options import torchrun_parser

    parser = torchrun_parser()
    parser.prog = "torch-edl run"
    parser.description = (
        "Launch a training script with torchrun's options and environment. "
        "All arguments after the script are passed to the script."
    )
    torchruns = list(parser._option_string_actions)
    parser.allow_abbrev = False
    add_options(parser, "script")
    parser.add_argument(_HELP, action="help", help=argparse.SUPPRESS)

    def refuse(message: str) -> NoReturn:
        message = plain(message)
        if message.startswith("the following arguments are required: training_script"):
            message = "SCRIPT.py: missing; the script comes after the options of torchrun"
        raise UsageError(f"{message}\nsee: torch-edl run --help-torchrun")

    parser.error = refuse  # type: ignore[method-assign]
    # The parser gets no argument of the script: argparse takes a prefix of an option for the
    # option, wherever it stands.
    before, script, rest = _split(words, parser, torchruns)
    args, unknown = parser.parse_known_args([*before, *script])
    places: dict[str, str] = {}
    if args.config is not None:
        before, places = config_file.expand(before, parser)
        try:
            args, unknown = parser.parse_known_args([*before, *script])
        except UsageError as error:
            raise config_file.placed(error, places) from error
    args.training_script_args = rest
    args.before, args.is_cut, args.places = before, script[:1] == ["--"], places
    if unknown:
        flag = unknown[0].split("=")[0]
        if flag in flags("train"):
            raise UsageError(f"{flag}: options of torchrun launch a script: {why_not(flag)}")
        close = difflib.get_close_matches(flag, list(parser._option_string_actions), n=1)
        hint = f"did you mean {close[0]}?" if close else "options of the script go after the script"
        raise UsageError(f"{flag}: no option of torchrun or of torch-edl run for scripts; {hint}")
    _check(args)
    return args


def _split(
    words: Sequence[str], parser: argparse.ArgumentParser, torchruns: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return the options before the script, the script with a ``--`` in front of it, and what
    follows. Abbreviations of torchrun's options, which torchrun accepts, are written out."""
    known, before, place = parser._option_string_actions, list[str](), 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        flag, equals, value = words[place].partition("=")
        place += 1
        if flag not in known and flag.startswith("--"):
            meant = {known[each].dest: each for each in torchruns if each.startswith(flag)}
            flag = next(iter(meant.values())) if len(meant) == 1 else flag
        before.append(f"{flag}{equals}{value}")
        if flag not in known or equals or known[flag].nargs == 0:
            continue
        before += words[place : place + 1]
        place += 1
        several = known[flag].nargs is not None
        while several and place < len(words) and not words[place].startswith("-"):
            before.append(words[place])
            place += 1
    last = place + 1 + (words[place : place + 1] == ["--"])
    return before, list(words[place:last]), list(words[last:])


def _check(args: argparse.Namespace) -> None:
    script = args.training_script
    if not (args.module or args.no_python):
        kind = user_file.kind_of(script)
        if not kind.is_script and not args.is_cut:
            raise UsageError(
                f"{script}: a model file ({kind.reason}), and options of torchrun are for training "
                "scripts; use --workers MIN:MAX, see torch-edl run --help; if the file is a "
                f"training script, write -- {script}"
            )
    if args.module and args.no_python:
        raise UsageError("--no-python and --module: choose one")
    if args.workers is not None and min(args.workers) < 1:
        raise UsageError(f"--workers {min(args.workers)}: must be 1 or more")
    if args.workers is not None and args.nproc_per_node != "1":
        raise UsageError(f"--workers and --nproc-per-node {args.nproc_per_node}: choose one")
    if args.workers is not None and args.nnodes not in ONE_MACHINE:
        raise UsageError(
            f"--workers and --nnodes {args.nnodes}: --workers is for one machine; "
            "write --nnodes MIN:MAX --nproc-per-node N"
        )
