"""The block that stands in a convolution's place: named branches that are added up, and that merge exactly."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.fold import Folded, batch_norm_affine, exact, fold_affine
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.parts import BRANCH_NAMES, Branch, ConvBranch, fold_conv, new_branch, unavailable

__all__ = [
    "NEW_BRANCH_STRENGTH",
    "BranchedConv2d",
    "Method",
    "UnsupportedLayerError",
    "absorb_",
    "branched",
    "compensate_",
    "set_strength_",
]


NEW_BRANCH_STRENGTH = 0.01
"""The last BatchNorm's weight of a branch that joins a trained network: small, so that little has to move."""


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


@torch.no_grad()
def set_strength_(branch: Branch, strength: float) -> None:
    """Sets a branch's last BatchNorm to this weight, and its bias so that the branch adds no constant."""
    if branch.bn is None or branch.bn.bias is None:
        raise ValueError("Only a branch that ends in a BatchNorm with weight and bias has a strength.")
    branch.bn.weight.fill_(strength)
    branch.bn.bias.zero_()
    branch.bn.bias.copy_(-branch.fold().bias)


@torch.no_grad()
def compensate_(block: BranchedConv2d) -> None:
    """Lets new branches join with little strength, and takes what they contribute away from `kxk`, in place.

    Before, the block's function is that of its `kxk` branch alone; afterwards it is the same, by all branches.
    """
    for name, branch in block.named_branches():
        if name != "kxk":
            set_strength_(branch, NEW_BRANCH_STRENGTH)
            contribution = branch.fold()
            absorb_(block, Folded(-contribution.weight, torch.zeros_like(contribution.bias)))


@torch.no_grad()
def absorb_(target: nn.Conv2d | BranchedConv2d | ConvBranch, addend: Folded) -> None:
    """Adds a kernel and bias to the function of a convolution, a block or its `kxk` branch, in place.

    Inside a block the addend goes to the `kxk` branch. What stands before a BatchNorm has to be divided by its
    scale; where the scale is so small that the kernel would blow up, as after zero-initialized BatchNorm weights,
    the BatchNorm's weight takes part of it.
    """
    if isinstance(target, nn.Conv2d):
        target.weight.add_(addend.weight.to(target.weight))
        if target.bias is not None:
            target.bias.add_(addend.bias.to(target.bias))
        elif addend.bias.any():
            target.bias = nn.Parameter(addend.bias.to(target.weight))
        return
    if isinstance(target, BranchedConv2d):
        absorb_(target.merged or cast("ConvBranch", target.branches["kxk"]), addend)
        return
    bn = target.bn
    if bn is None:
        absorb_(target.conv, addend)
        return

    before = fold_conv(target.conv)
    scale, shift = batch_norm_affine(bn, like=before.weight)
    wanted = fold_affine(before, scale, shift) + Folded(addend.weight.to(scale), addend.bias.to(scale))
    new_scale = scale if bn.weight is None else _steady_scale(before.weight, wanted.weight, scale)
    weight = wanted.weight / new_scale[:, None, None, None] - before.weight
    if bn.bias is None:
        absorb_(target.conv, Folded(weight, (wanted.bias - shift) / new_scale - before.bias))
        return
    absorb_(target.conv, Folded(weight, torch.zeros_like(before.bias)))
    mean, std = exact(cast("Tensor", bn.running_mean)), (exact(cast("Tensor", bn.running_var)) + bn.eps).sqrt()
    changed = new_scale != scale
    bn.weight.copy_(torch.where(changed, new_scale * std, exact(bn.weight)))
    bn.bias.copy_(wanted.bias - new_scale * (before.bias - mean))


def _steady_scale(before: Tensor, wanted: Tensor, scale: Tensor) -> Tensor:
    """The BatchNorm scale per channel with which the kernel before it does not grow much beyond what it is."""
    size, wanted_size = before.flatten(1).norm(dim=1), wanted.flatten(1).norm(dim=1)
    sign = torch.where(scale < 0, -1.0, 1.0)
    raised = torch.where(size > 0, sign * wanted_size / size, scale)
    steady = torch.where(wanted_size > 2 * scale.abs() * size, raised, scale)
    return torch.where(steady == 0, torch.ones_like(steady), steady)
