"""The block that replaces a convolution: a sum of named branches that merges exactly into one kernel."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.branches import BRANCH_NAMES, Branch, ConvBranch, Foldable, fold_conv, new_branch, unavailable
from spatialgrad.reparam.fold import Folded, exact, fold_batch_norm
from spatialgrad.reparam.geometry import ConvGeometry


class UnsupportedLayerError(ValueError):
    """Raised for a layer that a method cannot reparameterize; the message names the layer and the reason."""


class BranchedConv2d(Foldable):
    """A convolution as the sum of several branches.

    Every branch runs in training and in evaluation. `to_conv` returns the single convolution that computes the same in
    evaluation mode; `switch_to_deploy` replaces the branches by it.

    Args:
        geometry: Geometry of the convolution that the block replaces.
        branches: The branches by name.
        method: Name of the method, for messages and `repr`.
        bias: Bias to add to the sum, for branches that have none.
        norm: BatchNorm of the sum, for methods that have one.
    """

    def __init__(
        self,
        geometry: ConvGeometry,
        branches: Mapping[str, Branch],
        *,
        method: str,
        bias: nn.Parameter | None = None,
        norm: _BatchNorm | None = None,
    ) -> None:
        super().__init__()
        self.geometry, self.method = geometry, method
        self.branches = nn.ModuleDict(branches)
        self.register_parameter("bias", bias)
        self.norm = norm
        self.merged: nn.Conv2d | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of all branches, or the output of the merged convolution."""
        y: Tensor
        if self.merged is not None:
            y = self.merged(x)
            return y
        first, *others = self.branches.values()
        y = first(x)
        for branch in others:
            y = y + branch(x)
        if self.bias is not None:
            y = y + self.bias.view(-1, 1, 1)
        return y if self.norm is None else self.norm(y)

    def named_branches(self) -> Iterator[tuple[str, Branch]]:
        """Iterate over the branches and their names; there are none once the block is deployed."""
        for name, branch in self.branches.items():
            yield name, cast("Branch", branch)

    @torch.no_grad()
    def fold(self) -> Folded:
        """Return the whole block as one float64 kernel and bias, with running statistics."""
        if self.merged is not None:
            return fold_conv(self.merged)
        first, *others = (branch.fold() for _, branch in self.named_branches())
        folded = first
        for other in others:
            folded = folded + other
        if self.bias is not None:
            folded = Folded(folded.weight, folded.bias + exact(self.bias))
        return folded if self.norm is None else fold_batch_norm(folded, self.norm)

    @torch.no_grad()
    def to_conv(self) -> nn.Conv2d:
        """Return the plain convolution that computes the same as this block in evaluation mode."""
        like = next(parameter for parameter in self.parameters() if parameter.ndim == 4)
        # A BatchNorm adds a constant even if it has no bias.
        parts = list(self.modules())
        biased = any(isinstance(part, _BatchNorm) or getattr(part, "bias", None) is not None for part in parts)
        conv = self.geometry.empty_conv(bias=biased, like=like)
        folded = self.fold()
        conv.weight.copy_(folded.weight)
        if conv.bias is not None:
            conv.bias.copy_(folded.bias)
        conv.requires_grad_(any(parameter.requires_grad for parameter in self.parameters()))
        return conv.train(self.training)

    def switch_to_deploy(self) -> None:
        """Replace the branches by the merged convolution, in place; a second call has no effect."""
        if self.merged is None:
            self.merged = self.to_conv()
            self.branches = nn.ModuleDict()
            self.bias = self.norm = None

    def extra_repr(self) -> str:
        """Return the method and the geometry of the replaced convolution."""
        return f"{self.method}: {self.geometry}"

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
        error_msgs: list[str] = others[-1]
        merged = f"{prefix}weight" in state_dict or f"{prefix}merged.weight" in state_dict
        if self.merged is None and merged:
            error_msgs.append(
                f"{prefix[:-1]!r} is a {self.method} block with branches, but the checkpoint contains a merged or "
                "plain convolution there. Load it into merge(model), or into the model before reparameterize_."
            )
        if self.merged is not None and any(key.startswith(f"{prefix}branches.") for key in state_dict):
            error_msgs.append(
                f"{prefix[:-1]!r} is a {self.method} block that was switched to deploy, but the checkpoint contains "
                "its branches. Load the checkpoint first, then switch or merge."
            )
        super()._load_from_state_dict(state_dict, prefix, *others)


class Reparameterization(ABC):
    """Configuration of a method: what `reparameterize_` replaces by which block."""

    name: ClassVar[str]
    """Name of the method in messages."""
    takes_batch_norm: ClassVar[bool]
    """Whether the BatchNorm after the convolution moves into the block."""

    @abstractmethod
    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether the method replaces this convolution by default."""

    @abstractmethod
    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` if the method cannot replace this convolution."""

    @abstractmethod
    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Return the block for a convolution and the BatchNorm after it; both become part of the block.

        Args:
            conv: The convolution.
            bn: The BatchNorm, if the method takes it.
            layer: Qualified name of the convolution, for methods that treat layers differently.
        """


def branched(
    conv: nn.Conv2d,
    names: Sequence[str],
    *,
    method: str,
    bn: _BatchNorm | None,
    norm_like: _BatchNorm | None = None,
) -> BranchedConv2d:
    """Build a block around a convolution, which itself becomes the branch `kxk`.

    Args:
        conv: The convolution; its parameters stay the same objects.
        names: Names of the branches. Those that the shapes do not allow are left out.
        method: Name of the method.
        bn: The BatchNorm of the `kxk` branch.
        norm_like: A BatchNorm whose type and settings the other branches' get; by default `bn`.
    """
    geometry = ConvGeometry.of(conv)
    branches: dict[str, Branch] = {}
    for name in sorted(names, key=BRANCH_NAMES.index):
        if name == "kxk":
            branches[name] = ConvBranch.around(conv, geometry, bn)
            branches[name].training = conv.training
        elif unavailable(name, geometry) is None:
            branch = new_branch(name, geometry, norm_like=norm_like or bn, like=conv.weight)
            branch.train(conv.training if bn is None else bn.training)
            branches[name] = branch.requires_grad_(conv.weight.requires_grad)
    block = BranchedConv2d(geometry, branches, method=method)
    block.training = block.branches.training = conv.training
    return block


def named_blocks(model: nn.Module) -> Iterator[tuple[str, BranchedConv2d]]:
    """Iterate over the reparameterized layers of a model and their qualified names, without nested ones."""
    for name, module in outer_modules(model):
        if isinstance(module, BranchedConv2d):
            yield name, module


def outer_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate like `named_modules`, but not into blocks."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module not in inside:
            yield name, module
        if isinstance(module, BranchedConv2d):
            inside.update(module.modules())
