"""GradientMultipliers: factors of the shape of each weight, applied whenever the optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.reparam.repopt.block import LayerScales
from spatialgrad.reparam.repopt.scales import repopt_multipliers
from spatialgrad.sgs.layers import names_by_optimizer, names_without_optimizer
from spatialgrad.sgs.place import choose_place
from spatialgrad.sgs.step_hook import StepHook, check_not_scaled_twice
from spatialgrad.torch_utils.distributed import local_part
from spatialgrad.torch_utils.modules import named_convolutions, unwrap_model
from spatialgrad.torch_utils.optimizers import unwrap_optimizers

__all__ = ["RepOptScaling"]


class RepOptScaling:
    """RepOptimizer on a plain network: multiplies the gradients by what a search has found, at every step.

    Optimizers that are linear in the gradient (SGD) get the gradient multiplied by the squares of the scales, before
    weight decay and momentum. All others (Adam) get gradient and update multiplied by their first powers, as in the
    authors' AdamW. Which kind an optimizer is, is found out by trying it.

    Args:
        model: The plain network; see `repopt_init_` for its first weights.
        optimizer: The optimizer that holds its parameters, or a wrapper around it.
        scales: By the layers' qualified names, as from `searched_scales`.

    Attributes:
        power: 2 or 1: the power of the scales.

    Example:
        >>> import torch
        >>> from spatialgrad.reparam import RepOpt, RepOptScaling, reparameterize_, repopt_init_, searched_scales
        >>> def build():
        ...     return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
        >>> searched = reparameterize_(build(), RepOpt())  # ... and train it on a small data set
        >>> scales, model = searched_scales(searched), build()
        >>> repopt_init_(model, scales)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        >>> RepOptScaling(model, optimizer, scales)
        RepOptScaling(1 convolutions, power 2, on the gradient, attached to SGD)
    """

    def __init__(self, model: nn.Module, optimizer: Any, scales: Mapping[str, LayerScales]) -> None:
        self._model, self.scales = unwrap_model(model), dict(scales)
        self._optimizers = unwrap_optimizers(optimizer)
        self._convolutions = {
            name: [conv] for name, conv in named_convolutions(self._model).items() if name in self.scales
        }
        names = names_by_optimizer(self._convolutions, self._optimizers)
        untrained = names_without_optimizer(self._convolutions, self._optimizers)
        if untrained:
            raise ValueError(f"The optimizer does not hold the weights of {', '.join(untrained)}.")
        weights = [convs[0].weight for convs in self._convolutions.values()]
        check_not_scaled_twice(self._optimizers, [], weights)
        places = {
            each: choose_place("auto", each, self._convolutions[own[0]][0].weight).apply
            for each, own in names.items()
            if own
        }
        if len(set(places.values())) > 1:
            raise ValueError("RepOptScaling needs optimizers of one kind: all linear in the gradient, or none.")
        self.power = 2 if "gradient" in places.values() else 1
        self._factors = {
            name: _local(factors, self._convolutions[name][0].weight)
            for name, factors in repopt_multipliers(self._model, self.scales, power=self.power).items()
        }
        self._hooks: list[StepHook] = []
        for each, own in names.items():
            self._attach(each, own)

    def detach(self) -> None:
        """Stop multiplying."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """The scales, which never change: a resumed training checks them."""
        return {"scales": {name: list(layer) for name, layer in self.scales.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that a state is that of the same scales.

        Raises:
            ValueError: If it is not.
        """
        there = {name: LayerScales(*layer) for name, layer in state["scales"].items()}
        if there.keys() != self.scales.keys():
            raise ValueError("The state_dict belongs to other layers.")
        for name, layer in there.items():
            for mine, other in zip(self.scales[name], layer, strict=True):
                if mine is None or other is None:
                    same = mine is other
                else:
                    same = torch.equal(mine, other.to(mine))
                if not same:
                    raise ValueError(f"The state_dict has other scales for {name!r}.")

    def __repr__(self) -> str:
        where = "on the gradient" if self.power == 2 else "on gradient and update"
        attached = " and ".join(dict.fromkeys(type(hook.optimizer).__name__ for hook in self._hooks))
        return (
            f"RepOptScaling({len(self._convolutions)} convolutions, power {self.power}, {where}, attached to "
            f"{attached or 'nothing (detached)'})"
        )

    def _attach(self, optimizer: Optimizer, names: list[str]) -> None:
        def pairs() -> list[tuple[Tensor, Tensor]]:
            return [self._pair(name) for name in names]

        self._hooks.append(StepHook(optimizer, "gradient", pairs))
        if self.power == 1:
            self._hooks.append(StepHook(optimizer, "update", pairs))

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        # Looked up each time: wrappers may replace parameters and move them.
        weight, factors = self._convolutions[name][0].weight, self._factors[name]
        if factors.device != weight.device:
            factors = self._factors[name] = factors.to(weight.device)
        return weight, factors


def _local(factors: Tensor, weight: Tensor) -> Tensor:
    """The part of the factors that belongs to this process's part of the weight."""
    local = local_part(weight)
    if local is weight:
        return factors
    from torch.distributed.tensor import distribute_tensor

    return local_part(distribute_tensor(factors, weight.device_mesh, weight.placements))  # type: ignore[attr-defined]
