"""What DyRep records at every step: how much each convolution promises."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spatialgrad.torch_utils.distributed import all_reduce_, is_distributed

__all__ = ["SCORES", "ScoreRecord"]

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "synflow": lambda gradient, weight: (gradient * weight).sum(),
    "snip": lambda gradient, weight: (gradient * weight).abs().sum(),
    "gradient-norm": lambda gradient, weight: gradient.norm(),
}
"""The kinds of scores, from a gradient and its weight."""


class ScoreRecord:
    """Sums and counts of scores by name; nothing is copied from the device before the means are asked for."""

    def __init__(self, kind: str) -> None:
        self._measure = SCORES[kind]
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, gradient: Tensor, weight: Tensor) -> None:
        """Records one step's score."""
        score = self._measure(gradient, weight).float()
        self._sums[name] = self._sums[name] + score if name in self._sums else score
        self._counts[name] = self._counts.get(name, 0) + 1

    def means(
        self, names: Iterable[str], device: torch.device, group: dist.ProcessGroup | None = None
    ) -> dict[str, float]:
        """The mean scores over all processes, for the names that have any."""
        names = list(names)
        nothing = torch.zeros((), device=device)
        sums = torch.stack([self._sums.get(name, nothing).to(device) for name in names])
        counts = torch.tensor([float(self._counts.get(name, 0)) for name in names], device=device)
        if is_distributed(group):
            all_reduce_([(sums, "sum"), (counts, "sum")], group)
        means = (sums / counts).tolist()
        return {name: mean for name, mean, count in zip(names, means, counts.tolist(), strict=True) if count}

    def clear(self) -> None:
        """Forgets everything."""
        self._sums, self._counts = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """The record in plain numbers."""
        return {name: [float(total), self._counts[name]] for name, total in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Takes over a record."""
        self._sums = {name: torch.tensor(float(total), device=device) for name, (total, _) in state.items()}
        self._counts = {name: int(count) for name, (_, count) in state.items()}
