"""The parser of the command line, with errors that name the fix."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

from torch_edl import __version__
from torch_edl.cli.arguments import config_file
from torch_edl.cli.arguments.options import (
    add_locators,
    add_option,
    add_options,
    plain,
    whole,
    worker_range,
)
from torch_edl.cli.arguments.script_arguments import script_words
from torch_edl.config import extensions
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import KEEP_DAYS, KEEP_JOBS

_OF_MODEL_FILE = ("run", "evaluate", "predict")

_ALL_EPILOG = """\
examples:
  torch-edl run model.py --data train.parquet --workers 2:8 --ps 2 --epochs 3 --output trained
  torch-edl run --nproc-per-node 4 train.py --lr 0.1
  torch-edl evaluate model.py --from trained --data test.parquet
  torch-edl predict model.py --from trained --data new.parquet --output scores.csv
  torch-edl status

The options of a command: torch-edl run --help
"""

_RUN_EPILOG = """\
examples:
  torch-edl run model.py --data train.parquet --epochs 3 --output trained
      train in one worker process

  torch-edl run model.py --data 'clicks-*.parquet' --eval-data test.parquet \\
          --workers 2:8 --ps 2 --checkpoint-dir ckpt --checkpoint-every 1000
      two to eight workers, two parameter servers, a checkpoint every 1000 steps

  torch-edl run model.py --data 'clicks-*.parquet' --checkpoint-dir ckpt --resume
      continue from the newest checkpoint with the records that are not trained yet

  torch-edl run model.py --data train.csv --dry-run -- --hidden 256
      check the model file and the data, print the plan; --hidden goes to the model file

  torch-edl run model.py --data '/shared/clicks-*.parquet' --ps 2 \\
          --nnodes 2:4 --nproc-per-node 2 --rdzv-endpoint node0:29400
      the same command on two to four machines; node0 runs the master

MODEL.py defines model(), loss(labels, predictions), optimizer(params) and
feed(records, mode, metadata); learning rates and layers are set there.

A training script takes torchrun's options and is elastic if it uses torch_edl. Options go before
the script; what follows the script belongs to the script:
  torch-edl run --workers 2:4 train.py
  torch-edl run --nnodes 1:4 --nproc-per-node 2 --rdzv-endpoint node0:29400 train.py
      all options: torch-edl run --help-torchrun
  torch-edl run -- train.py
      after `--`, a file is a training script even if it defines model and loss
"""

_JOIN_EPILOG = """\
examples:
  TORCH_EDL_TOKEN=... torch-edl run model.py --data /shared/train.parquet --workers 2:8 --ps 2 \\
          --nnodes 1:4 --rdzv-endpoint node0:29400
      on node0: start the job, which may have up to four machines

  TORCH_EDL_TOKEN=... torch-edl join node0:29400
      on another machine: run workers and servers of the job here

The model file comes from node0; data, checkpoints and output must have the same paths on all
machines. Ctrl-C takes the machine out of the job, which continues on the others.
"""

_CONTINUE_EPILOG = """\
After a machine went down with all processes of a job, torch-edl status calls the job dead. A new
master continues with the state of the job in its folder, or in the etcd of --store:

  with --durability journal, with the updates in the journals: nothing is lost that was on the disk
  otherwise from the newest checkpoint, or from the beginning

A job with --durability journal that failed continues in the same way once the cause is mended. Any
other job that has ended continues with torch-edl run --resume.
"""

_LOGS_EPILOG = """\
examples:
  torch-edl logs --tail 20
      the last 20 lines of each log of the newest job; the events come last

  torch-edl logs digits --role worker --id 1 --follow
      the output of worker-1, as it is printed
"""

_CLEAN_EPILOG = f"""\
examples:
  torch-edl clean --days 7
      keep jobs that were active in the last 7 days

  torch-edl clean --keep 20 --dry-run
      list the folders that would be removed to keep the 20 newest jobs

  torch-edl clean
      remove all jobs that have ended, after a question; --days 0 asks nothing

On a cluster, the objects of the jobs are removed, with the pods that have their logs. Models,
checkpoints and outputs are never removed. On this machine, each job that starts removes the
folders of jobs that ended at least {KEEP_DAYS:g} days ago, and all but the {KEEP_JOBS} newest.
"""


class _HelpFormatter(RawDescriptionRichHelpFormatter):
    help_markup = False
    text_markup = False
    group_name_formatter = str.capitalize

    def __init__(self, prog: str, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=28, width=width)


# Advice by the name of the missing argument.
_FIXES = {
    "MODEL.py": "the model file comes first, before the options",
    "--from": "name a trained model: a job, an output folder or checkpoints",
    "--output": "name a file for the predictions that ends in .parquet, .csv or .npz",
    "SOURCE": "name a trained model: a job, an output folder or checkpoints",
    "FILE": "name the file to write, such as model.pt",
    "JOB": "torch-edl list shows the jobs",
    "HOST:PORT": "name the --rdzv-endpoint of the job",
    "SHELL": "name a shell: bash, zsh or fish",
}


class _Parser(argparse.ArgumentParser):
    """Raises UsageError with a hint, where argparse would print its usage and exit."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            **kwargs,  # type: ignore[arg-type]
        )

    def format_help(self) -> str:
        return super().format_help().rstrip("\n") + "\n"

    def error(self, message: str) -> NoReturn:
        message = plain(message)
        missing = re.match(r"the following arguments are required: (.*)", message)
        if missing:
            fix = _FIXES.get(missing[1].partition(",")[0])
            message = f"{missing[1]}: missing" + (f"; {fix}" if fix else "")
        verbs = re.match(r"COMMAND: invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if verbs:
            names = verbs[2].replace("'", "")
            close = difflib.get_close_matches(verbs[1], names.split(", "), n=1)
            fix = f"did you mean {close[0]}?" if close else f"choose from {names}"
            message = f"{verbs[1]}: no such command; {fix}"
        raise UsageError(f"{message}\nsee: {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs, with those of plugins; ``args.runs`` is the full name of the
    function that runs the verb."""
    parser = _Parser(
        prog="torch-edl",
        description="Train PyTorch and Keras models on an elastic set of processes.",
        epilog=_ALL_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"torch-edl {__version__}")
    verbs = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND", required=True)

    def verb(name: str, runs: str, line: str, *, epilog: str = "") -> argparse.ArgumentParser:
        page = verbs.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        page.epilog = epilog or None
        page.set_defaults(runs=f"torch_edl.cli.{runs}")
        return page

    def of_model_file(
        name: str, kind: str, usage: str, line: str, *, epilog: str
    ) -> argparse.ArgumentParser:
        page = verb(name, f"model_file.{name}", line, epilog=epilog)
        page.usage = f"torch-edl {name} MODEL.py {usage} [options] [-- ARGS]"
        page.add_argument("model_file", metavar="MODEL.py", help="the file that defines the model")
        add_options(page, kind)
        return page

    def of_job(name: str, runs: str, line: str, *, epilog: str = "") -> argparse.ArgumentParser:
        page = verb(name, runs, line, epilog=epilog)
        page.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: newest)")
        return page

    run = of_model_file(
        "run",
        "train",
        "--data PATH...",
        "train the model that a file defines, or launch a training script",
        epilog=_RUN_EPILOG,
    )
    run.description = (
        "Train the model that a file defines. Arguments after `--` go to the model file."
    )
    evaluate = of_model_file(
        "evaluate",
        "evaluate",
        "--from SOURCE --data PATH...",
        "compute the metrics of a trained model on data",
        epilog="example:\n  torch-edl evaluate model.py --from trained --data test.parquet --json",
    )
    add_option(evaluate, "--json", "print the metrics as JSON")
    of_model_file(
        "predict",
        "predict",
        "--from SOURCE --data PATH... --output FILE",
        "write a trained model's predictions for data",
        epilog="example:\n"
        "  torch-edl predict model.py --from trained --data new.parquet --output scores.csv",
    )

    export = verb(
        "export",
        "model_file.export",
        "write a trained model as one file of torch, or of Keras",
        epilog="example:\n  torch-edl export trained model.pt\n"
        "  torch-edl export trained model.keras --model-file model_tf.py\n\n"
        "An embedding without a fixed size becomes NAME.ids and NAME.vectors.",
    )
    source = "the trained model: a job, an output folder or checkpoints"
    export.add_argument("source", metavar="SOURCE", help=source)
    text = "FILE.pt, .pth or .safetensors; of Keras .keras or a folder"
    export.add_argument("file", metavar="FILE", help=text)
    text = "of a model of Keras, which FILE.keras or the folder shall have"
    add_option(export, "--model-file MODEL.py", text, default="")
    add_option(export, "--json", "print one JSON object")

    status = of_job("status", "status.show", "show a job: progress, processes, rates")
    add_option(status, "--json", "print one JSON object")
    add_option(status, "--watch", "redraw every second, until the job is over or Ctrl-C")
    add_option(status, "--all", "list the processes that ended long ago, too")
    add_locators(status)

    logs = of_job(
        "logs",
        "jobs.logs",
        "show the events of a job and the output of its processes",
        epilog=_LOGS_EPILOG,
    )
    roles = ("events", "master", "ps", "worker")
    text = "events, master, ps or worker (default: all)"
    add_option(logs, "--role ROLE", text, choices=roles, default="")
    add_option(logs, "--id N", "number of the process (default: all of the role)", type=whole)
    text = "start with the last N lines of each log (default: all)"
    add_option(logs, "--tail N", text, type=whole)
    add_option(logs, "-f, --follow", "print new lines until the job has ended")
    add_option(logs, "--json", "print one JSON object for each line")
    add_locators(logs)

    listing = verb("list", "jobs.list_jobs", "list the jobs of this machine or of a cluster")
    add_option(listing, "--json", "print one JSON list")
    add_locators(listing)

    clean = verb(
        "clean",
        "jobs.clean",
        "remove what is kept of jobs that have ended: logs, events, status",
        epilog=_CLEAN_EPILOG,
    )
    text = "names of jobs (default: all that have ended, after a question)"
    clean.add_argument("job", nargs="*", metavar="JOB", help=text)
    add_option(clean, "--days N", "keep jobs that were active in the last N days", type=whole)
    add_option(clean, "--keep N", "keep the N newest jobs", type=whole)
    add_option(clean, "--dry-run", "list what would be removed, remove nothing")
    add_option(clean, "--json", "print one JSON object")
    add_locators(clean)

    scale = verb("scale", "jobs.scale", "change the number of processes of a running job")
    scale.add_argument("job", metavar="JOB", help="name of the job")
    text = "number of workers, or a range"
    add_option(scale, "--workers N|MIN:MAX", text, type=worker_range)
    text = "number of parameter servers, to which the model moves"
    add_option(scale, "--ps N", text, type=whole)
    add_option(scale, "--json", "print one JSON object")
    add_locators(scale)

    stack = verb("stack", "jobs.stack", "print what the threads of the workers do now")
    stack.add_argument("job", metavar="JOB", help="name of the job")
    add_option(stack, "--id N", "of worker-N only (default: of all workers)", type=whole)
    add_option(stack, "--json", "print one JSON object")
    add_locators(stack)

    proceed = of_job(
        "continue",
        "model_file.go_on",
        "continue a training that failed, or whose client and master are gone",
        epilog=_CONTINUE_EPILOG,
    )
    add_option(proceed, "--summary FILE", "write a JSON report to FILE", default="")

    joining = verb(
        "join",
        "join.main",
        "lend this machine to a running job of several machines",
        epilog=_JOIN_EPILOG,
    )
    text = "address of the job's master: the value of --rdzv-endpoint"
    joining.add_argument("endpoint", metavar="HOST:PORT", help=text)
    text = "most workers on this machine (default: as the job decides)"
    add_option(joining, "--nproc-per-node N", text, type=whole)
    text = "the model file on this machine (default: a copy of the master's)"
    add_option(joining, "--model-file FILE", text, default="")

    stop = verb(
        "stop",
        "jobs.stop",
        "stop a running job, after a last checkpoint if the job keeps any",
    )
    stop.add_argument("job", metavar="JOB", help="name of the job")
    add_option(stop, "--now", "end all processes at once, without a last checkpoint")
    add_option(stop, "--json", "print one JSON object")
    add_locators(stop)

    attach = of_job(
        "attach", "jobs.attach", "show the progress of a job on a cluster, until it is over"
    )
    attach.epilog = "Ctrl-C leaves the job alone."
    add_locators(attach, only_remote=True)

    for name in extensions.installed(extensions.COMMANDS):
        extensions.load(extensions.COMMANDS, name, f"torch-edl {name}")(verbs)
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments of ``torch-edl``.

    Returns:
        The options. ``model_args`` holds the arguments after ``--``, and ``places`` maps each
        option of ``--config`` to its place in the file. For ``run`` with a training script, the
        verb is ``script``, and torch's own parser reads its ``words``.

    Raises:
        UsageError: an unknown argument, or a value that is missing or has the wrong type.
    """
    parser = build_parser()
    if argv[:1] == ["run"]:
        run = _verbs(parser)["run"]
        words = script_words(argv[1:], run)
        if words is not None:
            return argparse.Namespace(
                verb="script", runs="torch_edl.cli.script.main", words=words, places={}
            )
    model_args: list[str] = []
    if "--" in argv:
        cut = argv.index("--")
        argv, model_args = argv[:cut], argv[cut + 1 :]
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    places: dict[str, str] = {}
    if argv[0] in _OF_MODEL_FILE:
        words, places = config_file.expand(argv[1:], _verbs(parser)[argv[0]])
        argv = [argv[0], *words]
    try:
        args, unknown = parser.parse_known_args(argv)
    except UsageError as error:
        raise config_file.placed(error, places) from error
    if unknown:
        raise UsageError(_unknown(parser, args.verb, unknown[0]))
    if model_args and args.verb not in _OF_MODEL_FILE:
        raise UsageError(
            f"-- {' '.join(model_args)}: {args.verb} takes no arguments for a model file"
        )
    args.model_args, args.places = tuple(model_args), places
    return args


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(next(actions).choices)


def _unknown(parser: argparse.ArgumentParser, verb: str, word: str) -> str:
    if not word.startswith("-"):
        return f"{word}: unexpected; arguments of the model file go after `--`"
    known = list(_verbs(parser)[verb]._option_string_actions)
    flag = word.split("=")[0]
    close = difflib.get_close_matches(flag, known, n=1, cutoff=0.75)
    if close:
        return f"{flag}: no such option of torch-edl {verb}; did you mean {close[0]}?"
    return (
        f"{flag}: no such option of torch-edl {verb}; see torch-edl {verb} --help, "
        "or put it after `--` if the model file takes it"
    )
