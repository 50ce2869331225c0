"""Everything that decides about a training, as one tree of frozen dataclasses; `spatialgrad train --help` shows it.

The defaults are the recipe `cifar_appendix`. Fields that every user sets have short flags (`--model`, `--epochs`);
all others are `--group.field`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from spatialgrad.data.registry import SOURCES, find_source
from spatialgrad.models import list_models, model_info
from spatialgrad.train.config.dense import PoseConfig, SegmentationConfig
from spatialgrad.train.config.methods import GrowthConfig, MethodConfig, ScalingConfig
from spatialgrad.train.config.validation import at_least, check_name, explained, require
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.tasks import TASKS

USUAL_LR = {
    "sgd": 0.1,
    "adadelta": 1.0,
    "adagrad": 0.01,
    "adam": 0.001,
    "adamax": 0.002,
    "nadam": 0.002,
    "radam": 0.001,
}
"""The optimizers, and the learning rate of each that is used when none is given: PyTorch's, and 0.1 for SGD."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Which network."""

    name: Annotated[str, arg(name="model", prefix_name=False, metavar="NAME")] = "vgg11"
    """A network of `spatialgrad.models.list_models(task=None)`."""
    width: float = 1.0
    """Factor on all channel counts; 1 is the paper's network."""
    backbone: Path | None = None
    """Where the backbone of a segmentation or pose network gets its first weights: the folder of a classification
    run, or a checkpoint file of torchvision's ResNet. Without it, they are random."""

    def __post_init__(self) -> None:
        explained(model_info, self.name)
        require(math.isfinite(self.width) and self.width > 0, "model.width", self.width, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which images, and what is done to them."""

    name: Annotated[str, arg(name="dataset", prefix_name=False, metavar="NAME")] = "cifar100"
    """A data set of `spatialgrad data list`, or folder:PATH for class folders of image files."""
    root: Path | None = None
    """Folder of the data sets; by default $SPATIALGRAD_DATA, or ~/.cache/spatialgrad."""
    batch_size: Annotated[int, arg(name="batch-size", prefix_name=False)] = 128
    """Images per step, over all processes together."""
    image_size: int | tuple[int, int] | None = None
    """Height and width of the images in a batch, if not the data set's own; one number for both. For segmentation
    and pose, of the training crops."""
    drop_last: bool = False
    """Drop the last batch of an epoch if it is incomplete."""
    augment: bool = True
    """Whether training images are cropped, mirrored and so on, as is usual for the data set."""
    cutout: int = 16
    """Side of the square that is cut out of training images, for classification; 0 for none."""
    limit: int | None = None
    """Train on so many of the training images only, the same share of every class where images have one."""
    test_limit: int | None = None
    """Test on so many of the test images only."""
    validation: float = 0.0
    """Hold this share of the training images out and test on it, instead of the test images."""
    split_seed: int = 0
    """Seed of `limit` and `validation`: runs with other seeds still see the same images."""

    def __post_init__(self) -> None:
        explained(find_source, self.name)
        at_least(1, self, "data", "batch_size", "limit", "test_limit")
        if self.image_size is not None:
            sides = (self.image_size,) if isinstance(self.image_size, int) else tuple(self.image_size)
            right = len(sides) <= 2 and all(side >= 1 for side in sides)
            require(right, "data.image_size", self.image_size, "must be one or two numbers of at least 1")
            object.__setattr__(self, "image_size", sides[0] if len(set(sides)) == 1 else sides)
        at_least(0, self, "data", "cutout")
        require(0 <= self.validation < 1, "data.validation", self.validation, "is a share, from 0 to below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Which optimizer; everything that is not named here is PyTorch's default."""

    name: Annotated[str, arg(metavar=f"{{{','.join(USUAL_LR)}}}")] = "sgd"
    """One of the optimizers of the paper's table."""
    lr: float | None = None
    """Largest learning rate; by default 0.1 for sgd and PyTorch's default for all others."""
    momentum: float = 0.9
    """Of sgd; the others have their own."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: float = 5e-4
    """Added to the gradient of every parameter, times the parameter."""
    decay_norms_and_biases: bool = True
    """Apply weight decay to biases and normalization parameters too, not only to weights."""
    clip_norm: float | None = None
    """Largest norm of the whole gradient; longer ones are shortened before they are scaled."""
    head_factor: float = 1.0
    """Factor on the learning rate of everything but the backbone, for networks that have one."""

    def __post_init__(self) -> None:
        check_name("optimizer", self.name, USUAL_LR)
        require(self.lr is None or (math.isfinite(self.lr) and self.lr > 0), "optimizer.lr", self.lr, "must be > 0")
        require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "must be from 0 to below 1")
        require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "must not be negative")
        require(self.clip_norm is None or self.clip_norm > 0, "optimizer.clip_norm", self.clip_norm, "must be > 0")
        right = math.isfinite(self.head_factor) and self.head_factor > 0
        require(right, "optimizer.head_factor", self.head_factor, "must be positive")
        require(
            not self.nesterov or self.momentum > 0, "optimizer.nesterov", self.nesterov, "needs optimizer.momentum > 0"
        )

    @property
    def learning_rate(self) -> float:
        """The largest learning rate, given or usual."""
        return USUAL_LR[self.name] if self.lr is None else self.lr


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """How the learning rate changes, step by step."""

    name: Literal["cosine", "constant", "step", "poly"] = "cosine"
    """cosine and poly fall to min_lr; step multiplies by gamma at each of the milestones."""
    warmup_epochs: float = 0.0
    """Epochs during which the learning rate rises from near 0 first."""
    min_lr: float = 0.0
    """Learning rate at the very end, for cosine and poly."""
    milestones: tuple[int, ...] = ()
    """Epochs at which step multiplies."""
    gamma: float = 0.1
    """What step multiplies by."""
    power: float = 0.9
    """Exponent of poly."""

    def __post_init__(self) -> None:
        check_name("schedule", self.name, ("cosine", "constant", "step", "poly"))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        at_least(0, self, "schedule", "warmup_epochs", "min_lr", "gamma", "power")
        require(
            self.name != "step" or bool(self.milestones), "schedule.milestones", self.milestones, "are needed by step"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """How long to train, and how often to stop for something else."""

    epochs: Annotated[int, arg(prefix_name=False)] = 200
    """Times that every training image is seen."""
    evaluate_every: int = 1
    """Epochs between two tests; the last epoch is always tested."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints. Where writing one takes long they are further apart, so that they never cost
    more than 1 % of the time."""
    checkpoint_steps: int | None = None
    """Write a checkpoint every so many steps instead, whatever it costs."""

    def __post_init__(self) -> None:
        at_least(1, self, "budget", "epochs", "evaluate_every", "checkpoint_steps")
        at_least(0, self, "budget", "checkpoint_seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineConfig:
    """What the training runs on. Started by torchrun, it uses the processes that torchrun started."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    devices: int | Literal["auto"] = "auto"
    """Devices, and processes, per node."""
    nodes: int = 1
    """Machines."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Whether every process holds the whole network (ddp) or a shard of it (fsdp)."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = "32-true"
    """As in lightning-fabric."""
    channels_last: bool | Literal["auto"] = "auto"
    """Memory layout of images and kernels: auto uses channels last where it is faster, on CPUs and in reduced precision
    on GPUs."""
    compile: bool = False
    """Compile the network with torch.compile: slower to start, faster to run."""
    workers: int = 0
    """Processes that decode images in files; images in memory need none."""
    threads: int | None = None
    """Threads of the CPU that each process computes with; by default PyTorch's choice."""

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
    dyrep: GrowthConfig = field(default_factory=GrowthConfig)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)
    pose: PoseConfig = field(default_factory=PoseConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    task: str = "classification"
    """What is learned: classification, segmentation or pose; model and data set must be made for it."""
    seed: int = 0
    """Decides the initial weights, the order of the images, augmentation and dropout."""
    out: Path | None = None
    """The run's folder; by default runs/MODEL-DATASET-METHOD-seedSEED. If there is a run in it, it goes on."""
    tensorboard: bool = False
    """Write TensorBoard events into the folder as well."""

    def __post_init__(self) -> None:
        check_name("task", self.task, TASKS)
        self._check_fit("model", self.model.name, model_info(self.model.name).task, list_models(task=self.task))
        names = [source.name for source in SOURCES.values() if source.task == self.task]
        self._check_fit("dataset", self.data.name, find_source(self.data.name).task, names)
        if self.task == "classification":
            size, backbone, factor = self.data.image_size, self.model.backbone, self.optimizer.head_factor
            require(not isinstance(size, tuple), "data.image_size", size, "must be one number for classification")
            has_none = f"is for networks with a backbone, and {self.model.name} has none"
            require(backbone is None, "model.backbone", backbone, has_none)
            require(factor == 1, "optimizer.head_factor", factor, has_none)

    def _check_fit(self, what: str, name: str, made_for: str, fitting: list[str]) -> None:
        if made_for != self.task:
            raise ConfigError(
                f"{what} {name!r} is for {made_for}, but the task is {self.task!r}: say --task {made_for}, or choose "
                f"a {what} for {self.task} ({', '.join(fitting)})"
            )

    @property
    def folder(self) -> Path:
        """The run's folder."""
        if self.out is not None:
            return self.out
        width = "" if self.model.width == 1 else f"-w{self.model.width:g}"
        dataset = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.data.name)
        return Path("runs") / f"{self.model.name}{width}-{dataset}-{self.method.name}-seed{self.seed}"
