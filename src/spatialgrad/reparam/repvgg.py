"""RepVGG: k×k + 1×1 + identity, each with its own BatchNorm.

Ding et al., RepVGG: Making VGG-style ConvNets Great Again (CVPR 2021).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError, branched
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.parts import unavailable

__all__ = ["RepVGG"]


@dataclass(frozen=True, kw_only=True)
class RepVGG(Method):
    """A 3×3 convolution with a 1×1 and, where the shapes allow it, an identity beside it."""

    identity: bool = True
    """Whether layers with stride 1 and as many output as input channels get the identity branch."""

    name: ClassVar[str] = "RepVGG"
    takes_batch_norm: ClassVar[bool] = True

    def includes(self, conv: nn.Conv2d) -> bool:
        """3×3 kernels."""
        return conv.kernel_size == (3, 3)

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raises `UnsupportedLayerError` for kernels that the method cannot divide."""
        reason = unavailable("1x1", ConvGeometry.of(conv))
        if reason:
            raise UnsupportedLayerError(f"RepVGG cannot replace {layer!r}: {reason}. Leave it out with include=.")

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None) -> BranchedConv2d:
        """The block around a convolution."""
        names = ("kxk", "1x1", "identity") if self.identity else ("kxk", "1x1")
        return branched(conv, names, method=self.name, bn=bn)
