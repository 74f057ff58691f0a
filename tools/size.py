"""Checks the size of the core and of each module against limits, which only a reason may raise.

The core is torch_edl/ with its C++, without torch_edl/plugins/, and master/; generated files do not
count. A commit that raises a limit says why; one that shrinks the core lowers the limit.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE_LINES = 57_405
MODULE_LINES = 400


def main() -> None:
    sizes = {
        str(path.relative_to(ROOT)): path.read_bytes().count(b"\n")
        for pattern in (
            "master/**/*.py",
            "torch_edl/**/*.py",
            "torch_edl/csrc/*",
            "tf_compat/**/*.py",
        )
        for path in ROOT.glob(pattern)
        if not path.stem.endswith("_pb2")
    }
    core = sum(
        lines for path, lines in sizes.items()
        if not path.startswith(("torch_edl/plugins/", "tf_compat/"))
    )  # fmt: skip
    problems = [
        f"{path} has {lines} lines, the limit is {MODULE_LINES}: split it by sense"
        for path, lines in sorted(sizes.items())
        if lines > MODULE_LINES
    ]
    if core > CORE_LINES:
        problems.append(
            f"the core has {core} lines, the limit is {CORE_LINES}: delete code, move what not "
            "every user needs to a plugin, or raise CORE_LINES in a commit that says why"
        )
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
