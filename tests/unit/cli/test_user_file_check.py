from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.cli.arguments.user_file import check_model_file as check
from torch_edl.errors import ContractError, UsageError

FULL = {
    "model": "def model(): ...",
    "loss": "def loss(labels, predictions): ...",
    "optimizer": "def optimizer(params): ...",
    "feed": "def feed(records, mode, metadata): ...",
}


def write(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "net.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def without(name: str, instead: str = "") -> str:
    return "\n".join([text for key, text in FULL.items() if key != name] + [instead])


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


def test_an_evaluation_needs_no_metrics(tmp_path: Path) -> None:
    """The loss is reported in any case."""
    check(write(tmp_path, without("")))


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


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        check(str(tmp_path / "no.py"))
    with pytest.raises(UsageError, match="a folder; name the Python file"):
        check(str(tmp_path))


def test_nothing_is_executed(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    check(write(tmp_path, without("", f"open({str(ran)!r}, 'w')")))
    assert not ran.exists()


def test_bound_names_are_returned(tmp_path: Path) -> None:
    path = write(tmp_path, without("", "def data_source(paths): ..."))
    assert {"model", "data_source"} <= check(path)


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
