"""Everything that decides about a training, as one tree of frozen dataclasses; `spatialgrad train --help` shows it.

The defaults are the recipe `cifar_appendix`. Fields that every user sets have short flags (`--model`, `--epochs`);
all others are `--group.field`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from spatialgrad.data.registry import find_source
from spatialgrad.models import model_info
from spatialgrad.optimizer_hook import Apply
from spatialgrad.reparam import DyRepConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.methods import METHODS
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
    """A network of `spatialgrad.models.list_models()`."""
    width: float = 1.0
    """Factor on all channel counts; 1 is the paper's network."""

    def __post_init__(self) -> None:
        _explained(model_info, self.name)
        _require(math.isfinite(self.width) and self.width > 0, "model.width", self.width, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which images, and what is done to them."""

    name: Annotated[str, arg(name="dataset", prefix_name=False, metavar="NAME")] = "cifar100"
    """A data set of `spatialgrad data list`, or folder:PATH for class folders of image files."""
    root: Path | None = None
    """Folder of the data sets; by default $SPATIALGRAD_DATA, or ~/.cache/spatialgrad."""
    batch_size: Annotated[int, arg(name="batch-size", prefix_name=False)] = 128
    """Images per step, over all processes together."""
    image_size: int | None = None
    """Height and width of the images in a batch, if not the data set's own."""
    augment: bool = True
    """Whether training images are cropped, mirrored and so on, as is usual for the data set."""
    cutout: int = 16
    """Side of the square that is cut out of training images; 0 for none."""
    limit: int | None = None
    """Train on so many of the training images only, the same share of every class."""
    test_limit: int | None = None
    """Test on so many of the test images only."""
    validation: float = 0.0
    """Hold this share of the training images out and test on it, instead of the test images."""
    split_seed: int = 0
    """Seed of `limit` and `validation`: runs with other seeds still see the same images."""

    def __post_init__(self) -> None:
        _explained(find_source, self.name)
        _at_least(1, self, "data", "batch_size", "image_size", "limit", "test_limit")
        _at_least(0, self, "data", "cutout")
        _require(0 <= self.validation < 1, "data.validation", self.validation, "is a share, from 0 to below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodConfig:
    """How the network is trained."""

    name: Annotated[str, arg(name="method", prefix_name=False, metavar=f"{{{','.join(METHODS)}}}")] = "sgs"
    """baseline; sgs, sgs-autocorrelation and sgs-static scale gradients (see scaling); acb, repvgg and dbb train
    with branches; dyrep grows them (see dyrep)."""

    def __post_init__(self) -> None:
        check_name("method", self.name, METHODS)


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
    clip_norm: float | None = None
    """Largest norm of the whole gradient; longer ones are shortened before they are scaled."""

    def __post_init__(self) -> None:
        check_name("optimizer", self.name, USUAL_LR)
        _require(self.lr is None or (math.isfinite(self.lr) and self.lr > 0), "optimizer.lr", self.lr, "must be > 0")
        _require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "must be from 0 to below 1")
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "must not be negative")
        _require(self.clip_norm is None or self.clip_norm > 0, "optimizer.clip_norm", self.clip_norm, "must be > 0")
        _require(
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
        _at_least(0, self, "schedule", "warmup_epochs", "min_lr", "gamma", "power")
        _require(
            self.name != "step" or bool(self.milestones), "schedule.milestones", self.milestones, "are needed by step"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingConfig:
    """How the methods sgs, sgs-autocorrelation and sgs-static scale gradients."""

    k: float = 5.0
    """How much weight a small dependence gets already."""
    warmup: int = 1
    """Epochs before the first update."""
    every: int = 5
    """Epochs between two updates."""
    batches: int = 2
    """Training batches that an update measures."""
    apply: Apply = "gradient"
    """Multiply the gradient before the optimizer uses it, or the update that it makes (the paper's Adagrad*)."""
    bins: int | None = None
    """Bins of the histograms; by default Sturges' rule."""
    drop_near: bool = False
    """Leave out pairs of pixels that are near in value, as the paper does on ImageNet."""
    alpha: float = 1.25
    """sgs-static: ratio of the centre to the edges of a 3×3 kernel."""
    beta: float = 1.7
    """sgs-static: ratio of the centre to the corners."""

    def __post_init__(self) -> None:
        _at_least(0, self, "scaling", "warmup")
        _at_least(1, self, "scaling", "every", "batches")
        _at_least(2, self, "scaling", "bins")
        check_name("scaling.apply", self.apply, ("gradient", "update", "auto"))
        for name in ("k", "alpha", "beta"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, f"scaling.{name}", value, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthConfig:
    """How the method dyrep grows and cuts branches; the defaults are its paper's for CIFAR."""

    interval: int = 15
    """Epochs between two adjustments."""
    until: int | None = 500
    """The last epoch with an adjustment."""
    score: Literal["synflow", "snip", "gradient-norm"] = "synflow"
    """What decides which convolution grows."""
    max_depth: int = 2
    """How deep blocks may be nested."""
    batches: int = 20
    """Training batches on which the statistics of new branches are measured."""

    def __post_init__(self) -> None:
        _at_least(1, self, "dyrep", "batches")
        _explained(lambda _: self.for_dyrep(seed=0), "dyrep")

    def for_dyrep(self, seed: int) -> DyRepConfig:
        """The same for the controller."""
        return DyRepConfig(
            interval=self.interval, until=self.until, score=self.score, max_depth=self.max_depth, seed=seed
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
        _at_least(1, self, "budget", "epochs", "evaluate_every", "checkpoint_steps")
        _at_least(0, self, "budget", "checkpoint_seconds")


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
    channels_last: bool = False
    """Keep images and kernels with their channels last in memory: faster on many devices."""
    compile: bool = False
    """Compile the network with torch.compile: slower to start, faster to run."""
    workers: int = 0
    """Processes that decode images in files; images in memory need none."""
    threads: int | None = None
    """Threads of the CPU that each process computes with; by default PyTorch's choice."""

    def __post_init__(self) -> None:
        _at_least(1, self, "machine", "nodes", "threads")
        _at_least(0, self, "machine", "workers")
        _require(self.devices == "auto" or self.devices >= 1, "machine.devices", self.devices, "must be at least 1")


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
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    task: str = "classification"
    """What is learned."""
    seed: int = 0
    """Decides the initial weights, the order of the images, augmentation and dropout."""
    out: Path | None = None
    """The run's folder; by default runs/MODEL-DATASET-METHOD-seedSEED. If there is a run in it, it goes on."""
    tensorboard: bool = False
    """Write TensorBoard events into the folder as well."""

    def __post_init__(self) -> None:
        check_name("task", self.task, TASKS)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        if self.out is not None:
            return self.out
        width = "" if self.model.width == 1 else f"-w{self.model.width:g}"
        dataset = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.data.name)
        return Path("runs") / f"{self.model.name}{width}-{dataset}-{self.method.name}-seed{self.seed}"


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest the nearest one."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "choose from"
        raise ConfigError(f"unknown {what} {name!r}; {hint} ({', '.join(known)})")


def _explained(check: Callable[[str], Any], name: str) -> None:
    try:
        check(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _require(right: bool, name: str, value: Any, what: str) -> None:
    if not right:
        raise ConfigError(f"invalid {name}: {value!r} {what}")


def _at_least(least: int, config: Any, group: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value is None or value >= least, f"{group}.{name}", value, f"must be at least {least}")
