"""Which words are torchrun's, ours and the script's, and what they mean for a job."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from torch_edl.cli.arguments.options import add_options
from torch_edl.cli.arguments.parser import parse
from torch_edl.cli.arguments.script_arguments import parse as parse_script
from torch_edl.cli.arguments.script_arguments import rejection_hint
from torch_edl.cli.script import may_restart_here
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.master_host import ANY_PORT
from torch_edl.launch.torchrun.options import launch_config, meeting_point

from .conftest import MODEL

ROOT = Path(__file__).parents[3]
ELASTIC = "import torch_edl\njob = torch_edl.init()\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "elastic.py").write_text(ELASTIC)
    (tmp_path / "half.py").write_text("def model(): ...\n")
    (tmp_path / "plain.py").write_text("import torch\nprint('hello')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plain.py", "plain.py"),
        # The script's words are the script's, whatever they are.
        ("plain.py --workers 4 --resume --help", "plain.py --workers 4 --resume --help"),
        ("plain.py --data x -- --lr 1", "plain.py --data x -- --lr 1"),
        ("half.py --data d --workers 4", "half.py --data d --workers 4"),
        ("elastic.py --lr 1 --workers 4", "elastic.py --lr 1 --workers 4"),
        ("elastic.py --workers 2:4 --lr 1", "elastic.py --workers 2:4 --lr 1"),
        ("elastic.py --load=d -- --help-torchrun", "elastic.py --load=d -- --help-torchrun"),
        ("--workers 2 elastic.py --seed 1", "--workers 2 elastic.py --seed 1"),
        ("--nnodes 1:4 --nproc_per_node 2 plain.py", "--nnodes 1:4 --nproc_per_node 2 plain.py"),
        ("-m plain --lr 1", "-m plain --lr 1"),
        ("--standalone elastic.py", "--standalone elastic.py"),
        ("--help-torchrun", "--help-torchrun"),
        # All behind the cut is the script's.
        ("-- plain.py --x", "-- plain.py --x"),
        ("-- elastic.py --workers 2", "-- elastic.py --workers 2"),
        ("--workers 2 -- elastic.py --x", "--workers 2 -- elastic.py --x"),
        ("-- model.py --data d", "-- model.py --data d"),
    ],
)
def test_words_of_a_script(place: Path, line: str, words: str) -> None:
    args = parse(["run", *line.split()])
    assert (args.verb, args.words) == ("script", words.split())


@pytest.mark.parametrize("line", ["train.sh --lr 1", "some.module --lr 1", "-- train.sh"])
def test_variables_of_torchrun_say_that_it_is_no_file_of_python(
    place: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (place / "train.sh").write_text("echo $RANK (\n")
    with pytest.raises(UsageError):
        parse(["run", *line.split()])
    for name in ("PET_NO_PYTHON", "PET_MODULE"):
        with monkeypatch.context() as set_in:
            set_in.setenv(name, "1")
            args = parse(["run", *line.split()])
            assert (args.verb, args.words) == ("script", line.split())
            assert parse_script(args.words).training_script in ("train.sh", "some.module")


@pytest.mark.parametrize(
    "line", ["model.py --data d --workers 2", "--workers 2 model.py --data d", "model.py -- --x 1"]
)
def test_words_of_a_model_file(place: Path, line: str) -> None:
    args = parse(["run", *line.split()])
    assert (args.verb, args.model_file) == ("run", "model.py")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--rdzv-id x model.py", "model.py: a model file .*--workers MIN:MAX"),
        ("--nnodes 2 --wrokers 2 plain.py", "--wrokers: no option .* did you mean --workers"),
        ("--rdzv-id x --data x plain.py", "--data: .* reads its own data"),
        ("--nproc-per-node", "--nproc-per-node: needs a value"),
        ("--rdzv-id x", "SCRIPT.py: missing"),
        ("--workers 2 --nproc-per-node 2 elastic.py", "--workers and --nproc-per-node 2: choose"),
        ("--workers 2 --nnodes 2 elastic.py", "--workers and --nnodes 2: --workers is for one"),
        ("--workers 0 elastic.py", "--workers 0: must be 1 or more"),
        ("--workers x elastic.py", "--workers: 'x': write a number or a range"),
        ("-m --no-python plain", "--no-python and --module: choose one"),
        ("--rdzv-id x none.py", "none.py: no such file"),
        ("-- none.py", "none.py: no such file; after `--` comes a training script"),
        ("--epochs 3 plain.py", "--epochs: plain.py is a training script .*reads its own data"),
        ("--mode sync elastic.py", "--mode: elastic.py is .* for model files"),
        ("--check a.pt elastic.py", "--check: no option of torchrun"),
        ("--rdzv x elastic.py", "--rdzv: no option of torchrun"),
    ],
)
def test_words_that_make_no_sense(place: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_script(parse(["run", *line.split()]).words)


@pytest.mark.parametrize("line", ["--nnodes 2 -- model.py --x", "--config job.yaml -- model.py"])
def test_any_file_is_a_script_after_the_dashes(place: Path, line: str) -> None:
    (place / "job.yaml").write_text("nnodes: 2\n")
    assert parse_script(line.split()).training_script == "model.py"


def test_both_spellings_and_the_rest_are_the_parser_of_torch(place: Path) -> None:
    args = parse_script(["--nproc_per_node", "2", "--max-restarts=3", "plain.py", "a", "-b"])
    assert (args.nproc_per_node, args.max_restarts) == ("2", 3)
    assert args.training_script_args == ["a", "-b"]


@pytest.mark.parametrize(
    "rest",
    [
        "--checkpoint a.pt",  # --checkpoint-dir and --checkpoint-every are ours
        "--data x --worker 2 --workers=3 --eval --dur 1 --s 2 --no --resume --config c --help",
        "-m --nnodes 4 --standalone -r 3 -- --nproc_per_node 2",
        "--help-torchrun --dry-run",
    ],
)
@pytest.mark.parametrize("before", ["", "--workers 2 ", "--standalone --max-r=3 ", "-- "])
def test_what_follows_a_script_is_never_ours(place: Path, before: str, rest: str) -> None:
    args = parse(["run", *f"{before}elastic.py {rest}".split()])
    args = parse_script(args.words)
    assert (args.training_script, args.training_script_args) == ("elastic.py", rest.split())
    assert (args.config, args.checkpoint_dir, args.nnodes) == (None, None, "1:1")


def test_torchruns_abbreviations_before_a_script_are_torchruns(place: Path) -> None:
    """``--nproc`` is ambiguous for torchrun itself only because it is spelled in two ways."""
    args = parse_script(
        ["--standa", "--max-r", "3", "--nproc=2", "-r3", "plain.py", "--max-r", "9"]
    )
    assert (args.standalone, args.max_restarts, args.nproc_per_node) == (True, 3, "2")
    assert args.redirects == "3"
    before = [word.replace("_", "-") for word in args.before]
    assert before == ["--standalone", "--max-restarts", "3", "--nproc-per-node=2", "-r3"]


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("half.py", "half.py runs as a training script, since it defines model, but not loss; a"),
        ("half.py --data x", "half.py runs as a training script, since it defines model, but not"),
        ("-- half.py", ""),
        ("elastic.py --lr 1 --job-name x", ""),
        ("plain.py --workers 4", ""),
        ("--nnodes 1 plain.py --lr 1 --dry-run", ""),
    ],
)
def test_the_words_of_a_script_are_not_judged_before_its_start(
    place: Path, line: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert parse(["run", *line.split()]).verb == "script"
    assert len(caplog.messages) == bool(warning)
    assert re.search(warning, " ".join(caplog.messages))


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("", []),
        ("--lr 1 --wrokers 2 -m -r 3 workers", []),
        ("--workers=4", ["--workers: passed to s.py; options of torch-edl go before the script"]),
        (
            "--dry-run --lr 1 --nproc_per_node 2 --config c --dry-run",
            ["--dry-run, --nproc_per_node, --config: passed to s.py; options of torch-edl go"],
        ),
        ("--epochs 3", ["--epochs: passed to s.py, a training script; a model file defines model"]),
        ("--data x --seed 1", ["--seed: passed to s.py; options", "--data: passed to s.py, a t"]),
    ],
)
def test_the_hint_after_an_error_of_the_scripts_own_parser(words: str, lines: list[str]) -> None:
    found = rejection_hint("s.py", words.split()).splitlines()
    assert len(found) == len(lines)
    assert all(each.startswith(line) for each, line in zip(found, lines, strict=True)), found


def test_model_files_and_help_do_not_wait_for_torch(place: Path) -> None:
    code = (
        "import sys\nfrom torch_edl.cli.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "sys.exit(100 + code if 'torch' in sys.modules else code)\n"
    )
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "TORCH_EDL_HOME": str(place / "home")}
    for words, expected in (("--help", 0), ("model.py", 2), ("model.py --data none", 2)):
        command = [sys.executable, "-c", code, "run", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == expected, done.stderr
        assert ("--help-torchrun" in done.stdout) == (words == "--help")


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        ("", ""),
        ("--nnodes 1:4", ""),
        ("--nnodes 1:4 --standalone --rdzv-endpoint node0:1", ""),
        ("--nnodes 1:4 --rdzv-id mine", ANY_PORT),
        ("--rdzv-id mine", ""),  # nobody else has a place
        ("--nnodes 1:4 --rdzv-endpoint node0", "node0:29400"),
        # An address of this machine is for others to reach it: there are none with one machine.
        ("--nnodes 1:4 --rdzv-endpoint 127.0.0.2", "127.0.0.2:29400"),
        ("--rdzv-endpoint 127.0.0.2:29411", "127.0.0.1:29411"),
        ("--rdzv-endpoint node0", "node0:29400"),
        ("--nnodes 1:4 --master-port 29511", "127.0.0.1:29511"),
        ("--nnodes 1:4 --master-addr node0", "node0:29500"),
        ("--nnodes 2", "127.0.0.1:29500"),  # torchrun's own default
        ("--nnodes 2 --rdzv-id mine", ANY_PORT),
    ],
)
def test_nothing_is_joined_that_nobody_named(place: Path, words: str, endpoint: str) -> None:
    args = parse_script([*words.split(), "elastic.py"])
    assert meeting_point(args, launch_config(args)[0]) == endpoint


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_endpoint_that_names_no_machine_is_rejected(place: Path, host: str) -> None:
    args = parse_script(["--nnodes", "2", "--rdzv-endpoint", f"{host}:29400", "elastic.py"])
    with pytest.raises(UsageError, match="names no machine"):
        meeting_point(args, launch_config(args)[0])


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("--max-restarts 3", True),
        ("--max-restarts 3 --standalone", True),
        ("", False),
        ("--standalone", False),
        # What is named is torch's affair.
        ("--max-restarts 3 --master-port 29501", False),
        ("--max-restarts 3 --rdzv-backend c10d", False),
        ("--max-restarts 3 --rdzv-endpoint localhost:29501", False),
        ("--max-restarts 3 --nnodes 2", False),
    ],
)
def test_who_may_restart_a_plain_script_does_not_meet_at_a_store_of_the_dead(
    place: Path, line: str, may: bool
) -> None:
    assert may_restart_here(parse_script([*line.split(), "plain.py"])) is may


@pytest.mark.parametrize(
    ("words", "named", "threads"),
    [
        ("--nproc-per-node 2", None, "4"),
        ("--workers 1:3", None, "2"),
        ("--workers 20", None, "1"),
        ("--nproc-per-node 1", None, None),  # torch takes all cores
        ("--workers 2", "7", "7"),
    ],
)
def test_the_cores_are_divided_without_a_warning(
    words: str,
    named: str | None,
    threads: str | None,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", named or "")  # put back after the test
    if named is None:
        del os.environ["OMP_NUM_THREADS"]
    monkeypatch.setenv("OMP_WAIT_POLICY", "active" if named else "")
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0" if named else "")
    if named is None:
        del os.environ["OMP_WAIT_POLICY"], os.environ["THP_MEM_ALLOC_ENABLE"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    launch_config(parse_script([*words.split(), "elastic.py"]))
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert os.environ["OMP_WAIT_POLICY"] == ("active" if named else "passive")
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == ("0" if named else "1")
    assert "OMP" not in capfd.readouterr().err


def flags_of_the_tables() -> set[str]:
    rows = re.findall(r"^\| (`-[^|]*)\|", (ROOT / "docs/torchrun.md").read_text(), re.MULTILINE)
    return {flag for row in rows for flag in re.findall(r"`(-[^`]*)`", row)}


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every flag, in the spelling with dashes."""
    return {flag for action in parser._actions for flag in action.option_strings if "_" not in flag}


def test_every_flag_is_in_the_table_and_no_other() -> None:
    parser = get_args_parser()
    add_options(parser, "script")
    assert flags_of_the_tables() == flags_of(parser)
