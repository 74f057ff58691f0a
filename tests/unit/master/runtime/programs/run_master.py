"""The real master, starting the scripted workers and servers of this folder."""

import sys

from master.__main__ import main

sys.exit(main(worker_module="scripted_worker", server_module="scripted_server"))
