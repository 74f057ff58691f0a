"""Options in a YAML file: as on the command line, which counts, with errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_edl.cli.__main__ import main
from torch_edl.cli.arguments.options import model_file_job
from torch_edl.cli.arguments.parser import parse
from torch_edl.cli.arguments.script_arguments import parse as parse_script
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError


def job(tmp_path: Path, text: str, *words: str) -> JobConfig:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return model_file_job(parse(["run", "model.py", "--config", str(file), *words]), "train")


def test_a_key_is_an_option_and_the_command_line_counts(tmp_path: Path) -> None:
    text = """
workers: 2:8
ps: 3
data: [a.csv, b.csv]
epochs: 5
no-shuffle: true
resume: false
heartbeat-timeout: 7.5
job-name: clicks
"""
    config = job(tmp_path, text)
    assert (config.cluster.min_workers, config.cluster.max_workers) == (2, 8)
    assert config.cluster.servers == 3
    assert config.data.train == ("a.csv", "b.csv")
    assert (config.data.epochs, config.data.shuffle) == (5, False)
    assert config.checkpoint.resume is False
    assert config.cluster.heartbeat_timeout_s == 7.5
    config = job(tmp_path, text, "--data", "c.csv", "--workers=4", "--servers", "1")
    assert config.data.train == ("c.csv",)
    assert (config.cluster.min_workers, config.cluster.servers) == (4, 1)
    assert config.name == "clicks"


def test_required_options_may_be_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("from: trained\ndata: test.csv\n")
    args = parse(["evaluate", "model.py", f"--config={file}", "--", "--config", "own.yaml"])
    assert args.data == ["test.csv"]
    assert args.model_args == ("--config", "own.yaml")


def test_an_empty_file_has_no_options(tmp_path: Path) -> None:
    assert job(tmp_path, "# nothing\n").data.epochs == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker: 2", "job.yaml: worker: no such option; did you mean workers?"),
        ("epochs: many", "job.yaml: epochs: 'many' is not a whole number"),
        ("epochs: [1, 2]", "job.yaml: epochs: a list, and --epochs takes one value"),
        ("epochs: {a: b}", "job.yaml: epochs: 'a=b' is not a whole number"),
        ("data: [[a]]", "job.yaml: data: ['a']: write one value, not a list in a list"),
        ("no-shuffle: maybe", "job.yaml: no-shuffle: 'maybe': write true, or leave it out"),
        ("transport: grpc", "job.yaml: transport: no such option"),
        ("wire-dtype: int8", "job.yaml: wire-dtype: --wire-dtype int8: choose one of fp32"),
        ("workers: 8:2", "job.yaml: workers: --workers 8:2: the minimum is above the maximum"),
        ("config: other.yaml", "job.yaml: config: no such option"),
        ("- epochs", "holds no mapping; write an option a line"),
        ("epochs: [", "at line 1, column 10: epochs: ["),
        ("? [a]\n: b", "job.yaml: no YAML: "),
    ],
)
def test_an_error_names_the_file_the_key_and_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert main(["run", "model.py", "--config", str(tmp_path / "job.yaml")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--config none\.yaml: No such file or directory; name"):
        parse(["run", "model.py", "--config", "none.yaml"])
    with pytest.raises(UsageError, match=r"^--config: names no file; write --config job\.yaml"):
        parse(["run", "model.py", "--config"])
    (tmp_path / "a.yaml").write_text("epochs: 1")
    with pytest.raises(UsageError, match="is there twice; name one file"):
        parse(["run", "model.py", "--config", str(tmp_path / "a.yaml"), "--config=b.yaml"])


@given(st.binary(max_size=40) | st.text(alphabet="epochs: [{}]-&*!\n\t", max_size=24))
def test_any_file_is_read_or_rejected_as_the_users_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes | str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        parse(["run", "model.py", "--config", str(file)])
    except UsageError as error:
        assert "any.yaml" in str(error)  # noqa: PT017


def test_a_list_of_observers(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"observe:\n- tensorboard={tmp_path}/a\n- tensorboard=/b\n")
    args = parse(f"run m.py --data a --config {tmp_path}/job.yaml".split())
    assert args.observe == [f"tensorboard={tmp_path}/a", "tensorboard=/b"]


def test_a_wrong_value_of_an_option_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("max-restarts: x\n")
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(UsageError, match=r"job\.yaml: max-restarts: invalid int value: 'x'"):
        parse_script(["--config", f"{tmp_path}/job.yaml", f"{tmp_path}/train.py"])
