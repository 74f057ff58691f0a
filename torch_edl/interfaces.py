"""What other packages can add to torch-edl: data, platforms, stores, observers, backends, verbs.

A package names its object under an entry point, and ``pip install`` does the rest::

    [project.entry-points."torch_edl.sources"]
    ".npy" = "my_package:NumpySource"     # files with this suffix
    "redis" = "my_package:RedisSource"    # URLs with this scheme

    [project.entry-points."torch_edl.magic"]
    ".npy" = "my_package.magic:is_npy"    # files without a suffix: (first 512 bytes) -> bool

    [project.entry-points."torch_edl.stores"]
    "consul" = "my_package:open_store"    # --store consul://...

    [project.entry-points."torch_edl.observers"]
    "chat" = "my_package:Chat"            # --observe chat=ROOM

    [project.entry-points."torch_edl.platforms"]
    "slurm" = "my_package:PLATFORM"       # --platform slurm

    [project.entry-points."torch_edl.backends"]
    "jax" = "my_package:JAX"              # model files that import jax

    [project.entry-points."torch_edl.commands"]
    "plot" = "my_package:add_parser"      # torch-edl plot

A verb is a function ``add_parser(commands)`` that calls ``commands.add_parser("plot", help=...)``
of argparse, adds the options, and sets the default ``runs="my_package.plot"``: the full name of a
function that takes the parsed arguments and returns the exit code.

``docs/extending.md`` shows a source and an observer in 30 lines each. An object is imported when
its name is used; the function of a verb is imported by each command.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union, runtime_checkable

from torch_edl.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from torch_edl.config import JobConfig
    from torch_edl.processes.launcher import Launcher
    from torch_edl.wire import master_pb2 as pb

Records = Union[list[bytes], "pa.Table"]
"""``list[bytes]`` from formats of opaque records, a ``pyarrow.Table`` from formats with columns."""

ENDLESS = 1 << 62
"""The number of records of a stream, which has no end."""


@dataclass(frozen=True)
class Metadata:
    """What the user's ``feed`` may want to know about the records that it is given."""

    path: str
    """Absolute path or URL of the file, or the name of an in-memory source."""
    column_names: tuple[str, ...] = ()
    """Names of the columns, in the order of the file; empty where records are bytes."""
    column_types: tuple[str, ...] = ()
    """Types of the columns in Arrow's words (``int64``, ``double``, ``list<element: float>``)."""

    @classmethod
    def of(cls, path: str, schema: pa.Schema) -> Metadata:
        """The metadata of a table with this schema."""
        return cls(path, tuple(schema.names), tuple(map(str, schema.types)))


@runtime_checkable
class Source(Protocol):
    """The records of one file, table or partition (a shard), readable by index by several threads.

    The same name always gives the same records at the same indices: a task that is trained again
    must have the records that it had before. An attribute ``stamp`` is optional: (size in bytes,
    time of the last change in ns) of the content, which a resumed job compares.
    """

    @property
    def name(self) -> str:
        """The name of the shard: the absolute path of a file, or a URL."""

    @property
    def count(self) -> int:
        """The number of usable records; their indices are ``0 .. count - 1``."""

    @property
    def damaged(self) -> int:
        """Records, or blocks of records, that ``skip_damaged`` left out."""

    @property
    def metadata(self) -> Metadata:
        """The name, and for tables the names and types of the columns."""

    def read(self, start: int, end: int) -> Records:
        """Read the records ``start .. end - 1`` without reading the whole shard.

        Raises:
            DataError: the range is damaged, the content changed since it was counted, or the range
                is not within ``0 .. count``.
        """


class SourceType(Protocol):
    """What an entry point of the group ``torch_edl.sources`` names: as a rule a class of sources.

    The name of the entry point is a suffix of files with its dot (``.npy``), or a scheme of URLs
    (``redis``). A type of a suffix is only called. A type of a scheme derives from
    :class:`UrlSource`, or has its class methods.
    """

    def __call__(self, name: str, *, skip_damaged: bool = False) -> Source:
        """Open a shard, and count its records.

        Args:
            name: the absolute path of a file, or one of the names that ``parts`` gave.
            skip_damaged: leave damaged records out, and count them.

        Raises:
            DataError: the data cannot be read, or are damaged.
        """


class UrlSource:
    """Defaults of the class methods by which a job handles the URLs of a kind of source."""

    endless = False
    """True if a URL may be trained as a stream (``--epochs stream``); :meth:`check_stream` and
    :meth:`offsets` are defined then."""

    @classmethod
    def canonical(cls, url: str) -> str:
        """Return the URL as all processes of a job write it; nothing is opened.

        Raises:
            UsageError: a part of the URL is missing or wrong, or it holds a password.
        """
        return url

    @classmethod
    def check(cls, url: str) -> None:
        """Check that the data exist and may be read; nothing is counted.

        Raises:
            UsageError: the URL is wrong, or a driver is missing.
            DataError: there are no such data, or no server answers.
        """

    @classmethod
    def check_stream(cls, url: str) -> None:
        """Check that the data can be trained as a stream: each offset has the same record always.

        Raises:
            UsageError: the data have an end.
            DataError: there are no such data, or records may be removed from the middle.
        """
        raise UsageError(f"{url}: no stream; leave --epochs stream out")

    @classmethod
    def parts(cls, url: str) -> list[str]:
        """Return the names of the shards of a URL, such as the partitions of a topic.

        Raises:
            DataError: there are no such data, or no server answers.
        """
        return [url]

    @classmethod
    def offsets(cls, urls: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the first offset of each shard of some streams, and one after its last.

        Raises:
            DataError: there are no such data, or no server answers.
        """
        raise UsageError(f"{urls[0]}: no stream; leave --epochs stream out")


class Platform(ABC):
    """Where the processes of a job run: the machine of the command, or a cluster.

    An entry point of the group ``torch_edl.platforms`` names an object of this class, and the name
    of the entry point is the value of ``--platform``. Commands import the object for their help,
    so its module imports what else it needs late. The platform ``local`` is built in.
    """

    @abstractmethod
    def host(self, environment: Mapping[str, str]) -> Host:
        """Return the platform as the master of a job sees it.

        The variable ``TORCH_EDL_PLATFORM`` of the master's environment has the name of the
        platform; without it, the processes run on the machine of the master.

        Args:
            environment: environment of the master.
        """


class Host(ABC):
    """A platform as the master of a job sees it: from the place where the master itself runs."""

    asks: bool
    """True if processes are scheduled by a cluster and may stay pending."""
    hands_over: bool
    """True if a terminated master leaves the job to its successor."""
    final_codes: tuple[int, ...] = ()
    """Exit codes after which a master is not started again in its place; empty: the client decides
    whether the master is started again."""

    @abstractmethod
    def begin(self, job: str) -> int | None:
        """Check that a master may begin.

        Returns:
            The exit code for a job that is already over; None if it is not.

        Raises:
            EdlError: the master lacks permissions, or the cluster does not answer.
        """

    @abstractmethod
    def prepare(self, job: str) -> JobConfig:
        """Return the configuration of the job, and prepare its folder.

        Raises:
            UsageError: the job cannot run here.
            OSError: the folder cannot be written.
        """

    @abstractmethod
    def warnings(self, config: JobConfig) -> Sequence[str]:
        """Return the warnings for the user at the start of the job."""

    @abstractmethod
    def launcher(self, config: JobConfig, token: str, incarnation: str) -> Launcher:
        """Return the launcher of the job's processes.

        Args:
            incarnation: name of the fleet, kept across restarts of the master.
        """

    @abstractmethod
    def temporary(self, config: JobConfig) -> Path:
        """Return the folder for files that processes exchange and that end with the job."""

    @abstractmethod
    def listen(self, earlier: str) -> str:
        """Return the ``host:port`` at which the master listens.

        Args:
            earlier: address of the earlier master; empty for the first one.
        """

    @abstractmethod
    def address(self, job: str, address: str) -> str:
        """Return the address at which the processes of the job find the master.

        Args:
            address: address within this machine.
        """

    @abstractmethod
    def cores(self, config: JobConfig) -> int:
        """Return the number of CPU cores that all workers share."""

    @abstractmethod
    def store(self, config: JobConfig) -> Store | None:
        """Open the store of a job that has no ``--store``; None: a file in the job's folder is
        enough.

        Raises:
            EdlError: the user must give the master a right, or name another store.
            OSError: the store cannot be opened.
        """

    @abstractmethod
    def store_key(self, job: str) -> str:
        """Return a name of the job that is unique among all users of a ``--store``."""

    @abstractmethod
    def workers_per_pod(self, config: JobConfig) -> int:
        """Return the number of workers of a model file that share a pod."""

    @abstractmethod
    def agents(self, config: JobConfig) -> dict[str, Any]:
        """Return the agents of a script that the master starts; empty: a user starts them.

        The keys are ``agents`` (their number), ``workers_per_agent``, ``agent_args`` (words after
        ``torch-edl``) and ``agent_grace_s``.
        """

    @abstractmethod
    def refused(self, error: Exception) -> int:
        """Return the exit code of a master that cannot begin."""

    @abstractmethod
    def tell_end(self, status: pb.GetStatusResponse) -> None:
        """Store the last status of the job for clients that ask later."""

    @abstractmethod
    def hand_over(self) -> None:
        """Have the next master started, after this one has released the job."""

    @abstractmethod
    def exit_code(self, state: str, code: int, *, signalled: int) -> int:
        """Return the exit code of a master.

        Args:
            state: state in which the job ended; empty if the next master resumes the job.
            code: exit code that tells how the job ended.
            signalled: 128 + signal that stopped the master; 0 if there was none.
        """


class Entry(NamedTuple):
    """The value of a key of a store."""

    value: bytes
    revision: int
    """Revision of the last write of the key. Revisions grow over all keys of a store."""


class Store(ABC):
    """Keys with values, written together or not at all, for the state of a master. Thread-safe.

    An entry point of the group ``torch_edl.stores`` names a :class:`StoreType`; the name of the
    entry point is the scheme of ``--store SCHEME://...``. A file of sqlite is built in.

    Raises:
        OSError: any method may raise it: the store does not answer, or rejects what it is given. A
            write may have been done all the same.
    """

    lock_ttl_s: float
    """Seconds for which a lock lives without a renewal: the longest absence of the store that an
    owner bridges, and the time after which another master may take the lock."""
    renew_s = 0.0
    """Minimum seconds between two renewals of the lock; 0: each second."""

    @abstractmethod
    def get(self, key: str) -> Entry | None:
        """Return the value of a key; None if there is no such key."""

    @abstractmethod
    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        """Write all keys of ``puts``, or none.

        Args:
            expected: revisions that keys must have, these or others; 0: the key must not exist.

        Returns:
            The revision that the keys have then, larger than all before.

        Raises:
            StoreConflictError: a key has another revision than expected.
        """

    @abstractmethod
    def clear(self, expected: Mapping[str, int]) -> None:
        """Remove all keys, or none; revisions grow on.

        Args:
            expected: as in :meth:`commit`.

        Raises:
            StoreConflictError: a key has another revision than expected.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all files and connections."""


class StoreType(Protocol):
    """What an entry point of the group ``torch_edl.stores`` names."""

    def check(self, url: str) -> None:
        """Check the URL of ``--store`` before a job is started; nothing is opened.

        The client calls it, which may run on another machine than the master.

        Raises:
            UsageError: the URL is wrong.
        """

    def open(self, url: str, job: str) -> Store:
        """Open the store for one job.

        Args:
            job: a name that no other job has in this store, nor had before.

        Raises:
            UsageError: a library is missing, or a variable of the environment is wrong.
            OSError: the store does not answer.
        """


class JobEvent(NamedTuple):
    """An event of a job, as an :class:`Observer` receives it."""

    time: float
    """Unix time in seconds."""
    kind: str
    """``log``: a line of the job's event log, as in ``events.jsonl``. ``process``: a process of
    the job changed its state. ``state``: the job changed its state."""
    level: str
    """``info``, ``warning`` or ``error``."""
    text: str
    """The event in one line."""
    fields: Mapping[str, str | int]
    """``log``: ``sequence``, and ``traceback`` if user code failed. ``process``: ``role``, ``id``,
    ``pid``, ``state`` and ``exit`` (how the process ended; empty while it runs). ``state``:
    ``state`` and ``epoch`` (from 0)."""


class Observer:
    """Receives the events and the metrics of a job: for a tracker, a chart, an alert.

    An entry point of the group ``torch_edl.observers`` names a class; the name of the entry point
    is NAME of ``--observe NAME=VALUE``. A class replaces the methods that it needs::

        class Printed(Observer):
            def __init__(self, value: str) -> None:
                self._file = open(value, "a")

            def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
                print(step, values, file=self._file)

    An observer runs in the process that follows the job: the command ``torch-edl run`` (with
    ``--detach`` its detached process), or for a script the agent that hosts the master. It never
    delays the job and never fails it. All methods of an observer, its constructor included, are
    called on one thread of its own, in the order of the calls below. The thread has a queue of
    1,000 items: the items that an observer is too slow for are dropped, and an exception loses the
    item. One warning is logged for each observer. If the constructor or :meth:`begin` raises, the
    observer receives nothing else.

    The terminal and ``events.jsonl`` in the job's folder are built in, and are no observers: the
    master itself writes the file.
    """

    @classmethod
    def check(cls, value: str) -> str:
        """Check the value of ``--observe``, and return it as the job stores it.

        It is called before the job starts. A path becomes absolute here, because ``torch-edl
        continue`` may run in another folder.

        Args:
            value: the text after ``NAME=``; empty if there is none.

        Raises:
            UsageError: the value cannot work.
        """
        return value

    def __init__(self, value: str) -> None:
        """Open what the observer writes to.

        Args:
            value: what :meth:`check` returned.
        """

    def begin(self, job: JobConfig) -> None:
        """Receive the configuration of the job before anything else.

        ``job.name`` identifies the job; a job that is continued begins again with the same name.
        ``json.loads(job.to_json())`` gives all settings as plain values.
        """

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Receive numbers of a step, at most once a second and once at the end.

        Args:
            step: optimizer steps of the job so far.
            time: Unix time in seconds.
            values: ``train/loss`` and ``train/NAME`` of ``job.log(NAME=...)``, ``train/workers``,
                ``rate/records_per_s`` and ``rate/steps_per_s``. The metrics of an evaluation,
                ``eval/NAME``, come in a call of their own with the step that was evaluated.
        """

    def event(self, event: JobEvent) -> None:
        """Receive an event."""

    def end(self, state: str, error: str) -> None:
        """Receive the end, and close all files and connections. The thread ends afterwards.

        Args:
            state: ``finished``, ``failed`` or ``stopped``; ``left`` if the job runs on without the
                process of the observer.
            error: cause of a failure or a stop; empty if there is none.
        """


@dataclass(frozen=True)
class Signature:
    """The signature of a function that a model file defines."""

    example: str
    """Example of a definition, for messages."""
    arguments: int = 0
    """Number of positional arguments."""
    others: tuple[str, ...] = ()
    """Further accepted names."""
    required: bool = False
    """True if a model file must define the function."""


class Backend(ABC):
    """A framework of model files: reads their functions, and makes models that a worker trains.

    An entry point of the group ``torch_edl.backends`` names an instance; the name of the entry
    point is a package that model files of the framework import. PyTorch is built in, and is also
    the backend of files that import none of these packages. A model file is recognised by reading
    its imports, not by running it, and the client reads the attributes: the module of the instance
    must not import the framework.

    ``torch_edl/pytorch`` and ``tf_compat`` are two backends with the same file names::

        class JaxBackend(Backend):
            name, title = "jax", "JAX"
            signatures = {"model": Signature("def model(): ...", required=True), **FOR_ALL}

            def make_model(self, functions, config):
                from my_package.model_file import ModelFile  # a UserModel

                return ModelFile(functions, config)

        JAX = JaxBackend()
    """

    name: str
    """Name of the framework, and of the extra of the package that installs it."""
    title: str
    """Name of the framework in messages."""
    signatures: Mapping[str, Signature]
    """Signatures of the functions of a model file by their documented names, at least ``model``,
    ``loss``, ``optimizer`` and ``feed``; ``torch_edl.training.contract.signatures.FOR_ALL`` has
    those that are the same for all frameworks."""
    options: frozenset[str] = frozenset()
    """Options of the command line that only some frameworks support, and this one does."""
    exports: tuple[str, ...] = ()
    """Suffixes of the files that :meth:`export` writes; an empty one stands for a folder."""

    @abstractmethod
    def warm_up(self) -> None:
        """Import the framework before a model file is loaded.

        Raises:
            ModuleNotFoundError: the framework is not installed.
            UsageError: the framework cannot be used as it is configured.
        """

    @abstractmethod
    def load_contract(self, path: str, args: Sequence[str]) -> Any:
        """Execute a model file and return its functions.

        Args:
            args: ``sys.argv[1:]`` of the file.

        Returns:
            A subclass of :class:`~torch_edl.training.contract.functions.UserFunctions`.

        Raises:
            ContractError: the file raised, or a function is missing or takes other arguments.
        """

    @abstractmethod
    def make_model(self, functions: Any, config: JobConfig) -> Any:
        """Make the model of a worker, with its step, its rows and its engines.

        Args:
            functions: what :meth:`load_contract` returned.

        Returns:
            A :class:`~torch_edl.training.user_model.UserModel`.

        Raises:
            ContractError: a function of the file raised or returned an invalid value.
        """

    @abstractmethod
    def export(self, folder: Path, model_file: str, file: Path) -> str:
        """Write a trained model as one file in the format of the framework.

        Args:
            folder: a checkpoint or an output folder.
            model_file: path of the model file; empty if the user named none.
            file: the file to write; its suffix is one of :attr:`exports`.

        Returns:
            A line for the user.

        Raises:
            CheckpointError: the model is damaged.
            EdlError: the file cannot be written.
        """
