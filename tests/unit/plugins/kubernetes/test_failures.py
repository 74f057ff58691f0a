import json

import pytest

from torch_edl.plugins.kubernetes.cluster import failures


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


def test_a_missing_right_names_the_user_and_the_rule_to_add() -> None:
    error = read(
        403,
        'jobs.batch is forbidden: User "jane" cannot create resource "jobs" in API group "batch" '
        'in the namespace "ml"',
    )
    assert type(error) is failures.ForbiddenError
    assert "jane may not create jobs" in str(error)
    assert '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]}' in str(error)


def test_rights_that_a_user_may_not_give_are_named() -> None:
    error = read(
        403,
        'roles.rbac.authorization.k8s.io "ctr-master" is forbidden: user "jane" (groups=["a"]) is '
        "attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["pods"], Verbs:["create"]}',
    )
    assert type(error) is failures.ForbiddenError
    assert "jane" in str(error)
    assert 'Resources:["pods"]' in str(error)
    assert "--service-account" in str(error)


FORBIDDEN = 'pods "w" is forbidden: '


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("exceeded quota: compute, requested: cpu=4", failures.QuotaError, "ask for less"),
        # An account that is not there yet may come.
        ("error looking up service account ml/a: not found", failures.ForbiddenError, "ml/a"),
        # What a policy rejects is no missing right.
        ("maximum cpu usage per Container is 1, but limit is 2", failures.InvalidError, "--worker"),
        ('violates PodSecurity "restricted:latest"', failures.InvalidError, "--pod-template"),
        ('admission webhook "p.example" denied the request: no', failures.InvalidError, "policy"),
    ],
)
def test_what_is_forbidden_for_now_or_by_a_policy_is_told_apart(
    text: str, kind: type[Exception], said: str
) -> None:
    error = read(403, FORBIDDEN + text)
    assert type(error) is kind
    assert text in str(error)
    assert said in str(error)
    assert "Role" not in str(error)


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
