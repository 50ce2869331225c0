"""The interface of a training method to the training loop: hooks, and a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.reparam import LayerScales, MergeReport, UnsupportedLayerError, merge_with_report, repopt_init_
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.utils.modules import Convolution

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, kw_only=True)
class EpochContext:
    """What a method can use before an epoch."""

    epoch: int
    """Counted from 0."""
    batches: Any
    """This process's training batches of the epoch; the same ones in every iteration."""
    forward: Callable[[nn.Module, Any], Any]
    """Runs a batch through the network, in the precision of the training."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """What a method did before an epoch."""

    log: Mapping[str, Any] = field(default_factory=dict)
    """Entry of the method's log; nothing is logged if it is empty."""
    changed_structure: bool = False
    """Whether the network has different parameters now, and must be wrapped again."""


NOTHING = Update()


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What a method can use after a step."""

    step: int
    """Counted from 0, over all epochs."""
    num_steps: int
    """Of the whole training."""
    loss: Tensor
    """The loss of the step, without gradient."""
    train_companion: Callable[[nn.Module, Optimizer], Tensor]
    """Trains another network on the same batch, with the same learning rate and dropout; returns its loss."""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """The network that is used after training."""

    model: nn.Module
    merged: MergeReport | None = None
    """Differences measured while merging; None if there was nothing to merge."""


@dataclass(frozen=True, kw_only=True)
class Participation:
    """What a method does with a network."""

    reasons: Mapping[str, str]
    """Why a convolution does not take part, by qualified name; empty if it does."""
    trained: nn.Module
    """The network as it is trained, with branches if the method has them."""


class Method:
    """The baseline, and the base class of all other methods.

    To add a method, write a subclass and name it as `package.module:Class`.

    Args:
        config: Of the training.
    """

    log_file: ClassVar[str | None] = None
    """Name of the method's log in the run's folder."""
    merges: ClassVar[bool] = False
    """Whether branches are merged at the end."""
    grows: ClassVar[bool] = False
    """Whether the structure of the network changes during training."""
    single_process: ClassVar[bool] = False
    """Whether the method cannot train in several processes."""
    headline: ClassVar[str | None] = None
    """The metric of `results` that is the result of the run; by default the task's headline metric."""

    input_size: tuple[int, ...] | None = None
    """Shape of one input; set before `prepare_`."""
    steps_per_epoch = 1
    """Set before `attach`."""
    searched_scales: Mapping[str, LayerScales] | None = None
    """What a search of RepOptimizer found, for a new run that starts from it; set before `prepare_`."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    @property
    def busy(self) -> bool:
        """Whether the method is in the middle of something, so that no checkpoint must be written now."""
        return False

    def prepare_(self, model: nn.Module) -> None:
        """Change the newly built network: by default, only if the run starts from the scales of a search."""
        if self.searched_scales is None:
            return
        try:
            repopt_init_(model, self.searched_scales)
        except (KeyError, UnsupportedLayerError) as error:
            raise ConfigError(
                f"--repopt.scales: the search in {self.config.repopt.scales} does not fit {self.config.model.name} at "
                f"width {self.config.model.width:g}: {error.args[0]}"
            ) from error

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Get the network and its optimizer, before the first step and before a state is loaded."""

    def before_epoch(self, context: EpochContext) -> Update:
        """Act before an epoch."""
        return NOTHING

    def before_step(self, step: int) -> None:
        """Act on the gradients, before the optimizer uses them."""

    def after_step(self, context: StepContext) -> Mapping[str, Any]:
        """Act after a step; returns an entry of the method's log, or nothing."""
        return {}

    def no_effect_reason(self) -> str | None:
        """Why the method will not act in any epoch of the training; None if it will.

        Called after `attach`. The reason is shown at the start and is part of the result.
        """
        return None

    def results(self) -> dict[str, float]:
        """Further metrics at the end of the training."""
        return {}

    def finish(self, model: nn.Module) -> Deployed:
        """Return the network to deploy; `model` is not changed."""
        if not self.merges:
            return Deployed(model=model)
        merged = merge_with_report(model)
        return Deployed(model=merged.model, merged=merged.report)

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed training needs, in plain values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; called before the states of network and optimizer are loaded."""

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """Find out which convolutions take part in the method, and why the others do not; `model` is not changed.

        Args:
            model: A network as it is before the method changes it.
            input_size: Shape of one input.

        Raises:
            ValueError: If the method cannot be used with the network.
        """
        return Participation(reasons=dict.fromkeys(all_convolutions(model), "plain training"), trained=model)


def all_convolutions(model: nn.Module) -> dict[str, nn.Module]:
    """Every convolution of a network, transposed ones included, by qualified name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, (Convolution, *TRANSPOSED))}


def unlike_conv2d(conv: nn.Module) -> str:
    """Why a module is not a plain 2-d convolution; empty if it is one."""
    if isinstance(conv, TRANSPOSED):
        return "transposed convolution"
    if not isinstance(conv, nn.Conv2d):
        return f"{type(conv).__name__}: only 2-d convolutions get branches"
    return "" if type(conv) is nn.Conv2d else f"{type(conv).__name__}: only plain nn.Conv2d layers get branches"


def describe_kernel(size: tuple[int, ...]) -> str:
    """A kernel size as text, such as 3×3."""
    return "×".join(map(str, size))
