"""What a user sees on a bad day: the cause, the fix, an exit code, and nothing half-made."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.place import MODELS
from tests.waiting import HANG_S, wait_for
from torch_edl.checkpoint.claim import OWNER_FILE
from torch_edl.data.sources import open_source

RECORDS = 400
RUN = "run @bad --data n.parquet --batch-size 20 --records-per-task 100 --ps 2"


@pytest.fixture(autouse=True)
def data(place: Any) -> None:
    """The records 0 to 399."""
    pq.write_table(pa.table({"n": np.arange(RECORDS)}), place / "n.parquet")


def failed(place: Any, line: str, *more: str) -> str:
    """Runs a command that fails, and checks what all failures have in common; its stderr."""
    before = {p for p in place.folder.rglob("*") if "home" not in p.parts}
    done = place(line, *more, ok=False)
    assert done.code in (1, 2)
    # The first line after a traceback of the user's code, if there is one, and only one such.
    assert len(re.findall(r"^error: ", done.stderr, re.MULTILINE)) == 1
    assert "/torch_edl/" not in done.stderr, "a traceback of ours"
    assert "parameter servers lost" not in done.text
    assert "Exception in thread" not in done.text
    after = {p for p in place.folder.rglob("*") if "home" not in p.parts}
    # A folder of checkpoints keeps the claim of its last job.
    left = {path for path in after - before if path.name != OWNER_FILE}
    assert not left, "something was left behind"
    assert not re.search("(trained|predicted|evaluated) on", done.text)
    return done.stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "code_line", "message"),
    [
        (
            "exit",
            'sys.exit("no licence today")',
            r"bad.py: called sys.exit\('no licence today'\) while .* arguments, .*: exit",
        ),
        (
            "optimizer",
            "",
            "optimizer Rprop: .* no kernel for it; use one of torch.optim.SGD, .*Ftrl$",
        ),
    ],
)
def test_a_model_file_that_is_no_use(place: Any, way: str, code_line: str, message: str) -> None:
    said = failed(place, f"{RUN} --output never --", way)
    assert re.search(message, said.split("error: ")[-1].splitlines()[0]), said
    assert code_line in said
    assert ("Traceback" in said) == bool(code_line)


@pytest.mark.parametrize(
    ("way", "code_line", "message"),
    [
        (
            "shape",
            "binary_cross_entropy_with_logits(predictions, labels)",
            r"loss raised ValueError: .*\(labels \(20,\) float32, predictions \(20, 1\) float32\)",
        ),
        ("float ids", "self.rows(ids)", r"rows: ids are .*int64: .* ids.long\(\)"),
        pytest.param("range", "self.rows(ids)", "id .* is outside .0, 100", marks=pytest.mark.slow),
    ],
)
def test_user_code_that_fails_at_work(place: Any, way: str, code_line: str, message: str) -> None:
    said = failed(place, f"{RUN} --strategy ps --output never --", way)
    last = said.split("error: ")[-1].splitlines()[0]
    assert re.search(message, last), said
    assert len(named(last)) == 3
    assert last.count("[bad.py, line ") == 1
    assert code_line in said
    assert said.count("Traceback") == 1
    assert "the task was tried" not in last


def test_an_exception_that_is_no_error_does_not_end_feed_in_silence(place: Any) -> None:
    said = failed(place, f"{RUN} --strategy ps --workers 1 --output never --", "cancelled")
    last = said.split("error: ")[-1].splitlines()[0]
    assert re.search("feed raised CancelledError", last), said
    assert len(named(last)) == 100
    assert "raise asyncio.CancelledError" in said


def named(line: str) -> list[int]:
    """The rows that an error names."""
    found = re.search(r"\(records? ([\d, to]+) of \S+n.parquet( and 17 more)?\)", line)
    assert found is not None, line
    first, _, last = found[1].partition(" to ")
    return list(range(int(first), int(last) + 1)) if last else [*map(int, first.split(", "))]


@pytest.mark.parametrize(
    "strategy", ["local", pytest.param("allreduce --workers 2", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    # tests/unit/api/test_rows_at_fault.py has a fast table of the causes, with this class.
    "way",
    ["one label", pytest.param("one class", marks=SLOW)],
)
def test_the_row_of_a_label_is_named(place: Any, way: str, strategy: str) -> None:
    flags = RUN.replace(" --ps 2", f" --strategy {strategy}")
    said = failed(place, f"{flags} --output never --", way)
    assert named(said.split("error: ")[-1].splitlines()[0]) == [333], said


def test_a_metric_that_fails_does_so_before_the_first_step(place: Any) -> None:
    said = failed(place, f"{RUN} --strategy ps --eval-data n.parquet --", "metric")
    assert 'raise IndexError("no class 11")' in said
    assert re.search(
        r"error: a metric raised IndexError: no class 11 \(records 0 to 19 of \S+n.parquet, "
        r"in a trial of the evaluation before the first step\)",
        said,
    )


@pytest.mark.slow
def test_a_hang_is_shown_and_ends_the_job_after_so_many_tries(place: Any) -> None:
    options = "--job-name hangs --task-timeout 4 --max-task-failures 2"
    said = place(f"{RUN} --workers 1 {options} --", "hang", ok=False).text
    lost = r"worker-\d declared lost: no step for 4 s \(--task-timeout\); its tasks were"
    assert len(re.findall(lost, said)) == 2
    last = said.split("error: ")[-1].splitlines()[0]
    assert re.search(
        r"no step for 4 s .* records \d+ to \d+ of \S+n.parquet; .* tried 2 times", last
    )
    assert said.count("time.sleep(3600)") == 3  # with each loss, and at the end
    assert "Thread MainThread:" in said
    assert "task-prefetcher" not in said  # of ours, and does nothing


def test_what_workers_do_is_shown_on_request(place: Any) -> None:
    def asked(*words: str) -> tuple[str, str]:
        return place.edl("stack", "asked", *words).communicate(timeout=HANG_S)

    words = RUN.replace("@bad", str(MODELS / "bad.py")).split()
    with place.edl(*words, "--job-name", "asked", "--", "hang") as job:
        try:
            wait_for(lambda: "time.sleep(3600)" in asked()[0])
            assert "job asked has no worker-7" in asked("--id", "7")[1]
        finally:
            job.terminate()


def test_a_dry_run_tries_the_metrics(place: Any) -> None:
    said = failed(place, f"{RUN} --dry-run --", "nested metric")
    assert "metrics of the output 'probs', and the model returned (20,) float32" in said


def test_a_callback_that_fails(place: Any) -> None:
    said = failed(place, f"{RUN} --", "callback")
    assert 'raise RuntimeError("the board is full")' in said
    assert "callback Callback.on_batch_end raised RuntimeError: the board is full" in said


def test_nan_minibatches_are_left_out_and_counted(place: Any) -> None:
    done = place(f"{RUN} --on-nan skip --summary s.json --", "nan")
    assert "steps skipped: 5" in done.text
    summary = place.json("s.json")
    assert (summary["nan_steps"], summary["steps"], summary["records"]) == (5, 20, RECORDS)
    assert "--on-nan skip left 5 of 20 minibatches out" in done.text


def test_a_ring_whose_losses_are_all_nan_has_failed(place: Any) -> None:
    options = "--strategy allreduce --workers 2 --on-nan skip --output never"
    said = failed(place, f"{RUN} {options} --", "all nan")
    assert "nothing was trained: none of the 20 minibatches had a finite loss" in said
    # Its workers told where they listen: a store, and Gloo once the ring is formed.
    listens = [file.read_text().split() for file in (place / "home").glob("listens-*")]
    assert max(map(len, listens)) >= 2
    assert {host for hosts in listens for host in hosts} == {"127.0.0.1"}


@SLOW
def test_a_model_file_that_takes_its_time(place: Any) -> None:
    """Silence while it is imported is no reason to give a worker up."""
    done = place(f"{RUN} --heartbeat-timeout 2 --summary s.json --", "slow import")
    assert "declared lost" not in done.text
    assert place.json("s.json")["records"] == RECORDS


# ---- data ----


def damage(place: Any, digits: Path) -> None:
    whole = (place / "n.parquet").read_bytes()
    (place / "holed.parquet").write_bytes(whole[:200] + b"\x55" * 60 + whole[260:])
    image = bytearray((digits / "train-0.recordio").read_bytes())
    image[9000] ^= 0xFF
    (place / "image.recordio").write_bytes(image)


def test_damage_that_only_reading_finds(place: Any, digits: Path) -> None:
    damage(place, digits)
    said = failed(place, "run @bad --data holed.parquet --output never")
    assert re.search(r"error: \S+holed.parquet: row group 0: .*records 0 to 399 ", said)
    assert "Traceback" not in said


def test_a_malformed_record_that_only_reading_finds(place: Any) -> None:
    """It is not in the sample of 8 MB, of which the types of the columns are."""
    rows = [f"{i},{'x' * 50_000}\n" for i in range(RECORDS)]
    rows[230] = "230\n"
    (place / "rows.csv").write_text("n,x\n" + "".join(rows))
    open_source(str(place / "rows.csv"))  # leaves its index beside the file
    said = failed(place, "run @bad --data rows.csv --strategy local --output never")
    assert re.search(r"error: \S+rows.csv at byte \d+: line 232: a row of 1 fields.*-damaged", said)
    assert "Traceback" not in said
    done = place("run @bad --data rows.csv --strategy local --output out --skip-damaged")
    assert "damaged records skipped: 1" in done.text
    assert "trained on 399 records" in done.text


def test_damaged_records_are_left_out_and_counted(place: Any, digits: Path) -> None:
    damage(place, digits)
    shutil.copy(digits / "train-1.recordio", place / "sound.recordio")
    words = "--data image.recordio sound.recordio --summary s.json"
    done = place(f"run %/mnist/model.py {words} --skip-damaged")
    assert "damaged records skipped: 1" in done.text
    summary = place.json("s.json")
    assert summary["damaged"] == 1
    assert 300 < summary["records"] < 720


# ---- places to write to ----


@SLOW  # it is tried three times, five seconds apart
def test_no_room_for_the_output_or_an_export(place: Any, digits: Path, tiny_disk: Path) -> None:
    """A disk of 8 KB."""
    train = f"run %/mnist/model.py --data {digits}/train-0.recordio"
    said = failed(place, f"{train} --strategy ps --output tiny/model")
    assert "error: --output " in said
    assert "the model cannot be written: No space left on device" in said
    place(f"{train} --output sound")
    for name in ("m.pt", "m.safetensors"):
        said = failed(place, f"export sound tiny/{name}")
        assert said.startswith(f"error: tiny/{name}: cannot be written: ")
        assert "No space left on device" in said
    said = failed(
        place, f"predict %/mnist/model.py --from sound --data {digits}/test.recordio "
        "--output tiny/p.csv"
    )  # fmt: skip
    assert "tiny/p.csv: the predictions cannot be written: No space left on device; " in said


@SLOW  # it is tried three times, five seconds apart
@pytest.mark.parametrize("strategy", ["local", "ps"])
def test_no_room_for_checkpoints(place: Any, digits: Path, tiny_disk: Path, strategy: str) -> None:
    (tiny_disk / "steps").mkdir()
    said = failed(
        place, f"run %/mnist/model.py --data {digits}/train-0.recordio --strategy {strategy} "
        "--checkpoint-dir tiny/steps --checkpoint-every 2 --output never"
    )  # fmt: skip
    assert "error: the trained model cannot be saved in " in said
    assert "No space left on device" in said
    assert [path.name for path in (tiny_disk / "steps").iterdir()] == [OWNER_FILE]


@SLOW
@pytest.mark.parametrize(
    ("keep", "output", "message"),
    [
        ("m", "p.csv", r"--keep m: no column 'm' in \S+n.parquet; it has n"),
        ("n", "p.npz", r"--keep n: columns of tables have no place in p.npz"),
    ],
)
def test_columns_that_cannot_be_kept(place: Any, keep: str, output: str, message: str) -> None:
    place("run @bad --data n.parquet --strategy local --output kept")
    line = f"predict @bad --from kept --data n.parquet --keep {keep} --output {output}"
    assert re.search(message, failed(place, line))
