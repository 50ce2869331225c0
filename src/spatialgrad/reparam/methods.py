"""The methods with branches: ACB, RepVGG and DBB."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError, branched
from spatialgrad.reparam.branch import BRANCH_NAMES, unavailable
from spatialgrad.reparam.geometry import ConvGeometry


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
