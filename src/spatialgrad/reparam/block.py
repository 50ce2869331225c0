"""The block that stands in a convolution's place: named branches that are added up, and that merge exactly."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.branch import BRANCH_NAMES, Branch, ConvBranch, fold_conv, new_branch, unavailable
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.kernels import Folded, exact

__all__ = [
    "BranchedConv2d",
    "Method",
    "UnsupportedLayerError",
    "branched",
    "named_blocks",
    "outer_modules",
]


class UnsupportedLayerError(ValueError):
    """A layer that a method cannot reparameterize; the message names the layer and the reason."""


class BranchedConv2d(nn.Module):
    """A convolution as the sum of several branches.

    In training and in evaluation every branch runs. `to_conv` gives the one convolution that is the same function
    in evaluation; `switch_to_deploy` puts it in the branches' place.

    Args:
        geometry: The convolution that the block stands for.
        branches: The branches by name.
        method: The name of the method, for messages and `repr`.
        bias: A bias that is added to the sum, for branches that have none.
    """

    def __init__(
        self,
        geometry: ConvGeometry,
        branches: Mapping[str, Branch],
        *,
        method: str,
        bias: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.geometry, self.method = geometry, method
        self.branches = nn.ModuleDict(branches)
        self.register_parameter("bias", bias)
        self.merged: nn.Conv2d | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The sum of all branches, or the merged convolution."""
        if self.merged is not None:
            return self.merged(x)
        first, *others = self.branches.values()
        y = first(x)
        for branch in others:
            y = y + branch(x)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)

    def named_branches(self) -> Iterator[tuple[str, Branch]]:
        """The branches with their names; none once the block is deployed."""
        for name, branch in self.branches.items():
            yield name, cast("Branch", branch)

    @torch.no_grad()
    def fold(self) -> Folded:
        """The whole block as one float64 kernel and bias, with running statistics."""
        if self.merged is not None:
            return fold_conv(self.merged)
        first, *others = (branch.fold() for _, branch in self.named_branches())
        folded = first
        for other in others:
            folded = folded + other
        return folded if self.bias is None else Folded(folded.weight, folded.bias + exact(self.bias))

    @torch.no_grad()
    def to_conv(self) -> nn.Conv2d:
        """The plain convolution that is the same function as this block in evaluation mode."""
        like = next(parameter for parameter in self.parameters() if parameter.ndim == 4)
        biased = self.bias is not None or any(branch.has_bias for _, branch in self.named_branches())
        if self.merged is not None:
            biased = self.merged.bias is not None
        conv = self.geometry.empty_conv(bias=biased, like=like)
        folded = self.fold()
        conv.weight.copy_(folded.weight)
        if conv.bias is not None:
            conv.bias.copy_(folded.bias)
        if like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous():
            conv = cast("nn.Conv2d", conv.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        conv.requires_grad_(any(parameter.requires_grad for parameter in self.parameters()))
        return conv.train(self.training)

    def switch_to_deploy(self) -> None:
        """Replaces the branches by the merged convolution, in place; a second call changes nothing."""
        if self.merged is None:
            self.merged = self.to_conv()
            self.branches = nn.ModuleDict()
            self.bias = None

    def extra_repr(self) -> str:
        """The method, and the convolution that the block stands for."""
        return f"{self.method}: {self.geometry}"

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        merged = f"{prefix}weight" in state_dict or f"{prefix}merged.weight" in state_dict
        if self.merged is None and merged:
            error_msgs.append(
                f"{prefix[:-1]!r} is a {self.method} block with branches, but the checkpoint holds one merged or "
                "plain convolution there. Load it into merge(model), or into the model before reparameterize_."
            )
        if self.merged is not None and any(key.startswith(f"{prefix}branches.") for key in state_dict):
            error_msgs.append(
                f"{prefix[:-1]!r} is a {self.method} block that was switched to deploy, but the checkpoint holds "
                "its branches. Load the checkpoint first and switch or merge afterwards."
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


class Method(ABC):
    """What `reparameterize_` needs of a method's configuration."""

    name: ClassVar[str]
    """The method's name in messages."""
    takes_batch_norm: ClassVar[bool]
    """Whether the BatchNorm after the convolution moves into the block."""

    @abstractmethod
    def includes(self, conv: nn.Conv2d) -> bool:
        """Which convolutions the method replaces unless the user says otherwise."""

    @abstractmethod
    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raises `UnsupportedLayerError` if the method cannot replace this convolution."""

    @abstractmethod
    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None) -> BranchedConv2d:
        """The block for a convolution, and the BatchNorm that it takes over; both become part of the block."""


def branched(
    conv: nn.Conv2d,
    names: Sequence[str],
    *,
    method: str,
    bn: _BatchNorm | None,
    norm_like: _BatchNorm | None = None,
) -> BranchedConv2d:
    """A block around a convolution: the convolution itself becomes the branch `kxk`.

    Args:
        conv: The convolution; its parameters stay the same objects.
        names: The branches. Those that the shapes do not allow are left out.
        method: The method's name.
        bn: The BatchNorm of the `kxk` branch.
        norm_like: A BatchNorm whose settings the other branches' get; by default `bn`.
    """
    geometry = ConvGeometry.of(conv)
    branches: dict[str, Branch] = {}
    for name in sorted(names, key=BRANCH_NAMES.index):
        if name == "kxk":
            branches[name] = ConvBranch(geometry, geometry.full, bn, conv=conv)
            branches[name].training = conv.training
        elif unavailable(name, geometry) is None:
            branch = new_branch(name, geometry, norm_like=norm_like or bn, like=conv.weight)
            branch.train(conv.training if bn is None else bn.training)
            branches[name] = branch.requires_grad_(conv.weight.requires_grad)
    block = BranchedConv2d(geometry, branches, method=method)
    block.training = block.branches.training = conv.training
    return block


def named_blocks(model: nn.Module) -> Iterator[tuple[str, BranchedConv2d]]:
    """The reparameterized layers of a model with their qualified names; not those nested inside another."""
    for name, module in outer_modules(model):
        if isinstance(module, BranchedConv2d):
            yield name, module


def outer_modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Like `named_modules`, but without what is inside blocks."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules(prefix=prefix):
        if module not in inside:
            yield name, module
        if isinstance(module, BranchedConv2d):
            inside.update(module.modules())
