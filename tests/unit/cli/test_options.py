from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.cli.arguments.options import model_file_job, script_job
from torch_edl.cli.arguments.parser import parse
from torch_edl.cli.arguments.script_arguments import parse as parse_script
from torch_edl.config import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    DurabilityConfig,
    JobConfig,
    TrainConfig,
)
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import new_name


def test_no_options_give_the_defaults() -> None:
    config = model_file_job(parse(["run", "/m/net.py", "--job-name", "j"]), "train")
    assert config == JobConfig(name="j", model_file="/m/net.py")


@pytest.mark.parametrize("words", ["", "--workers 1:2"])
def test_workers_have_updates_in_order(words: str) -> None:
    config = model_file_job(parse(["run", "m.py", *words.split()]), "train")
    assert config.train.staleness == 0


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ("--durability checkpoint", "auto"),
        ("--durability checkpoint --ps 1", "ps"),
        ("--durability journal", "ps"),
        ("--durability checkpoint --strategy allreduce", "allreduce"),
    ],
)
def test_a_durability_of_servers_implies_them(words: str, strategy: str) -> None:
    """The default, written out, does not."""
    config = model_file_job(parse(["run", "m.py", *words.split()]), "train")
    assert config.train.strategy == strategy


def test_every_option_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "run m.py --data a b --eval-data c --format csv --batch-size 5 --records-per-task 50 "
        "--epochs 7 --no-shuffle --skip-damaged --loader-workers 2 --pin-memory --workers 2:8 "
        "--ps 3 --wire-dtype bf16 "
        "--worker-threads 1 --heartbeat-timeout 5 --task-timeout 60 "
        "--max-task-failures 9 --grace-period 4 "
        "--strategy ps --mode sync --grads-to-wait 4 --staleness 2 --local-steps 8 "
        "--max-steps 100 --eval-every 10 --seed 11 --on-nan skip "
        "--log-layers deep.* --large-embedding 12 --max-rows 900 --storage-dtype fp16 "
        "--table-storage disk:/fast --checkpoint-dir ck "
        "--checkpoint-every 20 --keep-checkpoints 6 --resume --load start --output out "
        "--load-optimizer "
        "--job-name j --tensorboard tb --durability journal --journal-dir log --fsync always "
        "-- --hidden 3"
    )
    assert model_file_job(parse(words.split()), "train") == JobConfig(
        name="j",
        model_file=str(tmp_path / "m.py"),
        model_args=("--hidden", "3"),
        data=DataConfig(
            train=("a", "b"),
            eval=("c",),
            format="csv",
            batch_size=5,
            records_per_task=50,
            epochs=7,
            shuffle=False,
            skip_damaged=True,
            loader_workers=2,
            pin_memory=True,
        ),
        train=TrainConfig(
            strategy="ps",
            mode="sync",
            grads_to_wait=4,
            staleness=2,
            local_steps=8,
            max_steps=100,
            eval_every=10,
            seed=11,
            on_nan="skip",
            log_layers="deep.*",
            large_embedding=12,
            max_rows=900,
            storage_dtype="fp16",
            table_storage="disk:/fast",
        ),
        cluster=ClusterConfig(
            min_workers=2,
            max_workers=8,
            servers=3,
            wire_dtype="bf16",
            worker_threads=1,
            heartbeat_timeout_s=5.0,
            task_timeout_s=60.0,
            grace_s=4.0,
            max_task_failures=9,
        ),
        checkpoint=CheckpointConfig(
            dir=str(tmp_path / "ck"),
            every=20,
            keep=6,
            resume=True,
            load="start",
            load_optimizer=True,
            output=str(tmp_path / "out"),
        ),
        tensorboard=str(tmp_path / "tb"),
        durability=DurabilityConfig(
            mode="journal", journal_dir=str(tmp_path / "log"), fsync="always"
        ),
    )


def test_predictions_keep_the_order_of_the_data() -> None:
    words = "predict m.py --from d --data a --output o.csv --job-name j --workers 3"
    config = model_file_job(parse(words.split()), "predict")
    assert (config.kind, config.data.predict, config.data.shuffle) == ("predict", ("a",), False)
    assert config.cluster.max_workers == 3
    assert config.checkpoint.load == "d"


@pytest.mark.parametrize("kind", ["train", "evaluate", "predict"])
def test_servers_of_a_model_file_that_are_named_are_wanted(kind: str) -> None:
    start = {
        "train": "run m.py",
        "evaluate": "evaluate m.py --from d",
        "predict": "predict m.py --from d --output o.csv",
    }[kind]
    for words, strategy in (("", "auto"), ("--ps 2", "ps"), ("--ps 2 --strategy local", "local")):
        config = model_file_job(parse(f"{start} {words}".split()), kind)
        assert config.train.strategy == strategy


def test_sync_waits_for_the_workers_that_are_sure_to_be_there() -> None:
    config = model_file_job(parse(["run", "m.py", "--mode", "sync", "--workers", "2:8"]), "train")
    assert config.train.grads_to_wait == 2
    assert config.train.staleness == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 8:2", "--workers 8:2: the minimum is above the maximum; write 2:8"),
        ("--workers 0", "--workers 0: must be 1 or more"),
        ("--ps 0", "--ps 0: "),
        ("--workers 1:99999999", "--workers 99999999: a job has 10,000 workers at most"),
        ("--ps 99999999", "--ps 99999999: a job has 1,000 parameter servers at most"),
        ("--resume", "--resume: add --checkpoint-dir DIR"),
        ("--checkpoint-every 9", "--checkpoint-every 9: add --checkpoint-dir DIR"),
        ("--grads-to-wait 2", "--grads-to-wait 2: only --mode sync waits"),
        ("--job-name a/b", "--job-name a/b: use letters"),
        ("--strategy mpi", "--strategy mpi: choose one of auto, ps, allreduce, local"),
    ],
)
def test_values_that_cannot_work_are_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_file_job(parse(["run", "m.py", *words.split()]), "train")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        ("/a/deepfm.py", "deepfm"),
        ("/a/mnist/model.py", "mnist"),
        ("/a/my model (2).py", "my-model-2"),
        ("/model.py", "job"),
    ],
)
def test_default_names(path: str, stem: str) -> None:
    name, other = new_name(path), new_name(path)
    assert name.rpartition("-")[0] == stem
    assert name != other
    JobConfig(name=name, model_file=path)


def made_of_script(folder: Path, words: str) -> JobConfig:
    script = folder / "train.py"
    script.write_text("import torch_edl\njob = torch_edl.init()\n")
    args = parse_script([*words.split(), str(script)])
    return script_job(args, name="j", min_workers=1, max_workers=2)


@pytest.mark.parametrize(
    ("words", "strategy", "servers"),
    [
        ("", "auto", ClusterConfig().servers),
        ("--ps 3", "ps", 3),
        ("--ps 3 --strategy ps", "ps", 3),
        ("--strategy ps", "ps", ClusterConfig().servers),
        ("--durability journal", "ps", ClusterConfig().servers),
        ("--strategy allreduce", "allreduce", ClusterConfig().servers),
    ],
)
def test_servers_that_are_named_are_wanted(
    tmp_path: Path, words: str, strategy: str, servers: int
) -> None:
    config = made_of_script(tmp_path, words)
    assert (config.train.strategy, config.cluster.servers) == (strategy, servers)


def test_a_script_may_say_what_a_large_embedding_is(tmp_path: Path) -> None:
    config = made_of_script(tmp_path, "--large-embedding 500")
    assert config.train.large_embedding == 500


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ps 2 --strategy allreduce", "--ps 2 and --strategy allreduce"),
        ("--strategy local", "--strategy local: it is for model files"),
        ("--strategy pss", "pss"),
    ],
)
def test_what_a_script_cannot_have(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made_of_script(tmp_path, words)
