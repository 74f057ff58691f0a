"""Stops an installation that would download gigabytes of CUDA packages nobody asked for.

On Linux the default package index has torch with CUDA; a CPU build comes from PyTorch's own index
or from a folder. Set CUDA=1 to install the CUDA build after all.
"""

import json
import os
import subprocess
import sys


def main() -> None:
    plan = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed",
         "--disable-pip-version-check", "--report", "-", *sys.argv[1:]],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = [p["metadata"]["name"] for p in json.loads(plan.stdout)["install"]]
    cuda = [n for n in names if n.lower().startswith(("nvidia-", "cuda-", "triton"))]
    if cuda and not os.environ.get("CUDA"):
        sys.exit(
            f"torch here would bring {len(cuda)} CUDA packages ({', '.join(cuda[:3])}, ...): "
            "point PIP_EXTRA_INDEX_URL at PyTorch's index of CPU wheels, or PIP_FIND_LINKS at a "
            "folder with such a wheel; or say CUDA=1"
        )


if __name__ == "__main__":
    main()
