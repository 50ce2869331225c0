"""Processes, devices, precision and memory layout through Lightning Fabric, and how the processes agree on things."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins import DoublePrecision
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.wrappers import _FabricModule
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from spatialgrad.train.config import MachineConfig
from spatialgrad.train.errors import ConfigError, TrainError
from spatialgrad.train.memory import NARROW, keeping_freed_memory, unsafe_in_channels_last, unsafe_with_branches
from spatialgrad.utils.distributed import highest
from spatialgrad.utils.modules import for_one_process

T = TypeVar("T")
GLOO = "gloo/transport/"


class Runtime:
    """The processes of a training and their devices; starts the processes unless they are running.

    Args:
        config: Devices, strategy and precision.
    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.fabric = make_fabric(config)
        self.fabric.launch()
        self.rank, self.world_size = self.fabric.global_rank, self.fabric.world_size
        self.device: torch.device = self.fabric.device
        self.is_first: bool = self.fabric.is_global_zero
        self.precision = self.fabric.strategy.precision
        self._channels_last = False

    @property
    def shards(self) -> bool:
        """Whether every process holds only a shard of the network."""
        return isinstance(self.fabric.strategy, ModelParallelStrategy)

    @property
    def memory_format(self) -> str:
        """How kernels are laid out in memory."""
        return "channels_last" if self._channels_last else "contiguous"

    def choose_layout(self, plain: nn.Module) -> None:
        """Decide on the memory layout of the training.

        Args:
            plain: The network before a method has changed it, so that all methods are compared in the same layout.

        Raises:
            ConfigError: If the config demands a layout that the network cannot be trained in.
        """
        wanted, on_cpu = self.config.channels_last, self.device.type == "cpu"
        if self.shards or wanted is False:
            return  # torch does not shard kernels in this layout
        if wanted is True:
            unsafe = unsafe_in_channels_last(plain) if on_cpu else None
            if unsafe is not None:
                raise ConfigError(
                    f"--machine.channels-last: on CPUs, PyTorch corrupts memory in the gradient of {unsafe} in this "
                    f"format (a strided 1×1 kernel over fewer than {NARROW} channels); use "
                    "--machine.channels-last auto"
                )
            self._channels_last = True
        elif on_cpu:
            self._channels_last = not unsafe_with_branches(plain)
        else:
            reduced = self.config.precision not in ("32-true", "64-true")
            self._channels_last = self.device.type == "cuda" and reduced

    def place_(self, model: nn.Module) -> None:
        """Move a network to this process's device, in the precision and memory layout of the training."""
        self.precision.convert_module(model)
        model.to(self.device)
        if not self.shards:
            if self.device.type == "cpu" and unsafe_in_channels_last(model) is not None:
                self._channels_last = False  # branches that grew out of a wide kernel
            layout = torch.channels_last if self._channels_last else torch.contiguous_format
            model.to(memory_format=layout)  # type: ignore[call-overload]

    def to_layout(self, batch: Any) -> Any:
        """A training batch whose images do not bring a network into the channels-last format that must not be in it."""
        if self._channels_last or self.device.type != "cpu":
            return batch
        return tree_map_only(torch.Tensor, torch.Tensor.contiguous, batch)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The network to call in training: compiled if requested, in precision, synchronized with all processes."""
        self.place_(model)
        if self.config.compile:
            # Not dynamic: what is compiled must not depend on which batch size came first.
            return self.fabric.setup_module(cast("nn.Module", torch.compile(model, dynamic=False)))
        return self.fabric.setup_module(model)

    def for_evaluation(self, wrapped: nn.Module) -> nn.Module:
        """The network to call when processes may have different numbers of batches."""
        return wrapped if self.world_size == 1 else for_one_process(wrapped)

    def in_precision(self, model: nn.Module) -> nn.Module:
        """A network for this process alone, called in the precision of the training."""
        return _FabricModule(model, self.fabric.strategy)

    def gather(self, value: T) -> list[T]:
        """Every process's value, in all processes."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def share_buffers_(self, model: nn.Module) -> None:
        """Copy the first process's BatchNorm statistics, which are the saved ones, to all processes."""
        if self.world_size == 1:
            return
        buffers: dict[torch.dtype, list[torch.Tensor]] = {}
        for buffer in model.buffers():
            buffers.setdefault(buffer.dtype, []).append(buffer)
        for several in buffers.values():
            flat = torch.cat([buffer.flatten() for buffer in several])
            dist.broadcast(flat, src=0)
            parts = torch.split(flat, [buffer.numel() for buffer in several])
            for buffer, part in zip(several, parts, strict=True):
                buffer.copy_(part.view_as(buffer))

    def seed(self, number: int) -> None:
        """Seed the random generators of the CPU and of this process's device."""
        # Not torch.manual_seed: it also prepares CUDA, which takes a millisecond where CUDA is not in use.
        torch.default_generator.manual_seed(number)
        if self.device.type != "cpu":
            getattr(torch, self.device.type).manual_seed(number)

    def agree(self, code: int) -> int:
        """The largest of every process's codes."""
        return highest(code)

    def on_first(self, function: Callable[[], T]) -> T:
        """Call a function in the first process only; all processes return or raise its outcome."""
        outcome: tuple[Any, Exception | None] = (None, None)
        if self.is_first:
            try:
                outcome = (function(), None)
            except Exception as error:
                if self.world_size == 1:
                    raise
                outcome = (None, error)
        value, failure = self.fabric.broadcast(outcome)
        if failure is not None:
            raise failure
        return cast("T", value)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Keep freed memory on a CPU, and turn a failed exchange with another process into an error that says so.

        Raises:
            TrainError: If another process has ended, which says why itself.
        """
        try:
            with keeping_freed_memory() if self.device.type == "cpu" else nullcontext():
                yield
        except RuntimeError as error:
            # gloo's errors have no class of their own, but name the file of gloo that they come from.
            if isinstance(error, TrainError) or not (isinstance(error, dist.DistError) or GLOO in str(error)):
                raise
            raise TrainError(
                "another process of this training has ended, or cannot be reached. Run the same command again to "
                "resume from the last checkpoint."
            ) from error

    def model_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """The states of network and optimizer, whole in the first process."""
        if not self.shards:
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
        return {"model": model_state, "optimizer": optimizer_state}

    def load_model_state_(self, model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Load whole states of network and optimizer."""
        if not self.shards:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
        )


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def make_fabric(config: MachineConfig) -> Fabric:
    """Lightning's Fabric, which has not started any process yet.

    Raises:
        ConfigError: If this machine does not have what the config asks for.
    """
    devices: int | str = config.devices
    nodes = config.nodes
    if dist.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    elif isinstance(devices, int):
        _check_devices(devices, config.accelerator)
    strategy: Any = config.strategy
    if strategy == "fsdp":
        if config.channels_last is True:
            raise ConfigError(
                "--machine.channels-last: torch cannot shard channels-last kernels; use --machine.strategy ddp"
            )
        if devices == "auto":
            devices = torch.cuda.device_count() if config.accelerator in ("auto", "cuda") else 1
        if not isinstance(devices, int) or devices * nodes < 2:
            raise ConfigError("--machine.strategy fsdp needs several devices: set --machine.devices")
        # FSDP2, not FSDP, which flattens kernels, so that their gradients cannot be scaled.
        strategy = ModelParallelStrategy(_shard_, data_parallel_size=devices * nodes, tensor_parallel_size=1)
    double = config.precision == "64-true"
    plugins: list[Any] = [_Double()] if double else []
    if devices == 1 and nodes == 1:
        plugins.append(_OneProcess())
    try:
        return Fabric(
            accelerator=config.accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            precision=None if double else config.precision,
            plugins=plugins,
        )
    except (RuntimeError, ValueError, MisconfigurationException) as error:
        raise ConfigError(f"--machine: {error}") from error


def _check_devices(devices: int, accelerator: str) -> None:
    """Raise if there are not so many devices: on CPUs, Fabric would start any number of processes."""
    cuda, mps = torch.cuda.device_count(), int(torch.backends.mps.is_available())
    if accelerator == "auto":
        accelerator = "cuda" if cuda else "mps" if mps else "cpu"
    # Not the cores of this process alone: under Slurm, each of a node's processes may be bound to its own.
    there = {"cuda": cuda, "mps": mps, "cpu": os.cpu_count() or 1}[accelerator]
    if devices > there:
        what = "CPU cores" if accelerator == "cpu" else f"{accelerator} devices"
        way_out = f"use at most {there}" if there else "use --machine.accelerator cpu"
        raise ConfigError(f"--machine.devices {devices}: this machine has {there} {what}; {way_out}")


class _OneProcess(LightningEnvironment):
    """One process, whatever a cluster's variables (SLURM_NTASKS, RANK, WORLD_SIZE) say about the job it runs in."""

    @property
    def creates_processes_externally(self) -> bool:
        return False

    def node_rank(self) -> int:
        return 0

    def local_rank(self) -> int:
        return 0


class _Double(DoublePrecision):
    """Double precision for outputs as well: Fabric's own rounds them, and so the loss, to single precision."""

    def convert_output(self, data: Any) -> Any:
        return data


def _shard_(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a network part by part, so that only one part at a time is gathered."""
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    parts = [part for child in model.children() for part in _callable_parts(child)]
    for part in parts:
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=data_parallel)
    fully_shard(model, mesh=data_parallel)
    return model


def _callable_parts(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [part for child in module.children() for part in _callable_parts(child)]
    return [module]
