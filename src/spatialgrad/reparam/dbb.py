"""DBB, the diverse branch block: by default 1×1, 1×1–k×k, 1×1–average and k×k, with BatchNorms.

Ding et al., Diverse Branch Block: Building a Convolution as an Inception-like Unit (CVPR 2021). The default is
the block of the tables of the spatial gradient scaling paper: it replaces every 3×3 convolution and leaves the
7×7 stem of a ResNet alone, which reproduces the printed costs.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError, branched
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.parts import BRANCH_NAMES, unavailable

__all__ = ["DBB"]


@dataclass(frozen=True, kw_only=True)
class DBB(Method):
    """A convolution as an Inception-like unit of named branches."""

    branches: tuple[str, ...] = ("kxk", "1x1", "1x1_kxk", "1x1_avg")
    """Which branches: any of `kxk` (needed), `1x1`, `1xk`, `kx1`, `1x1_kxk`, `1x1_avg` and `identity`. `identity`
    is left out of layers whose shapes do not allow it."""

    name: ClassVar[str] = "DBB"
    takes_batch_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", tuple(self.branches))
        unknown = [name for name in self.branches if name not in BRANCH_NAMES]
        if unknown:
            raise ValueError(f"Unknown branches {unknown}; choose from {', '.join(BRANCH_NAMES)}.")
        if len(set(self.branches)) != len(self.branches):
            raise ValueError(f"Every branch can be there once only, not {self.branches}.")
        if "kxk" not in self.branches or len(self.branches) < 2:
            raise ValueError(f"DBB needs the branch 'kxk' and at least one other, not {self.branches}.")

    def includes(self, conv: nn.Conv2d) -> bool:
        """3×3 kernels."""
        return conv.kernel_size == (3, 3)

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raises `UnsupportedLayerError` for kernels that the method cannot divide."""
        for name in self.branches:
            reason = unavailable(name, ConvGeometry.of(conv))
            if reason and name != "identity":
                raise UnsupportedLayerError(
                    f"DBB cannot give {layer!r} the branch {name!r}: {reason}. Leave the layer out with include= "
                    "or the branch with DBB(branches=...)."
                )

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None) -> BranchedConv2d:
        """The block around a convolution."""
        return branched(conv, self.branches, method=self.name, bn=bn)
