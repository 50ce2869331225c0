"""The network with its method and optimizer, and one training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.data.rng import generator_for
from spatialgrad.reparam import count
from spatialgrad.torch_utils.modules import for_one_process
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.engine.machine import Machine
from spatialgrad.train.engine.optim import build_optimizer, learning_rate, set_learning_rate_
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.export import rebuild_model
from spatialgrad.train.methods import METHODS
from spatialgrad.train.methods.base import EpochContext, StepContext, Update
from spatialgrad.train.pretrained import load_backbone, read_backbone
from spatialgrad.train.runs.checkpoint import has_checkpoint
from spatialgrad.train.tasks.base import SizedIterable, Sums, Task


class Learner:
    """A network, its method and its optimizer.

    It is new until a state is loaded, and must be started before the first step.

    Args:
        config: Of the run.
        machine: The processes that train together.
        task: Provides network, batches and loss.
    """

    def __init__(self, config: TrainConfig, machine: Machine, task: Task) -> None:
        self.config, self.machine, self.task = config, machine, task
        self.method = METHODS[config.method.name](config)
        if machine.shards and self.method.grows:
            raise ConfigError(
                f"{config.method.name} changes the network during training, which fsdp does not support; use "
                "--machine.strategy ddp"
            )
        if machine.world_size > 1 and self.method.single_process:
            raise ConfigError(f"--method {config.method.name} trains in one process only: use --machine.devices 1")
        self.steps_per_epoch = self.method.steps_per_epoch = task.steps_per_epoch(machine.world_size)
        torch.manual_seed(config.seed)
        self.module = self._build_model()
        self._load_backbone()
        self.method.input_size = task.input_size
        self.method.prepare_(self.module)
        machine.place_(self.module)
        self.cost = count(self.module, task.input_size)
        # Sharding replaces the parameters. Any other network is wrapped once it has the checkpoint's structure.
        self._wrapped = machine.wrap(self.module) if machine.shards else None
        self._optimizer = build_optimizer(config.optimizer, self.module)
        self.method.attach(self.module, self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        """The states of network, optimizer, method and precision; complete in the first process."""
        return {
            **self.machine.model_state(self.module, self._optimizer),
            "method": self.method.state_dict(),
            "precision": self.machine.precision.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`; before `start`."""
        self.method.load_state_dict(state["method"])
        self.machine.load_model_state_(self.module, self._optimizer, state)
        self.machine.precision.load_state_dict(state["precision"])

    def start(self) -> None:
        """Prepare the first step."""
        self.model = self._wrapped or self.machine.wrap(self.module)
        self.optimizer: Any = self.machine.fabric.setup_optimizers(self._optimizer)

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
            self.model = self.machine.wrap(self.module)
        return update

    def train_batches(self, epoch: int, start: int = 0) -> SizedIterable:
        """This process's batches of an epoch, from number `start`."""
        return self.task.train_batches(epoch, start=start, rank=self.machine.rank, world_size=self.machine.world_size)

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
        machine, clip_norm = self.machine, self.config.optimizer.clip_norm
        if machine.shards:
            machine.share_buffers_(self.module)  # as DDP does
        loss, sums = self._backward(self.model, self._optimizer, batch, step)
        if clip_norm is not None:
            machine.fabric.clip_gradients(self.model, self.optimizer, max_norm=clip_norm)
        self.method.before_step(step)
        self.optimizer.step()
        self.optimizer.zero_grad()

        def train_beside(network: nn.Module, optimizer: Optimizer) -> Tensor:
            beside, _ = self._backward(machine.in_precision(network), optimizer, batch, step)
            optimizer.step()
            optimizer.zero_grad()
            return beside

        num_steps = self.config.budget.epochs * self.steps_per_epoch
        context = StepContext(step=step, num_steps=num_steps, loss=loss, train_beside=train_beside)
        return sums, self.method.after_step(context)

    def _backward(self, model: nn.Module, optimizer: Optimizer, batch: Any, step: int) -> tuple[Tensor, Sums]:
        """Set the learning rate and compute the gradients of a step; returns the loss and the totals of the batch."""
        machine = self.machine
        # Dropout is a function of seed, step and rank, so that no random state has to be saved.
        machine.seed(generator_for("step", self.config.seed, step, machine.rank).initial_seed())
        set_learning_rate_(optimizer, self.learning_rate(step))
        loss, sums = self.task.loss(model, machine.laid_out(batch))
        weighted = loss
        if machine.world_size > 1:
            # Gradients are averaged over processes: give every image the same weight if shares differ.
            number = step % self.steps_per_epoch
            weighted = loss * (self.task.share(batch, number, machine.world_size) * machine.world_size)
        machine.fabric.backward(weighted)
        return loss.detach(), sums

    def _build_model(self) -> nn.Module:
        if self.config.model.pretrained and self._is_new():
            return self.task.build_pretrained()
        return self.task.build_model()

    def _is_new(self) -> bool:
        """Whether the run has no checkpoint."""
        # One that is resumed has its weights in it, and what they were loaded from may be gone.
        new: bool = self.machine.on_first(lambda: not has_checkpoint(self.config.folder))
        return new

    def _load_backbone(self) -> None:
        path = self.config.model.backbone
        if path is not None and self._is_new():
            load_backbone(self.module, path, self.machine.on_first(lambda: read_backbone(path)))

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        weights = [weight.detach() for weight in self.module.parameters() if weight.requires_grad]
        norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in torch._foreach_norm(weights)]
        return bool(torch.stack(norms).isfinite().all())

    def whole_module(self) -> nn.Module:
        """The trained network with all of its weights in this process."""
        if not self.machine.shards:
            return self.module
        state = {"model": self.state_dict()["model"], "method": self.method.state_dict()}
        module = rebuild_model(
            self.config, self.task.build_model, self.machine.fabric.broadcast(state), self.task.input_size
        )
        self.machine.place_(module)
        return module
