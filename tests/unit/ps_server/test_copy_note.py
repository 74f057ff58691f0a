"""What a server may rely on that its master has noted."""

from __future__ import annotations

from torch_edl.ps_server.durability.connection import CopyNote


def test_a_first_server_has_nothing_noted() -> None:
    note = CopyNote()
    assert (note.number, note.is_made, note.is_alone, note.is_pending) == (0, False, False, False)


def test_a_note_counts_when_the_master_has_it() -> None:
    note = CopyNote()
    note.ask(True)
    assert (note.is_pending, note.is_made) == (True, False)
    note.answered(0)
    assert (note.is_pending, note.is_made) == (True, False)
    note.answered(1)
    assert (note.is_pending, note.is_made, note.is_alone) == (False, True, False)


def test_a_server_is_alone_only_if_no_other_note_can_reach_the_master() -> None:
    note = CopyNote()
    note.ask(True)
    note.answered(1)
    note.ask(False)
    assert not note.is_alone
    note.answered(2)
    assert note.is_alone
    note.ask(True)
    assert not note.is_alone, "the master may have heard that there is a copy"
    note.ask(False)
    note.answered(3)
    assert not note.is_alone
    note.answered(4)
    assert note.is_alone
    note.answered(3)
    assert note.is_alone, "an answer that comes late"


def test_a_note_is_asked_for_once() -> None:
    note = CopyNote()
    for has_copy in (True, True, False, False, True):
        note.ask(has_copy)
    assert note.number == 3


def test_a_successor_relies_on_the_note_of_its_predecessor() -> None:
    note = CopyNote()
    note.inherit()
    assert (note.is_made, note.is_pending, note.is_alone) == (True, False, False)
    note.ask(True)
    assert not note.is_pending
    note.ask(False)
    assert (note.number, note.is_pending) == (2, True)
