"""The compiled core; all other metadata lives in setup.cfg."""

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

# No -march=native: hot loops are compiled several times and the best is picked at load time
# (target_clones), so a wheel built here runs on any x86-64 or Arm machine.
setup(
    ext_modules=[
        Pybind11Extension(
            "torch_edl._core",
            sources=["torch_edl/csrc/bindings.cc"],
            depends=[f"torch_edl/csrc/{n}.h" for n in ("table", "optimizer", "initializer", "ids")],
            cxx_std=17,
            extra_compile_args=["-O3", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-Wextra"],
        )
    ]
)
