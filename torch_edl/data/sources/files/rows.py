"""Rows of text, found without parsing: where each record of a block begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_NEWLINE, _RETURN, _SPACE, _QUOTE = b'\n\r "'


@dataclass(frozen=True)
class Rows:
    """The records of a text that begins at the start of a row."""

    starts: npt.NDArray[np.int64]
    """Offset of each record; blank rows and comments are no records."""
    ends: npt.NDArray[np.int64]
    """Offset after each record and the end of its row."""
    end: int
    """Offset after the last whole row; 0: no row ends in the text."""
    unclosed: int | None = None
    """Offset of a quote that the text does not close; None: all quotes are closed."""

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.starts)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return start and end of the text of the records ``first .. last - 1``, with the blank
        rows and comments after them. The spans of adjacent records cover the text."""
        start = int(self.starts[first]) if first else 0
        return start, int(self.starts[last]) if last < len(self) else self.end


def find_rows(
    text: bytes | memoryview, whole: bool, *, delimiter: bytes = b"", comment: bytes = b""
) -> Rows:
    """Find the whole rows of a text.

    Args:
        text: text from the start of a row on.
        whole: True if the file ends with the text, so that the last row may lack its end.
        delimiter: delimiter of the fields of CSV: rows end with a newline, a carriage return or
            both, unless within quotes. A quote that does not begin a field is text, as in pyarrow.
            Empty: each newline ends a row.
        comment: character with which comments begin; empty: there are no comments.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE) + 1
    unclosed = None
    if delimiter:
        ends = _with_returns(data, ends, whole)
        quotes = _quotes(data, ord(delimiter))
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
        unclosed = _unclosed(quotes)
    if whole and unclosed is None and len(data) and (not len(ends) or ends[-1] < len(data)):
        ends = np.append(ends, len(data))
    end = int(ends[-1]) if len(ends) else 0
    starts = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    first = data[starts]
    if delimiter:
        full = (first != _NEWLINE) & (first != _RETURN)
    else:
        full = first > _SPACE
        for row in np.flatnonzero(~full):
            full[row] = bool(bytes(text[starts[row] : ends[row]]).strip())
        if comment:
            full &= first != ord(comment)
            for row in np.flatnonzero(full & (first <= _SPACE)):
                line = bytes(text[starts[row] : ends[row]])
                full[row] = not line.strip().startswith(comment)
    return Rows(starts[full], ends[full], end, unclosed)


def field_counts(text: bytes | memoryview, rows: Rows, delimiter: bytes) -> npt.NDArray[np.int64]:
    """Return the number of fields of each record of CSV."""
    data = np.frombuffer(text, dtype=np.uint8)
    delimiters = np.flatnonzero(data == ord(delimiter))
    within = np.searchsorted(_quotes(data, ord(delimiter)), delimiters) % 2
    delimiters = delimiters[within == 0]
    first, last = (np.searchsorted(delimiters, at) for at in (rows.starts, rows.ends))
    return (last - first + 1).astype(np.int64)


def _with_returns(
    data: npt.NDArray[np.uint8], newlines: npt.NDArray[np.int64], whole: bool
) -> npt.NDArray[np.int64]:
    """Add the offsets after carriage returns without a newline. A carriage return at the end of the
    data may be the first half of both, unless the file ends there."""
    returns = np.flatnonzero(data == _RETURN) + 1
    if not len(returns):
        return newlines
    is_last = returns == len(data)
    follows = data[np.where(is_last, 0, returns)]
    alone = np.where(is_last, whole, follows != _NEWLINE)
    return np.sort(np.concatenate((newlines, returns[alone])))


def _quotes(data: npt.NDArray[np.uint8], delimiter: int) -> npt.NDArray[np.int64]:
    """Return the offsets of the quotes that open and close quoted parts, in turns. A doubled quote
    within a part closes the part and opens it again."""
    quotes = np.flatnonzero(data == _QUOTE)
    if not len(quotes):
        return quotes
    before = data[quotes - 1]
    opens = (before == delimiter) | (before == _NEWLINE) | (before == _RETURN)
    opens[0] |= quotes[0] == 0
    is_second = np.diff(quotes, prepend=-2) == 1
    if (opens | is_second)[::2].all():
        return quotes
    # Some quotes are text, so each depends on those before it.
    kept: list[int] = []
    last = -2
    for quote, begins in zip(quotes.tolist(), opens.tolist(), strict=True):
        if len(kept) % 2 or begins or quote == last + 1:
            kept.append(quote)
            last = quote
    return np.array(kept, dtype=np.int64)


def _unclosed(quotes: npt.NDArray[np.int64]) -> int | None:
    """Return the offset of the quote that opened the last part, if nothing closes the part."""
    if not len(quotes) % 2:
        return None
    last = len(quotes) - 1
    while last and quotes[last] == quotes[last - 1] + 1:
        last -= 2
    return int(quotes[last])
