"""Names of data that are not files: what they say, what they lack, and that they hold no secret."""

from __future__ import annotations

import pytest

from torch_edl.data.sources import expand
from torch_edl.errors import UsageError
from torch_edl.plugins.kafka.source import ENV_CONFIG

URL = "postgresql://u@h/d"


@pytest.mark.parametrize(
    "name",
    [
        "kafka://h:9092,g:9092/t",
        "kafka://h/my.topic_1-x/12",
        "kafka://h/t/0#first=3&end=40",
        "odps://p/t",
        "odps://p/t#partition=day=1",
        "odps://p/t#partition=day=1,hour=03",
        f"{URL}#table=clicks&key=id",
        f"{URL}?sslmode=require#table=my.clicks&key=id&last=9&keys=00ff",
        f"{URL}#key=id&query=SELECT a FROM t WHERE b = 'x&y#z' AND c % 2 > 0",
        "mysql+pymysql://u:${PW}@h/d#table=t&key=id",
    ],
)
def test_a_name_is_itself_when_read_again(name: str) -> None:
    assert expand([name, name]) == [name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kafka://h:9092", "expected servers and a topic"),
        ("kafka:///t", "expected servers and a topic"),
        ("kafka://h/t x", "expected servers and a topic"),
        ("kafka://h/t/first", "expected .*PARTITION"),
        ("kafka://h/t#first=3&end=4", "offsets are of a partition"),
        ("kafka://h/t/0#first=3&end=2", "first is at most end"),
        ("kafka://h/t/0#first=3", "expected .*first=N&end=N"),
        ("odps://p", "expected odps://PROJECT/TABLE"),
        ("odps://p/t/u", "expected odps://PROJECT/TABLE"),
        ("odps://p/t#day=1", "TABLE#partition="),
        ("odps://p/t#partition=day", "TABLE#partition="),
        (URL, "name either a table or a query"),
        (f"{URL}#key=id", "name either a table or a query"),
        (f"{URL}#table=t&key=id&query=SELECT 1", "name either a table or a query"),
        # The example is of the database that was named.
        (f"{URL}#table=t", f"the key is missing.* '{URL}#table=clicks&key=id'$"),
        (f"{URL}#table=t&key=id&lsat=3", "unknown part 'lsat'"),
        (f"{URL}#table=t&key=id&my_query=3", "unknown part my_query"),
        ("sqlite://#table=t&key=id", "workers do not see the memory"),
        ("postgresql://u@h:port/d#table=t&key=id", "not an URL"),
    ],
)
def test_what_a_name_lacks_is_said(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand([name])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kafka://user:hush@h:9092/t", ENV_CONFIG),
        ("odps://key:hush@p/t", "expected odps://PROJECT/TABLE"),
        ("postgresql://u:hush@h/d#table=t&key=id", "the password would be seen"),
        ("postgresql://u:hush@h:port/d#table=t&key=id", "not an URL"),
        ("postgresql://h/d?password=hush#table=t&key=id", "password would be seen"),
        ("mysql+pymysql://h/d?ssl_key=hush#table=t&key=id", "ssl_key would be seen"),
    ],
)
def test_a_secret_in_a_name_is_refused_and_not_shown(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        expand([name])
    assert "hush" not in str(raised.value)
