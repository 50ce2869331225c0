"""The methods whose branches are named: kernels of smaller windows, sequences, averages and the identity.

- `ACB`: Ding, Guo, Ding & Han, "ACNet: Strengthening the Kernel Skeletons for Powerful CNN via Asymmetric Convolution
  Blocks", ICCV 2019.
- `RepVGG`: Ding, Zhang, Ma, Han, Ding & Sun, "RepVGG: Making VGG-style ConvNets Great Again", CVPR 2021.
- `QARepVGG`: Chu, Li & Zhang, "Make RepVGG Greater Again: A Quantization-aware Approach", AAAI 2024.
- `DBB`: Ding, Zhang, Han & Ding, "Diverse Branch Block: Building a Convolution as an Inception-like Unit", CVPR 2021.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Reparameterization, UnsupportedLayerError, branched
from spatialgrad.reparam.branches import BRANCH_NAMES, Branch, ConvBranch, IdentityBranch, new_norm, unavailable
from spatialgrad.reparam.geometry import ConvGeometry


@dataclass(frozen=True, kw_only=True)
class NamedBranches(Reparameterization):
    """A method that consists of `kxk` and other named branches, by default in place of 3×3 convolutions."""

    takes_batch_norm: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the branches; `identity` is left out of layers whose shapes do not allow it."""
        raise NotImplementedError

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether the kernel is 3×3."""
        return conv.kernel_size == (3, 3)

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` for kernels that the method cannot divide."""
        for name in self.names:
            reason = unavailable(name, ConvGeometry.of(conv))
            if reason and name != "identity":
                raise UnsupportedLayerError(
                    f"{self.name} cannot give {layer!r} the branch {name!r}: {reason}. Leave the layer out with "
                    "include=."
                )

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block around a convolution."""
        return branched(conv, self.names, method=self.name, bn=bn)


@dataclass(frozen=True, kw_only=True)
class ACB(NamedBranches):
    """Asymmetric convolution block: k×k + 1×k + k×1, each with its own BatchNorm."""

    name: ClassVar[str] = "ACB"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the branches."""
        return "kxk", "1xk", "kx1"

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether both sides of the kernel are larger than 1."""
        return min(conv.kernel_size) > 1


@dataclass(frozen=True, kw_only=True)
class RepVGG(NamedBranches):
    """RepVGG block: k×k + 1×1 + identity where the shapes allow it, each with its own BatchNorm."""

    identity: bool = True
    """Whether layers with stride 1 and equal numbers of input and output channels get the identity branch."""

    name: ClassVar[str] = "RepVGG"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the branches."""
        return ("kxk", "1x1", "identity") if self.identity else ("kxk", "1x1")


@dataclass(frozen=True, kw_only=True)
class QARepVGG(RepVGG):
    """QARepVGG block: k×k with BatchNorm + plain 1×1 + plain identity, then the layer's own BatchNorm after the sum.

    Without BatchNorms of their own, the 1×1 and identity branches cannot stretch the range of the merged weights, which
    is what breaks the quantization of merged RepVGG networks.
    """

    name: ClassVar[str] = "QARepVGG"

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block around a convolution; the BatchNorm of the layer, if any, normalizes the sum."""
        geometry, trains = ConvGeometry.of(conv), conv.weight.requires_grad
        inner = new_norm(conv.out_channels, bn, conv.weight).requires_grad_(trains)
        branches: dict[str, Branch] = {
            "kxk": ConvBranch.around(conv, geometry, inner),
            "1x1": ConvBranch.new("1x1", geometry, None, like=conv.weight).requires_grad_(trains),
        }
        if self.identity and unavailable("identity", geometry) is None:
            branches["identity"] = IdentityBranch(geometry, None)
        block = BranchedConv2d(geometry, branches, method=self.name).train(conv.training)
        block.norm = bn  # it keeps its own mode
        return block


@dataclass(frozen=True, kw_only=True)
class DBB(NamedBranches):
    """Diverse branch block: an Inception-like unit of named branches with BatchNorms.

    The default is the block in the tables of the spatial gradient scaling paper: it replaces every 3×3 convolution and
    leaves the 7×7 stem of a ResNet alone, which reproduces the printed costs.
    """

    branches: tuple[str, ...] = ("kxk", "1x1", "1x1_kxk", "1x1_avg")
    """Names of the branches: `kxk` (required), `1x1`, `1xk`, `kx1`, `1x1_kxk`, `1x1_avg` and `identity`, which is left
    out of layers whose shapes do not allow it."""

    name: ClassVar[str] = "DBB"

    def __post_init__(self) -> None:
        object.__setattr__(self, "branches", tuple(self.branches))
        unknown = [name for name in self.branches if name not in BRANCH_NAMES]
        if unknown:
            raise ValueError(f"Unknown branches {unknown}; choose from {', '.join(BRANCH_NAMES)}.")
        if len(set(self.branches)) != len(self.branches):
            raise ValueError(f"Duplicate branches in {self.branches}; name every branch at most once.")
        if "kxk" not in self.branches or len(self.branches) < 2:
            raise ValueError(f"DBB needs the branch 'kxk' and at least one other, not {self.branches}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the branches."""
        return self.branches
