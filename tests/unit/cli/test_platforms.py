"""A platform of another package: found by its entry point, with its options and checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import install

_PLATFORM = """
from dataclasses import dataclass

from torch_edl.cli.arguments.options import model_file_job
from torch_edl.config.option import JOB_KINDS, Checked, option
from torch_edl.errors import UsageError
from torch_edl.interfaces import Platform, Submission


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(Checked):
    partition: str = option("", "--partition NAME", "partition of the nodes", kinds=JOB_KINDS)

    def check_job(self, job):
        if not self.partition:
            raise UsageError("--platform slurm: no partition; add --partition NAME")


class Slurm(Platform):
    config = SlurmConfig
    locators = ("partition",)

    def implied(self, given):
        return {"data": {"batch_size": 7}}

    def check(self, args, kind):
        return Submission(model_file_job(args, kind))

    def show(self, submission, args):
        config = type(submission.config).from_json(submission.config.to_json())
        print(config.platform_config.partition, config.data.batch_size)
        return 0

    def run(self, submission, args, console):
        raise UsageError("the cluster is away")

    def find(self, name, where):
        raise UsageError(f"{name}: no such job in {where['partition']}")

    def jobs(self, where):
        return []


PLATFORM = Slurm()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed package that offers a platform."""
    (tmp_path / "slurm_platform.py").write_text(_PLATFORM)
    entry = "[torch_edl.platforms]\nslurm = slurm_platform:PLATFORM\n"
    install(tmp_path, "slurm_platform", entry)
    (tmp_path / "m.py").write_text("def model(): ...\ndef loss(labels, predictions): ...\n")
    return tmp_path


def edl(site: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "torch_edl.cli", *words],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(site)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=site,
    )
    return done.returncode, done.stdout


def test_the_help_has_the_options_of_a_platform_that_is_installed(site: Path) -> None:
    for verb in ("run", "status"):
        code, said = edl(site, verb, "--help")
        assert code == 0
        assert "--partition NAME" in said
        assert "slurm" in said


def test_options_of_a_platform_go_with_it_alone(site: Path) -> None:
    run = ("run", "m.py", "--data", "a.csv", "--dry-run")
    assert edl(site, *run, "--platform", "slurm", "--partition", "p") == (0, "p 7\n")
    (site / "job.yaml").write_text("platform: slurm\npartition: q\nbatch-size: 3\n")
    assert edl(site, *run, "--config", "job.yaml") == (0, "q 3\n")
    code, said = edl(site, *run, "--platform", "slurm")
    assert (code, "no partition; add --partition NAME" in said) == (2, True)
    code, said = edl(site, *run, "--partition", "p")
    assert (code, "--platform local: --partition is an option of slurm" in said) == (2, True)
    code, said = edl(site, *run, "--platform", "slrm")
    assert (code, "no installed package offers 'slrm'; installed are" in said) == (2, True)


def test_a_job_is_found_where_the_options_of_a_platform_say(site: Path) -> None:
    code, said = edl(site, "status", "j", "--partition", "p")
    assert (code, said) == (2, "error: j: no such job in p\n")
    code, said = edl(site, "list", "--platform", "slurm")
    assert (code, "no jobs on slurm" in said) == (0, True)
