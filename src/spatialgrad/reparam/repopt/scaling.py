"""RepOptScaling: factors of the shape of each weight, applied whenever the optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from spatialgrad.reparam.repopt.block import LayerScales
from spatialgrad.reparam.repopt.scales import repopt_multipliers
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.utils.modules import unwrap_model
from spatialgrad.utils.optimizers import unwrap_optimizers

__all__ = ["RepOptScaling"]


class RepOptScaling:
    """RepOptimizer on a plain network: multiplies the gradients by what a search has found, at every step.

    Optimizers that are linear in the gradient (SGD) get the gradient multiplied by the squares of the scales, before
    weight decay and momentum. All others (Adam) get gradient and update multiplied by their absolute values, as in the
    authors' AdamW. A trial determines which kind an optimizer is.

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
        self.scales = dict(scales)
        root, optimizers = unwrap_model(model), unwrap_optimizers(optimizer)
        squares = repopt_multipliers(root, self.scales)  # first, because it refuses scales of another model
        settings: dict[str, Any] = {"measure": None, "include": partial(_is_one_of, frozenset(scales))}
        self._sgs = SpatialGradientScaling(model, optimizers, **settings)
        place, skipped = self._sgs.apply, self._sgs.skipped
        missing = sorted(set(self.scales) & set(skipped))
        if missing or place != "gradient":
            self.detach()
        if missing:
            raise ValueError(f"Cannot scale {', '.join(f'{name} ({skipped[name]})' for name in missing)}.")
        if place == "auto":
            raise ValueError("RepOptScaling needs optimizers of one kind: all linear in the gradient, or none.")
        self.power = 2 if place == "gradient" else 1
        if self.power == 1:
            self._sgs = SpatialGradientScaling(model, optimizers, apply="both", **settings)
        self._sgs.set_scalings(squares if self.power == 2 else repopt_multipliers(root, self.scales, power=1))

    def attach(self, optimizer: Any) -> None:
        """Multiply whenever this optimizer steps, and no other."""
        self._sgs.attach(optimizer)

    def detach(self) -> None:
        """Stop multiplying."""
        self._sgs.detach(warn=False)

    def state_dict(self) -> dict[str, Any]:
        """The scales, which never change: a resumed training checks them."""
        return {"scales": {name: list(layer) for name, layer in self.scales.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that a state is that of the same scales.

        Raises:
            ValueError: If it is not.
        """
        if state["scales"].keys() != self.scales.keys():
            raise ValueError("The state_dict belongs to other layers.")
        for name, layer in self.scales.items():
            pairs = zip(layer, state["scales"][name], strict=True)
            if not all(mine is other if mine is None else torch.equal(mine, other.to(mine)) for mine, other in pairs):
                raise ValueError(f"The state_dict has other scales for {name!r}.")

    def __repr__(self) -> str:
        where = "on the gradient" if self.power == 2 else "on gradient and update"
        attached = repr(self._sgs).rpartition("attached to ")[2]
        return f"RepOptScaling({len(self.scales)} convolutions, power {self.power}, {where}, attached to {attached}"


def _is_one_of(names: frozenset[str], name: str, module: nn.Module) -> bool:
    return name in names
