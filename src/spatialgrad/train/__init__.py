"""Train any network with any method, resumable at any step.

result = train(recipe("cifar_appendix"))
model = load_model(recipe("cifar_appendix").folder)
"""

from typing import TYPE_CHECKING

from spatialgrad.utils.lazy import import_on_use

if TYPE_CHECKING:
    from spatialgrad.train.config import (
        BudgetConfig,
        DataConfig,
        DyRepGroup,
        MachineConfig,
        MethodConfig,
        ModelConfig,
        PoseConfig,
        RepOptGroup,
        ScalingConfig,
        SegmentationConfig,
        TrainConfig,
        load_config,
        save_config,
    )
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
    from spatialgrad.train.loop import resume, train
    from spatialgrad.train.methods import METHODS
    from spatialgrad.train.methods.base import Method
    from spatialgrad.train.optimizers import OptimizerConfig, ScheduleConfig
    from spatialgrad.train.quantize import Int8Export, export_int8
    from spatialgrad.train.recipes import RECIPES, recipe
    from spatialgrad.train.result import Result
    from spatialgrad.train.run import Run
    from spatialgrad.train.tasks import TASKS
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
    "Int8Export",
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
    "Run",
    "ScalingConfig",
    "ScheduleConfig",
    "SegmentationConfig",
    "StorageError",
    "Task",
    "TrainConfig",
    "TrainError",
    "export_int8",
    "export_onnx",
    "export_weights",
    "load_config",
    "load_model",
    "recipe",
    "resume",
    "save_config",
    "train",
]

__getattr__, __dir__ = import_on_use(__name__)
