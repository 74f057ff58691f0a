"""A script for torchrun without torch_edl: reduces once, and tells of its gang."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
reached = torch.ones(1)
dist.all_reduce(reached)
name = f"{os.environ['TORCHELASTIC_RUN_ID']}-{os.getpid()}"
(folder / f"{name}.part").write_text(json.dumps(dict(os.environ)))
os.replace(folder / f"{name}.part", folder / f"{name}.json")
# One write for the line and its end: another rank writes to the same pipe.
sys.stdout.write(f"rank {dist.get_rank()} of {int(reached)}: {sys.argv[2:]}\n")
sys.stdout.flush()
if "fail" in sys.argv:
    if dist.get_rank() == dist.get_world_size() - 1:
        # Not sys.exit: an interpreter that ends while Gloo's threads live is aborted now and then.
        os._exit(3)
    signal.pause()
dist.barrier()
dist.destroy_process_group()  # else the end of the interpreter is an abort now and then
