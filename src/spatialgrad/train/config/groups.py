"""Everything that determines a training, as one tree of frozen dataclasses; `spatialgrad train --help` shows it.

The defaults are the recipe `cifar_appendix`. The most common fields have short flags (`--model`, `--epochs`); all
others are `--group.field`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from spatialgrad.data.registry import names_for, task_of
from spatialgrad.models.external import check_form
from spatialgrad.models.external import is_external as is_outside
from spatialgrad.models.registry import NOT_PRETRAINED, list_models, model_info
from spatialgrad.train.config.key_values import parse_key_values, sorted_key_values
from spatialgrad.train.config.optimization import OptimizerConfig, ScheduleConfig
from spatialgrad.train.config.options import (
    STARTS_FROM_SCALES,
    TASK_NAMES,
    DyRepGroup,
    MethodConfig,
    PoseConfig,
    RepOptGroup,
    ScalingConfig,
    SegmentationConfig,
)
from spatialgrad.train.config.validation import as_config_error, at_least, check_name, require
from spatialgrad.train.errors import ConfigError

RESERVED_OPTIONS = {
    "name": "use --model",
    "num_classes": "it is the number of classes of the data set",
    "in_channels": "it is the number of channels of the images",
    "width": "use --model.width",
    "pretrained": "use --model.pretrained",
}
"""Arguments of `create_model` that are not options of a network, and what determines them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Network."""

    name: Annotated[str, arg(name="model", prefix_name=False, metavar="NAME")] = "vgg11"
    """A network of `spatialgrad model list`.
    For classification also timm:NAME, torchvision:NAME or package.module:function.
    The function is called with num_classes, and with in_channels where it takes it."""
    width: float = 1.0
    """Factor on all channel counts; 1 is the paper's network. For networks of this package."""
    options: Annotated[tuple[str, ...], arg(metavar="[KEY=VALUE ...]")] = ()
    """Further arguments of the network; Python literals, or else text: dropout=0.5 norm=batch."""
    pretrained: bool = False
    """Fine-tune: start from the pre-trained weights of timm or torchvision.
    A function must take pretrained."""
    backbone: Path | None = None
    """Initial weights of a segmentation or pose network's backbone; random by default.
    The folder of a classification run, or a checkpoint file of torchvision's ResNet."""

    def __post_init__(self) -> None:
        outside = is_outside(self.name)
        with as_config_error("--model: " if outside else ""):
            if outside:
                check_form(self.name)
            else:
                model_info(self.name)
        require(math.isfinite(self.width) and self.width > 0, "model.width", self.width, "must be positive")
        require(not outside or self.width == 1, "model.width", self.width, f"must be 1 for {self.name}")
        if self.pretrained and not outside:
            raise ConfigError(f"--model.pretrained: {NOT_PRETRAINED.format(name=self.name)}, as --model timm:resnet18")
        parse_key_values("model.options", self.options, reserved=RESERVED_OPTIONS)
        object.__setattr__(self, "options", sorted_key_values(self.options))

    @property
    def task(self) -> str:
        """The task that the network is made for."""
        return "classification" if is_outside(self.name) else model_info(self.name).task

    @property
    def parsed_options(self) -> dict[str, Any]:
        """The values of the options by name."""
        return parse_key_values("model.options", self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Data set, batches and augmentation."""

    name: Annotated[str, arg(name="dataset", prefix_name=False, metavar="NAME")] = "cifar100"
    """A data set of `spatialgrad data list`, or folder:PATH for class folders of image files."""
    root: Path | None = None
    """Folder of the data sets; by default $SPATIALGRAD_DATA, or ~/.cache/spatialgrad."""
    batch_size: Annotated[int, arg(name="batch-size", prefix_name=False)] = 128
    """Images per step, summed over all processes."""
    image_size: int | tuple[int, int] | None = None
    """Height and width of the images, or one number for both; by default the data set's own.
    For segmentation and pose, of the training crops."""
    drop_last: bool = False
    """Drop the last batch of an epoch if it is incomplete."""
    augment: bool = True
    """Augment training images as is usual for the data set (random crops, mirroring, ...)."""
    cutout: int = 16
    """Side of the square cut out of training images, for classification; 0 for none."""
    limit: int | None = None
    """Number of training images to use, with equal shares of all classes where images have a class. All by default."""
    test_limit: int | None = None
    """Number of test images to use. All by default."""
    validation: float = 0.0
    """Share of the training images to hold out and test on, instead of the test images."""
    split_seed: int = 0
    """Seed that chooses the images of limit, test-limit and validation; independent of --seed."""

    def __post_init__(self) -> None:
        with as_config_error():
            task_of(self.name)
        at_least(1, self, "data", "batch_size", "limit", "test_limit")
        if self.image_size is not None:
            sides = (self.image_size,) if isinstance(self.image_size, int) else tuple(self.image_size)
            valid = len(sides) <= 2 and all(side >= 1 for side in sides)
            require(valid, "data.image_size", self.image_size, "must be one or two positive numbers")
            object.__setattr__(self, "image_size", sides[0] if len(set(sides)) == 1 else sides)
        at_least(0, self, "data", "cutout")
        require(0 <= self.validation < 1, "data.validation", self.validation, "must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """Number of epochs, evaluation and checkpoint intervals."""

    epochs: Annotated[int, arg(prefix_name=False)] = 200
    """Number of training epochs."""
    evaluate_every: int = 1
    """Epochs between two evaluations; the last epoch is always evaluated."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints; more if writing them would take over 1 % of the time."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, instead of checkpoint-seconds."""

    def __post_init__(self) -> None:
        at_least(1, self, "budget", "epochs", "evaluate_every", "checkpoint_steps")
        at_least(0, self, "budget", "checkpoint_seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineConfig:
    """Devices, processes and precision. Under torchrun, its processes are used."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device type."""
    devices: int | Literal["auto"] = "auto"
    """Number of devices per node, with one process each."""
    nodes: int = 1
    """Number of nodes."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """ddp: every process holds the whole network. fsdp: every process holds a shard of it."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = "32-true"
    """Floating-point precision, as in Lightning Fabric."""
    channels_last: bool | Literal["auto"] = "auto"
    """Channels-last memory format; auto uses it where it is faster: on CPUs, unless the network has strided 1×1 kernels
    over fewer than 16 channels, and on GPUs in reduced precision."""
    compile: bool = False
    """Compile the network with torch.compile: slower to start, faster to run."""
    workers: int = 0
    """Number of processes that decode image files; images in memory need none."""
    threads: int | None = None
    """Number of CPU threads per process; by default PyTorch's choice."""

    def __post_init__(self) -> None:
        at_least(1, self, "machine", "nodes", "threads")
        at_least(0, self, "machine", "workers")
        require(self.devices == "auto" or self.devices >= 1, "machine.devices", self.devices, "must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """A training."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
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
    seed: int = 0
    """Seed of the initial weights, the order of the images, augmentation and dropout."""
    out: Path | None = None
    """Folder of the run; by default runs/MODEL-DATASET-METHOD-seedSEED. A run that is in it is resumed."""
    tensorboard: bool = False
    """Also write TensorBoard events to the folder."""

    def __post_init__(self) -> None:
        check_name("task", self.task, TASK_NAMES)
        self._check_fit("model", self.model.name, self.model.task)
        self._check_fit("dataset", self.data.name, task_of(self.data.name))
        smoothing = self.label_smoothing
        require(0 <= smoothing < 1, "label_smoothing", smoothing, "must be at least 0 and below 1")
        valid = self.task == "classification" or smoothing == 0
        require(valid, "label_smoothing", smoothing, f"must be 0 for {self.task}")
        if self.task == "classification":
            size, backbone, factor = self.data.image_size, self.model.backbone, self.optimizer.head_factor
            require(not isinstance(size, tuple), "data.image_size", size, "must be one number for classification")
            why = f"for {self.model.name}, which has no backbone"
            require(backbone is None, "model.backbone", backbone, f"cannot be set {why}")
            require(factor == 1, "optimizer.head_factor", factor, f"must be 1 {why}")
        if self.repopt.scales is not None and self.method.name not in STARTS_FROM_SCALES:
            why = f"can be used with --method {', '.join(STARTS_FROM_SCALES)} only"
            require(False, "repopt.scales", self.repopt.scales, why)
        drawn = self.repopt.scales is not None or self.method.name in ("repopt-search", "repopt")
        if self.model.pretrained and drawn:
            what = "--method repopt-search" if self.repopt.scales is None else "--repopt.scales"
            raise ConfigError(f"--model.pretrained: {what} draws new weights in place of the pre-trained ones")
        if self.method.name.startswith("lemma"):
            # The Lemma holds for updates that are linear in the gradient, and shows in full precision only.
            name, clip_norm, precision = self.optimizer.name, self.optimizer.clip_norm, self.machine.precision
            why = f"with --method {self.method.name}"
            require(name == "sgd", "optimizer.name", name, f"must be sgd {why}")
            require(clip_norm is None, "optimizer.clip_norm", clip_norm, f"cannot be set {why}")
            valid = precision in ("32-true", "64-true")
            require(valid, "machine.precision", precision, f"must be 32-true or 64-true {why}")

    def _check_fit(self, what: str, name: str, made_for: str) -> None:
        if made_for != self.task:
            fitting = list_models(task=self.task) if what == "model" else names_for(self.task)
            raise ConfigError(
                f"{what} {name!r} is for {made_for}, but the task is {self.task!r}; use --task {made_for}, or a {what} "
                f"for {self.task} ({', '.join(fitting)})"
            )

    @property
    def folder(self) -> Path:
        """The run's folder."""
        if self.out is not None:
            return self.out
        width = "" if self.model.width == 1 else f"-w{self.model.width:g}"
        pretrained = "-pretrained" if self.model.pretrained else ""
        model, dataset = _as_file_name(self.model.name), _as_file_name(self.data.name)
        return Path("runs") / f"{model}{width}{pretrained}-{dataset}-{self.method.name}-seed{self.seed}"


def _as_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
