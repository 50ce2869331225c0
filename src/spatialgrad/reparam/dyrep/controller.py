"""DyRep: start from the plain network, grow branches where the score is highest, cut those with small weights.

Huang et al., "DyRep: Bootstrapping Training with Dynamic Re-parameterization", CVPR 2022.
"""

import logging
import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spatialgrad.reparam.dyrep.config import DyRepConfig
from spatialgrad.reparam.dyrep.growth import (
    ScoreRecord,
    branch_weights,
    branches_to_cut,
    core,
    cut_,
    grow_,
    grown_blocks,
    growth_points,
    rebuild_,
    structure_of,
)
from spatialgrad.reparam.surgery import growable, hand_over_, nearest_batch_norm, parameter_siblings, sort_parameters_
from spatialgrad.utils.distributed import is_distributed
from spatialgrad.utils.loaders import Forward
from spatialgrad.utils.modules import Predicate, unwrap_model
from spatialgrad.utils.optimizers import act_on_gradients, parameter_ids

logger = logging.getLogger(__name__)

_KEPT_SETTINGS = (
    *("device_ids", "output_device", "dim", "process_group"),
    *("find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
)
"""Settings of DistributedDataParallel that it stores under their own names."""


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """Result of one adjustment."""

    grown: str | None
    """Qualified name of the convolution that became a block."""
    cut: Mapping[str, tuple[str, ...]]
    """Names of the removed branches, by the qualified name of their block."""
    scores: Mapping[str, float] = field(repr=False)
    """Mean score of each convolution that could have grown."""

    @property
    def changed(self) -> bool:
        """Whether the parameters of the network changed."""
        return self.grown is not None or bool(self.cut)


class DyRep:
    """Controller that grows and cuts branches of a network during training.

    Scores are recorded at each step of the optimizer. Growing and cutting do not change the network's output in
    evaluation mode. New parameters join the optimizer, removed ones leave it, all others keep their state.

    Args:
        model: The plain model; it may be compiled or wrapped for distributed training.
        optimizer: The optimizer of the model. Its parameters are sorted in the model's order, so that its `state_dict`
            matches after a rebuild.
        config: When and how to change the network.
        include: Predicate ``(name, module) -> bool`` that selects convolutions; by default all.
        exclude: Predicate for convolutions to leave out.
        process_group: The processes that train together; by default the wrapper's, or all.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> dyrep = DyRep(model, optimizer)
        >>> x = torch.rand(4, 3, 16, 16)
        >>> model(x).square().mean().backward()
        >>> optimizer.step()
        >>> dyrep.adjust(x).grown
        '0'
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        config: DyRepConfig | None = None,
        *,
        include: Predicate | None = None,
        exclude: Predicate | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.config = config or DyRepConfig()
        self._include, self._exclude = include, exclude
        self._model, self._optimizer = unwrap_model(model), growable(optimizer)
        self._wrapper: weakref.ref[DistributedDataParallel] | None = None
        self._group = process_group
        wrapper = getattr(model, "_orig_mod", model)  # compiling comes before or after wrapping
        if isinstance(wrapper, DistributedDataParallel):
            self._wrapper = weakref.ref(wrapper)
            self._group = process_group or wrapper.process_group
        self.num_adjustments = 0
        self._record = ScoreRecord(self.config.score)
        if grown_blocks(self._model):
            raise ValueError("The model already has grown blocks. Start from the plain model and call load_state_dict.")
        self._points = self._find_points()
        if not self._points:
            raise ValueError(
                f"{type(self._model).__name__} has no convolution that can grow: a plain torch.nn.Conv2d layer with "
                "both kernel sides larger than 1 that this optimizer trains and that include= and exclude= select."
            )
        self._slots = list(self._points)
        sort_parameters_(self._optimizer, self._model)
        self._handle = self._optimizer.register_step_pre_hook(self._before_step)

    def detach(self) -> None:
        """Stop recording scores; the network does not change."""
        self._handle.remove()

    def due(self, epoch: int) -> bool:
        """Return whether to adjust the network before this epoch (counted from 0)."""
        until = self.config.until
        return epoch > 0 and epoch % self.config.interval == 0 and (until is None or epoch <= until)

    @torch.no_grad()
    def record(self) -> None:
        """Record the scores of the current gradients; the optimizer's step does this automatically."""
        for name, conv in self._points.items():
            if conv.weight.grad is not None:
                self._record.add(name, conv.weight.grad, conv.weight)

    @property
    def scores(self) -> dict[str, float]:
        """Mean scores of the convolutions that can grow since the last adjustment, over all processes."""
        return self._record.means(self._points, self._device, self._group)

    def adjust(self, data: Any, batches: int = 20, *, forward: Forward | None = None) -> Adjustment:
        """Grow the convolution with the highest score, then cut branches with small weights.

        If the network changed, rebuild a DistributedDataParallel wrapper with `rewrap` before the next step.

        Args:
            data: Training data for measuring the statistics of new BatchNorms: a loader, a list of batches, or one
                batch.
            batches: Maximum number of batches to use.
            forward: ``forward(model, batch)``, for models that are not called as ``model(x)`` or ``model(**batch)``.

        Raises:
            RuntimeError: If no score was recorded since the last adjustment.
        """
        scores = self.scores
        if not scores:
            raise RuntimeError(
                "No score was recorded since the last adjustment. Train with the optimizer that was passed to DyRep, "
                "or call record() after backward()."
            )
        before = list(self._model.parameters())
        self._same_buffers()
        finite = {name: score for name, score in scores.items() if math.isfinite(score)}
        grown = max(finite, key=finite.__getitem__) if finite else None
        if grown is not None:
            conv = self._points[grown]
            seed = self.config.seed + self.num_adjustments
            grow_(self._model, conv, seed=seed, data=data, batches=batches, forward=forward, group=self._group)
        cut: dict[str, tuple[str, ...]] = {}
        for name, block in grown_blocks(self._model).items():
            weights = branch_weights(block)
            names = branches_to_cut(weights, spread=self.config.spread, threshold=self.config.threshold)
            if names:
                cut_(self._model, block, names)
                cut[name] = tuple(names)
        self._after_change(before)
        self.num_adjustments += 1
        adjustment = Adjustment(grown=grown, cut=cut, scores=scores)
        logger.info("%s", adjustment)
        return adjustment

    def rewrap(self, model: DistributedDataParallel, **settings: Any) -> DistributedDataParallel:
        """Return a new DistributedDataParallel around the changed network, with the settings of the old one.

        Args:
            model: The old wrapper, which must no longer be used.
            settings: Settings to change, or that a wrapper does not store, such as `bucket_cap_mb`.
        """
        kept = {name: getattr(model, name) for name in _KEPT_SETTINGS}
        if not model.broadcast_buffers:
            # Newer versions of torch renamed the setting.
            name = "forward_sync_buffers" if hasattr(model, "forward_sync_buffers") else "broadcast_buffers"
            kept[name] = False
        wrapper = DistributedDataParallel(model.module, **{**kept, **settings})
        self._wrapper = weakref.ref(wrapper)
        return wrapper

    def state_dict(self) -> dict[str, Any]:
        """Return structure and scores as plain values; the weights are in the model's own `state_dict`."""
        return {
            "structure": {name: structure_of(self._model.get_submodule(name)) for name in self._slots},
            "scores": self._record.state_dict(),
            "num_adjustments": self.num_adjustments,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Rebuild the grown structure on the plain model, and add the new parameters to the optimizer.

        Call it before `load_state_dict` of the model and of the optimizer, and before wrapping the model.

        Raises:
            ValueError: If the state belongs to another network, or this one already has grown blocks.
        """
        if not {"structure", "scores", "num_adjustments"} <= set(state):
            raise ValueError(f"Not a state_dict of DyRep: it contains {', '.join(map(str, state)) or 'nothing'}.")
        if grown_blocks(self._model):
            raise ValueError("The model already has grown blocks: load the state into a DyRep of the plain model.")
        structure = state["structure"]
        if set(structure) != set(self._slots):
            differing = sorted(set(structure) ^ set(self._slots))
            raise ValueError(f"The state_dict belongs to another network or selection: {', '.join(differing)} differ.")
        before = list(self._model.parameters())
        for name in self._slots:
            rebuild_(self._model, name, structure[name])
        self._after_change(before)
        self._record.load_state_dict(state["scores"], self._device)
        self.num_adjustments = int(state["num_adjustments"])

    def __repr__(self) -> str:
        blocks = grown_blocks(self._model)
        return (
            f"DyRep({len(self._slots)} convolutions, {len(blocks)} blocks after {self.num_adjustments} adjustments, "
            f"interval={self.config.interval}, until={self.config.until}, score={self.config.score!r})"
        )

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _find_points(self) -> dict[str, nn.Conv2d]:
        def include(name: str, module: nn.Module) -> bool:
            wanted = self._include is None or self._include(name, core(module))
            return wanted and not (self._exclude is not None and self._exclude(name, core(module)))

        points = growth_points(self._model, include, self.config.max_depth)
        held = parameter_ids(self._optimizer)
        return {name: conv for name, conv in points.items() if id(conv.weight) in held}

    def _same_buffers(self) -> None:
        """Broadcast the buffers: BatchNorm statistics differ between processes, decisions must not."""
        if is_distributed(self._group):
            first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
            for buffer in self._model.buffers():
                dist.broadcast(buffer, src=first, group=self._group)

    def _after_change(self, before: list[nn.Parameter]) -> None:
        siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
        for name in self._slots:
            module = self._model.get_submodule(name)
            nearest = nearest_batch_norm(self._model, module)
            norm = [] if nearest is None else list(nearest.parameters())
            siblings |= parameter_siblings(module, [cast("nn.Parameter", core(module).weight)], norm)
        hand_over_(self._optimizer, self._model, before=before, siblings=siblings)
        self._points = self._find_points()
        self._record.clear()
        wrapper = self._wrapper() if self._wrapper is not None else None
        if wrapper is not None and set(self._model.parameters()) != set(before):
            wrapper.register_forward_pre_hook(_refuse)
            self._wrapper = None

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return act_on_gradients(self.record, args, kwargs)


def _refuse(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Make an outdated wrapper fail in its forward pass, instead of not synchronizing the new parameters."""
    raise RuntimeError(
        "DyRep changed the network inside this DistributedDataParallel, which would not synchronize the new "
        "parameters. Continue with model = dyrep.rewrap(model)."
    )
