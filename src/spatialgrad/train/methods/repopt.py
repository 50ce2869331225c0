"""RepOptimizer: the search for scales with branches, and the plain network whose gradients they multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from spatialgrad.reparam import LayerScales, RepOpt, RepOptScaling
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.methods.base import Method, Participation
from spatialgrad.train.methods.branches import Branched


class RepOptSearch(Branched):
    """The search: every 3×3 convolution is a sum of branches with trainable scales."""

    preserve = False

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.block = RepOpt(initial=config.repopt.initial)


class RepOptTarget(Method):
    """The plain network: initialised as the merged blocks, its gradients multiplied by what the search found."""

    scaling: RepOptScaling

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Multiply whenever this optimizer steps."""
        self._model, self._optimizer = model, optimizer
        if self.searched_scales is not None:  # a resumed run has them in its checkpoint
            self.scaling = RepOptScaling(model, optimizer, dict(self.searched_scales))

    def state_dict(self) -> dict[str, Any]:
        """The scales."""
        return self.scaling.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Multiply by the scales of a checkpoint."""
        scales = {name: LayerScales(*layer) for name, layer in state["scales"].items()}
        self.scaling = RepOptScaling(self._model, self._optimizer, scales)

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """The convolutions that the search replaces; the network itself stays plain."""
        return Participation(reasons=RepOptSearch.participation(model, input_size).reasons, trained=model)
