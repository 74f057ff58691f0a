"""Which connections are closed where strangers open too many."""

from __future__ import annotations

from torch_edl.wire.security.newcomers import Newcomers


def test_an_address_loses_its_oldest() -> None:
    newcomers: Newcomers[int] = Newcomers(most=10, most_of_address=3)
    assert [newcomers.add(number, "a") for number in range(5)] == [None, None, None, 0, 1]
    assert newcomers.add(5, "b") is None
    assert len(newcomers) == 4


def test_the_address_with_the_most_makes_room_for_others() -> None:
    newcomers: Newcomers[int] = Newcomers(most=5, most_of_address=4)
    for number in range(4):
        newcomers.add(number, "stranger")
    assert newcomers.add(4, "worker") is None
    assert newcomers.add(5, "other worker") == 0
    assert newcomers.add(6, "a third") == 1


def test_what_has_proved_itself_or_ended_does_not_count() -> None:
    newcomers: Newcomers[int] = Newcomers(most=2, most_of_address=2)
    for number in range(100):
        assert newcomers.add(number, "machine") is None
        newcomers.remove(number)
    newcomers.remove(7)
    assert len(newcomers) == 0
