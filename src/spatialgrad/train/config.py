"""Everything that determines a training, as one tree of frozen dataclasses; `spatialgrad train --help` shows it.

The defaults are the recipe `cifar_appendix`. The most common fields have short flags (`--model`, `--epochs`); all
others are `--group.field`. A config is read from and written to JSON and TOML as the same tree.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import msgspec
from tyro.conf import arg

from spatialgrad.data.registry import names_for, task_of
from spatialgrad.models.external import check_form, is_external
from spatialgrad.models.registry import NOT_PRETRAINED, list_models, model_info
from spatialgrad.reparam.dyrep.config import DyRepConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.flags import (
    as_config_error,
    at_least,
    check_class_name,
    check_name,
    flag,
    parse_key_values,
    require,
    sorted_key_values,
)
from spatialgrad.train.jsonfiles import path_as_text, replacing
from spatialgrad.train.optimizers import OptimizerConfig, ScheduleConfig

Apply = Literal["gradient", "update", "auto"]
Schedule = Literal["epochs", "doubling"]
Control = Literal["none", "shuffled", "neighbours-shuffled", "inverse", "shared"]
METHOD_NAMES = [
    *("baseline", "sgs", "sgs-autocorrelation", "sgs-static", "acb", "repvgg", "qarepvgg"),
    *("dbb", "dyrep", "repopt-search", "repopt", "lemma"),
]
"""The methods that a user can choose."""
HIDDEN_METHODS = ("lemma-unscaled",)
"""Methods for studies alone; `spatialgrad.train.METHODS` has these and those of `METHOD_NAMES`."""
STARTS_FROM_SCALES = ("repopt", "baseline", "sgs")
"""The methods that can start from the scales of a search."""
TASK_NAMES = ["classification", "segmentation", "pose"]
"""The keys of `spatialgrad.train.TASKS`."""
FREE = (
    "out",
    "tensorboard",
    "data.root",
    "budget.checkpoint_seconds",
    "budget.checkpoint_steps",
    "machine.accelerator",
    "machine.devices",
    "machine.nodes",
    "machine.strategy",
    "machine.workers",
    "machine.threads",
)
"""Fields that may differ when a run is resumed: they determine where it runs, not what it computes."""
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
    """Initial weights; random by default. The folder of a classification run, or a checkpoint file.
    For segmentation and pose those of the backbone, a ResNet; for classification those of the
    same network, of which the last layer may be another one."""

    def __post_init__(self) -> None:
        outside = is_external(self.name)
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
        return "classification" if is_external(self.name) else model_info(self.name).task

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
class MethodConfig:
    """Training method."""

    name: Annotated[str, arg(name="method", prefix_name=False, metavar=f"{{{','.join(METHOD_NAMES)}}}")] = "sgs"
    """baseline: plain training.
    sgs, sgs-autocorrelation, sgs-static: scaled gradients (see scaling).
    acb, repvgg, qarepvgg, dbb: branches that are merged at the end.
    dyrep: branches that grow during training (see dyrep).
    repopt-search, repopt: RepOptimizer's search for scales, and plain training with what it found (see repopt).
    lemma: a scaled network beside a branched one, to compare their kernels.
    Or a class as package.module:Class."""

    def __post_init__(self) -> None:
        if self.name not in HIDDEN_METHODS:
            check_class_name("method", self.name, METHOD_NAMES)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingConfig:
    """Gradient scaling, for the methods sgs, sgs-autocorrelation and sgs-static."""

    k: float = 5.0
    """Larger k flattens G; k = 1 uses S as it is."""
    warmup: int = 1
    """Epochs before the first update of the scalings."""
    every: int = 5
    """Epochs between two updates."""
    batches: int = 2
    """Number of training batches that an update measures."""
    live: bool = False
    """Measure the training's own forward passes instead of further ones: the ranges of as many steps as there are
    batches, and then the counts of as many again."""
    schedule: Schedule = "epochs"
    """With --scaling.live. epochs: updates follow --scaling.warmup and --scaling.every.
    doubling: after 100, 200, 400, 800 and 1,600 steps, and then every 1,955 steps."""
    apply: Apply = "auto"
    """gradient: scale the gradient before the optimizer uses it.
    update: scale the optimizer's update (the paper's Adagrad*).
    auto: gradient if the optimizer is linear in it, update otherwise."""
    bins: int | None = None
    """Number of histogram bins; by default Sturges' rule."""
    drop_near: bool = False
    """Ignore pairs of pixels with nearly equal values, as the paper does on ImageNet."""
    alpha: float = 1.25
    """sgs-static: ratio of the centre to the edges of a 3×3 kernel."""
    beta: float = 1.7
    """sgs-static: ratio of the centre to the corners of a 3×3 kernel."""
    fixed: Path | None = None
    """sgs-static: folder of a run; the last scalings that it has logged are used, instead of alpha and beta."""
    control: Control = "none"
    """For experiments: replace each measured G.
    shuffled: the same factors at other positions; neighbours-shuffled: all but the centre.
    inverse: 1/G. shared: the mean of all layers."""

    def __post_init__(self) -> None:
        at_least(0, self, "scaling", "warmup")
        at_least(1, self, "scaling", "every", "batches")
        at_least(2, self, "scaling", "bins")
        check_name(flag("scaling.apply"), self.apply, get_args(Apply))
        check_name(flag("scaling.schedule"), self.schedule, get_args(Schedule))
        require(
            self.live or self.schedule == "epochs",
            "scaling.schedule",
            self.schedule,
            "must be epochs without --scaling.live",
        )
        check_name(flag("scaling.control"), self.control, get_args(Control))
        require(
            self.control == "none" or not self.live, "scaling.control", self.control, "must be none with --scaling.live"
        )
        for name in ("k", "alpha", "beta"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"scaling.{name}", value, "must be positive")


@dataclass(frozen=True, kw_only=True)
class DyRepGroup(DyRepConfig):
    """Growing and cutting branches, for the method dyrep; the defaults are those of its paper for CIFAR."""

    batches: int = 20
    """Number of training batches that measure the statistics of new branches."""
    # Not an option of its own: `with_seed` takes the seed of the training.
    seed: ClassVar[int] = 0  # type: ignore[misc]

    def __post_init__(self) -> None:
        at_least(1, self, "dyrep", "interval", "max_depth", "batches")
        with as_config_error("--dyrep: "):
            DyRepConfig.__post_init__(self)

    def with_seed(self, seed: int) -> DyRepConfig:
        """The settings of the controller that grows and cuts."""
        values = {each.name: getattr(self, each.name) for each in fields(DyRepConfig)}
        return DyRepConfig(**{**values, "seed": seed})


@dataclass(frozen=True, kw_only=True, slots=True)
class RepOptGroup:
    """RepOptimizer, for the methods repopt-search and repopt."""

    scales: Path | None = None
    """Folder of a run of repopt-search, whose scales are used. repopt needs it; baseline and sgs only start from its
    initial weights."""
    initial: float = 1.0
    """repopt-search: initial scales of the k×k and the 1×1 branches."""

    def __post_init__(self) -> None:
        valid = math.isfinite(self.initial) and self.initial > 0
        require(valid, "repopt.initial", self.initial, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentationConfig:
    """Segmentation; the defaults are those of PSPNet on Cityscapes."""

    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest factor by which training images are resized before cropping."""
    rotation: float = 10.0
    """Largest rotation of training images in degrees, in either direction; half of the images are rotated."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(self.scale))
        at_least(0, self, "segmentation", "auxiliary")
        low, high = self.scale
        require(0 < low <= high, "segmentation.scale", self.scale, "must be two positive numbers, the smaller first")
        require(0 <= self.rotation <= 180, "segmentation.rotation", self.rotation, "must be from 0 to 180 degrees")


@dataclass(frozen=True, kw_only=True, slots=True)
class PoseConfig:
    """Human pose; the defaults are those of the pose ResNet on MPII."""

    sigma: float | None = None
    """Standard deviation of the target Gaussians in heat-map pixels.
    By default 2 for 64 × 64 maps, in proportion for other sizes, and at least 1."""
    scale: float = 0.25
    """Standard deviation, and largest deviation from 1, of the random scale of training crops."""
    rotation: float = 30.0
    """Standard deviation of the random rotation in degrees; 60 % of the training crops are rotated."""
    flip_test: bool = True
    """Average the heat maps of each test image and its mirror image."""

    def __post_init__(self) -> None:
        valid = self.sigma is None or (math.isfinite(self.sigma) and self.sigma > 0)
        require(valid, "pose.sigma", self.sigma, "must be positive")
        require(0 <= self.scale < 1, "pose.scale", self.scale, "must be at least 0 and below 1")
        require(0 <= self.rotation <= 90, "pose.rotation", self.rotation, "must be from 0 to 90 degrees")


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
    int8: bool = False
    """At the end, also evaluate the network in INT8, as `spatialgrad export --int8` does. For classification."""

    def __post_init__(self) -> None:
        at_least(1, self, "budget", "epochs", "evaluate_every", "checkpoint_steps")
        at_least(0, self, "budget", "checkpoint_seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineConfig:
    """Devices, processes and precision. Under torchrun, its processes are used."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device type."""
    devices: int | Literal["auto"] = 1
    """Number of devices per node, with one process each; auto for all of them. Each process normalizes its own share of
    a batch, so another number of processes is another training."""
    nodes: int = 1
    """Number of nodes."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """ddp: every process holds the whole network. fsdp: every process holds a shard of it."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = "32-true"
    """Floating-point precision, as in Lightning Fabric."""
    channels_last: bool | Literal["auto"] = "auto"
    """Channels-last memory format; auto uses it where it is faster: on CPUs, unless the network has strided 1×1 or 3×3
    kernels over fewer than 16 channels, and on GPUs in reduced precision. It is the same for all methods."""
    compile: bool = False
    """Compile the network with torch.compile: slower to start, faster to run."""
    workers: int | Literal["auto"] = "auto"
    """Number of processes that decode image files, per training process; auto for one per core, and at most 8.
    Images in memory need none."""
    threads: int | None = None
    """Number of CPU threads per process; by default PyTorch's choice."""

    def __post_init__(self) -> None:
        at_least(1, self, "machine", "nodes", "threads")
        require(self.workers == "auto" or self.workers >= 0, "machine.workers", self.workers, "must be at least 0")
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
    """Folder of the run; by default runs/MODEL-DATASET-METHOD-seedSEED, with a digest of what else
    differs from the defaults. A run that is in it is resumed."""
    tensorboard: bool = False
    """Also write TensorBoard events to the folder."""

    def __post_init__(self) -> None:
        check_class_name("task", self.task, TASK_NAMES)
        self._check_fit("model", self.model.name, self.model.task)
        self._check_fit("dataset", self.data.name, task_of(self.data.name))
        smoothing = self.label_smoothing
        require(0 <= smoothing < 1, "label_smoothing", smoothing, "must be at least 0 and below 1")
        classifies = self.task == "classification"
        require(classifies or smoothing == 0, "label_smoothing", smoothing, f"must be 0 for {self.task}")
        require(classifies or not self.budget.int8, "budget.int8", True, f"cannot be set for {self.task}")
        if classifies:
            size, factor = self.data.image_size, self.optimizer.head_factor
            require(not isinstance(size, tuple), "data.image_size", size, "must be one number for classification")
            why = f"must be 1 for {self.model.name}, which has no backbone"
            require(factor == 1, "optimizer.head_factor", factor, why)
        if self.repopt.scales is not None and self.method.name not in STARTS_FROM_SCALES:
            why = f"can be used with --method {', '.join(STARTS_FROM_SCALES)} only"
            require(False, "repopt.scales", self.repopt.scales, why)
        drawn = self.repopt.scales is not None or self.method.name in ("repopt-search", "repopt")
        given = [name for name in ("pretrained", "backbone") if getattr(self.model, name)]
        if given and drawn:
            what = "--method repopt-search" if self.repopt.scales is None else "--repopt.scales"
            raise ConfigError(f"--model.{given[0]}: {what} draws new weights in place of the pre-trained ones")
        if len(given) > 1:
            raise ConfigError("--model.backbone: --model.pretrained names other initial weights; use one of the two")
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
        """The run's folder: `out`, or a name that differs for any two trainings that compute something else."""
        if self.out is not None:
            return self.out
        width = "" if self.model.width == 1 else f"-w{self.model.width:g}"
        pretrained = "-pretrained" if self.model.pretrained else ""
        model, dataset = _as_file_name(self.model.name), _as_file_name(self.data.name)
        named = {"model.name", "model.width", "model.pretrained", "data.name", "method.name", "seed", "task"}
        if why_not_extendable(self) is None:
            named.add("budget.epochs")  # more epochs continue the run
        suffix = digest_suffix(self, named)
        return Path("runs") / f"{model}{width}{pretrained}-{dataset}-{self.method.name}-seed{self.seed}{suffix}"


def digest_suffix(config: TrainConfig, named: Collection[str]) -> str:
    """The end of a default folder name: a digest of what differs from the defaults, or nothing if nothing does.

    With it, a short trial run does not occupy the folder of the real one.

    Args:
        config: Whose folder it is.
        named: Fields that the name shows, or that may differ within the folder.
    """
    rest = {name: value for name, value in changed_fields(config).items() if name not in named}
    return f"-{digest_of(rest)[:6]}" if rest else ""


def why_not_extendable(config: TrainConfig) -> str | None:
    """Why a training with more epochs would not begin with the epochs of this one; None if it would."""
    schedule = config.schedule.name
    if schedule in ("cosine", "poly"):
        return (
            f"the {schedule} schedule spreads the decay of the learning rate over all epochs, so a longer training "
            "differs from its first step on; only --schedule.name constant and step can be extended"
        )
    if config.method.name.startswith("lemma"):
        return f"--method {config.method.name} logs at steps that depend on the number of epochs"
    return None


def to_dict(config: Any) -> dict[str, Any]:
    """A config, or a group of one, as JSON values."""
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config, enc_hook=path_as_text))
    return values


def from_dict(values: Mapping[str, Any]) -> TrainConfig:
    """The inverse of `to_dict`; missing fields get their defaults.

    Raises:
        ConfigError: If a field is unknown or its value is invalid.
    """
    _check_fields(values, TrainConfig)
    try:
        return msgspec.convert(values, TrainConfig, dec_hook=_as_path)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).rpartition(" - at `$")
        name = re.sub(r"[\[`].*", "", path).strip(".")
        reason = reason[:1].lower() + reason[1:]
        raise ConfigError(f"{flag(name)} ({name}): {reason}") from error


def load_config(path: Path | str, base: TrainConfig | None = None) -> TrainConfig:
    """Read a config file in TOML: the same groups and fields as the flags have, `[data]` and `batch_size = 64`.

    Args:
        path: The file. The text "none" stands for no value, which TOML cannot express.
        base: Where fields that are not in the file are taken from; by default the default config.

    Raises:
        ConfigError: If the file cannot be read, or a field in it is unknown or invalid.
    """
    try:
        values = msgspec.toml.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read the config file {path}: {error}") from error
    try:
        return from_dict(_merged(to_dict(base or TrainConfig()), _without_none(values, TrainConfig)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def save_config(config: TrainConfig, path: Path | str) -> None:
    """Write a config as TOML, complete, such that `load_config` returns the same one."""
    default = to_dict(TrainConfig())

    def with_none(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in values.items() if value is not None or defaults[name] is not None}
        return {
            name: with_none(value, defaults[name]) if isinstance(value, dict) else "none" if value is None else value
            for name, value in sorted(kept.items(), key=lambda item: isinstance(item[1], dict))
        }

    with replacing(Path(path)) as file:
        file.write(msgspec.toml.encode(with_none(to_dict(config), default)))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """A config with other values for some fields.

    Args:
        config: Everything else is taken from it.
        values: By dotted field, such as `{"scaling.alpha": 1.25}`.

    Raises:
        ConfigError: If a field is unknown or its value is invalid.
    """
    tree: dict[str, Any] = {}
    for dotted, value in values.items():
        *groups, name = dotted.split(".")
        inner = tree
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = msgspec.to_builtins(value, enc_hook=path_as_text)
    return from_dict(_merged(to_dict(config), tree))


def changed_fields(config: TrainConfig) -> dict[str, Any]:
    """The fields that affect the result and are not at their defaults, by dotted name and in alphabetical order.

    A field that a later version adds is not among them until it is used.
    """
    default = flatten(to_dict(TrainConfig()))
    values = sorted(flatten(to_dict(config)).items())
    return {name: value for name, value in values if name not in FREE and value != default[name]}


def digest_of(values: Any) -> str:
    """A digest of JSON values: 16 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:16]


def _check_fields(values: Any, kind: type, prefix: str = "") -> None:
    """Raise if there is an unknown field; msgspec would ignore it."""
    if not isinstance(values, Mapping):
        return
    known = {each.name: each for each in fields(kind)}
    for name, value in values.items():
        check_name("field", f"{prefix}{name}", [f"{prefix}{each}" for each in known])
        inner = known[name].default_factory
        if dataclasses.is_dataclass(inner):
            _check_fields(value, inner, f"{prefix}{name}.")


def _as_path(kind: type, value: Any) -> Any:
    if kind is not Path:
        raise NotImplementedError(f"no field has the type {kind}")
    return Path(value)


def _merged(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in changes.items():
        inner = values.get(name)
        merged[name] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged


def _without_none(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The same values, with None for the text "none" in fields that may have no value."""
    hints = get_type_hints(kind)
    found = dict(values)
    for name, value in values.items():
        hint = hints.get(name)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(hint):
            found[name] = _without_none(value, hint)  # type: ignore[arg-type]
        elif value == "none" and type(None) in get_args(hint):
            found[name] = None
    return found


def _as_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
