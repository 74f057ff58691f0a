"""What other packages can add to torch-edl: sources, storages, stores, observers, exporters,
watches, platforms, backends, preprocessing, and verbs of the command line.

Each interface has a file here, and its contract stands in the docstrings; ``magic`` and verbs are
plain functions, described below. Engines are not found by entry points: a backend makes them.

A package names its object under an entry point, and ``pip install`` does the rest::

    [project.entry-points."torch_edl.sources"]
    ".npy" = "my_package:NumpySource"     # files with this suffix
    "redis" = "my_package:RedisSource"    # URLs with this scheme

    [project.entry-points."torch_edl.magic"]
    ".npy" = "my_package.magic:is_npy"    # files without a suffix: (first 512 bytes) -> bool

    [project.entry-points."torch_edl.storages"]
    "ftp" = "my_package:FtpStorage"       # files behind URLs with this scheme

    [project.entry-points."torch_edl.stores"]
    "consul" = "my_package:CONSUL"        # --store consul://...: has check(url), open(url, job)

    [project.entry-points."torch_edl.observers"]
    "chat" = "my_package:Chat"            # --observe chat=ROOM

    [project.entry-points."torch_edl.exporters"]
    "prometheus" = "my_package:serve"     # --metrics-port: see Exporter

    [project.entry-points."torch_edl.watches"]
    "heat" = "my_package:HeatWatch"       # judges the processes of each job: see Watch

    [project.entry-points."torch_edl.platforms"]
    "slurm" = "my_package:PLATFORM"       # --platform slurm

    [project.entry-points."torch_edl.backends"]
    "jax" = "my_package:JAX"              # model files that import jax

    [project.entry-points."torch_edl.preprocessing"]
    "columns" = "my_package:Columns"      # instead of torch_edl.preprocessing: a Fittable

    [project.entry-points."torch_edl.commands"]
    "plot" = "my_package:add_parser"      # torch-edl plot

A verb is a function ``add_parser(commands)`` that calls ``commands.add_parser("plot", help=...)``
of argparse, adds the options, and sets the default ``runs="my_package.plot"``: the full name of a
function that takes the parsed arguments and returns the exit code.

``docs/extending.md`` shows a source and an observer in 30 lines each. An object is imported when
its name is used; the function of a verb is imported by each command.
"""

from __future__ import annotations

from torch_edl.interfaces.backend import Backend, Signature
from torch_edl.interfaces.engine import Batch, Damaged, Engine, LeasedEngine, Minibatch, Update
from torch_edl.interfaces.exporter import PROMETHEUS, Exporter
from torch_edl.interfaces.observer import Observer
from torch_edl.interfaces.platform import (
    Host,
    JobHandle,
    JobOutcome,
    LogQuery,
    Platform,
    Submission,
)
from torch_edl.interfaces.preprocessing import FitStatistics, Fittable
from torch_edl.interfaces.source import (
    ENDLESS,
    Metadata,
    Records,
    Source,
    SourceType,
    Stamp,
    Storage,
    StoredBytes,
    UrlSource,
)
from torch_edl.interfaces.store import Entry, Store, StoreType
from torch_edl.interfaces.watch import Verdict, Watch

__all__ = [
    "PROMETHEUS",
    "ENDLESS",
    "Backend",
    "Batch",
    "Damaged",
    "Engine",
    "Entry",
    "FitStatistics",
    "Fittable",
    "Exporter",
    "Host",
    "JobHandle",
    "JobOutcome",
    "LeasedEngine",
    "LogQuery",
    "Metadata",
    "Minibatch",
    "Observer",
    "Platform",
    "Records",
    "Signature",
    "Source",
    "SourceType",
    "Stamp",
    "Storage",
    "Store",
    "StoreType",
    "StoredBytes",
    "Submission",
    "Update",
    "UrlSource",
    "Verdict",
    "Watch",
]
