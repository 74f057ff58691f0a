import json

import pytest

from torch_edl.kubernetes import failures


def read(status: int, message: str, headers: dict[str, str] | None = None, **fields: object):  # type: ignore[no-untyped-def]
    body = json.dumps({"kind": "Status", "message": message, "code": status, **fields})
    return failures.read_error(
        status, body, headers or {}, what="create pod ctr-worker-3", namespace="ml"
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, failures.ForbiddenError),
        (403, failures.ForbiddenError),
        (404, failures.MissingError),
        (409, failures.ExistsError),
        (410, failures.ExpiredError),
        (422, failures.InvalidError),
        (400, failures.InvalidError),
        (408, failures.NoAnswerError),
        (429, failures.NoAnswerError),
        (500, failures.NoAnswerError),
        (503, failures.NoAnswerError),
    ],
)
def test_every_answer_is_one_line_of_its_kind(status: int, kind: type[Exception]) -> None:
    error = read(status, "first line\nsecond line", reason=None)
    assert type(error) is kind
    assert error.status == status
    assert str(error).startswith("create pod ctr-worker-3 in namespace ml: ")
    assert "\n" not in str(error)


def test_a_quota_is_no_missing_permission() -> None:
    text = (
        'pods "ctr-worker-3" is forbidden: exceeded quota: compute, requested: cpu=4, used: cpu=8'
    )
    error = read(403, text)
    assert isinstance(error, failures.QuotaError)
    assert "exceeded quota: compute" in str(error)


def test_a_missing_permission_says_what_to_do() -> None:
    error = read(403, 'pods is forbidden: User "x" cannot create resource "pods"')
    assert "--service-account" in str(error)


def test_a_conflict_of_versions_may_be_repeated() -> None:
    error = read(409, "the object has been modified", reason="Conflict")
    assert isinstance(error, failures.NoAnswerError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), ("-3", 0.0), ("9999", 120.0), ("Wed, 21 Oct", 0.0), ("nan", 0.0)],
)
def test_retry_after_is_read_and_bounded(header: str, seconds: float) -> None:
    assert read(429, "slow down", {"Retry-After": header}).retry_after_s == seconds


def test_retry_after_may_be_in_the_details() -> None:
    assert read(429, "slow down", details={"retryAfterSeconds": 3}).retry_after_s == 3.0


@pytest.mark.parametrize("body", ["", "<html>Bad Gateway</html>", "[1]", "null", "x" * 100_000])
def test_a_body_that_is_no_status_is_cut_to_one_line(body: str) -> None:
    error = failures.read_error(502, body, {}, what="list pod", namespace="ml")
    assert isinstance(error, failures.NoAnswerError)
    assert len(str(error)) < 700
