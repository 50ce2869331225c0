"""The options of `spatialgrad train` for commands that train several times: all but method, seed and folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

from spatialgrad.train.config import (
    FREE,
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
    flatten,
    to_dict,
)
from spatialgrad.train.flags import flag
from spatialgrad.train.optimizers import OptimizerConfig, ScheduleConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOptions:
    """A training; the same flags as for `spatialgrad train`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    dyrep: DyRepGroup = field(default_factory=DyRepGroup)
    repopt: RepOptGroup = field(default_factory=RepOptGroup)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)
    pose: PoseConfig = field(default_factory=PoseConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    task: str = "classification"
    """classification, segmentation or pose; model and data set must be made for it."""
    label_smoothing: float = 0.0
    """Share of the target probability spread evenly over all classes, for classification."""
    tensorboard: bool = False
    """Also write TensorBoard events to the folder of each run."""

    @classmethod
    def of(cls, config: TrainConfig) -> TrainingOptions:
        """The options that make a config; its method, seed and folder are left out."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})

    def config(self, method: str) -> TrainConfig:
        """The config of a training with these options and a method."""
        own: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        if own["data"].root is not None:
            # Runs may be started from another folder.
            own["data"] = replace(own["data"], root=own["data"].root.resolve())
        return TrainConfig(**own, method=MethodConfig(name=method))


def flags_of(config: TrainConfig, default: TrainConfig, *, without: Iterable[str] = ()) -> list[str]:
    """The flags that make a config of another one; where a run computes is left out.

    Args:
        config: To describe.
        default: What applies without flags.
        without: Dotted fields to leave out.
    """
    before, flags = flatten(to_dict(default)), list[str]()
    for name, value in flatten(to_dict(config)).items():
        if name in (*FREE, *without) or (name in before and before[name] == value):
            continue
        if _is_switch(config, name):
            group, _, last = flag(name).rpartition(".")
            flags.append(flag(name) if value else f"{group}.no-{last}")
        else:
            flags += [flag(name), *map(str, value if isinstance(value, list) else [value])]
    return flags


def command_of(name: str, flags: Sequence[str], recipe: str | None = None) -> str:
    """A command line that can be copied into a shell."""
    words = ["spatialgrad", name, *(("--recipe", recipe) if recipe else ()), *flags]
    return shlex.join(words)


def _is_switch(config: TrainConfig, field: str) -> bool:
    """Whether a field is set by its flag alone, and unset by the flag with `no-`."""
    group, _, name = field.rpartition(".")
    return bool(group) and get_type_hints(type(getattr(config, group))).get(name) is bool
