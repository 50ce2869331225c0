"""RepOptimizer: the search for scales with branches, and the plain network whose gradients they multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from spatialgrad.reparam import LayerScales, RepOpt, RepOptScaling, reparameterize_
from spatialgrad.train.methods.base import Method
from spatialgrad.train.runs.checkpoint import has_checkpoint
from spatialgrad.train.searched import scales_for


class RepOptSearch(Method):
    """The search: every 3×3 convolution is a sum of branches with trainable scales."""

    merges = True

    def prepare_(self, model: nn.Module) -> None:
        """Insert the blocks."""
        reparameterize_(model, RepOpt(initial=self.config.repopt.initial), preserve=False)


class RepOptTarget(Method):
    """The plain network: initialised as the merged blocks, its gradients multiplied by what the search found."""

    scaling: RepOptScaling

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Multiply whenever this optimizer steps."""
        self._model, self._optimizer = model, optimizer
        # A resumed run has the scales in its checkpoint, and the search may be gone.
        if not has_checkpoint(self.config.folder):
            self.scaling = RepOptScaling(model, optimizer, scales_for(self.config))

    def state_dict(self) -> dict[str, Any]:
        """The scales."""
        return self.scaling.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Multiply by the scales of a checkpoint."""
        scales = {name: LayerScales(*layer) for name, layer in state["scales"].items()}
        self.scaling = RepOptScaling(self._model, self._optimizer, scales)
