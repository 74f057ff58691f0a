"""What becomes of columns: of Arrow, numpy, torch and pandas, fitted, saved and loaded."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from torch_edl import _core
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.preprocessing import Columns, column, cross, one_space, shared

TABLE = pa.table(
    {
        "text": ["u", "v", None, "u", "w"],
        "id": pa.array([1, 2, None, 2, 7]),
        "x": pa.array([1.0, 2.0, None, 3.0, 4.0], pa.float32()),
        "fields": ["1", "", "3", "4", "-5"],
    }
)


@pytest.mark.parametrize(
    ("text", "seed", "wanted"),
    [
        ("", 0, 0x93228A4DE0EEC5A2),
        ("a", 1, 0xC5BAC3DB178713C4),
        ("abc", 2, 0xA97F2F7B1D9B3314),
        ("message digest", 3, 0x786D1F1DF3801DF4),
        ("abcdefghijklmnopqrstuvwxyz", 4, 0xDCA5A8138AD37C87),
        (
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
            5,
            0xB9E734F117CFAF70,
        ),
        ("1234567890" * 8, 6, 0x6CC5EAB49A92D617),
    ],
)
def test_texts_are_hashed_by_wyhash_as_published(text: str, seed: int, wanted: int) -> None:
    made = Columns(x=column("x").hash(seed=seed))({"x": [text]})["x"]
    assert made.view(np.uint64).tolist() == [wanted]


def test_a_hash_is_the_same_for_ever() -> None:
    columns = Columns(
        text=column("text").hash(1000),
        id=column("id").hash(1000, seed=3),
        crossed=cross("text", "id").hash(1000),
    )
    assert {name: made.tolist() for name, made in columns(TABLE).items()} == HASHED


HASHED = {
    "text": [462, 789, 893, 462, 570],
    "id": [923, 138, 755, 138, 908],
    "crossed": [464, 115, 386, 910, 141],
}


def test_every_form_of_a_column_gives_the_same() -> None:
    columns = Columns(
        ids=one_space([column("text").hash(50), column("id").hash(50)]),
        dense=[column("x").log().fill(0), column("x").missing()],
    )
    wanted = columns(TABLE)
    chunks = pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(2)])
    encoded = TABLE.set_column(0, "text", TABLE["text"].dictionary_encode())
    large = TABLE.set_column(0, "text", TABLE["text"].cast(pa.large_string()))
    binary = TABLE.set_column(0, "text", TABLE["text"].cast(pa.binary()))
    lists = {name: TABLE[name].to_pylist() for name in ("text", "id", "x")}
    sliced = pa.concat_tables([TABLE, TABLE]).combine_chunks().slice(5)
    forms = [chunks, encoded, large, binary, lists, sliced, TABLE.combine_chunks().to_batches()[0]]
    for records in forms:
        made = columns(records)
        assert (made["ids"] == wanted["ids"]).all()
        assert made["dense"] == pytest.approx(wanted["dense"])
    assert (wanted["ids"].dtype, wanted["dense"].dtype) == (np.int64, np.float32)
    assert wanted["dense"][:, 1].tolist() == [0, 0, 1, 0, 0]


def test_numpy_texts_and_objects() -> None:
    columns = Columns(x=column("x").hash(50))
    wanted = columns({"x": ["a", "bc"]})["x"]
    for form in (np.array(["a", "bc"]), np.array(["a", "bc"], object), np.array([b"a", b"bc"])):
        assert (columns({"x": form})["x"] == wanted).all()


def test_tensors_become_tensors() -> None:
    columns = Columns(ids=column("id").hash(9), x=column("x").log())
    made = columns({"id": torch.tensor([1, 2]), "x": torch.tensor([0.5, -2.0])})
    assert torch.allclose(made["x"], torch.tensor([1.5, -3.0]).abs().log() * torch.tensor([1, -1]))
    assert made["ids"].dtype == torch.int64
    assert made["ids"].tolist() == columns({"id": [1, 2], "x": [0.0, 0.0]})["ids"].tolist()


def test_fields_of_text_are_numbers_where_numbers_are_asked_for() -> None:
    made = Columns(x=column("fields").log())(TABLE)["x"]
    assert made == pytest.approx(np.log([2, np.nan, 4, 5, 1 / 6]), nan_ok=True)
    filled = Columns(x=column("fields").log().fill(-1))(TABLE)["x"]
    assert filled[1] == -1
    with pytest.raises(
        UsageError, match=r"'text': expected numbers: .*; for texts, add .vocabulary"
    ):
        Columns(x=column("text").log())(TABLE)


def test_a_vocabulary_and_its_unknown_values() -> None:
    columns = Columns(one=column("text").vocabulary(3), more=column("text").vocabulary(6, oov=4))
    columns.fit(TABLE)
    assert columns(TABLE)["one"].tolist() == [1, 2, 0, 1, 0]
    assert columns(TABLE)["more"].tolist() == [4, 5, 0, 4, columns(TABLE)["more"][4]]
    unknown = columns({"text": [f"new {n}" for n in range(100)] + [None]})
    assert set(unknown["one"]) == {0}
    assert set(unknown["more"][:100]) == {1, 2, 3}
    assert unknown["more"][100] == 0
    assert columns.fitted("one").counts.tolist() == [2, 1]


def test_integers_and_their_digits_have_one_vocabulary() -> None:
    columns = Columns(x=column("x").vocabulary(4)).fit({"x": [7, 7, -1]})
    assert columns({"x": ["7", "-1", "07"]})["x"].tolist() == [1, 2, 0]
    assert columns({"x": [7.0, np.nan]})["x"].tolist() == [1, 0]


def test_buckets_count_as_torch_does_and_leave_zero_for_what_is_missing() -> None:
    values = np.array([-1, 0, 0.5, 1, 7, np.nan])
    made = Columns(x=column("x").bucketize([0, 1]))({"x": values})["x"]
    wanted = torch.bucketize(torch.tensor(values[:-1]), torch.tensor([0.0, 1.0])) + 1
    assert made.tolist() == [*wanted.tolist(), 0]
    quarters = Columns(x=column("x").bucketize(quantiles=4)).fit({"x": np.arange(1000)})
    assert np.bincount(quarters({"x": np.arange(1000)})["x"]).tolist() == [0, 250, 250, 250, 250]


def test_columns_share_one_space_of_ids() -> None:
    columns = Columns(
        ids=one_space(
            [column("text").hash(10), column("x").bucketize([2.0]), column("id").fill(0).ids(8)]
        )
    )
    made = columns(TABLE)["ids"]
    assert columns.buckets("ids") == 10 + 3 + 8
    assert made[:, 1].tolist() == [11, 11, 10, 12, 12]
    assert made[:, 2].tolist() == [14, 15, 13, 15, 20]


TWO = {"user": [7, 8, None], "item": [7, 7, None], "city": ["a", "b", "a"], "land": ["a", "a", "c"]}


def test_columns_of_a_list_share_no_id() -> None:
    columns = Columns(
        hashed=[column("user").hash(), column("item").hash(), cross("user", "item").hash()],
        words=[column("city").vocabulary(5), column("land").vocabulary(4)],
        buckets=[column("user").hash(10), column("item").hash(10)],
        mixed=[column("city").vocabulary(5), column("user").hash(), column("land").vocabulary(4)],
    ).fit(TWO)
    made = columns(TWO)
    for name, ids in made.items():
        for a, b in itertools.combinations(ids.T.tolist(), 2):
            assert not set(a) & set(b), name
    assert made["hashed"][0, 1] == made["hashed"][1, 1]
    assert [columns.buckets(name) for name in made] == [0, 9, 20, 0]
    assert made["words"][:, 1].tolist() == [6, 6, 7]
    again = Columns.from_spec(columns.spec).load_bytes(columns.to_bytes())
    assert again.spec == columns.spec
    assert all((again(TWO)[name] == made[name]).all() for name in made)


def test_ids_as_they_are_stay_as_they_are() -> None:
    made = Columns(x=[column("a").ids(), column("b").ids()])({"a": [7, 1], "b": [7, 2]})["x"]
    assert made.tolist() == [[7, 7], [1, 2]]


def test_shared_columns_have_one_id_for_equal_values() -> None:
    columns = Columns(x=shared(column(name).hash() for name in ("user", "item")))
    made = columns(TWO)["x"]
    assert made[0, 0] == made[0, 1]
    assert made[1, 0] != made[1, 1]
    assert Columns.from_spec(columns.spec)(TWO)["x"].tolist() == made.tolist()


def test_a_model_of_before_keeps_its_shared_rows(tmp_path: Path) -> None:
    """A list was what shared() is now; its declaration of then is read as that."""
    then = json.dumps(
        {"x": {"columns": [{"column": name, "steps": [{"step": "hash", "count": 9, "seed": 0}]}
                           for name in ("user", "item")], "single": False, "one_space": False}}
    )  # fmt: skip
    old = Columns.from_spec(then)
    old.save(tmp_path / "file")
    assert old(TWO)["x"][0, 0] == old(TWO)["x"][0, 1]
    both = [column("user").hash(9), column("item").hash(9)]
    assert Columns(x=shared(both)).load(tmp_path / "file").spec == then
    with pytest.raises(UsageError, match="x was shared "):
        Columns(x=both).load(tmp_path / "file")


def test_unknown_values_of_a_loaded_vocabulary_are_told() -> None:
    columns = Columns(
        ids=[column("city").vocabulary(5), column("land").vocabulary(5)], x=column("user")
    ).fit({"city": ["a", "b"], "land": ["x", "y"], "user": [1, 2]})
    told: list[str] = []
    columns.tell_unknown(told.append)
    for part in range(4):
        cities = ["a", "b", "new", None] * 100
        columns({"city": cities, "land": ["x"] * 400, "user": [1] * 400})
        assert len(told) == (part >= 2)
    assert "33% of the values of column 'city' in the first 1,200 records" in told[0]


def test_missing_numbers_without_fill_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    columns = Columns(
        dense=[column("a"), column("b").fill(0), column("c")], ids=column("d").hash(9)
    )
    lacking = {"a": [1.0, None, None], "b": [None] * 3, "c": [1, 2, 3], "d": [None] * 3}
    for _ in range(2):
        columns(lacking)
    [record] = caplog.records
    said = "column 'a' has no value in 2 of 3 records (null or NaN), and is NaN there"
    assert said in record.getMessage()


def test_texts_are_filled_where_all_of_a_batch_are_missing() -> None:
    columns = Columns(x=column("x").fill("none").hash(50))
    first, *_ = columns({"x": [None, "some"]})["x"].tolist()
    assert columns({"x": [None, None]})["x"].tolist() == [first, first]


def test_integers_are_filled_with_more_than_their_type_holds() -> None:
    records = {"x": pa.array([None, 7], pa.uint8())}
    assert Columns(x=column("x").fill(-1).ids())(records)["x"].tolist() == [-1, 7]


def test_records_are_fitted_in_any_form() -> None:
    rows = [{"x": "a", "y": torch.tensor(1.0)}, {"x": "b", "y": torch.tensor(3.0)}]
    table = {"x": ["a", "b"], "y": [1.0, 3.0]}
    made = {
        Columns(x=column("x").vocabulary(5), y=column("y").normalize()).fit(records).to_bytes()
        for records in (rows, [rows], table, [table], iter([rows[:1], rows[1:]]))
    }
    assert len(made) == 1


def test_numbers_of_numpy_declare_the_same() -> None:
    made = Columns(
        ids=[column("a").ids(np.int64(9)), column("b").hash(np.int32(7), seed=np.uint64(3))],
        x=column("x").bucketize(np.array([1, 2])),
        y=column("x").fill(np.float32(0.5)),
    )
    wanted = Columns(
        ids=[column("a").ids(9), column("b").hash(7, seed=3)],
        x=column("x").bucketize([1, 2]),
        y=column("x").fill(0.5),
    )
    assert made.spec == wanted.spec


def test_a_cross_tells_combinations_apart() -> None:
    columns = Columns(x=cross("a", column("b").bucketize([5])).hash())
    made = columns({"a": ["u", "u", "v", "uv", None], "b": [1, 9, 1, 9, 9]})["x"]
    assert len(set(made.tolist())) == 5
    assert columns({"a": ["u"], "b": [2]})["x"] == made[0]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    columns = Columns(
        ids=one_space(iter([column("text").vocabulary(5), column("x").bucketize(quantiles=2)])),
        crossed=cross(column("text").vocabulary(5), "id").hash(100),
        dense=column("x").normalize().fill(0),
    ).fit(TABLE)
    columns.save(tmp_path / "preprocessing.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["preprocessing.safetensors"]
    wanted = columns(TABLE)
    for loaded in (Columns.from_spec(columns.spec).load(tmp_path), Columns.open(tmp_path)):
        made = loaded(TABLE)
        assert all((made[name] == wanted[name]).all() for name in wanted)
        assert loaded.to_bytes() == columns.to_bytes()


def test_other_columns_are_not_loaded(tmp_path: Path) -> None:
    Columns(x=column("text").vocabulary(5)).fit(TABLE).save(tmp_path / "file")
    with pytest.raises(UsageError, match=r"file is of other columns: x was .*\"size\": 5.*6"):
        Columns(x=column("text").vocabulary(6)).load(tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    for damaged in (content[:50], b"", content[:-3]):
        (tmp_path / "file").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="not a file of preprocessing"):
            Columns.open(tmp_path / "file")
    with pytest.raises(CheckpointError, match="no preprocessing there"):
        Columns.open(tmp_path)


def test_what_is_not_fitted_says_so() -> None:
    columns = Columns(x=column("x").normalize())
    assert columns.needs_fit
    assert not columns.is_fitted
    with pytest.raises(UsageError, match="normalize is not fitted"):
        columns(TABLE)
    assert Columns(x=column("x").log()).is_fitted


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        (lambda: column("x").hash(5).log(), "hash makes ids"),
        (lambda: column("x").normalize().bucketize(quantiles=3), "two passes"),
        (lambda: cross("a"), "two or more"),
        (lambda: cross("a", "b").log(), "a cross is hashed"),
        (lambda: cross("a", cross("b", "c")), "a cross is hashed"),
        (lambda: column("a").hash(np.float32(10)), "count is 10.0; expected an integer"),
        (lambda: Columns(x=cross("a", "b")), "a cross is hashed"),
        (lambda: Columns(x=[column("a"), column("b").hash(3)]), "ids and numbers"),
        (lambda: Columns(x=[]), "expected column"),
        (lambda: Columns(), "without columns"),
        (lambda: one_space([column("a").hash()]), "no known number of ids"),
        (lambda: shared([column("a").vocabulary(9)]), "depend on its own values"),
        (lambda: Columns(x=[column("a").hash(1 << 62), column("b").hash(1 << 62)]), "64 bits"),
        (lambda: column("a").vocabulary(1), "out of range"),
        (lambda: column("a").bucketize([3, 1]), "boundaries that rise"),
        (lambda: column("a").bucketize(), "either boundaries or"),
        (lambda: Columns.from_spec('{"x": 1}'), "not a declaration"),
        (lambda: Columns(y=column("y"))(TABLE), "no column 'y' in .*'text', 'id'"),
        (lambda: Columns(y=column("id").ids())(TABLE), "1 ids are missing"),
        (lambda: Columns(y=column("id").fill(9).ids(8))(TABLE), "id 9 is not in 0..7"),
        (lambda: Columns(y=column("text").fill(1))(TABLE), "fill them with a text"),
        (lambda: Columns(y=column("x").fill("a"))(TABLE), "fill them with a number"),
        (lambda: Columns(y=column("id").fill(2**64))(TABLE), "fill.18446744073709551616. is no"),
        (lambda: Columns(y=column("x"))({"x": [2**64]}), "column 'x': not texts, nor numbers"),
        (
            lambda: Columns(y=column("x"))({"x": torch.ones(1, dtype=torch.bfloat16)}),
            "column 'x': not texts, nor numbers: .*BFloat16",
        ),
        (lambda: Columns(y=column("x").hash(3))({"x": [0.5]}), "fractions are no ids"),
        (lambda: Columns(y=column("x").ids())({"x": np.array([-2e19])}), "-2e.19 does not fit 64"),
        (lambda: Columns(y=column("x").hash(3))({"x": [2.0**63]}), "does not fit 64 bits"),
        (
            lambda: Columns(y=column("x").vocabulary(3)).fit({"x": np.array([2**63], np.uint64)}),
            "column 'x': 9223372036854775808 does not fit",
        ),
        (lambda: Columns(y=column("x"))({"x": np.zeros((2, 2))}), "one value a record"),
        (lambda: Columns(y=column("x"))([b"1"]), "no column 'x' in .* list"),
        (lambda: Columns(y=column("x")).buckets("z"), r"buckets\('z'\): no such output; .*: y$"),
        # A column that is not fitted is missed in the pass too.
        (lambda: Columns(y=column("x").normalize(), z=column("itm")).fit(TABLE), "column 'itm'"),
    ],
)
def test_mistakes_are_named(declared: object, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        declared()  # type: ignore[operator]


def test_records_that_are_no_table_are_parsed() -> None:
    def parse(records: list[bytes]) -> dict[str, list[str]]:
        first, second = zip(*(record.decode().split("\t") for record in records), strict=True)
        return {"a": list(first), "b": list(second)}

    columns = Columns(parse, ids=[column("a").vocabulary(3), column("b").hash(10)])
    columns.fit([[b"u\tv", b"u\tw"], [b"x\ty"]])
    assert columns([b"u\tv", b"z\tv"])["ids"][:, 0].tolist() == [1, 0]


def test_texts_beyond_their_buffers_are_rejected() -> None:
    offsets = np.array([0, 2, 5], np.int64)
    with pytest.raises(ValueError, match="outside of the data"):
        _core.Texts(offsets, b"abc", None, 0, 2, True)
    with pytest.raises(ValueError, match="shorter than the column"):
        _core.Texts(offsets, b"abcde", None, 0, 3, True)
    with pytest.raises(ValueError, match="outside of the data"):
        _core.Texts(np.array([3, 1, 2], np.int64), b"abcde", None, 0, 2, True)


def test_neither_torch_nor_tensorflow_is_imported() -> None:
    code = (
        "import sys, pyarrow as pa; from torch_edl.preprocessing import Columns, column;"
        "c = Columns(x=column('x').vocabulary(3)).fit({'x': ['a']}); c({'x': ['a']}); c.to_bytes();"
        "assert not {'torch', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_ids_of_texts_are_those_of_their_records() -> None:
    columns = Columns(
        hashed=[column("user").hash(), column("item").hash(), cross("user", "item").hash()],
        words=[column("city").vocabulary(5), column("land").vocabulary(4)],
        one=column("city").hash(7),
        x=column("user"),
    ).fit(TWO)
    made = columns(TWO)
    for name, number, key in [
        ("hashed", 1, "item"), ("words", 0, "city"), ("words", 1, "land")
    ]:  # fmt: skip
        assert columns.ids_of(name, key, TWO[key]).tolist() == made[name][:, number].tolist()
    assert columns.ids_of("one", "city", TWO["city"]).tolist() == made["one"].tolist()
    crossed = columns.ids_of("hashed", "user x item", TWO)
    assert crossed.tolist() == made["hashed"][:, 2].tolist()
    unknown = columns.ids_of("words", "land", ["no such land"])
    assert unknown.tolist() == [5]
    for output, key, message in [
        ("none", "city", "no such output"),
        ("words", "user", "0 columns of ids of that name in the output; it has 'city', 'land'"),
        ("x", "user", "it has none"),
    ]:
        with pytest.raises(UsageError, match=message):
            columns.ids_of(output, key, [1])
    with pytest.raises(UsageError, match="not fitted"):
        Columns(x=[column("city").vocabulary(5)]).ids_of("x", "city", ["a"])
