"""`merge`: return a new model of plain convolutions that computes the same, and verify it."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from spatialgrad.reparam.block import BranchedConv2d, named_blocks
from spatialgrad.reparam.bn_tracing import forward_with
from spatialgrad.utils.modules import quiet_evaluation, unwrap_model

logger = logging.getLogger(__name__)


class MergeError(RuntimeError):
    """Raised if a merged model does not compute the same as the model with branches."""


class Difference(NamedTuple):
    """The largest difference between two outputs."""

    absolute: float
    """Largest absolute difference."""
    relative: float
    """The same, relative to the largest absolute value of the first output, or of a branch if branches cancel."""

    def __str__(self) -> str:
        return f"{self.absolute:.1e} (relative {self.relative:.1e})"


@dataclass(frozen=True, kw_only=True)
class MergeReport:
    """Result of the self-check of a merge."""

    layers: Mapping[str, Difference] = field(default_factory=dict)
    """The difference on a random probe input, for each merged block."""
    model: Difference | None = None
    """The difference between the outputs of the whole models, if example inputs were given."""

    @property
    def largest(self) -> Difference:
        """The largest relative difference of all; zero if there is no block."""
        found = [*self.layers.values(), *([] if self.model is None else [self.model])]
        return max(found, key=lambda difference: difference.relative, default=Difference(0.0, 0.0))

    def __str__(self) -> str:
        whole = "" if self.model is None else f"; whole model {self.model}"
        return f"{len(self.layers)} blocks merged, largest difference {self.largest}{whole}"


class Merged(NamedTuple):
    """A merged model and the result of its self-check."""

    model: nn.Module
    report: MergeReport


def merge(model: nn.Module, *, example_inputs: Any = None, tolerance: float | None = None) -> nn.Module:
    """Return a new model in which every block is one plain convolution that computes the same in evaluation mode.

    The given model may be in training mode, wrapped or compiled, and is not changed. A model without blocks is copied.
    Every block is compared with its convolution on a random probe input before the result is returned. The largest
    difference is logged; `merge_with_report` returns it.

    Args:
        model: A model with blocks.
        example_inputs: Inputs for comparing the two whole models as well: one tensor, a tuple of positional or a dict
            of keyword inputs.
        tolerance: Largest relative difference allowed; by default 1e-8 for float64, 1e-3 for float32 and 0.1 for
            smaller types.

    Raises:
        MergeError: If an output differs by more; the message names the layer.

    Example:
        >>> import torch
        >>> from spatialgrad.reparam import ACB, reparameterize_
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
        >>> merge(reparameterize_(model, ACB()))
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
          (1): Identity()
        )
    """
    return merge_with_report(model, example_inputs=example_inputs, tolerance=tolerance).model


@torch.no_grad()
def merge_with_report(model: nn.Module, *, example_inputs: Any = None, tolerance: float | None = None) -> Merged:
    """Merge like `merge`, and also return the result of the self-check."""
    root = unwrap_model(model)
    layers: dict[str, Difference] = {}
    replacements: dict[int, Any] = {}
    for name, block in named_blocks(root):
        conv, probe = block.to_conv(), probe_for(block)
        reference, size = evaluate_block(block, probe)
        layers[name] = largest_difference(reference, conv(probe), size)
        _check(f"the merged {block.method} block {name!r}", layers[name], reference.dtype, tolerance)
        replacements[id(block)] = conv
    # The copy takes the convolutions instead of the blocks, so no branch is ever copied.
    merged: nn.Module = copy.deepcopy(root, replacements)
    whole = None
    if example_inputs is not None:
        reference = _outputs(copy.deepcopy(root), example_inputs)
        whole = largest_difference(reference, _outputs(copy.deepcopy(merged), example_inputs))
        _check("the merged model", whole, reference.dtype, tolerance)
    report = MergeReport(layers=layers, model=whole)
    logger.info("%s", report)
    return Merged(merged, report)


def _outputs(model: nn.Module, inputs: Any) -> Tensor:
    leaves = tree_leaves(forward_with(model.eval(), inputs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not tensors:
        raise ValueError("Cannot compare the models: they return no floating-point tensor for example_inputs.")
    return torch.cat([tensor.flatten() for tensor in tensors])


def _check(what: str, difference: Difference, dtype: torch.dtype, tolerance: float | None) -> None:
    tolerance = default_tolerance(dtype) if tolerance is None else tolerance
    if not difference.relative <= tolerance:  # also for NaN
        raise MergeError(
            f"The output of {what} differs by {difference}, more than {tolerance:.0e}. Non-finite weights or "
            "BatchNorm variances near zero lose precision: try merge(model.double()), or pass tolerance=."
        )


def default_tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative difference that rounding in this precision may cause."""
    return {torch.float64: 1e-8, torch.float32: 1e-3}.get(dtype, 0.1)


def evaluate_block(block: BranchedConv2d, x: Tensor) -> tuple[Tensor, float]:
    """Return the output of a block in evaluation mode, and the largest absolute value in any branch.

    Rounding errors are relative to the latter: branches may cancel, for example to the zeros of a residual that is
    initialized to zero.
    """
    with quiet_evaluation(block):
        sizes = [branch(x).abs().max().item() for _, branch in block.named_branches()]
        return block(x), max(sizes, default=0.0)


def largest_difference(reference: Tensor, other: Tensor, size: float = 0.0) -> Difference:
    """Return the largest difference between two tensors, relative to `size` or the largest value of the first."""
    if reference.shape != other.shape:
        return Difference(float("inf"), float("inf"))
    reference, other = reference.detach().cpu().double(), other.detach().cpu().double()
    absolute = (reference - other).abs().max().item()
    size = max(size, reference.abs().max().item())
    return Difference(absolute, absolute / size if size else absolute)


def probe_for(block: BranchedConv2d) -> Tensor:
    """Return a random input for a block, large enough for a few output pixels and all borders."""
    geometry, like = block.geometry, next(block.parameters())
    left, right, top, bottom = geometry.pads
    (height, width), (down, across) = geometry.kernel_size, geometry.dilation
    rows = max((height - 1) * down + 1 + 3 * geometry.stride[0], top + 1, bottom + 1)
    columns = max((width - 1) * across + 1 + 3 * geometry.stride[1], left + 1, right + 1)
    generator = torch.Generator("cpu").manual_seed(0)
    probe = torch.randn(2, geometry.in_channels, rows, columns, generator=generator, device="cpu")
    return probe.to(device=like.device, dtype=like.dtype)
