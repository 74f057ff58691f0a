"""Which folder is the newest checkpoint, and which ones go."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.errors import CheckpointError
from torch_edl.tables.watermarks import Watermarks


def empty(job: str = "j", steps: int = 1) -> Callable[[Path], Manifest]:
    """Writes a checkpoint without files."""
    return lambda folder: Manifest(job=job, strategy="ps", steps=steps)


def one_file(folder: Path) -> Manifest:
    """Writes a checkpoint with a file."""
    (folder / "a").write_bytes(b"abc")
    return Manifest(job="j", strategy="ps", steps=1, files={"a": 3})


@pytest.mark.parametrize(
    ("complete", "half", "newest", "keep", "best", "left"),
    [
        pytest.param([9, 10**10 - 1, 10**10], [], 10**10, 1, None, [10**10], id="many digits"),
        pytest.param([2, 4, 6], [1, 5, 7], 6, 2, None, [4, 6, 7], id="half written, 7 is newer"),
        # 6 was committed, and the model lost before the job knew of it.
        pytest.param([2, 4, 6], [], 4, 1, None, [4, 6], id="a lost model was further"),
        pytest.param([2, 4, 6, 8], [], 8, 2, 2, [2, 6, 8], id="the best one"),
    ],
)
def test_what_is_pruned(
    tmp_path: Path,
    complete: list[int],
    half: list[int],
    newest: int,
    keep: int,
    best: int | None,
    left: list[int],
) -> None:
    for step in complete + half:
        layout.step_dir(tmp_path, step).mkdir()
    for step in complete:
        (layout.step_dir(tmp_path, step) / layout.MANIFEST).touch()
    (tmp_path / "step-best").mkdir()  # the user's copy
    assert layout.newest(tmp_path) == layout.step_dir(tmp_path, max(complete))
    layout.prune(
        layout.step_dir(tmp_path, newest), keep, layout.step_dir(tmp_path, best) if best else None
    )
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"step-best", *(layout.step_dir(tmp_path, step).name for step in left)}
    assert layout.newest(tmp_path / "nothing") is None


def test_a_checkpoint_is_complete_or_absent(tmp_path: Path) -> None:
    def write(folder: Path) -> Manifest:
        assert list(folder.iterdir()) == []
        (folder / "a").write_bytes(b"abc")
        watermarks = Watermarks(3, {5: 7})
        return Manifest(job="j", strategy="ps", steps=4, watermarks=watermarks, files={"a": size})

    left = layout.step_dir(tmp_path, 4)
    left.mkdir()
    (left / "half").touch()  # of a crash
    size = 4
    with pytest.raises(CheckpointError, match="a: 3 bytes, the manifest says 4"):
        layout.save(tmp_path, 4, write)
    assert list(tmp_path.iterdir()) == [left]
    assert layout.newest(tmp_path) is None
    size = 3
    directory, manifest = layout.save(tmp_path, 4, write)
    assert layout.newest(tmp_path) == directory == left
    assert layout.read(directory) == manifest
    assert manifest.watermarks == Watermarks(3, {5: 7})


def test_a_complete_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> Manifest:
        raise AssertionError(folder)

    first = layout.save(tmp_path, 1, empty())
    assert layout.save(tmp_path, 1, fail) == first


def test_a_cut_is_written_though_a_lost_model_had_as_many_steps(tmp_path: Path) -> None:
    def write(folder: Path) -> Manifest:
        written.append(task)
        return Manifest(job="j", strategy="ps", steps=4, watermarks=Watermarks(0, {task: 8}))

    written: list[int] = []
    for task in (1, 1, 2):
        directory, manifest = layout.save(tmp_path, 4, write, anew=True)
        assert layout.read(directory) == manifest
        assert manifest.watermarks == Watermarks(0, {task: 8})
    assert written == [1, 1, 2], "servers that hold the model are sealed while it is written"
    assert list(tmp_path.iterdir()) == [directory]


def test_a_checkpoint_that_another_process_completes_meanwhile_stays(tmp_path: Path) -> None:
    directory, manifest = layout.save(
        tmp_path, 1, empty("slow"), fence=lambda: layout.save(tmp_path, 1, empty("fast")) and None
    )
    assert manifest == layout.read(directory)
    assert manifest.job == "fast"
    assert list(tmp_path.iterdir()) == [directory]


def test_whatever_ends_the_writing_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> Manifest:
        (folder / "a").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        layout.save(tmp_path, 1, interrupted)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    layout.remove_leftovers(tmp_path / "nothing")
    layout.temporary_dir(tmp_path).mkdir()
    layout.step_dir(tmp_path, 1).mkdir()
    layout.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [layout.step_dir(tmp_path, 1)]


def test_what_is_taken_for_a_leftover_is_not_committed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fence() -> None:
        with monkeypatch.context() as slow:  # it is half-way when the other process commits
            slow.setattr(shutil, "rmtree", lambda path, **_: (path / "a").unlink())
            layout.remove_leftovers(tmp_path)

    with pytest.raises(FileNotFoundError):
        layout.save(tmp_path, 1, one_file, fence=fence)
    assert layout.newest(tmp_path) is None
    layout.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_fence_that_raises_commits_nothing(tmp_path: Path) -> None:
    def fence() -> None:
        (folder,) = tmp_path.iterdir()
        assert layout.read(folder).steps == 1, "asked last, when all is written"
        raise CheckpointError("replaced")

    with pytest.raises(CheckpointError, match="replaced"):
        layout.save(tmp_path, 1, one_file, fence=fence)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_there_gets_the_metrics_of_its_evaluation(tmp_path: Path) -> None:
    layout.save(tmp_path, 4, empty(steps=4))
    folder, found = layout.save(tmp_path, 4, empty(steps=4), metrics={"auc": 0.5})
    assert found == layout.read(folder)
    assert found.metrics == {"auc": 0.5}
    assert layout.save(tmp_path, 4, empty(steps=4))[1].metrics == {"auc": 0.5}


def test_a_process_that_was_replaced_adds_no_metrics(tmp_path: Path) -> None:
    folder, _ = layout.save(tmp_path, 4, empty(steps=4))

    def fence() -> None:
        raise CheckpointError("another job")

    with pytest.raises(CheckpointError, match="another job"):
        layout.save(tmp_path, 4, empty(steps=4), metrics={"auc": 0.5}, fence=fence)
    assert layout.read(folder).metrics == {}


def test_an_archived_checkpoint_is_pruned_as_a_link_and_stays_where_it_is(tmp_path: Path) -> None:
    root, archive = tmp_path / "checkpoints", tmp_path / "archive"
    layout.save(root, 1, one_file)
    shutil.move(layout.step_dir(root, 1), archive)
    layout.step_dir(root, 1).symlink_to(archive)
    newest, _ = layout.save(root, 2, one_file)
    layout.prune(newest, keep=2)
    assert layout.complete(root) == [layout.step_dir(root, 1), newest]  # a link is read
    layout.prune(newest, keep=1)
    assert [path.name for path in root.iterdir()] == [newest.name]
    assert (layout.read(archive).steps, (archive / "a").read_bytes()) == (1, b"abc")


def test_a_checkpoint_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    root, archive = tmp_path / "checkpoints", tmp_path / "archive"
    layout.save(archive.parent, 1, one_file)[0].rename(archive)
    for target in (archive, tmp_path / "nothing"):
        root.mkdir(exist_ok=True)
        layout.step_dir(root, 1).symlink_to(target)
        layout.save(root, 1, lambda _: replace(empty()(root), watermarks=Watermarks(1)), anew=True)
        assert not layout.step_dir(root, 1).is_symlink()
        shutil.rmtree(root)
    assert (archive / "a").read_bytes() == b"abc"


def test_a_leftover_that_is_a_link_is_removed_and_not_its_target(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    root = tmp_path / "checkpoints"
    root.mkdir()
    layout.temporary_dir(root).symlink_to(other)
    layout.remove_leftovers(root)
    assert not list(root.iterdir())
    assert (other / "file").exists()
