"""Finds the platform and the job that a command names."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_edl.cli.options import add_option
from torch_edl.config import extensions
from torch_edl.config.job import LOCAL
from torch_edl.config.option import Option, options_of
from torch_edl.errors import UsageError

if TYPE_CHECKING:
    from torch_edl.interfaces.platform import JobHandle, Platform


def add_options(parser: argparse.ArgumentParser, *, only_remote: bool = False) -> None:
    """Add the options that say where a job runs.

    Args:
        only_remote: True if the command does not support jobs of this machine.
    """
    remote = list(extensions.platforms())
    places = remote if only_remote else [LOCAL, *remote]
    if not remote:
        parser.set_defaults(platform=LOCAL)
        return
    group = parser.add_argument_group("platform")
    text = f"where the job is (default: {remote[0]})"
    if not only_remote:
        text = "where the job is (default: here, or there if one below is given)"
    default = remote[0] if only_remote else ""
    add_option(group, f"--platform {'|'.join(places)}", text, choices=places, default=default)
    for _, option in _locators():
        add_option(group, option.spelling, option.help, default="")


def name_of(args: argparse.Namespace) -> str:
    """Return the name of the platform that the options name.

    Raises:
        UsageError: the options name two platforms.
    """
    given = [(name, option.flags[0]) for name, option in _locators() if _value(args, option)]
    for name, flag in given:
        if args.platform not in ("", name):
            raise UsageError(
                f"--platform {args.platform}: {flag} is for --platform {name}; leave it out"
            )
    return args.platform or (given[0][0] if given else LOCAL)


def platform(name: str) -> Platform:
    """Return a platform by its name.

    Raises:
        UsageError: no installed package offers the platform.
    """
    if name != LOCAL:
        found: Platform = extensions.platform(name)
        return found
    from torch_edl.cli.local import LocalPlatform

    return LocalPlatform()


def find(args: argparse.Namespace) -> JobHandle:
    """Return the job that the command names, or the newest job.

    Raises:
        UsageError: the job does not exist.
        EdlError: the cluster does not answer, or rejects a request.
    """
    return find_named(args, args.job)


def find_named(args: argparse.Namespace, job: str | None) -> JobHandle:
    """Return a job by its name, where the options of the command say; see :func:`find`."""
    name = name_of(args)
    return platform(name).find(job, _where(args, name))


def find_all(args: argparse.Namespace) -> list[JobHandle]:
    """Return all jobs where the options of the command say, newest first.

    Raises:
        EdlError: the cluster does not answer, or rejects a request.
    """
    name = name_of(args)
    return platform(name).jobs(_where(args, name))


def _where(args: argparse.Namespace, name: str) -> dict[str, str]:
    options = (option for of, option in _locators() if of == name)
    return {_dest(option): _value(args, option) for option in options}


def _locators() -> Iterator[tuple[str, Option]]:
    """Yield the options by which a command finds a job, with the names of their platforms."""
    for name, each in extensions.platforms().items():
        for field in dataclasses.fields(each.config) if each.config is not None else ():
            if field.name in each.locators:
                yield name, options_of(field)[0]


def _dest(option: Option) -> str:
    return option.flags[0].lstrip("-").replace("-", "_")


def _value(args: argparse.Namespace, option: Option) -> Any:
    return getattr(args, _dest(option))
