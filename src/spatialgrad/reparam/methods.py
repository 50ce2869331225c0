"""The methods whose branches have BatchNorms of their own.

- `ACB`: Ding, Guo, Ding & Han, "ACNet: Strengthening the Kernel Skeletons for Powerful CNN via Asymmetric Convolution
  Blocks", ICCV 2019.
- `RepVGG`: Ding, Zhang, Ma, Han, Ding & Sun, "RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021.
- `DBB`: Ding, Zhang, Han & Ding, "Diverse Branch Block: Building a Convolution as an Inception-like Unit", CVPR 2021.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Reparameterization, UnsupportedLayerError, branched
from spatialgrad.reparam.branch import BRANCH_NAMES, unavailable
from spatialgrad.reparam.geometry import ConvGeometry


@dataclass(frozen=True, kw_only=True)
class ACB(Reparameterization):
    """Asymmetric convolution block: k×k + 1×k + k×1, each with its own BatchNorm."""

    name: ClassVar[str] = "ACB"
    takes_batch_norm: ClassVar[bool] = True

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether both sides of the kernel are larger than 1."""
        return min(conv.kernel_size) > 1

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` for kernels that the method cannot divide."""
        reason = unavailable("1xk", ConvGeometry.of(conv))
        if reason:
            raise UnsupportedLayerError(f"ACB cannot replace {layer!r}: {reason}. Leave it out with include=.")

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block around a convolution."""
        return branched(conv, ("kxk", "1xk", "kx1"), method=self.name, bn=bn)


@dataclass(frozen=True, kw_only=True)
class RepVGG(Reparameterization):
    """RepVGG block: k×k + 1×1 + identity where the shapes allow it, each with its own BatchNorm."""

    identity: bool = True
    """Whether layers with stride 1 and equal numbers of input and output channels get the identity branch."""

    name: ClassVar[str] = "RepVGG"
    takes_batch_norm: ClassVar[bool] = True

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether the kernel is 3×3."""
        return conv.kernel_size == (3, 3)

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` for kernels that the method cannot divide."""
        reason = unavailable("1x1", ConvGeometry.of(conv))
        if reason:
            raise UnsupportedLayerError(f"RepVGG cannot replace {layer!r}: {reason}. Leave it out with include=.")

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block around a convolution."""
        names = ("kxk", "1x1", "identity") if self.identity else ("kxk", "1x1")
        return branched(conv, names, method=self.name, bn=bn)


@dataclass(frozen=True, kw_only=True)
class DBB(Reparameterization):
    """Diverse branch block: an Inception-like unit of named branches with BatchNorms.

    The default is the block in the tables of the spatial gradient scaling paper: it replaces every 3×3 convolution and
    leaves the 7×7 stem of a ResNet alone, which reproduces the printed costs.
    """

    branches: tuple[str, ...] = ("kxk", "1x1", "1x1_kxk", "1x1_avg")
    """Names of the branches: `kxk` (required), `1x1`, `1xk`, `kx1`, `1x1_kxk`, `1x1_avg` and `identity`, which is left
    out of layers whose shapes do not allow it."""

    name: ClassVar[str] = "DBB"
    takes_batch_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", tuple(self.branches))
        unknown = [name for name in self.branches if name not in BRANCH_NAMES]
        if unknown:
            raise ValueError(f"Unknown branches {unknown}; choose from {', '.join(BRANCH_NAMES)}.")
        if len(set(self.branches)) != len(self.branches):
            raise ValueError(f"Duplicate branches in {self.branches}; name every branch at most once.")
        if "kxk" not in self.branches or len(self.branches) < 2:
            raise ValueError(f"DBB needs the branch 'kxk' and at least one other, not {self.branches}.")

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether the kernel is 3×3."""
        return conv.kernel_size == (3, 3)

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` for kernels that the method cannot divide."""
        for name in self.branches:
            reason = unavailable(name, ConvGeometry.of(conv))
            if reason and name != "identity":
                raise UnsupportedLayerError(
                    f"DBB cannot give {layer!r} the branch {name!r}: {reason}. Leave the layer out with include= "
                    "or the branch with DBB(branches=...)."
                )

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block around a convolution."""
        return branched(conv, self.branches, method=self.name, bn=bn)
