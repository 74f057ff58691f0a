"""Which errors of a task are tried again."""

from __future__ import annotations

import pytest

from torch_edl.data.feeder import FeedError
from torch_edl.errors import NanLossError, UsageError, UserCodeError
from torch_edl.training.one_off import comes_again


def raised(error: BaseException, cause: BaseException | None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "cause", "again"),
    [
        (UsageError("no column 'itm'"), None, True),
        (NanLossError("loss"), None, True),
        (FeedError("feed gave 3 labels for 4 records"), None, True),
        (FeedError("feed"), UsageError("no column 'itm'"), True),
        (UserCodeError("forward"), UsageError("ids are no integers"), True),
        (FeedError("feed"), OSError("a disk of somebody else"), False),
        (UserCodeError("forward"), RuntimeError("out of memory"), False),
        (ValueError("x"), None, False),
    ],
)
def test_what_would_come_again_is_not_tried_again(
    error: BaseException, cause: BaseException | None, again: bool
) -> None:
    assert comes_again(raised(error, cause)) is again
