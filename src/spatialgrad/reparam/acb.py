"""ACB, the asymmetric convolution block: k×k + 1×k + k×1, each with its own BatchNorm.

Ding et al., ACNet: Strengthening the Kernel Skeletons for Powerful CNN via Asymmetric Convolution Blocks
(ICCV 2019).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError, branched
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.parts import unavailable

__all__ = ["ACB"]


@dataclass(frozen=True, kw_only=True)
class ACB(Method):
    """A square convolution strengthened by a row and a column through its centre."""

    name: ClassVar[str] = "ACB"
    takes_batch_norm: ClassVar[bool] = True

    def includes(self, conv: nn.Conv2d) -> bool:
        """Kernels with both sides larger than 1."""
        return min(conv.kernel_size) > 1

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raises `UnsupportedLayerError` for kernels that the method cannot divide."""
        reason = unavailable("1xk", ConvGeometry.of(conv))
        if reason:
            raise UnsupportedLayerError(f"ACB cannot replace {layer!r}: {reason}. Leave it out with include=.")

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None) -> BranchedConv2d:
        """The block around a convolution."""
        return branched(conv, ("kxk", "1xk", "kx1"), method=self.name, bn=bn)
