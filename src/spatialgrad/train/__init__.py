"""Train any network with any method, and never lose work.

result = train(cifar_appendix())
model = load_model("runs/vgg11-cifar100-sgs-seed0")
"""

from spatialgrad.train.config import (
    BudgetConfig,
    DataConfig,
    GrowthConfig,
    MachineConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    ScalingConfig,
    ScheduleConfig,
    TrainConfig,
)
from spatialgrad.train.deploy import load_model
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
from spatialgrad.train.optimizers import ROWS, with_row
from spatialgrad.train.recipes import RECIPES, recipe
from spatialgrad.train.result import Result, read_result
from spatialgrad.train.run_folder import read_config, read_lines
from spatialgrad.train.session import resume, train
from spatialgrad.train.tasks import TASKS, Task

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
    "Result",
    "ScalingConfig",
    "ScheduleConfig",
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
