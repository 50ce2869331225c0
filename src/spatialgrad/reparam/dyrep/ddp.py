"""DistributedDataParallel around a network whose parameters change."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["refuse_forward_", "rewrapped"]


def rewrapped(wrapper: DistributedDataParallel, **settings: Any) -> DistributedDataParallel:
    """Return a new wrapper around the same network, with the settings of the old one except those given."""
    kept = {
        "device_ids": wrapper.device_ids,
        "output_device": wrapper.output_device,
        "dim": wrapper.dim,
        "process_group": wrapper.process_group,
        "find_unused_parameters": wrapper.find_unused_parameters,
        "gradient_as_bucket_view": wrapper.gradient_as_bucket_view,
        "static_graph": wrapper.static_graph,
    }
    if not wrapper.broadcast_buffers:
        # Newer versions of torch renamed the setting.
        name = "forward_sync_buffers" if hasattr(wrapper, "forward_sync_buffers") else "broadcast_buffers"
        kept[name] = False
    return DistributedDataParallel(wrapper.module, **{**kept, **settings})


def refuse_forward_(wrapper: DistributedDataParallel) -> None:
    """Make an outdated wrapper fail in its forward pass, instead of not synchronizing the new parameters."""
    wrapper.register_forward_pre_hook(_refuse)


def _refuse(module: nn.Module, args: tuple[Any, ...]) -> None:
    raise RuntimeError(
        "DyRep changed the network inside this DistributedDataParallel, which would not synchronize the new "
        "parameters. Continue with model = dyrep.rewrap(model)."
    )
