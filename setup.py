"""The compiled core; all other metadata lives in setup.cfg."""

from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

# No -march=native: hot loops are compiled several times and the best is picked at load time
# (target_clones), so a wheel built here runs on any x86-64 or Arm machine. Without fused
# multiply-add (-ffp-contract=off) all of them give the same bits: a row starts the same everywhere.
with ParallelCompile():
    setup(
        ext_modules=[
            Pybind11Extension(
                "torch_edl._core",
                sources=sorted(glob("torch_edl/csrc/*.cc")),
                depends=glob("torch_edl/csrc/*.h"),
                cxx_std=17,
                extra_compile_args=[
                    "-O3",
                    "-fno-math-errno",
                    "-fno-trapping-math",
                    "-ffp-contract=off",
                    "-fvisibility=hidden",
                    "-Wall",
                    "-Wextra",
                ],
            )
        ]
    )
