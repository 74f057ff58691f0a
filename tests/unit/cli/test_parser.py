from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import install
from torch_edl.cli.arguments.parser import build_parser, parse
from torch_edl.errors import UsageError


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(list(argv))
    return str(caught.value).split("\nsee:")[0]


def test_words_after_the_dashes_are_the_model_files() -> None:
    args = parse(["run", "m.py", "--data", "a", "b", "--data", "c", "--", "--lr", "0.1", "--", "x"])
    assert args.data == ["a", "b", "c"]
    assert args.model_args == ("--lr", "0.1", "--", "x")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["stat"], "stat: no such command; did you mean status?"),
        (["xyz"], "xyz: no such command; choose from run, evaluate, predict, export, "),
        (["attach", "--platform", "local"], "--platform: invalid choice: 'local' (choose from "),
        (["run", "m.py", "--worker", "3"], "--worker: no such option of torch-edl run; did you"),
        (["run", "m.py", "--lr=3"], "--lr: no such option of torch-edl run; see torch-edl run"),
        (["run", "m.py", "n.py"], "n.py: unexpected; arguments of the model file go after"),
        (["run"], "MODEL.py: missing; the model file comes first"),
        (["run", "--data", "a", "m.py"], "MODEL.py: missing; the model file comes first"),
        (["run", "m.py", "--epochs"], "--epochs: needs a value"),
        (["run", "m.py", "--data"], "--data: needs a value"),
        (["run", "m.py", "--epochs", "1.5"], "--epochs: '1.5' is not a whole number"),
        (["run", "m.py", "--ps", "two"], "--ps: 'two' is not a whole number"),
        (["run", "m.py", "--workers", "2:"], "--workers: '2:': write a number or a range, such as"),
        (["run", "m.py", "--heartbeat-timeout", "0"], "--heartbeat-timeout: 0: must be above 0"),
        (["run", "m.py", "--heartbeat-timeout", "nan"], "--heartbeat-timeout: nan: must be above"),
        (["evaluate", "m.py"], "--from: missing; name a trained model: a job, "),
        (["export", "trained"], "FILE: missing; name the file to write"),
        (["scale"], "JOB: missing; torch-edl list shows the jobs"),
        (["completion"], "SHELL: missing; name a shell: bash, zsh or fish"),
        (["status", "j", "--", "x"], "-- x: status takes no arguments for a model file"),
    ],
)
def test_a_wrong_word_is_named(argv: list[str], message: str) -> None:
    assert refused(*argv).startswith(message)


def test_every_option_has_help_that_fits_its_column_and_names_a_default() -> None:
    verbs = next(a for a in build_parser()._actions if a.dest == "verb")
    assert isinstance(verbs.choices, dict)
    for verb, page in verbs.choices.items():
        for action in page._actions:
            assert action.help, f"{verb} {action.dest}"
            text = action.help.partition(" (default: ")[0]
            assert len(text) <= 62, f"{verb} {action.dest}: {text}"
            shows_default = verb == "run" and action.option_strings and not action.required
            if shows_default and action.dest not in ("help", "data", "eval_data"):
                assert action.help.endswith(")"), f"{verb} {action.dest}"
                assert "(default: " in action.help, f"{verb} {action.dest}"


def test_a_page_is_not_wider_than_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_edl.cli", "run", "--help"],
        env={"COLUMNS": "80", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    options, _, examples = done.stdout.partition("examples:")
    assert max(map(len, options.splitlines())) <= 80
    assert max(map(len, examples.splitlines())) <= 100
    for flag in ("--data", "--workers", "--grads-to-wait", "--resume", "--log-layers"):
        assert len(re.findall(rf"^  {flag}\b", options, re.MULTILINE)) == 1


def test_the_parser_needs_neither_torch_nor_grpc() -> None:
    code = (
        "import sys, torch_edl.cli.__main__ as m; m.parse(['run', 'm.py']);"
        "print(sorted({'torch','grpc','pyarrow','numpy','rich.live'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_installed_package_adds_a_verb(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(
        "def add_parser(commands):\n"
        "    page = commands.add_parser('hello', help='greet somebody')\n"
        "    page.add_argument('name')\n"
        "    page.set_defaults(runs='hello.main')\n"
        "def main(args):\n"
        "    print('hello', args.name)\n"
        "    return 7\n"
    )
    install(tmp_path, "hello", "[torch_edl.commands]\nhello = hello:add_parser\n")

    def edl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torch_edl.cli", *words]
        env = {"PYTHONPATH": str(tmp_path), "PATH": ""}
        return subprocess.run(command, env=env, capture_output=True, text=True)

    done = edl("hello", "you")
    assert (done.stdout, done.returncode) == ("hello you\n", 7)
    assert "greet somebody" in edl("--help").stdout
