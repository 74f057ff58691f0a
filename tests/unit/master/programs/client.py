"""What the command line is to a master: its parent, which may be killed."""

import sys
import time

from torch_edl.processes.base import ProcessSpec
from torch_edl.processes.local import LocalLauncher

launcher = LocalLauncher(sys.argv[1])
launcher.start(ProcessSpec(role="master", id=0, module="run_master", args=["--job", "j"]))
print("started", flush=True)
time.sleep(600)
