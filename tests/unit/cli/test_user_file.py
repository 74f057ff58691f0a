"""Whether a file is a model file or a script, and what a model file lacks."""

from __future__ import annotations

import py_compile
import zipapp
from pathlib import Path

import pytest

from torch_edl.cli.arguments import user_file
from torch_edl.cli.arguments.user_file import check_model_file as check
from torch_edl.errors import ContractError, UsageError

from .conftest import MODEL as CONTRACT

FLAT_SCRIPT = """
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in data:
    loss = (model(x) - y).sum()
"""
MAIN_SCRIPT = """
def loss(a, b): ...
def main(): ...
if __name__ == "__main__":
    main()
"""
# Without a main block, as many that were notebooks once.
DDP_SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
def model(): ...
def loss(outputs, labels): ...
def fit():
    for x, y in data:
        loss(net(x), y).backward()
fit()
"""


@pytest.mark.parametrize(
    ("text", "is_script"),
    [
        (CONTRACT, False),
        (CONTRACT.replace("def loss", "def lss"), False),
        (CONTRACT.replace("def model", "def net"), False),
        ("from nets import model, loss, optimizer, feed\n", False),
        ("from nets import model, loss\n", False),
        ("from nets import *\n", True),
        ("def model(): ...\n", True),
        ("def feed(records): ...\nloss = 1\n", True),
        ("def model(): ...\ndef dataset_fn(records, mode, metadata): ...\n", False),
        ("try:\n    from a import model\nexcept ImportError: ...\nloss = 1\n", False),
        ("def custom_model(): ...\nimport torch\nloss = torch.nn.functional.mse_loss\n", False),
        ("model = nets.Net\nloss = torch.nn.MSELoss()\n", False),
        ("model = lambda: Net(3)\nloss = loss_fn\n", False),
        ("model = Net()\nloss = torch.nn.MSELoss()\nfit()\n", True),
        ("import a\nmodel, loss = a.model, a.loss\ndef feed(records): ...\n", False),
        (FLAT_SCRIPT, True),
        (MAIN_SCRIPT, True),
        ("print('hello')\n", True),
        ("", True),
        ("import torch\ndef net(): ...\n", True),
        ("exec(open('options.py').read())\nwhile True: ...\n", True),
        # Whatever it defines: who trains by itself is a script.
        (CONTRACT + "import torch_edl\njob = torch_edl.init()\n", True),
        (CONTRACT + "import torch_edl as edl\ndef main(): edl.ElasticTrainer\n", True),
        (CONTRACT + "from torch_edl import ElasticTrainer\n", True),
        (CONTRACT + "import torch_edl\ntorch_edl.nn.Embedding\n", False),
        (DDP_SCRIPT.replace("def model", "def net"), True),
        ("from helpers import *\nmodel()\n", True),
        ("from helpers import *\ndef feed(records, mode, metadata): ...\n", False),
        ("from contract import *\n", False),
    ],
)
def test_a_model_file_or_a_script(tmp_path: Path, text: str, is_script: bool) -> None:
    (tmp_path / "helpers.py").write_text("def model(): ...\n")
    (tmp_path / "contract.py").write_text(CONTRACT)
    path = tmp_path / "it.py"
    path.write_text(text)
    assert user_file.kind_of(str(path)).is_script is is_script


@pytest.mark.parametrize("form", ["folder", "app.pyz", "it.pyc"])
def test_what_python_runs_and_is_no_source_file(tmp_path: Path, form: str) -> None:
    source = tmp_path / "folder" / "__main__.py"
    source.parent.mkdir()
    for text, uses in (("import torch_edl\n", True), ("import torch\n", False)):
        source.write_text(text)
        if form == "app.pyz":
            zipapp.create_archive(source.parent, tmp_path / form)
        elif form == "it.pyc":
            py_compile.compile(str(source), str(tmp_path / form))
        path = str(tmp_path / form)
        assert user_file.kind_of(path).is_script
        assert user_file.uses_torch_edl(path) is uses


@pytest.mark.parametrize("name", ["train.csv", "train.parquet", "notes.txt"])
def test_data_are_no_program(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('"x"\n1\n')  # valid Python
    with pytest.raises(UsageError, match="comes first, and its name ends in"):
        user_file.kind_of(str(tmp_path / name))
    (tmp_path / "train").write_text("import torch\n")
    assert user_file.kind_of(str(tmp_path / "train")).is_script


def test_examples_are_what_they_are() -> None:
    examples = Path(__file__).parents[3] / "examples"
    for path in examples.glob("*/model.py"):
        assert not user_file.kind_of(str(path)).is_script, path


@pytest.mark.parametrize(
    ("files", "uses"),
    [
        ({"train.py": "import torch\n"}, False),
        ({"train.py": "import torch_edl\n"}, True),
        ({"train.py": "def f():\n    from torch_edl.nn import Embedding\n"}, True),
        ({"train.py": "import engine\n", "engine.py": "import torch_edl\n"}, True),
        (
            {
                "train.py": "from lib.engine import fit\n",
                "lib/__init__.py": "",
                "lib/engine.py": "from . import deep\n",
                "lib/deep.py": "from torch_edl import init\n",
            },
            True,
        ),
        ({"train.py": "from lib import engine\n", "lib/engine.py": "import torch_edl\n"}, True),
        ({"train.py": "import a\n", "a.py": "import b\n", "b.py": "import a\n"}, False),
        ({"train.py": "import torch\n", "other.py": "import torch_edl\n"}, False),
        ({"train.py": "import bad\n", "bad.py": "def (:\n"}, False),
        ({"train.py": "import torch_edlish\n"}, False),
    ],
)
def test_whether_a_script_uses_torch_edl(tmp_path: Path, files: dict[str, str], uses: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert user_file.uses_torch_edl(str(tmp_path / "train.py")) is uses


def test_a_module_is_found_without_importing_its_packages(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "train.py").write_text("from pack import engine\n")
    (package / "engine.py").write_text("import torch_edl\n")
    found = user_file.find_module("pack.train", ["/nowhere", str(tmp_path)])
    assert found == package / "train.py"
    assert user_file.uses_torch_edl(str(found), tmp_path)
    (package / "__main__.py").write_text("")
    assert user_file.find_module("pack", [str(tmp_path)]) == package / "__main__.py"
    assert user_file.find_module("absent", [str(tmp_path)]) is None


def write(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "net.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def without(name: str, instead: str = "") -> str:
    """The contract without one of its functions."""
    kept = [line for line in CONTRACT.splitlines() if not line.startswith(f"def {name}(")]
    return "\n".join([*kept, instead])


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("model", "class forward: ..."),
        ("model", "from nets import Net as custom_model"),
        ("loss", "loss = make_loss()"),
        ("loss", "a, (loss, b) = parts()"),
        ("loss", "loss: object = make()"),
        ("loss", "import torch.loss as loss"),
        ("loss", "try:\n    from fast import loss\nexcept ImportError:\n    loss = slow"),
        ("loss", "try:\n    pass\nexcept ImportError:\n    from slow import loss"),
        ("loss", "if True:\n    pass\nelse:\n    def loss(a, b): ..."),
        ("loss", "with open('f') as f:\n    loss = f"),
        ("loss", "match 1:\n    case 1:\n        loss = 2"),
        ("feed", "async def dataset_fn(r, m, d): ..."),
        ("loss", "from base import *"),
        ("loss", "globals()['loss'] = 1"),
        ("loss", "exec(open('more.py').read())"),
        ("loss", "def __getattr__(name): ..."),
    ],
)
def test_lenient_about_how_a_name_is_bound(tmp_path: Path, name: str, instead: str) -> None:
    check(write(tmp_path, without(name, instead)))


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("loss", ""),
        ("model", ""),
        ("optimizer", "optimizers = 1"),
        ("feed", "class Feeder:\n    def feed(self): ..."),
        ("loss", "def train():\n    def loss(a, b): ..."),
        ("loss", "loss: object"),
        ("loss", "module.loss = 1"),
        ("loss", "import torch.loss"),
    ],
)
def test_a_missing_function_is_named_with_an_example(
    tmp_path: Path, name: str, instead: str
) -> None:
    path = write(tmp_path, without(name, instead))
    with pytest.raises(ContractError) as caught:
        check(path, shown="nets/net.py")
    first, example, *_ = str(caught.value).split("\n")
    assert first.startswith(f"nets/net.py: no function '{name}'")
    assert first.endswith(": add for example:")
    assert example.startswith(f"    def {name}(")


def test_all_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        check(write(tmp_path, "x = 1"))
    assert str(caught.value).count("no function") == 4


def test_a_syntax_error_is_shown_where_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\ndef model(:\n    pass\n")
    with pytest.raises(UsageError) as caught:
        check(path, shown="net.py")
    first, line, mark = str(caught.value).split("\n")
    assert first.startswith("net.py:2: ")
    assert line == "    def model(:"
    assert mark.index("^") == line.index(":")


@pytest.mark.parametrize("text", [b"\0", b"\xff\xfe\x00x"])
def test_what_is_not_python_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(UsageError, match=r"^net\.py"):
        check(write(tmp_path, text), shown="net.py")


@pytest.mark.parametrize(
    ("name", "message"), [("no.py", "no such file"), (".", "a folder; name the Python file")]
)
def test_missing_file_and_folder(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(str(tmp_path / name))


def test_bound_names_are_returned_and_nothing_is_executed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = f"open({str(ran)!r}, 'w')\ndef data_source(paths): ..."
    assert {"model", "data_source"} <= check(write(tmp_path, without("", text)))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("model", "def model(dim): ...", r"net.py: model\(dim\) is called without arguments; give"),
        ("loss", "def loss(labels): ...", r"loss\(labels\) does not take 2 arguments; write for"),
        ("optimizer", "def optimizer(params, lr): ...", "does not take 1 argument; write"),
        ("feed", "def dataset_fn(records): ...", r"feed\(records\) does not take 3 arguments"),
        ("feed", "def feed(a, b, c, *, d): ...", r"feed\(a, b, c, \*, d\) does not take 3"),
    ],
)
def test_a_function_with_other_arguments(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        check(write(tmp_path, without(name, text)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model", "def model(dim=3, *, bias=True): ..."),
        ("loss", "def loss(labels, predictions, weight=None): ..."),
        ("feed", "def feed(*args, **more): ..."),
        ("feed", "@counted\ndef feed(records): ..."),
        ("feed", "def feed(records): ...\nfeed = adapted(feed)"),
    ],
)
def test_a_function_that_may_take_its_arguments(tmp_path: Path, name: str, text: str) -> None:
    check(write(tmp_path, without(name, text)))
