"""The configuration of a job: a dataclass for each part, and the options that set its fields.

No files, no clock and no environment variables in here: a configuration is its JSON.
"""

from torch_edl.config.checkpoint import CheckpointConfig
from torch_edl.config.cluster import ClusterConfig
from torch_edl.config.data import DataConfig
from torch_edl.config.durability import DurabilityConfig
from torch_edl.config.experiment import Experiment
from torch_edl.config.job import JobConfig
from torch_edl.config.kubernetes import KubernetesConfig
from torch_edl.config.training import TrainConfig

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "DataConfig",
    "DurabilityConfig",
    "Experiment",
    "JobConfig",
    "KubernetesConfig",
    "TrainConfig",
]
