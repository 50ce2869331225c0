"""Functional convolutions: parameters with which a model convolves by itself, without a convolution module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from spatialgrad.torch_utils.modules import Convolution, plain_name

FUNCTIONAL = "the model convolves with this parameter by itself; use a convolution module"
_FUNCTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}


def unowned_kernels(model: nn.Module) -> dict[int, str]:
    """Return the qualified names of parameters with the shape of a kernel that belong to no convolution module.

    Args:
        model: The user's own module.

    Returns:
        The names by the identity of the parameter. 1×1 kernels are left out.
    """
    layers = (Convolution, nn.modules.conv._ConvTransposeNd)
    inside = {id(p) for module in model.modules() if isinstance(module, layers) for p in module.parameters()}
    others = [(name, p) for name, p in model.named_parameters() if id(p) not in inside and not is_lazy(p)]
    return {id(p): plain_name(name) for name, p in others if p.dim() > 2 and max(p.shape[2:]) > 1}


class FunctionalConvolutions(TorchFunctionMode):
    """Collects parameters with which a model calls ``F.conv2d`` and its kin itself, as they are or transformed.

    Args:
        model: The user's own module.

    Attributes:
        found: The qualified names of these parameters; 1×1 kernels are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = unowned_kernels(model)
        self._modules = {id(module): module for module in model.modules()}
        self.found: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the weight of a convolution, and call the function as usual."""
        kwargs = kwargs or {}
        if func in _FUNCTIONS and self._names:
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            if id(weight) in self._names:
                self.found.add(self._names[id(weight)])
            elif isinstance(weight, Tensor) and not isinstance(weight, nn.Parameter):
                self.found.update(self._sources(weight.shape[2:]))
        return func(*args, **kwargs)

    def _sources(self, kernel_size: torch.Size) -> list[str]:
        """Return the parameters from which the calling module may have calculated a kernel, such as w · scale."""
        frame = sys._getframe()
        while frame is not None:
            caller = frame.f_locals.get("self")
            if id(caller) in self._modules:
                own = self._modules[id(caller)]._parameters.values()
                fitting = [p for p in own if p is not None and p.shape[-len(kernel_size) :] == kernel_size]
                return [self._names[id(p)] for p in fitting if id(p) in self._names]
            frame = frame.f_back  # type: ignore[assignment]
        return []


class FunctionalConvolutionsHook:
    """A forward hook that looks for the same in the graph of one training pass, and then does nothing.

    Nothing is active while the model runs, so that an interrupted pass leaves nothing behind. Copies of the model get
    a hook that does nothing.

    Args:
        model: The user's own module, on which the hook is registered; None in copies.
        report: Gets the qualified names of the parameters.
    """

    def __init__(self, model: nn.Module | None = None, report: Callable[[set[str]], None] | None = None) -> None:
        self._names = {} if model is None else unowned_kernels(model)
        self._report = report

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Look through the graph of an output."""
        nodes = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        if self._report is not None and self._names and module.training and nodes:
            report, self._report = self._report, None
            report(self._kernels_in(nodes))

    def __reduce__(self) -> tuple[type[FunctionalConvolutionsHook], tuple[()]]:
        return FunctionalConvolutionsHook, ()

    def _kernels_in(self, roots: list[Any]) -> set[str]:
        found: set[str] = set()
        for node in _ancestors(roots):
            if node.name() == "ConvolutionBackward0":
                # Not its saved weight, which activation checkpointing would calculate again to hand it out.
                num_dims = len(node._saved_stride)
                sources = _ancestors([node.next_functions[1][0]])
                leaves: list[Tensor] = [leaf.variable for leaf in sources if hasattr(leaf, "variable")]
                kernels = [leaf for leaf in leaves if id(leaf) in self._names and leaf.dim() >= 2 + num_dims]
                found.update(self._names[id(kernel)] for kernel in kernels)
        return found


def _ancestors(nodes: list[Any]) -> list[Any]:
    """Return nodes of an autograd graph and all that they depend on."""
    found: dict[Any, None] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(found)
