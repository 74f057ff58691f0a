"""Configuration of a job: one dataclass per part, with the options that set its fields.

A configuration equals its JSON, and its dataclasses read no files, clock or environment variables.
Only two modules look outside: ``environment`` (variables, folders, name of the machine, files that
a user names) and ``extensions`` (entry points of installed packages).
"""

from torch_edl.config.job import Experiment, JobConfig, Launch
from torch_edl.config.parts import CheckpointConfig, ClusterConfig, DataConfig, DurabilityConfig
from torch_edl.config.training import TrainConfig

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "DataConfig",
    "DurabilityConfig",
    "Experiment",
    "JobConfig",
    "Launch",
    "TrainConfig",
]
