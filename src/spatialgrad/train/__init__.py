"""Train any network with any method, resumable at any step.

result = train(recipe("cifar_appendix"))
model = load_model("runs/vgg11-cifar100-sgs-seed0")
"""

from typing import TYPE_CHECKING

from spatialgrad.torch_utils.lazy import import_on_use

if TYPE_CHECKING:
    from spatialgrad.train.config.groups import BudgetConfig, DataConfig, MachineConfig, ModelConfig, TrainConfig
    from spatialgrad.train.config.optimization import OptimizerConfig, ScheduleConfig
    from spatialgrad.train.config.options import (
        DyRepGroup,
        MethodConfig,
        PoseConfig,
        RepOptGroup,
        ScalingConfig,
        SegmentationConfig,
    )
    from spatialgrad.train.engine.run import resume, train
    from spatialgrad.train.errors import (
        CheckpointError,
        ConfigError,
        DamagedFileError,
        DeployError,
        DivergedError,
        FolderInUseError,
        InterruptedTraining,
        OtherConfigError,
        StorageError,
        TrainError,
    )
    from spatialgrad.train.export import export_onnx, export_weights, load_model
    from spatialgrad.train.methods import METHODS, register_method
    from spatialgrad.train.methods.base import Method
    from spatialgrad.train.recipes import RECIPES, recipe
    from spatialgrad.train.runs.folder import read_config, read_lines
    from spatialgrad.train.runs.result import Result, read_result
    from spatialgrad.train.tasks import TASKS, register_task
    from spatialgrad.train.tasks.base import Task

__all__ = [
    "METHODS",
    "RECIPES",
    "TASKS",
    "BudgetConfig",
    "CheckpointError",
    "ConfigError",
    "DamagedFileError",
    "DataConfig",
    "DeployError",
    "DivergedError",
    "DyRepGroup",
    "FolderInUseError",
    "InterruptedTraining",
    "MachineConfig",
    "Method",
    "MethodConfig",
    "ModelConfig",
    "OptimizerConfig",
    "OtherConfigError",
    "PoseConfig",
    "RepOptGroup",
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
    "register_method",
    "register_task",
    "resume",
    "train",
]

__getattr__, __dir__ = import_on_use(__name__)
