"""What the command line is to a master: its parent, which may be killed."""

import signal
import sys
import time

from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.local import LocalLauncher

launcher = LocalLauncher(sys.argv[1])
spec = ProcessSpec(
    role="master",
    id=0,
    module="run_master",
    args=["--job", "j"],
    end_with_parent=signal.SIGTERM,
)
launcher.start(spec)
print("started", flush=True)
time.sleep(600)
