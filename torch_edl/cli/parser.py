"""The parser of the command line: its verbs, and the errors for wrong arguments."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from rich_argparse import RawDescriptionRichHelpFormatter

from torch_edl import __version__
from torch_edl.cli.options import add_options, section, whole, worker_range
from torch_edl.cli.script_arguments import script_words
from torch_edl.errors import UsageError
from torch_edl.jobs.catalog import KEEP_DAYS, KEEP_JOBS

_EXAMPLES = """\
examples:
  torch-edl run model.py --data train.parquet --workers 2:8 --ps 2 --epochs 3 --output trained
  torch-edl run --nproc-per-node 4 train.py --lr 0.1
  torch-edl evaluate model.py --from trained --data test.parquet
  torch-edl predict model.py --from trained --data new.parquet --output scores.csv
  torch-edl status

The options of a command: torch-edl run --help
"""

_RUN_EXAMPLES = """\
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

MODEL.py defines model(), loss(labels, predictions), optimizer(params) and
feed(records, mode, metadata); learning rates and layers are set there.

A training script takes torchrun's options and is elastic if it uses torch_edl:
  torch-edl run train.py --workers 2:4
  torch-edl run --nnodes 1:4 --nproc-per-node 2 --rdzv-endpoint node0:29400 train.py
      all options: torch-edl run --help-torchrun
"""


_KEPT = f"""\
Models, checkpoints and outputs are not in these folders. Each job that starts removes the
folders of jobs that ended at least {KEEP_DAYS:g} days ago, and all but the {KEEP_JOBS} newest.
"""


_SOURCE = "the trained model: a job, an output folder or checkpoints"


class _HelpFormatter(RawDescriptionRichHelpFormatter):
    help_markup = False
    text_markup = False
    group_name_formatter = str.capitalize

    def __init__(self, prog: str, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=28, width=width)


class _Parser(argparse.ArgumentParser):
    """Raises UsageError, with a hint, where argparse would print its usage and exit."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            **kwargs,  # type: ignore[arg-type]
        )

    def format_help(self) -> str:
        return super().format_help().rstrip("\n") + "\n"

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ([^:]*): ", _flag_first, message)
        missing = re.match(r"the following arguments are required: (.*)", message)
        if missing:
            message = f"{missing[1]}: missing"
            if "MODEL.py" in missing[1]:
                message += "; the model file comes first, before the options"
        verbs = re.match(r"COMMAND: invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if verbs:
            message = f"{verbs[1]}: no such command; choose from {verbs[2].replace(chr(39), '')}"
        message = message.replace("expected at least one argument", "needs a value")
        message = message.replace("expected one argument", "needs a value")
        raise UsageError(f"{message}\nsee: {self.prog} --help")


def _flag_first(found: re.Match[str]) -> str:
    return found[1].split("/")[0] + ": "


def _add_model_file(page: argparse.ArgumentParser) -> None:
    page.add_argument("model_file", metavar="MODEL.py", help="the file that defines the model")


def _add_summary(page: argparse.ArgumentParser) -> None:
    section(page, "job").add_argument(
        "--summary",
        default="",
        metavar="FILE",
        help="write a report in JSON to FILE at the end (default: none)",
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser of every verb; ``args.verb`` names the module of this package to run."""
    parser = _Parser(
        prog="torch-edl",
        description="Train PyTorch models on an elastic set of processes.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"torch-edl {__version__}")
    verbs = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND", required=True)

    def verb(name: str, line: str, *, epilog: str = "") -> argparse.ArgumentParser:
        page = verbs.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        page.epilog = epilog or None
        return page

    run = verb(
        "run",
        "train the model that a file defines, or launch a training script",
        epilog=_RUN_EXAMPLES,
    )
    run.description = (
        "Train the model that a file defines. Arguments after `--` go to the model file."
    )
    run.usage = "torch-edl run MODEL.py --data PATH... [options] [-- ARGS]"
    _add_model_file(run)
    add_options(run, "train")
    section(run, "job").add_argument(
        "--dry-run",
        action="store_true",
        help="try one minibatch, print the plan, start nothing (default: no)",
    )
    _add_summary(run)

    evaluate = verb(
        "evaluate",
        "compute the metrics of a trained model on data",
        epilog="example:\n  torch-edl evaluate model.py --from trained --data test.parquet --json",
    )
    evaluate.usage = "torch-edl evaluate MODEL.py --from SOURCE --data PATH... [options] [-- ARGS]"
    _add_model_file(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print the metrics as JSON")
    add_options(evaluate, "evaluate")
    _add_summary(evaluate)

    predict = verb(
        "predict",
        "write a trained model's predictions for data",
        epilog="example:\n"
        "  torch-edl predict model.py --from trained --data new.parquet --output scores.csv",
    )
    predict.usage = (
        "torch-edl predict MODEL.py --from SOURCE --data PATH... --output FILE [options] [-- ARGS]"
    )
    _add_model_file(predict)
    add_options(predict, "predict")
    _add_summary(predict)

    export = verb(
        "export",
        "write a trained model as one plain torch state_dict",
        epilog="example:\n  torch-edl export trained model.pt\n\n"
        "An embedding without a fixed size becomes NAME.ids and NAME.vectors.",
    )
    export.add_argument("source", metavar="SOURCE", help=_SOURCE)
    export.add_argument("file", metavar="FILE", help="FILE.pt, FILE.pth or FILE.safetensors")

    status = verb("status", "show a job: progress, processes, rates")
    status.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: newest)")
    status.add_argument("--json", action="store_true", help="print one JSON object")

    logs = verb(
        "logs",
        "show the events of a job and the output of its processes",
        epilog="examples:\n"
        "  torch-edl logs --tail 20\n"
        "      the last 20 lines of each log of the newest job; the events come last\n\n"
        "  torch-edl logs digits --role worker --id 1 --follow\n"
        "      the output of worker-1, as it is printed",
    )
    logs.add_argument("job", nargs="?", metavar="JOB", help="name of the job (default: newest)")
    logs.add_argument(
        "--role",
        choices=("events", "master", "ps", "worker"),
        default="",
        metavar="ROLE",
        help="events, master, ps or worker (default: all)",
    )
    logs.add_argument(
        "--id", type=whole, metavar="N", help="number of the process (default: all of the role)"
    )
    logs.add_argument(
        "--tail",
        type=whole,
        metavar="N",
        help="start with the last N lines of each log (default: all)",
    )
    logs.add_argument(
        "-f", "--follow", action="store_true", help="print new lines until the job has ended"
    )

    listing = verb("list", "list the jobs of this machine, newest first")
    listing.add_argument("--json", action="store_true", help="print one JSON list")

    clean = verb(
        "clean",
        "remove the folders of jobs that have ended: logs, events, status",
        epilog="examples:\n"
        "  torch-edl clean --days 7\n"
        "      keep jobs that were active in the last 7 days\n\n"
        "  torch-edl clean --keep 20 --dry-run\n"
        "      list the folders that would be removed to keep the 20 newest jobs\n\n"
        f"{_KEPT}",
    )
    clean.add_argument(
        "job", nargs="*", metavar="JOB", help="names of jobs (default: all that have ended)"
    )
    clean.add_argument(
        "--days", type=whole, metavar="N", help="keep jobs that were active in the last N days"
    )
    clean.add_argument("--keep", type=whole, metavar="N", help="keep the N newest jobs")
    clean.add_argument("--dry-run", action="store_true", help="list the folders, remove nothing")

    scale = verb("scale", "change the number of workers of a running job")
    scale.add_argument("job", metavar="JOB", help="name of the job")
    scale.add_argument(
        "--workers",
        required=True,
        type=worker_range,
        metavar="N|MIN:MAX",
        help="number of workers, or a range",
    )

    stop = verb("stop", "stop a running job, after a last checkpoint if the job keeps any")
    stop.add_argument("job", metavar="JOB", help="name of the job")
    stop.add_argument(
        "--now", action="store_true", help="end all processes at once, without a last checkpoint"
    )
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the arguments of ``torch-edl``.

    Returns:
        The options; ``model_args`` are the arguments after ``--``. For ``run`` with a training
        script: the verb ``script`` and its ``words``, which torch's own parser reads.

    Raises:
        UsageError: an unknown argument, or a value that is missing or has the wrong type.
    """
    parser = build_parser()
    if argv[:1] == ["run"]:
        run = _verbs(parser)["run"]
        words = script_words(argv[1:], run)
        if words is not None:
            return argparse.Namespace(verb="script", words=words)
    model_args: list[str] = []
    if "--" in argv:
        cut = argv.index("--")
        argv, model_args = argv[:cut], argv[cut + 1 :]
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise UsageError(_unknown(parser, args.verb, unknown[0]))
    if model_args and args.verb not in ("run", "evaluate", "predict"):
        raise UsageError(
            f"-- {' '.join(model_args)}: {args.verb} takes no arguments for a model file"
        )
    args.model_args = tuple(model_args)
    return args


def run_options() -> frozenset[str]:
    """Every option of ``run`` with a model file."""
    return frozenset(_verbs(build_parser())["run"]._option_string_actions)


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(next(actions).choices)


def _unknown(parser: argparse.ArgumentParser, verb: str, word: str) -> str:
    if not word.startswith("-"):
        return f"{word}: unexpected; arguments of the model file go after `--`"
    known = list(_verbs(parser)[verb]._option_string_actions)
    flag = word.split("=")[0]
    close = difflib.get_close_matches(flag, known, n=1, cutoff=0.75) or [
        k for k in known if k.startswith(flag)
    ]
    if close:
        return f"{flag}: no such option of torch-edl {verb}; did you mean {close[0]}?"
    return (
        f"{flag}: no such option of torch-edl {verb}; see torch-edl {verb} --help, "
        "or put it after `--` if the model file takes it"
    )
