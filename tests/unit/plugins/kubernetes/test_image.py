"""The Dockerfile: what it installs, from where, and as whom it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl import __version__
from torch_edl.cli.__main__ import main
from torch_edl.plugins.kubernetes.objects.pod import USER


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines() -> list[str]:
    return Path("Dockerfile").read_text().splitlines()


def test_the_image_is_slim_and_runs_as_the_user_of_the_pods() -> None:
    assert main(["image"]) == 0
    stages = [line for line in lines() if line.startswith("FROM")]
    assert len(stages) == 2
    assert all("-slim" in stage for stage in stages)
    assert lines()[-1] == f"USER {USER}:{USER}"
    second = lines()[lines().index(stages[1]) :]
    assert not any("apt-get" in line or "g++" in line for line in second)
    assert any(line.endswith("/whl/cpu") for line in second)
    assert any(line.endswith(f"torch-edl=={__version__}") for line in lines())


def test_torch_the_requirements_and_the_code_are_chosen(folder: Path) -> None:
    (folder / "needs.txt").write_text("pandas\n")
    (folder / "torch_edl-0.1.0-cp311.whl").write_bytes(b"")
    words = ["--torch", "cu126", "--requirements", "needs.txt", "--code", "/app"]
    assert main(["image", *words, "--install", "torch_edl-0.1.0-cp311.whl"]) == 0
    text = Path("Dockerfile").read_text()
    assert "/whl/cu126\n" in text
    assert 'COPY ["needs.txt", "/tmp/requirements.txt"]' in text
    assert 'COPY [".", "/app"]\nWORKDIR /app\n' in text
    assert 'COPY ["torch_edl-0.1.0-cp311.whl", "/src/torch_edl-0.1.0-cp311.whl"]' in text
    assert "--code-in-image /app" in text


@pytest.mark.parametrize(
    ("words", "extras"),
    [
        ("", "kubernetes"),
        ("torch_model.py --data /data/a.parquet", "kubernetes"),
        ("keras_model.py", "kubernetes,tensorflow"),
        ("--data s3://b/a.avro postgresql://db#clicks --data kafka://k/t", "avro,kafka,s3,sql"),
        ("--data gs://b/a.csv https://h/a.csv odps://p/t --extra etcd", "etcd,gcs,http,maxcompute"),
    ],
)
def test_what_the_model_and_the_data_need_is_installed(
    folder: Path, words: str, extras: str
) -> None:
    (folder / "torch_model.py").write_text("import torch\n")
    (folder / "keras_model.py").write_text("import net\n")
    (folder / "net.py").write_text("import keras\n")
    assert main(["image", *words.split()]) == 0
    wanted = ",".join(["kubernetes", *[each for each in extras.split(",") if each != "kubernetes"]])
    assert f'torch_edl-*.whl)[{wanted}]"' in Path("Dockerfile").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--torch", "cuda"], "--torch cuda: no variant of torch; write cpu"),
        (["--torch", "cu126; rm"], "no variant of torch"),
        (["--requirements", "none.txt"], "--requirements none.txt: no such file"),
        (["--install", "missing.whl"], "--install missing.whl: no such file"),
        (["--install", "/usr"], "--install /usr: is outside this folder"),
        (["--extra", "etdc"], "--extra etdc: no extra of torch-edl; did you mean etcd?"),
        (["none.py"], "none.py: no such file"),
        (["--code", "app"], "--code app: write an absolute path of the image"),
    ],
)
def test_what_cannot_be_built_is_rejected(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("Dockerfile").exists()


def test_a_file_that_is_there_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    Path("Dockerfile").write_text("mine")
    assert main(["image"]) == 2
    assert "is there already; name another file, or add --force" in capsys.readouterr().err
    assert Path("Dockerfile").read_text() == "mine"
    assert main(["image", "--force"]) == 0
    assert main(["image", "--output", "-"]) == 0
    assert capsys.readouterr().out.endswith(f"USER {USER}:{USER}\n")
