"""``python -m torch_edl``: the command ``torch-edl``."""

import sys

from torch_edl.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
