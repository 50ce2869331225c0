"""Train any network with any method, and never lose work.

result = train(recipe("cifar_appendix"))
model = load_model("runs/vgg11-cifar100-sgs-seed0")
"""

from typing import TYPE_CHECKING, Any

from spatialgrad.train.config.groups import (
    BudgetConfig,
    DataConfig,
    GrowthConfig,
    MachineConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    PoseConfig,
    ScalingConfig,
    ScheduleConfig,
    SegmentationConfig,
    TrainConfig,
)
from spatialgrad.train.deploy import load_model
from spatialgrad.train.engine.optim import ROWS, with_row
from spatialgrad.train.errors import (
    CheckpointError,
    ConfigError,
    DeployError,
    DivergedError,
    FolderInUseError,
    InterruptedTraining,
    OtherConfigError,
    StorageError,
    TrainError,
)
from spatialgrad.train.export import export_onnx, export_weights
from spatialgrad.train.methods import METHODS, Method
from spatialgrad.train.recipes import RECIPES, recipe
from spatialgrad.train.runs.folder import read_config, read_lines
from spatialgrad.train.runs.result import Result, read_result
from spatialgrad.train.tasks import TASKS, Task

if TYPE_CHECKING:
    from spatialgrad.train.engine.run import resume, train

__all__ = [
    "METHODS",
    "RECIPES",
    "ROWS",
    "TASKS",
    "BudgetConfig",
    "CheckpointError",
    "ConfigError",
    "DataConfig",
    "DeployError",
    "DivergedError",
    "FolderInUseError",
    "GrowthConfig",
    "InterruptedTraining",
    "MachineConfig",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OtherConfigError",
    "PoseConfig",
    "Result",
    "ScalingConfig",
    "ScheduleConfig",
    "SegmentationConfig",
    "StorageError",
    "Task",
    "TrainConfig",
    "TrainError",
    "export_onnx",
    "export_weights",
    "load_model",
    "read_config",
    "read_lines",
    "read_result",
    "recipe",
    "resume",
    "train",
    "with_row",
]


def __getattr__(name: str) -> Any:
    """Load what trains when it is asked for: lightning-fabric takes seconds to import, configs do not need it."""
    if name in ("resume", "train"):
        from spatialgrad.train.engine import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
