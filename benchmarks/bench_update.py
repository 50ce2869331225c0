"""Duration of an update of VGG-16's scalings, compared with one fast_histogram call per channel and displacement.

Claims, for 256 images of 32×32 on 2 cores: measuring the maps is at least 5 times faster with torch alone, and at least
10 times with the extra [fast], than one call for each of the 8 neighbours. The authors' own code makes 4 calls and
mirrors the results; that is measured, too. A live update adds at most a quarter of the time of `update(loader)`, which
runs the network twice. `bench_fidelity.py` compares the results.
Run: python benchmarks/bench_update.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fast_histogram import histogram2d
from keeping import keep
from published import Array, Range, published_dependence
from side_by_side import interleaved_medians
from torch import Tensor

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.models import create_model
from spatialgrad.sgs.dependence import histogram
from spatialgrad.sgs.dependence.mutual_information import MutualInformation
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.live import LiveUpdate
from spatialgrad.sgs.measure import Observer
from spatialgrad.utils.modules import named_convolutions


def capture_maps(model: torch.nn.Module, images: Tensor) -> list[tuple[Tensor, Window]]:
    """Return the input map and the window of every k×k convolution."""
    maps: list[tuple[Tensor, Window]] = []
    convs = [conv for conv in named_convolutions(model).values() if max(conv.kernel_size) > 1]
    handles = [
        conv.register_forward_pre_hook(lambda c, args: maps.append((args[0].clone(), Window.of_convolution(c))))
        for conv in convs
    ]
    with torch.no_grad():
        model.eval()(images)
    for handle in handles:
        handle.remove()
    return maps


def one_call_per_channel_and_displacement(maps: Tensor, window: Window, mirror: bool) -> None:
    """Measure as published, with the authors' histogram; `mirror` as in `published_dependence`."""
    padding = tuple(before for before, _ in window.padding)
    published_dependence(maps.numpy(), window.kernel_size, padding, mirror=mirror, histogram=fast_joint_histogram)


def fast_joint_histogram(p: Array, q: Array, bins: int, ranges: tuple[Range, Range]) -> Array:
    # The upper edge is open: a nudge keeps the largest values inside.
    return histogram2d(p, q, bins, [(low, float(np.nextafter(high, np.float32(np.inf)))) for low, high in ranges])


def ours(maps: Tensor, window: Window) -> Tensor:
    estimator = MutualInformation(maps.shape[1], window, maps.device)
    for _ in range(estimator.num_passes):
        estimator.observe(maps)
        estimator.end_pass()
    return estimator.dependence()


class Stopwatch:
    """Adds up the time of functions, not of those that they call among each other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.seconds = clock, 0.0
        self._running = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its time added."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return function(*args, **kwargs)
            start, self._running = self.clock(), True
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds, self._running = self.seconds + self.clock() - start, False

        return call


def live_update(model: torch.nn.Module, batches: Sequence[Tensor], clock: Callable[[], float]) -> float:
    """Train for as long as an update takes, and return the seconds that it has added: whole steps are too noisy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    labels = torch.zeros(len(batches[0]), dtype=torch.long)
    watch, originals = Stopwatch(clock), (Observer.__call__, LiveUpdate.after_step)
    Observer.__call__ = watch.timed(originals[0])  # type: ignore[method-assign]
    LiveUpdate.after_step = watch.timed(originals[1])  # type: ignore[method-assign]
    schedule = Live(at=(0,), every=100, batches=len(batches))
    try:
        with SpatialGradientScaling(model.train(), optimizer, live=schedule) as sgs:
            for x in (*batches, *batches):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), labels).backward()
                optimizer.step()
            if sgs.num_updates != 1:
                raise RuntimeError("The update did not end.")
    finally:
        Observer.__call__, LiveUpdate.after_step = originals  # type: ignore[method-assign]
    return watch.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures that pages quote")
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread: for machines that are busy")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1 if args.cpu else 2)
    clock = time.process_time if args.cpu else time.perf_counter
    model = create_model("vgg16-slim", num_classes=100, width=args.width)
    images = torch.nn.functional.avg_pool2d(torch.rand(args.images, 3, 36, 36), 5, 1)
    layers = capture_maps(model, images)

    def run_plain() -> None:
        keep, histogram.has_compiled_kernel = histogram.has_compiled_kernel, lambda: False
        try:
            for layer in layers:
                ours(*layer)
        finally:
            histogram.has_compiled_kernel = keep

    def run_compiled() -> None:
        for layer in layers:
            ours(*layer)

    def run_calls(mirror: bool) -> None:
        for layer in layers:
            one_call_per_channel_and_displacement(*layer, mirror=mirror)

    if not histogram.has_compiled_kernel():
        raise SystemExit("Install the extra [fast] first: pip install 'spatialgrad[fast]'")
    batches = list(images.split(128))
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sgs.detach()
    medians = interleaved_medians(
        {
            "8 calls": lambda: run_calls(mirror=False),
            "4 calls": lambda: run_calls(mirror=True),
            "torch": run_plain,
            "[fast]": run_compiled,
            "update": lambda: sgs.update(batches),
            "live": lambda: live_update(model, batches, clock),
        },
        rounds=args.rounds,
        clock=clock,
    )
    print(
        f"VGG-16 (width {args.width:g}), {args.images} images of 32×32, {len(layers)} layers, "
        f"{'CPU time of 1 thread' if args.cpu else '2 threads'}, "
        f"median of {args.rounds} interleaved rounds"
    )
    print("Measuring the maps, without the forward passes that give them:")
    for name in ("8 calls", "4 calls", "torch", "[fast]"):
        seconds = medians[name]
        print(
            f"  {name:<8} {seconds:7.3f} s   {medians['8 calls'] / seconds:5.1f} × as fast as 8 calls a channel, "
            f"{medians['4 calls'] / seconds:5.1f} × as fast as 4"
        )
    if args.keep:
        keep(args.keep, "update", {"seconds": {name: round(seconds, 4) for name, seconds in medians.items()}})
    print("Whole updates, and what the authors' 4 calls alone would add to a training:")
    for name, label in (("update", "update(loader)"), ("live", "live"), ("4 calls", "4 calls")):
        print(f"  {label:<15} {medians[name]:7.3f} s   {medians[name] / medians['update']:5.2f} × update(loader)")


if __name__ == "__main__":
    main()
