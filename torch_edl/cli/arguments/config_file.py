"""``--config FILE``: the options of a command in a YAML file.

A key is an option without its dashes: ``workers: 2:8``, ``no-shuffle: true``. A list gives the
option several times; a mapping stands for ``NAME=VALUE,...``. The command line takes precedence
over the file.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from torch_edl.config.environment import read_yaml
from torch_edl.errors import UsageError

FLAG = "--config"
_YES, _NO = ("true", "yes", "on"), ("false", "no", "off")


def expand(
    argv: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command with the options of its file.

    Args:
        argv: the words after the verb, without the arguments of the model file.

    Returns:
        The words without ``--config``, with those of the file at the end; and the place of each
        option of the file, for messages.

    Raises:
        UsageError: an invalid file or key.
    """
    rest, path = _without_file(argv)
    if path is None:
        return rest, {}
    actions = parser._option_string_actions
    given = {actions[flag].dest for word in rest if (flag := word.partition("=")[0]) in actions}
    words: list[str] = []
    places: dict[str, str] = {}
    for key, value in _read(path).items():
        action = actions.get(f"--{key}")
        where = f"{path}: {key}"
        if action is None or f"--{key}" in (FLAG, "--help"):
            raise UsageError(f"{where}: {_unknown(key, list(actions))}")
        if action.dest not in given:
            words += _words(f"--{key}", action, value, where)
            places |= dict.fromkeys(action.option_strings, where)
    return [*rest, *words], places


def placed(error: UsageError, places: Mapping[str, str]) -> UsageError:
    """Return the error with the place in the file of the option that the message names first."""
    text = str(error)
    flag = text.partition(" ")[0].rstrip(":")
    if flag not in places:
        return error
    return UsageError(f"{places[flag]}: {text.removeprefix(f'{flag}: ')}")


def _without_file(argv: Sequence[str]) -> tuple[list[str], str | None]:
    rest: list[str] = []
    path: str | None = None
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != FLAG:
            rest.append(word)
            continue
        named = value if equals else next(words, "")
        if not named:
            raise UsageError(f"{FLAG}: names no file; write {FLAG} job.yaml")
        if path is not None:
            raise UsageError(f"{FLAG} {named}: {FLAG} is there twice; name one file")
        path = named
    return rest, path


def _read(path: str) -> dict[str, Any]:
    # Read without types, so that 2:8 is a text: YAML reads it as the number 128.
    found = read_yaml(path, option=FLAG, content="options", typed=False)
    where = f"{FLAG} {path}"
    if found in (None, ""):
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"{where}: holds no mapping; write an option a line, such as epochs: 3")
    for key in found:
        if not isinstance(key, str):
            raise UsageError(f"{where}: the key {key!r} is no option; write such as epochs: 3")
    return found


def _words(flag: str, action: argparse.Action, value: Any, where: str) -> list[str]:
    if action.nargs == 0:
        if not isinstance(value, str) or value.lower() not in (*_YES, *_NO):
            raise UsageError(f"{where}: {_shown(value)}: write true, or leave it out")
        return [flag] if value.lower() in _YES else []
    repeats = action.nargs == "+" or isinstance(action, argparse._AppendAction)
    if isinstance(value, list) and not repeats:
        raise UsageError(
            f"{where}: a list, and {flag} takes one value; write {flag[2:]}: {action.metavar}"
        )
    values = value if isinstance(value, list) else [value]
    return [f"{flag}={_text(each, where)}" for each in values]


def _text(value: Any, where: str) -> str:
    """Return a value as written on the command line; a mapping is ``NAME=VALUE,...``."""
    if isinstance(value, Mapping):
        pairs = []
        for name, each in value.items():
            if not isinstance(name, str) or not isinstance(each, str):
                raise UsageError(f"{where}: {_shown(each)}: write NAME: VALUE")
            # This word of a volume has no value.
            bare = name == "read-only" and each.lower() in _YES
            pairs += [name] if bare else [f"{name}={each}"]
        return ",".join(pairs)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {_shown(value)}: write one value, not a list in a list")
    return value


def _unknown(key: str, flags: list[str]) -> str:
    known = [flag[2:] for flag in flags if flag.startswith("--") and flag != FLAG]
    close = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else "see torch-edl run --help"
    return f"no such option; {hint}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
