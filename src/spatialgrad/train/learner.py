"""The network with its method and optimizer, and one training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.data.rng import generator_for
from spatialgrad.models.external import is_external
from spatialgrad.reparam import count
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.export import check_onnx, rebuild_model
from spatialgrad.train.flags import as_config_error
from spatialgrad.train.methods import find_method
from spatialgrad.train.methods.base import EpochContext, Method, StepContext, Update
from spatialgrad.train.optimizers import build_optimizer, check_optimizer, learning_rate, set_learning_rate_
from spatialgrad.train.runtime import Runtime
from spatialgrad.train.start_weights import StartWeights, load_weights_, read_start_weights
from spatialgrad.train.tasks.base import SizedIterable, Sums, Task, check_output
from spatialgrad.train.tensorboard import check_tensorboard
from spatialgrad.utils.modules import for_one_process


def build_learner(
    config: TrainConfig, runtime: Runtime, task: Task, report: Callable[[str], None], *, is_new: bool
) -> Learner:
    """Build network, method and optimizer, and try what comes from outside the package; nothing is written.

    Args:
        config: Of the run.
        runtime: The processes that train together.
        task: Provides network, batches and loss.
        report: Called with messages.
        is_new: Whether the run has no checkpoint, from which its state will be loaded.

    Raises:
        TrainError: If the training cannot start.
    """
    runtime.on_first(lambda: check_optimizer(config.optimizer))
    if config.tensorboard:
        runtime.on_first(check_tensorboard)
    if config.budget.int8:
        runtime.on_first(check_onnx)
    start: StartWeights | None = None
    if is_new:
        start = runtime.on_first(lambda: read_start_weights(config, report))
        if is_external(config.model.name):
            runtime.on_first(lambda: _check_network(config, task))
    return Learner(config, runtime, task, start)


class Learner:
    """A network, its method and its optimizer.

    It is new until a state is loaded, and must be started before the first step.

    Args:
        config: Of the run.
        runtime: The processes that train together.
        task: Provides network, batches and loss.
        start: What the network of a new run starts from; None for a run whose state will be loaded.

    Raises:
        ConfigError: If these cannot be used together.
    """

    def __init__(self, config: TrainConfig, runtime: Runtime, task: Task, start: StartWeights | None) -> None:
        self.config, self.runtime, self.task = config, runtime, task
        self.method = _make_method(config, runtime)
        self.steps_per_epoch = self.method.steps_per_epoch = task.steps_per_epoch(runtime.world_size)
        self.method.input_size = task.input_size
        torch.manual_seed(config.seed)
        self.module = task.build_model(pretrained=config.model.pretrained and start is not None)
        if start is not None:
            self.method.searched_scales = start.scales
            if start.backbone is not None:
                with as_config_error("--model.backbone: "):
                    load_weights_(self.module, start.backbone, source=str(config.model.backbone))
        runtime.choose_layout(self.module)
        with as_config_error(f"--method {config.method.name} cannot train {config.model.name}: "):
            self.method.prepare_(self.module)
            self.cost = count(self.module, task.input_size)  # lazy layers get their weights here
            runtime.place_(self.module)
            # Sharding replaces the parameters. Any other network is wrapped once it has the checkpoint's structure.
            self._wrapped = runtime.wrap(self.module) if runtime.shards else None
            self._optimizer = build_optimizer(config.optimizer, self.module)
            self.method.attach(self.module, self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The states of network, optimizer, method and precision; complete in the first process."""
        return {
            **self.runtime.model_state(self.module, self._optimizer),
            "method": self.method.state_dict(),
            "precision": self.runtime.precision.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`; before `start`."""
        self.method.load_state_dict(state["method"])
        self.runtime.load_model_state_(self.module, self._optimizer, state)
        self.runtime.precision.load_state_dict(state["precision"])

    def start(self) -> None:
        """Prepare the first step."""
        self.model = self._wrapped or self.runtime.wrap(self.module)
        self.optimizer: Any = self.runtime.fabric.setup_optimizers(self._optimizer)

    def before_epoch(self, epoch: int) -> Update:
        """Let the method act before an epoch."""
        network = for_one_process(self.model)
        context = EpochContext(
            epoch=epoch,
            batches=self.train_batches(epoch),
            forward=lambda _, batch: self.task.forward(network, batch),
        )
        update = self.method.before_epoch(context)
        if update.changed_structure:
            self.model = self.runtime.wrap(self.module)
        return update

    def train_batches(self, epoch: int, start: int = 0) -> SizedIterable:
        """This process's batches of an epoch, from number `start`."""
        return self.task.train_batches(epoch, start=start, rank=self.runtime.rank, world_size=self.runtime.world_size)

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""
        return learning_rate(
            self.config.schedule,
            self.config.optimizer.learning_rate,
            step,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.config.budget.epochs,
        )

    def step(self, batch: Any, step: int) -> tuple[Sums, Mapping[str, Any]]:
        """Train on one batch, and return its totals and an entry of the method's log.

        Args:
            batch: Of this process.
            step: Counted from 0, over all epochs.
        """
        runtime, clip_norm = self.runtime, self.config.optimizer.clip_norm
        if runtime.shards:
            runtime.share_buffers_(self.module)  # as DDP does
        loss, sums = self._backward(self.model, self._optimizer, batch, step)
        if clip_norm is not None:
            runtime.fabric.clip_gradients(self.model, self.optimizer, max_norm=clip_norm)
        self.method.before_step(step)
        self.optimizer.step()
        self.optimizer.zero_grad()

        def train_companion(network: nn.Module, optimizer: Optimizer) -> Tensor:
            companion_loss, _ = self._backward(runtime.in_precision(network), optimizer, batch, step)
            optimizer.step()
            optimizer.zero_grad()
            return companion_loss

        num_steps = self.config.budget.epochs * self.steps_per_epoch
        context = StepContext(step=step, num_steps=num_steps, loss=loss, train_companion=train_companion)
        return sums, self.method.after_step(context)

    def _backward(self, model: nn.Module, optimizer: Optimizer, batch: Any, step: int) -> tuple[Tensor, Sums]:
        """Set the learning rate and compute the gradients of a step; returns the loss and the totals of the batch."""
        runtime = self.runtime
        # Dropout is a function of seed, step and rank, so that no random state has to be saved.
        runtime.seed(generator_for("step", self.config.seed, step, runtime.rank).initial_seed())
        set_learning_rate_(optimizer, self.learning_rate(step))
        loss, sums = self.task.loss(model, runtime.to_layout(batch))
        weighted = loss
        if runtime.world_size > 1:
            # Gradients are averaged over processes: give every image the same weight if shares differ.
            number = step % self.steps_per_epoch
            weighted = loss * (self.task.share(batch, number, runtime.world_size) * runtime.world_size)
        runtime.fabric.backward(weighted)
        return loss.detach(), sums

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        weights = [weight.detach() for weight in self.module.parameters() if weight.requires_grad]
        norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in torch._foreach_norm(weights)]
        return bool(torch.stack(norms).isfinite().all())

    def whole_module(self) -> nn.Module:
        """The trained network with all of its weights in this process."""
        if not self.runtime.shards:
            return self.module
        state = {"model": self.state_dict()["model"], "method": self.method.state_dict()}
        module = rebuild_model(
            self.config, self.task.build_model, self.runtime.fabric.broadcast(state), self.task.input_size
        )
        self.runtime.place_(module)
        return module


def _check_network(config: TrainConfig, task: Task) -> None:
    torch.manual_seed(config.seed)
    # A network of its own: the forward passes change it.
    model = task.build_model(pretrained=config.model.pretrained)
    check_output(config, model, task.num_classes, task.input_size)


def _make_method(config: TrainConfig, runtime: Runtime) -> Method:
    method = find_method(config.method.name)(config)
    if runtime.shards and method.grows:
        raise ConfigError(
            f"{config.method.name} changes the network during training, which fsdp does not support; use "
            "--machine.strategy ddp"
        )
    if runtime.world_size > 1 and method.single_process:
        raise ConfigError(f"--method {config.method.name} trains in one process only: use --machine.devices 1")
    return method
