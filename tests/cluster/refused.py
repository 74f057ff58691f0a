"""What the API server answers to a request that it rejects: a Status, as the API publishes it."""

from __future__ import annotations

from typing import Any

_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound",
    405: "MethodNotAllowed", 409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType",
    422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
}  # fmt: skip


class Refused(Exception):
    """A request is rejected.

    Args:
        code: of HTTP.
        message: for people.
        reason: for programs, if it is another one than the code says by itself.
        details: of the Status.
        retry_after_s: of the header ``Retry-After``.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        self.reason = reason or _REASONS[code]
        self.details = dict(details or {})
        if retry_after_s is not None:
            self.details["retryAfterSeconds"] = retry_after_s

    def status(self) -> dict[str, Any]:
        """The body of the answer, or the object of an event ``ERROR`` of a watch."""
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": str(self), "reason": self.reason, "code": self.code,
            "details": self.details,
        }  # fmt: skip


def not_found(plural: str, group: str, name: str) -> Refused:
    """There is no such object."""
    full = f"{plural}.{group}" if group else plural
    details = {"name": name, "kind": plural, "group": group}
    return Refused(404, f'{full} "{name}" not found', details=details)


def invalid(kind: str, name: str, field: str, problem: str) -> Refused:
    """The value of a field is rejected."""
    causes = [{"reason": "FieldValueInvalid", "message": problem, "field": field}]
    return Refused(
        422, f'{kind} "{name}" is invalid: {field}: {problem}',
        details={"name": name, "kind": kind, "causes": causes},
    )  # fmt: skip
