"""What a training method is to the engine: four moments, and a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from spatialgrad.reparam import MergeReport, merge_with_report

if TYPE_CHECKING:
    from spatialgrad.train.config.groups import TrainConfig


@dataclass(frozen=True, kw_only=True)
class EpochContext:
    """What a method may use before an epoch."""

    epoch: int
    """Counted from 0."""
    batches: Any
    """The epoch's training batches of this process, the same ones each time they are iterated."""
    forward: Callable[[nn.Module, Any], Any]
    """Runs a batch through the network, in the precision of the training."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """What a method did before an epoch."""

    log: Mapping[str, Any] = field(default_factory=dict)
    """Goes into the method's log, if there is anything."""
    changed_structure: bool = False
    """Whether the network has other parameters now and must be wrapped anew."""


NOTHING = Update()


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """The network as it is used after training."""

    model: nn.Module
    merged: MergeReport | None = None
    """What merging found; None if there was nothing to merge."""


class Method:
    """The baseline, and what every other method overrides a part of.

    To add a method: a subclass in a file of its own, and its name in `METHODS`.

    Args:
        config: Of the training.
    """

    log_file: ClassVar[str | None] = None
    """File in the run's folder for what updates log."""
    grows: ClassVar[bool] = False
    """Whether the structure of the network changes during training."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def prepare_(self, model: nn.Module) -> None:
        """Change the new network before anything else sees it."""

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """See the network and its optimizer before the first step, and before a state is loaded."""

    def before_epoch(self, context: EpochContext) -> Update:
        """Do what is due before an epoch."""
        return NOTHING

    def before_step(self, step: int) -> None:
        """See the gradients before the optimizer uses them."""

    def finish(self, model: nn.Module) -> Deployed:
        """Give the network as it is deployed; `model` stays as it is."""
        return Deployed(model=model)

    def state_dict(self) -> dict[str, Any]:
        """What the method needs to go on, in plain values and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; called before the states of network and optimizer are loaded."""


def deploy_by_merging(model: nn.Module) -> Deployed:
    """Every block as one convolution."""
    merged = merge_with_report(model)
    return Deployed(model=merged.model, merged=merged.report)
