"""The interface of a training method to the engine: hooks, and a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.reparam import MergeReport, merge_with_report
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.runs.checkpoint import has_checkpoint
from spatialgrad.train.searched import init_from_search_


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
    train_beside: Callable[[nn.Module, Optimizer], Tensor]
    """Trains another network on the same batch, with the same learning rate and dropout; returns its loss."""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """The network that is used after training."""

    model: nn.Module
    merged: MergeReport | None = None
    """Differences measured while merging; None if there was nothing to merge."""


class Method:
    """The baseline, and the base class of all other methods.

    To add a method, write a subclass and call `register_method`.

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

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def prepare_(self, model: nn.Module) -> None:
        """Change the newly built network: by default, only if the config names a search to start from."""
        # A resumed run has its weights in its checkpoint, and the search may be gone.
        if self.config.repopt.scales is not None and not has_checkpoint(self.config.folder):
            init_from_search_(model, self.config)

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

    def inaction(self) -> str | None:
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
