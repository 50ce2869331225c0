"""Find the BatchNorm that follows each convolution.

Methods that move the BatchNorm into the block must not guess: the wrong BatchNorm would change the output. The forward
pass is traced symbolically (torch.fx), submodule by submodule where the whole model cannot be traced. With example
inputs, one forward pass is observed instead, which shows every consumer of each convolution's output. Layers for which
neither gives an answer are an error.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from spatialgrad.reparam.block import BranchedConv2d, UnsupportedLayerError
from spatialgrad.utils.modules import quiet_evaluation


def following_batch_norms(
    model: nn.Module, convs: Mapping[str, nn.Conv2d], example_inputs: Any = None
) -> dict[str, _BatchNorm | None]:
    """Return for each convolution the BatchNorm that follows it, or None if there is none.

    Convolutions that the forward pass never calls are missing from the result. A BatchNorm follows a convolution if it
    is torch's own, keeps running statistics, reads nothing but this convolution's output, and is its only consumer.

    Args:
        model: The model.
        convs: Convolutions of the model by qualified name.
        example_inputs: One input, a tuple of positional or a dict of keyword inputs; required only if the model's
            forward pass cannot be traced symbolically.

    Raises:
        UnsupportedLayerError: If tracing gives no answer; the message names the layers and the reason.
    """
    wanted = set(convs.values())
    undecided: dict[nn.Conv2d, str] = {}
    if example_inputs is None:
        flow, undecided = _trace(model, wanted)
    else:
        flow = _observe(model, wanted, example_inputs)
    if unknown := {name: undecided[conv] for name, conv in convs.items() if conv in undecided}:
        names, reason = ", ".join(map(repr, unknown)), next(iter(unknown.values()))
        raise UnsupportedLayerError(
            f"Cannot tell which BatchNorm follows {names}: {reason}. Pass example_inputs= to observe one forward pass, "
            "or leave the layers out with include=."
        )
    return {name: flow.batch_norm_after(conv) for name, conv in convs.items() if conv in flow.readers}


class _Flow:
    """What a forward pass does with the convolutions in question and with BatchNorms; None is anything else."""

    def __init__(self) -> None:
        self.readers: dict[nn.Module, set[_BatchNorm | None]] = {}
        """The BatchNorms that read each convolution's output."""
        self.sources: dict[nn.Module, set[nn.Module | None]] = defaultdict(set)
        """The convolutions whose output each BatchNorm reads."""

    def batch_norm_after(self, conv: nn.Module) -> _BatchNorm | None:
        bn, *others = self.readers[conv] or {None}
        if bn is None or others or self.sources[bn] != {conv}:
            return None
        foldable = type(bn) in (nn.BatchNorm2d, nn.SyncBatchNorm) and bn.running_mean is not None
        return bn if foldable else None


class _Tracer(fx.Tracer):
    """Traces only into modules that contain a convolution in question or a BatchNorm."""

    def __init__(self, wanted: set[nn.Conv2d]) -> None:
        super().__init__()
        self.wanted = wanted

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, BranchedConv2d | _BatchNorm) or super().is_leaf_module(m, module_qualified_name):
            return True
        return not any(part in self.wanted or isinstance(part, _BatchNorm) for part in m.modules())


def _trace(model: nn.Module, wanted: set[nn.Conv2d]) -> tuple[_Flow, dict[nn.Conv2d, str]]:
    """Trace the model, or the largest parts of it that can be traced; also return why layers are undecided."""
    flow = _Flow()
    undecided: dict[nn.Conv2d, str] = {}

    def visit(part: nn.Module, name: str) -> None:
        if wanted.isdisjoint(part.modules()):
            return
        if part in wanted:
            undecided[part] = "it is called by a module that cannot be traced"
            return
        try:
            graph = _symbolic_graph(part, wanted)
        except Exception as error:  # tracing runs the user's forward, which may raise anything
            described = f"the forward pass of {name or 'the model'} cannot be traced ({error})"
            for child_name, child in part.named_children():
                visit(child, f"{name}.{child_name}" if name else child_name)
                if child in wanted:
                    undecided[child] = described
            return
        for node in graph.nodes:
            if node.op != "call_module":
                continue
            module = part.get_submodule(node.target)
            if isinstance(module, _BatchNorm):
                source = node.args[0] if node.args else node.kwargs.get("input")
                flow.sources[module].add(_called(part, source))
            if module in wanted:
                readers = flow.readers.setdefault(module, set())
                for user in node.users:
                    reader = _called(part, user)
                    readers.add(reader if isinstance(reader, _BatchNorm) else None)
                    if user.op == "output" and part is not model:
                        undecided[module] = f"its output leaves {name!r}, whose caller cannot be traced"

    visit(model, "")
    return flow, undecided


def _called(part: nn.Module, node: object) -> nn.Module | None:
    """Return the module that a node calls, if any."""
    is_call = isinstance(node, fx.Node) and node.op == "call_module"
    return part.get_submodule(str(node.target)) if is_call else None  # type: ignore[attr-defined]


def _symbolic_graph(module: nn.Module, wanted: set[nn.Conv2d]) -> fx.Graph:
    # Optional arguments keep their defaults: `if mask is not None` would otherwise silently take the other branch.
    parameters = inspect.signature(module.forward).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    return _Tracer(wanted).trace(module, concrete_args=defaults)


class _Observer(TorchFunctionMode):
    """Reports every tensor that a torch function reads."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):  # not for shapes and the like
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor):
                    self.note(leaf)
        return result


def _observe(model: nn.Module, wanted: set[nn.Conv2d], example_inputs: Any) -> _Flow:
    """Run the model once in evaluation mode and record which module reads which output."""
    flow = _Flow()
    outputs: dict[int, tuple[Tensor, nn.Module]] = {}  # keeps the tensors alive, so that no id is reused
    running: list[_BatchNorm] = []

    def note(tensor: Tensor) -> None:
        if id(tensor) in outputs:
            flow.readers[outputs[id(tensor)][1]].add(running[-1] if running else None)

    def after_conv(module: nn.Module, args: Any, output: Tensor) -> None:
        outputs[id(output)] = output, module
        flow.readers.setdefault(module, set())

    def before_norm(module: _BatchNorm, args: tuple[Tensor, ...]) -> None:
        flow.sources[module].add(outputs[id(args[0])][1] if args and id(args[0]) in outputs else None)
        running.append(module)

    def after_norm(module: nn.Module, args: Any, output: Tensor) -> None:
        running.pop()

    handles = [conv.register_forward_hook(after_conv) for conv in wanted]
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            handles += [module.register_forward_pre_hook(before_norm), module.register_forward_hook(after_norm)]
    try:
        with quiet_evaluation(model), _Observer(note):
            result = forward_with(model, example_inputs)
    finally:
        for handle in handles:
            handle.remove()
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor):
            note(leaf)
    return flow


def forward_with(model: nn.Module, inputs: Any) -> Any:
    """Call a model with one input, a tuple or list of positional inputs, or a dict of keyword inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)
