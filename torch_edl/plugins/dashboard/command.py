"""``torch-edl dashboard``: serves the page of a job, or writes it to a file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from torch_edl.checkpoint.durable import check_writable, replacing
from torch_edl.cli.platforms import find
from torch_edl.cli.terminal import stdout
from torch_edl.errors import UsageError
from torch_edl.plugins.dashboard import events, page
from torch_edl.plugins.dashboard.server import PageServer
from torch_edl.plugins.dashboard.view import View

_HTML = (".html", ".htm")
# The server sleeps until a request comes; this is the time between looks for the end.
_LOOK_S = 3600.0
# The most frequent ids arrive with the third heartbeat of a server.
_IDS_S, _POLL_S = 5.0, 0.2
# A rate is known after two heartbeats.
_RATES_S = 2.0


def main(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C, or write it to ``--export``.

    Raises:
        UsageError: there is no such job, the port is in use, or the file cannot be written.
        EdlError: the cluster of the job does not answer.
    """
    if not 0 <= args.port < 1 << 16:
        raise UsageError(f"--port {args.port}: must be 0 to 65535")
    if args.export and args.port:
        raise UsageError("--port and --export: a file needs no port; leave one out")
    target = _target(args.export) if args.export else None
    view = View(find(args))
    view.refresh()
    if target is not None:
        view.page()  # rates are those since this moment
        _await_frequent_ids(view)
        if not view.over:
            time.sleep(_RATES_S)
            view.refresh()
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(page.exported(_answers(view)))
        stdout().print(f"{target}", soft_wrap=True)
        return 0
    with PageServer(view, args.port) as server:
        stdout().print(f"{server.url}", soft_wrap=True, highlight=False)
        try:
            server.serve_forever(poll_interval=_LOOK_S)
        except KeyboardInterrupt:
            return 0
    return 0


def _await_frequent_ids(view: View) -> None:
    """Wait some seconds until the servers of a running job have sent the most frequent ids."""
    deadline = time.monotonic() + _IDS_S
    while view.lacks_frequent_ids() and time.monotonic() < deadline:
        view.refresh(frequent_ids=True)
        time.sleep(_POLL_S)


def _target(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if path.suffix not in _HTML:
        raise UsageError(f"--export {text}: write FILE.html")
    check_writable(path, "--export", is_file=True)
    return path


def _answers(view: View) -> dict[str, object]:
    """Return what the exported page shows: data, the newest events, and the ends of logs."""
    most, book = 10 * events.MOST_AT_ONCE, view.book
    main = [event for event in book.all if not events.is_routine(event)][-most:]
    routine = [event for event in book.all if events.is_routine(event)][-most:]
    latest = sorted([*main, *routine], key=lambda event: event["sequence"])
    return {**view.page(), "events": latest, "logs": view.logs()}
