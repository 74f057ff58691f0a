"""The compiled core: embedding tables, optimizer kernels, and what a worker does with ids.

Arrays are C-contiguous and of exactly the dtype named; anything else is a ``ValueError`` that says
what came. Heavy calls release the GIL and may run concurrently.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_Ids = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float32]

class Optimizer:
    """An update rule, with torch's hyperparameter names: ``sgd``, ``adagrad``, ``adam``, ``adamw``,
    ``sparse_adam`` (as adam, but eps is added before the bias correction), ``rmsprop``, ``ftrl``.

    ``betas`` is ``beta1`` and ``beta2``; booleans are 0 or 1; what is left out has torch's default.

    Raises:
        ValueError: the kind or a hyperparameter is unknown (named), or a value is not finite.
    """

    def __init__(self, kind: str, hyper: dict[str, float]) -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def hyper(self) -> dict[str, float]:
        """All hyperparameters, defaults included."""
    @property
    def slots(self) -> list[str]:
        """Names of the state kept per element, as in torch (``exp_avg``, ...)."""
    @property
    def slot_initial(self) -> list[float]:
        """What each slot starts from."""

class Table:
    """Rows by id. Thread-safe; the snapshot calls belong to one thread at a time.

    A row starts as :func:`init_rows`; its slots as the optimizer's. ``optimizer=None``: frozen.

    Args:
        num_embeddings: ids are in ``[0, num_embeddings)``; 0: any int64.
        min_count: an id has a row from the ``min_count``-th push that names it on. Before, pulls
            give its initial values, its gradients are dropped, and it is counted, which takes 22 to
            28 bytes.
        max_age: :meth:`evict` removes rows unused for more updates than this, and ids that no
            push named for so long from the counted ones; 0: none.
        max_rows: :meth:`evict` keeps so many rows, those used last, and so many counted ids; 0:
            all. A frozen table evicts nothing: at the bound, a pull of an unseen id makes no row.
        max_bytes: the same bound, as memory of rows, counted ids and buckets; 0: none.
        dtype: of the values in memory, ``"fp32"``, ``"bf16"``, ``"fp16"`` or ``"int8"``. Slots,
            gradients and the arithmetic are float32; an update rounds shorter values up or down by
            chance, which is a pure function of (id, step); all else rounds to the nearest.
            ``"int8"``: a row has codes of 8 bits and a unit, a power of two of which its largest
            value is 64 to 127; NaN and infinity become NaN, and denormal numbers zero.
        folder: folder of an unnamed file with the rows; empty: rows are in memory. Metadata and
            buckets are always in memory.

    Raises:
        ValueError: an unknown initializer or argument, a size out of range, or a folder in memory.
        OSError: the folder cannot hold a file.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        initializer: str,
        initializer_args: dict[str, float],
        seed: int,
        optimizer: Optimizer | None,
        num_embeddings: int = 0,
        min_count: int = 0,
        max_age: int = 0,
        max_rows: int = 0,
        max_bytes: int = 0,
        dtype: str = "fp32",
        folder: str = "",
    ) -> None: ...
    def pull(self, ids: _Ids, read_only: bool = False) -> _Floats:
        """Rows (n, dim) of ``ids`` (n,); duplicates are allowed.

        ``read_only``: an id without a row gives its initial values and no row is made.
        """
    def push(self, ids: _Ids, grads: _Floats, lr: float, step: int) -> None:
        """Updates each row once with ``grads`` (n, dim); those of equal ids are summed first.

        Args:
            step: 1-based count of the table's updates, for bias correction as SparseAdam's.
        """
    def load(
        self,
        ids: _Ids,
        vectors: _Floats,
        slots: _Floats | None = None,
        last_used: _Ids | None = None,
        count: _Ids | None = None,
    ) -> None:
        """Sets rows: ``vectors`` (n, dim), ``slots`` (n, len(slots), dim), the others (n,)."""
    def load_counts(self, ids: _Ids, count: _Ids, last_used: _Ids) -> None:
        """Sets how often ids (n,) were counted; one that has a row keeps the row alone. A table
        without ``min_count`` counts nothing."""
    def prepare(self, ids: _Ids) -> None:
        """Reads the rows of a push of ``ids`` (n,) from the disk, and makes room for those that it
        creates. Does nothing for a table in memory.

        Raises:
            OSError: the disk is full.
        """
    def evict(self, step: int, aged: bool = True) -> _Ids:
        """Removes rows beyond the bound, least recently used first (of a table of more than 65,536
        rows, as a sample tells), and counted ids likewise; returns the ids (n,).

        One call does a part of the work, which takes some milliseconds: call it after each push.
        While another thread evicts, a call does nothing.

        Args:
            aged: begin a round that also removes the rows and the counted ids that no update
                after ``step - max_age - 1`` used.
        """
    def remove(self, ids: _Ids) -> None:
        """Removes the rows, or the counts, of ``ids`` (n,); an id without either is no error."""
    def begin_snapshot(self) -> None:
        """Cuts, in microseconds: the snapshot is the table as it is now. An earlier one ends."""
    def next_chunk(self, max_rows: int) -> tuple[_Ids, _Floats, _Floats, _Ids, _Ids] | None:
        """Up to ``max_rows`` rows of the snapshot, in no order: ids (n,), vectors (n, dim), slots
        (n, len(slots), dim), last_used (n,), count (n,). May be empty; None when all were given."""
    def next_counts(self, max_ids: int) -> tuple[_Ids, _Ids, _Ids] | None:
        """Up to ``max_ids`` ids that were counted as of the snapshot: ids, count, last_used, each
        (n,). May be empty; None when all were given."""
    def end_snapshot(self) -> None: ...
    def scan(self, cursor: int, max_rows: int) -> tuple[_Ids, _Floats, int]:
        """Up to ``max_rows`` rows as they are now: ids (n,), vectors (n, dim) and the cursor of the
        next call; 0 begins, -1 says that all were given. A row that exists all the time is given
        once, whatever else changes between two calls.

        Raises:
            ValueError: a cursor that no call gave.
        """
    def most_updated(self, most: int) -> tuple[_Ids, _Ids]:
        """Ids (n,) of the rows with the most updates, at most ``most``, and the updates of
        each (n,), in descending order. Visits the metadata of all rows, without blocking pushes for
        more than some hundred rows."""
    @property
    def dim(self) -> int: ...
    @property
    def bound(self) -> int:
        """Rows that :meth:`evict` leaves at most; 0: any number."""
    @property
    def size(self) -> int:
        """Rows."""
    @property
    def counted(self) -> int:
        """Ids that are counted and have no row."""
    @property
    def bytes(self) -> int:
        """Size of rows, counted ids and buckets, in memory and on the disk."""
    @property
    def disk_bytes(self) -> int:
        """Size of the file with the rows; 0 for a table in memory."""

def pull_tables(
    lookups: Sequence[tuple[Table, bytes | memoryview]],
    dtype: str = "fp32",
    read_only: bool = False,
    room: npt.NDArray[np.uint8] | None = None,
) -> list[npt.NDArray[Any]]:
    """Rows (n, dim) of packed ids (n,) of each table: float32, or the bits of ``bf16`` or ``fp16``
    as uint16.

    Args:
        room: memory (n,) for the rows, one table after the other at multiples of 64 bytes; rows
            that do not fit get their own memory.

    Raises:
        ValueError: as :meth:`Table.pull`, or the dtype or the size of a buffer is none of these.
    """

def decode_gradients(
    pushes: Sequence[tuple[Table, bytes | memoryview, bytes | memoryview, str]],
) -> list[tuple[_Ids, _Floats]]:
    """Ids (n,) and gradients (n, dim) of packed ids, packed values and their dtype, all
    checked; views of the buffers where they can be.

    Raises:
        ValueError: also where the size of a buffer is wrong.
    """

def push_tables(
    pushes: Sequence[tuple[Table, _Ids, _Floats, float, int, bool]], evict: bool = True
) -> list[_Ids]:
    """:meth:`Table.push` with ids, gradients, rate and step of each table, and then, if ``evict``,
    :meth:`Table.evict` with the same step and the last value; returns what was evicted."""

def init_rows(
    name: str,
    seed: int,
    initializer: str,
    args: dict[str, float],
    ids: _Ids,
    dim: int,
    dtype: str = "fp32",
) -> _Floats:
    """What new rows of a table start from, (n, dim): a pure function of seed, table name and id,
    rounded as a table of the dtype does.

    Initializers and arguments: ``zeros``; ``constant`` value=0; ``uniform`` low=-0.05, high=0.05;
    ``normal`` mean=0, std=0.05.
    """

def owner(ids: _Ids, shards: int) -> npt.NDArray[np.int32]:
    """The server of each id, (n,) in ``[0, shards)``."""

def unique_partition(ids: _Ids, shards: int) -> tuple[_Ids, _Ids, _Ids]:
    """Distinct ids by owner: ``unique`` (U,), in order of first appearance within an owner;
    ``offsets`` (shards + 1,): ``unique[offsets[s]:offsets[s + 1]]`` are those of server s;
    ``inverse`` (N,): ``unique[inverse] == ids``."""

def gather(rows: _Floats, inverse: _Ids, out: _Floats) -> None:
    """``out[i] = rows[inverse[i]]``: rows (U, d), inverse (N,), out (N, d).

    Raises:
        IndexError: an index outside ``[0, U)``.
    """

def scatter_sum(grads: _Floats, inverse: _Ids, out: _Floats) -> None:
    """``out[inverse[i]] += grads[i]`` from zero: grads (N, d), inverse (N,), out (U, d).

    Raises:
        IndexError: an index outside ``[0, U)``.
    """

def scatter_add(grads: _Floats, inverse: _Ids, out: _Floats) -> None:
    """The same, onto what ``out`` holds."""

def dense_apply(
    optimizer: Optimizer,
    param: _Floats,
    grad: _Floats,
    slots: Sequence[_Floats],
    lr: float,
    step: int,
) -> None:
    """Updates ``param`` (n,) and its ``slots``, each (n,), in place.

    Args:
        step: 1-based count of the parameter's updates.
    """

def first_nonfinite(values: _Floats) -> int:
    """Index of the first NaN or infinity in ``values`` (n,); -1 if there is none."""

def to_bfloat16(values: _Floats) -> npt.NDArray[np.uint16]:
    """The bits of each value (n,) as bfloat16: the nearest, ties to even. NaN stays NaN."""

def from_bfloat16(values: npt.NDArray[np.uint16]) -> _Floats:
    """The inverse, exact."""

def to_half(values: _Floats) -> npt.NDArray[np.uint16]:
    """The bits of each value (n,) as float16: the nearest, ties to even; of a finite one beyond the
    range, the largest."""

def from_half(values: npt.NDArray[np.uint16]) -> _Floats:
    """The inverse, exact."""

def write_back(fd: int, start: int, size: int) -> None:
    """Returns when the bytes ``[start, start + size)`` of a file have been written to the disk. The
    file system commits nothing, so a crash of the machine may lose them: ``fsync`` at the end.

    Raises:
        OSError: the disk refused.
    """

def tune_malloc() -> None:
    """Keeps freed buffers of megabytes in the process rather than returning them to the kernel.

    Measured on 670 KB messages: getting and clearing their pages anew is half the CPU time of
    receiving them over gRPC.
    """

class Texts:
    """Texts ``start`` to ``start + count - 1`` of an Arrow array of strings or bytes: its buffers,
    which are held, not copied.

    Args:
        valid: None: no text is missing.
        wide: offsets are int64, else int32.

    Raises:
        ValueError: the buffers are shorter than that, or an offset is outside of the data.
    """

    def __init__(
        self, offsets: Any, data: Any, valid: Any, start: int, count: int, wide: bool
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def is_ascii(self) -> bool:
        """Whether no byte is above 127, those of missing texts included."""

class TextCounts:
    """Distinct texts, each with a count. Thread-safe."""

    def add(self, texts: Texts, counts: _Ids | None = None) -> None:
        """Adds texts, each so many times (None: once); what is missing is left out."""

    def find(self, texts: Texts) -> _Ids:
        """The place of each in the order of arrival; -1: not there, or missing."""

    def all(self) -> tuple[_Ids, bytes, _Ids]:
        """In the order of arrival: where each text begins (n + 1,), the texts, the counts (n,)."""

    def ranked(self, limit: int, min_count: int) -> tuple[_Ids, bytes, _Ids]:
        """As :meth:`all`, of the most frequent ones; equal counts in the order of their bytes."""

    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Of the texts."""
    @property
    def total(self) -> int:
        """Sum of the counts."""

def hash_texts(texts: Texts, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """wyhash of each text, with one seed for all or one for each."""

def hash_integers(
    values: _Ids, missing: npt.NDArray[np.bool_] | None, seeds: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """A hash of each integer, with one seed for all or one for each."""

def to_buckets(hashes: npt.NDArray[np.uint64], buckets: int) -> _Ids:
    """0 to ``buckets - 1``, by the upper bits of the hash."""

def exact_sums(
    values: _Floats | npt.NDArray[np.float64],
) -> tuple[int, int, bytes, bytes]:
    """Of what is not NaN: finite numbers, infinite ones, and of the finite ones the exact sum times
    2^1074 and that of the squares times 2^2148, as little-endian integers in two's complement."""

def encode_pull(
    key: bytes,
    number: int,
    memory: SharedMemory | None,
    job: str,
    incarnation: int,
    dense: bool,
    dense_version: int,
    read_only: bool,
    lookups: list[tuple[str, _Ids, _Ids]],
    server: int,
    answer_bytes: int,
) -> tuple[list[Any], list[Any], npt.NDArray[np.uint8] | None]:
    """Encode a pull of float32 rows as a call over the data plane.

    Args:
        key: key in each call.
        number: number of the call.
        memory: memory for frames, shared with the server.
        lookups: name, unique ids ordered by server, and start of each server's part of each table.
        server: position of the server in the parts.
        answer_bytes: room that the answer needs.

    Returns:
        The frames to send, frames in the memory, and the room in the memory for the answer.
    """

def encode_push(
    key: bytes,
    number: int,
    memory: SharedMemory | None,
    job: str,
    incarnation: int,
    range: tuple[int, int, int],
    version: int,
    retired_before: int,
    rates: Sequence[float],
    dense: _Floats | None,
    untouched: Sequence[int],
    lookups: list[tuple[str, _Ids, _Ids]],
    gradients: list[_Floats],
    server: int,
) -> tuple[list[Any], list[Any], npt.NDArray[np.uint8] | None]:
    """Encode a push of float32 gradients; see :func:`encode_pull`.

    Args:
        range: task, first and last record.
        dense: flat gradient (n,) of the server.
        untouched: places of dense parameters without a gradient.
        gradients: gradient (u, dim) of all unique ids of each table.
    """

def read_pull(
    answers: list[tuple[Any, ...]], lookups: list[tuple[str, _Ids, _Ids]], rows: list[_Floats]
) -> tuple[list[int], list[_Floats | None]] | None:
    """Copy the rows of the answers of all servers to ``rows`` (u, dim) of each table.

    Args:
        answers: for each server: the message, the frames that were sent, the room of the answer,
            and the position of the room in the shared memory.

    Returns:
        Version and flat vector of each server, as views of the answers. None for an unusual answer;
        rows may have been written.
    """

class SharedMemory:
    """Memory of a fixed size that processes of one machine share by its file descriptor.

    Raises:
        OSError: the system has no such memory.
    """

    def __init__(self, bytes: int) -> None: ...
    @staticmethod
    def open(path: str) -> SharedMemory:
        """Map the memory of another process, ``/proc/PID/fd/FILE``.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file is not memory of this user with a sealed size.
        """

    @property
    def file(self) -> int:
        """The file descriptor."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def allocate(self, bytes: int) -> npt.NDArray[np.uint8] | None:
        """Return unused memory (bytes,), released with the last view of it; None if the memory is
        full."""

    def view(self, at: int, bytes: int) -> npt.NDArray[np.uint8]:
        """Return the memory (bytes,) at a position; raise ValueError if it is not inside."""

    def position(self, buffer: Any) -> int:
        """Return the position of a contiguous buffer in the memory; -1 if it is not inside."""

class ShardCall:
    """A received pull or push of the steady state."""

    @property
    def is_pull(self) -> bool: ...
    def frames(self) -> list[memoryview]:
        """Return the frames of the call, without its first frame."""

class ShardCalls:
    """Decodes the pulls and pushes to one shard. A call that is unusual in any way (an error, a
    large call, a 16-bit gradient, ...) has the result None, before any change.

    Args:
        job: job of the fence of each call.
        incarnation: incarnation of the fence of each call.
        key: key in each call.
        piece_bytes: size from which a frame is cut into pieces.
    """

    def __init__(self, job: str, incarnation: int, key: bytes, piece_bytes: int) -> None: ...
    def add_table(self, name: str, table: Any, core: Table) -> None:
        """Add a table; pushes refer to it as ``table``."""

    def set_dense(self, size: int, trained: Sequence[tuple[int, int]], groups: int) -> None:
        """Set the size of the flat vector, its ranges whose gradients must be finite, and the
        number of learning rates of a push that has any."""

    def open(
        self, pieces: Sequence[Any], memory: SharedMemory | None, most_bytes: int
    ) -> ShardCall | None:
        """Decode the first frame of a call with at most ``most_bytes`` bytes of frames. ``memory``
        is shared by its sender."""

    def answer_pull(
        self, call: ShardCall, version: int, dense: _Floats, release: Callable[[], None]
    ) -> list[Any] | None:
        """Return the frames of the answer to a pull at a version of the shard, whose flat vector
        ``dense`` (n,) must not change until ``release`` is called."""

    def decode_push(
        self, call: ShardCall
    ) -> (
        tuple[
            int,
            tuple[int, int, int],
            int,
            int,
            list[float],
            _Floats | None,
            list[tuple[Any, _Ids, _Floats]],
            bytes,
            bool,
        ]
        | None
    ):
        """Return the number of the call; task, first and last record; version; ``retired_before``;
        learning rates; flat gradient; table, ids (n,) and gradient (n, dim) of each entry, all
        checked; the encoded PushGradientsRequest; and whether the arrays are memory of the sender.
        """
