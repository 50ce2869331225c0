"""A branched and a scaled network, trained on the same batches: how far are their kernels apart after each step?

The branched network has masked branches in every 3×3 convolution. The other one is the plain network, whose gradients
are multiplied by G, the sum of the masks. The paper's Lemma says that both learn the same kernels; what is left is
rounding.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from spatialgrad.data.rng import generator_for
from spatialgrad.reparam import Branches, merge, reparameterize_
from spatialgrad.sgs.matrices import scaling_from_masks
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.torch_utils.modules import named_convolutions
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.engine.optim import build_optimizer, learning_rate
from spatialgrad.train.engine.signals import Stop
from spatialgrad.train.errors import ConfigError, DivergedError, InterruptedTraining
from spatialgrad.train.runs.checkpoint import load_checkpoint, save_checkpoint
from spatialgrad.train.runs.console import duration
from spatialgrad.train.runs.environment import describe_environment
from spatialgrad.train.runs.folder import ENVIRONMENT, RESULT, Lines, claim, locked, write_json
from spatialgrad.train.tasks import TASKS

DISTANCES = "distances.jsonl"
MASKS = (
    ((1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((0, 0, 0), (1, 1, 1), (0, 0, 0)),
    ((0, 1, 0), (0, 1, 0), (0, 1, 0)),
    ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
)
"""3×3, 1×3, 3×1 and 1×1."""
LINES = 200
"""Lines of a whole training, about; each costs a merge."""
DTYPES = {"32-true": torch.float32, "64-true": torch.float64}


@dataclass
class Position:
    """Before the batch `batch` of the epoch `epoch`, after `step` steps in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


def train_side_by_side(config: TrainConfig, *, console: Console | None = None) -> dict[str, Any]:
    """Train both networks to the end, going on where an earlier session was left; the result.

    Args:
        config: Of the run. Its precision is 32-true or 64-true; the method `baseline` leaves the second network without
            scaling, for comparison.
        console: Where to report; by default the standard output.

    Raises:
        ConfigError: If the config asks for what the Lemma does not cover.
        InterruptedTraining: If a signal came; everything is saved.
    """
    console = console or Console()

    def report(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if config.optimizer.name != "sgd":
        raise ConfigError(
            f"invalid optimizer.name: {config.optimizer.name!r} is not linear, as the Lemma needs it; use sgd"
        )
    if config.machine.precision not in DTYPES:
        raise ConfigError(f"invalid machine.precision: {config.machine.precision!r}; choose from {', '.join(DTYPES)}")
    stop = Stop(report)
    with stop.listening(), locked(config.folder):
        claim(config.folder, config)
        pair = _Pair(config, report)
        if not (config.folder / ENVIRONMENT).exists():
            write_json(config.folder / ENVIRONMENT, describe_environment(pair.device, 1))
        try:
            pair.train(stop)
        finally:
            pair.lines.close()
        result = pair.result()
        write_json(config.folder / RESULT, result)
        report(f"distance {result['value']:.1e} after {result['steps']} steps in {duration(result['seconds'])}")
        return result


class _Pair:
    """Both networks, and where their training is."""

    def __init__(self, config: TrainConfig, report: Any) -> None:
        machine = config.machine
        if machine.threads is not None:
            torch.set_num_threads(machine.threads)
        use_cuda = machine.accelerator == "cuda" or (machine.accelerator == "auto" and torch.cuda.is_available())
        self.config, self.report, self.device = config, report, torch.device("cuda" if use_cuda else "cpu")
        self.dtype = DTYPES[machine.precision]
        self.task = TASKS[config.task](config, self.device)
        self.steps_per_epoch = self.task.steps_per_epoch(1)
        self.steps = config.budget.epochs * self.steps_per_epoch
        torch.manual_seed(config.seed)
        self.scaled = self.task.build_model().to(self.device, self.dtype)
        torch.manual_seed(config.seed)
        self.branched = self.task.build_model().to(self.device, self.dtype)
        reparameterize_(self.branched, Branches(masks=MASKS))
        self.networks = {"scaled": self.scaled, "branched": self.branched}
        self.optimizers = {name: build_optimizer(config.optimizer, network) for name, network in self.networks.items()}
        if config.method.name != "baseline":
            G = scaling_from_masks(torch.tensor(MASKS, dtype=self.dtype), normalize=False)
            self.sgs = SpatialGradientScaling(self.scaled, self.optimizers["scaled"], dependence=None, scalings=G)
        self.at, self.seconds = Position(), 0.0
        self.lines = Lines(config.folder / DISTANCES)
        self.last: dict[str, float] = {}
        self._restore()

    def train(self, stop: Stop) -> None:
        at, began, saved = self.at, time.monotonic() - self.seconds, time.monotonic()
        for network in self.networks.values():
            network.train()
        while at.epoch < self.config.budget.epochs:
            for batch in self.task.train_batches(at.epoch, start=at.batch):
                losses = {name: self._step(name, batch) for name in self.networks}
                at.batch, at.step = at.batch + 1, at.step + 1
                self._log(losses)
                self.seconds = time.monotonic() - began
                if stop.signal:
                    self._save()
                    message = f"stopped after step {at.step} of {self.steps}, and saved."
                    raise InterruptedTraining(stop.signal, message)
                if time.monotonic() - saved >= self.config.budget.checkpoint_seconds:
                    self._save()
                    saved = time.monotonic()
            at.epoch, at.batch = at.epoch + 1, 0
            last = self.last["distance"]
            self.report(f"epoch {at.epoch}/{self.config.budget.epochs}  distance {last:.1e}")

    def result(self) -> dict[str, Any]:
        distance = self.last["distance"]
        return {
            "kind": "equivalence",
            "metric": "distance",
            "value": distance,
            **self.last,
            "model": self.config.model.name,
            "dataset": self.task.description,
            "seed": self.config.seed,
            "precision": self.config.machine.precision,
            "epochs": self.config.budget.epochs,
            "steps": self.at.step,
            "seconds": self.seconds,
        }

    def _step(self, name: str, batch: Any) -> float:
        network, optimizer = self.networks[name], self.optimizers[name]
        # Both networks drop the same units.
        torch.manual_seed(generator_for("step", self.config.seed, self.at.step, 0).initial_seed())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                self.config.schedule,
                self.config.optimizer.learning_rate,
                self.at.step,
                steps_per_epoch=self.steps_per_epoch,
                epochs=self.config.budget.epochs,
            )
        images, *rest = batch
        loss, _ = self.task.loss(network, (images.to(self.dtype), *rest))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        if not torch.isfinite(loss.detach()):
            raise DivergedError(f"the loss of the {name} network is not finite any more at step {self.at.step}")
        return value

    def _log(self, losses: Mapping[str, float]) -> None:
        every = max(1, self.steps // LINES)
        if self.at.step == 1 or self.at.step % every == 0 or self.at.step == self.steps:
            self.last = {
                "distance": kernel_distance(merge(self.branched), self.scaled),
                **{f"loss_{name}": value for name, value in losses.items()},
            }
            self.lines.append({"step": self.at.step, "epoch": self.at.epoch, **self.last})

    def _save(self) -> None:
        save_checkpoint(
            self.config.folder,
            {
                **vars(self.at),
                "model": self.scaled.state_dict(),
                "branched": self.branched.state_dict(),
                "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
                "last": self.last,
                "seconds": self.seconds,
                "lines": self.lines.sync(),
            },
        )

    def _restore(self) -> None:
        state = load_checkpoint(self.config.folder, self.report)
        self.lines.cut(0 if state is None else state["lines"])
        if state is None:
            return
        self.at = Position(epoch=state["epoch"], batch=state["batch"], step=state["step"])
        self.scaled.load_state_dict(state["model"])
        self.branched.load_state_dict(state["branched"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.last, self.seconds = state["last"], state["seconds"]
        self.report(f"going on after step {self.at.step}")


def kernel_distance(first: nn.Module, second: nn.Module) -> float:
    """The largest difference between the kernels of two networks, relative to the largest weight of each kernel."""
    others = named_convolutions(second)
    distances: list[Tensor] = []
    for name, conv in named_convolutions(first).items():
        mine, other = conv.weight.detach().double(), others[name].weight.detach().double()
        distances.append((mine - other).abs().max() / other.abs().max())
    return float(torch.stack(distances).max())
