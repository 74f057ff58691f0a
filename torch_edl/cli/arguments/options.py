"""Makes the options of the command line from the fields of the configuration, and a job from their
values.

An option that the user leaves out is None; the configuration has the default value.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_edl.cli.arguments import config_file
from torch_edl.config import (
    ClusterConfig,
    DurabilityConfig,
    Experiment,
    JobConfig,
    Launch,
    extensions,
)
from torch_edl.config.job import LOCAL, PARTS
from torch_edl.config.option import OF_MODEL_FILE, TRAINING, Option, options_of
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import new_name

_SECTION_OF_SCRIPTS = "options of torch-edl, for a script that uses torch_edl"
_PATHS = ("DIR", "FILE")


def add_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options of a kind of job to a parser, in the sections of its help page."""
    of_script = _SECTION_OF_SCRIPTS if kind == "script" else ""
    for _, title, of, option in _options(kind):
        add_option(
            _section(parser, of_script or title),
            option.spelling,
            _help(option, of.default),
            dest=_dest(option),
            required=option.required,
            **_value(option, of.default),
        )
    job = _section(parser, of_script or "job")
    if kind in TRAINING:
        add_option(job, "--detach", "leave the terminal when the job has started (default: no)")
        text = "try one minibatch and print the plan, or the YAML (default: no)"
        if kind == "script":
            text = "print the YAML of a job in pods, and run nothing (default: no)"
        add_option(job, "--dry-run", text)
    text = "read options from a YAML FILE; those given here count (default: none)"
    add_option(job, f"{config_file.FLAG} FILE", text)
    if kind in OF_MODEL_FILE:
        text = "write a report in JSON to FILE at the end (default: none)"
        add_option(job, "--summary FILE", text, default="")
    else:
        parser.set_defaults(summary="")


def add_option(
    to: argparse.ArgumentParser | argparse._ArgumentGroup,
    spelling: str,
    help: str,
    **settings: Any,
) -> None:
    """Add an option, spelled as on the help page: ``--tail N``. Without a value it is a switch."""
    option = Option(spelling, help)
    if option.metavar:
        settings["metavar"] = option.metavar
    else:
        settings.setdefault("action", "store_true")
    to.add_argument(*option.flags, help=help, **settings)


def plain(message: str) -> str:
    """Return an argparse error that begins with the first spelling of the option."""
    message = re.sub(r"^argument ([^:/]*)[^:]*: ", r"\1: ", message)
    return re.sub(r"expected (at least )?one argument", "needs a value", message)


def _section(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the section of a help page, and create it if it does not exist."""
    for group in parser._action_groups:
        if group.title == title:
            return group
    return parser.add_argument_group(title)


def flags(kind: str) -> list[str]:
    """Return the flags of torch-edl for a kind of job."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser, kind)
    return list(parser._option_string_actions)


def given(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Return the values that the user gave, by parts of the configuration, for
    :meth:`JobConfig.of`.

    Raises:
        UsageError: an option of another platform than the chosen one is given, or a required one
            is empty.
    """
    platforms = extensions.platforms()
    found: dict[str, Any] = {part: {} for part in (*PARTS, *platforms)}
    for part, _, of, option in _options(kind):
        value = getattr(args, _dest(option))
        if value is None:
            continue
        if option.required and not value:  # a shell variable that is not set
            raise UsageError(f"{option.flags[0]} '': names nothing; write {option.spelling}")
        fields = found[part] if part else found
        if "MIN:MAX" in option.metavar:
            fields[of.name], fields[of.name.replace("min_", "max_")] = value
        elif option.metavar in _PATHS:
            fields[of.name] = absolute(value)
        else:
            fields[of.name] = value
    chosen = found.get("platform", LOCAL)
    for name, platform in platforms.items():
        own = found.pop(name)
        if name == chosen:
            found["platform_config"] = own
            for part, defaults in platform.implied(own).items():
                found[part] = {**defaults, **found[part]}
        elif own:
            given = [o for part, _, of, o in _options(kind) if part == name and of.name in own]
            raise UsageError(
                f"--platform {chosen}: {given[0].flags[0]} is an option of {name}; add --platform "
                f"{name}, or leave the option out"
            )
    return found


def model_file_job(args: argparse.Namespace, kind: str) -> JobConfig:
    """Return the job of ``torch-edl run``, ``evaluate`` or ``predict`` for a model file.

    Paths of data are as the user wrote them.

    Raises:
        UsageError: a value that cannot work.
    """
    found = given(args, kind)
    if found["data"].get("epochs") == 0:  # a stream is read in the order of its arrival
        found["data"]["shuffle"] = False
        if found["train"].get("strategy", "auto") == "auto":
            found["train"]["strategy"] = "ps"
    _imply_servers(found)
    if found["train"].get("mode") == "sync":
        # If a step waited for more pushes than there are workers, it would take two of one worker.
        least = found["cluster"].get("min_workers", ClusterConfig.min_workers)
        found["train"].setdefault("grads_to_wait", max(1, least))
        # With staleness 0, each push that arrives after a completed step would be computed again.
        found["train"].setdefault("staleness", 1)
    _imply_workers(found["cluster"])
    if kind != "train":
        # Predictions are merged in the order of the tasks.
        found["data"]["shuffle"] = False
    found["name"] = found.get("name") or new_name(args.model_file)
    model_file = absolute(args.model_file)
    return _checked(
        JobConfig.of(
            {**found, "kind": kind, "model_file": model_file, "model_args": args.model_args}
        )
    )


def script_job(
    args: argparse.Namespace,
    *,
    name: str,
    min_workers: int,
    max_workers: int,
    join_timeout_s: float = ClusterConfig.join_timeout_s,
    experiment: Experiment | None = None,
    launch: Launch | None = None,
) -> JobConfig:
    """Return the job of ``torch-edl run`` for a script, which has its own data and model.

    Raises:
        UsageError: a value that cannot work.
    """
    found = given(args, "script")
    _imply_servers(found)
    strategy = found["train"].get("strategy")
    if "servers" in found["cluster"] and strategy not in ("ps", "local"):
        raise UsageError(
            f"--ps {args.servers} and --strategy {strategy}: servers are for the strategy ps; "
            "leave one of them out"
        )
    found["cluster"] |= {
        "min_workers": min_workers,
        "max_workers": max_workers,
        "join_timeout_s": join_timeout_s,
    }
    found |= {
        "name": name,
        "kind": "script",
        "model_file": args.training_script if args.module else absolute(args.training_script),
        "model_args": args.training_script_args,
        "experiment": experiment,
        "launch": launch,
    }
    return _checked(JobConfig.of(found))


def _checked(config: JobConfig) -> JobConfig:
    """Return the job after the plugins of its options have been found and have checked it."""
    store = config.durability.store
    if config.durability.shares_state:
        scheme = store.partition("://")[0]
        extensions.load(extensions.STORES, scheme, f"--store {store}").check(store)
    if config.trace:
        extensions.load(extensions.TRACERS, "opentelemetry", "--trace").check(config.trace)
    if config.metrics_port:
        from torch_edl.interfaces import PROMETHEUS

        extensions.load(extensions.EXPORTERS, PROMETHEUS, "--metrics-port")
    # Imported here: the module imports protobuf, which --help does not need.
    from torch_edl.launch.jobs import observers

    return observers.checked(config)


def _imply_servers(found: dict[str, Any]) -> None:
    """Set the strategy ``ps`` if the user gave a number of servers, or a durability that only
    servers have. An explicit default changes nothing."""
    durability = found["durability"].get("mode", DurabilityConfig.mode)
    wanted = "servers" in found["cluster"] or durability != DurabilityConfig.mode
    if wanted and found["train"].get("strategy", "auto") == "auto":
        found["train"]["strategy"] = "ps"


def _imply_workers(cluster: dict[str, Any]) -> None:
    """Set the number of workers if the user gave only that of machines, and of workers of each."""
    if "min_workers" not in cluster and {"min_nodes", "workers_per_node"} & cluster.keys():
        each = cluster.get("workers_per_node") or 1
        cluster["min_workers"] = each * cluster.get("min_nodes", 1)
        cluster["max_workers"] = each * cluster.get("max_nodes", 1)


def given_flags(args: argparse.Namespace, kind: str) -> list[str]:
    """Return the options that the user gave."""
    options = [option for *_, option in _options(kind)]
    found = [option.flags[0] for option in options if getattr(args, _dest(option)) is not None]
    return [*found, *["--detach"] * args.detach]


def absolute(path: str) -> str:
    """Return the absolute path, for processes in other working folders; symbolic links are kept."""
    return str(Path(path).expanduser().absolute()) if path else ""


def _options(kind: str) -> Iterator[tuple[str, str, dataclasses.Field[Any], Option]]:
    """Yield the part of the configuration, section of the help page, field and option.

    The part is empty for fields of JobConfig itself, and the name of the platform for the part
    that a platform adds.
    """
    own = dataclasses.fields(JobConfig)
    parts = [(of.name, of.metadata["section"], PARTS[of.name]) for of in own if of.name in PARTS]
    platforms = extensions.platforms()
    parts += [(name, name, of.config) for name, of in platforms.items() if of.config is not None]
    fields = [(name, title, of) for name, title, each in parts for of in dataclasses.fields(each)]
    for part, title, of in [*fields, *(("", "", of) for of in own)]:
        for option in options_of(of):
            if kind in option.kinds:
                if not part and of.name == "platform":
                    places = "|".join([LOCAL, *platforms])
                    option = dataclasses.replace(option, spelling=f"--platform {places}")
                yield part, option.group or title, of, option


def _dest(option: Option) -> str:
    return option.flags[-1].lstrip("-").replace("-", "_")


def _help(option: Option, default: Any) -> str:
    if option.required or isinstance(default, tuple) or "(default" in option.help:
        return option.help
    if isinstance(default, bool):
        default = "no"
    elif isinstance(default, float):
        default = f"{default:g}"
    return f"{option.help} (default: {'none' if default == '' else default})"


def _value(option: Option, default: Any) -> dict[str, Any]:
    """Return how argparse reads the value, by the type of the default."""
    if isinstance(default, bool):
        return {"action": "store_const", "const": not default}
    if "MIN:MAX" in option.metavar:
        return {"type": worker_range}
    if option.metavar.endswith("|stream"):
        return {"type": epochs}
    if option.metavar.endswith("[=VALUE]"):  # a positional argument may follow
        return {"action": "append"}
    if isinstance(default, tuple):
        return {"nargs": "+", "action": "extend"}
    return {"type": {int: whole, float: seconds}.get(type(default), str)}


# ---- options by which a command finds a job ----


def add_locators(parser: argparse.ArgumentParser, *, only_remote: bool = False) -> None:
    """Add the options that say where a job runs."""
    remote = list(extensions.platforms())
    places = remote if only_remote else [LOCAL, *remote]
    if not remote:
        parser.set_defaults(platform=LOCAL)
        return
    group = parser.add_argument_group("platform")
    text = f"where the job is (default: {remote[0]})"
    if not only_remote:
        text = f"where the job runs (default: {LOCAL}, or the platform whose options are given)"
    default = remote[0] if only_remote else ""
    add_option(group, f"--platform {'|'.join(places)}", text, choices=places, default=default)
    for _, option in _locators():
        add_option(group, option.spelling, option.help, default="")


def platform_of(args: argparse.Namespace) -> str:
    """Return the name of the platform that the options name.

    Raises:
        UsageError: the options name two platforms.
    """
    given = [
        (name, option.flags[0]) for name, option in _locators() if getattr(args, _dest(option))
    ]
    for name, flag in given:
        if args.platform not in ("", name):
            raise UsageError(
                f"--platform {args.platform}: {flag} is for --platform {name}; leave it out"
            )
    return args.platform or (given[0][0] if given else LOCAL)


def locators(args: argparse.Namespace, name: str) -> dict[str, str]:
    """Return the values of the options by which a platform finds a job, by their names."""
    options = (option for of, option in _locators() if of == name)
    return {_dest(option): getattr(args, _dest(option)) for option in options}


def _locators() -> Iterator[tuple[str, Option]]:
    """Yield the options by which a command finds a job, with the names of their platforms."""
    for name, each in extensions.platforms().items():
        for field in dataclasses.fields(each.config) if each.config is not None else ():
            if field.name in each.locators:
                yield name, options_of(field)[0]


# ---- types of values; the configuration checks their ranges ----


def whole(text: str) -> int:
    """Parse a whole number; underscores may separate the digits."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def epochs(text: str) -> int:
    """Parse a number of epochs; ``stream`` is 0."""
    if text == "stream":
        return 0
    count = whole(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 or more, or the word stream")
    return count


def seconds(text: str) -> float:
    """Parse a duration in seconds, above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 seconds")
    return value


def worker_range(text: str) -> tuple[int, int]:
    """Parse a range of workers: ``4`` is (4, 4), ``2:8`` is (2, 8)."""
    low, colon, high = text.partition(":")
    try:
        return (int(low), int(high)) if colon else (int(low), int(low))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write a number or a range, such as 4 or 2:8"
        ) from None
