"""The entry point: runs a verb, and turns exceptions into a message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from torch_edl.cli.arguments.config_file import placed
from torch_edl.cli.arguments.parser import parse
from torch_edl.cli.terminal import complain
from torch_edl.errors import EdlError, UsageError
from torch_edl.processes.this_process import outlive_terminal

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code: 0 done; 1 the job failed; 2 an error that the user
    can fix; 130 Ctrl-C; 143 SIGTERM."""
    outlive_terminal()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        complain(str(error))
        return EXIT_USAGE
    except EdlError as error:
        complain(str(error))
        return EXIT_FAILED
    except BrokenPipeError:  # `torch-edl status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(argv: list[str]) -> int:
    try:
        args = parse(argv)
        # Imported by name, so that `status` does not import pyarrow, and `--help` does not import
        # gRPC.
        module, _, function = args.runs.rpartition(".")
        run = getattr(importlib.import_module(module), function)
        try:
            code: int = run(args)
        except UsageError as error:
            raise placed(error, args.places) from error
    except SystemExit as end:  # --help and --version
        code = end.code if isinstance(end.code, int) else EXIT_FAILED
    sys.stdout.flush()  # raises BrokenPipeError here, for main()
    return code


if __name__ == "__main__":
    sys.exit(main())
