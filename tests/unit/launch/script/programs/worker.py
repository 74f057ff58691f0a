"""A script that tells of itself in a folder, and ends as a file there says.

It imports torch_edl and nothing else that takes time.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch_edl  # noqa: F401 - makes it a script of torch_edl
from torch_edl.processes.script_marks import ScriptMarks

# Not an argument: nodes of one job have the same ones.
folder = Path(os.environ["WORKER_FOLDER"])
me = f"{os.environ['LOCAL_RANK']}-{os.getpid()}"
if "reader" in sys.argv:  # with a child in its group, as a DataLoader has them
    main = os.getpid()

    def hear(*_: object) -> None:
        (folder / f"{'worker' if os.getpid() == main else 'reader'}-asked").touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, hear)
    reader = os.fork()
    while not reader:
        signal.pause()
    (folder / f"reader-of-{main}").write_text(str(reader))
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"worker {os.environ['RANK']} begins", flush=True)
(folder / f"{me}.part").write_text(json.dumps(dict(os.environ)))
os.replace(folder / f"{me}.part", folder / f"{me}.json")
while True:
    for name in (f"end-{os.environ['LOCAL_RANK']}", "end"):
        if (folder / name).exists():
            code = int((folder / name).read_text())
            if name != "end":
                (folder / name).unlink()
            if code == 9:  # by the kernel
                room = []
                while True:
                    room.append(bytearray(1 << 24))
            if code == 77:
                from torch.distributed.elastic.multiprocessing.errors import record

                @record
                def fail() -> None:
                    raise ValueError("too bad")

                try:
                    fail()
                finally:
                    if "lingers" in sys.argv:
                        ScriptMarks().fail()
                        while not (folder / "leave").exists():
                            time.sleep(0.01)
            sys.exit(code)
    time.sleep(0.01)
