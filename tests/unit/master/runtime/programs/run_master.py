"""The real master, starting the scripted workers and servers of this folder."""

import sys

from master.__main__ import main

HERE = "tests.unit.master.runtime.programs"
sys.exit(main(worker_module=f"{HERE}.scripted_worker", server_module=f"{HERE}.scripted_server"))
