import re

import pytest

from torch_edl.plugins.kubernetes import names

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
JOBS = ["ctr", "Ctr", "my_job", "my.job", "my-job", "7", "-", "a" * 40, "a" * 41, "x" * 200, "Äé"]


@pytest.mark.parametrize("job", JOBS)
def test_every_name_is_a_dns_label_and_every_label_a_value(job: str) -> None:
    pod = names.pod(job, "worker", 9_999_999, "f00baa")
    for name in (names.of_job(job), names.master(job), names.token(job), names.files(job), pod):
        assert DNS_LABEL.fullmatch(name), name
        assert len(name) <= 63
    for key, value in names.labels(job, "ps", 3, "f00baa").items():
        assert LABEL_VALUE.fullmatch(value), (key, value)


def test_different_jobs_have_different_names() -> None:
    assert len({names.of_job(job) for job in JOBS}) == len(JOBS)


def test_a_name_that_can_be_kept_is_kept() -> None:
    assert names.of_job("deepfm-2") == "deepfm-2"
    assert names.pod("deepfm-2", "ps", 0, "ab12c") == "deepfm-2-ps-0-ab12c"
    assert names.master_host("deepfm-2", "ml") == "deepfm-2-master.ml.svc"


def test_the_selector_finds_all_objects_of_a_job_and_no_others() -> None:
    key, _, value = names.selector("my_job").partition("=")
    assert names.labels("my_job")[key] == value
    assert names.labels("my_job", "worker", 1, "x")[key] == value
    assert names.labels("my-job")[key] != value


def test_labels_name_the_process() -> None:
    labels = names.labels("ctr", "worker", 3, "ab12c")
    assert labels["torch-edl.dev/role"] == "worker"
    assert labels["torch-edl.dev/id"] == "3"
    assert labels["torch-edl.dev/incarnation"] == "ab12c"
    assert names.annotations_of("my_job") == {"torch-edl.dev/job": "my_job"}
