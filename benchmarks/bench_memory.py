"""Peak memory of an update beyond that of a forward pass, in units of the largest layer's input map.

Claim: at most 1.5, whatever the depth and the number of batches. Each figure is the peak resident memory of a fresh
process over its memory before, with large allocations returned to the system at once.
Run: python benchmarks/bench_memory.py
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from keeping import keep
from torch.utils.data import DataLoader, Dataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model
from spatialgrad.utils.modules import named_convolutions

LIMIT = 1.5
CASES = [("vgg11", 2), ("vgg16-slim", 2), ("vgg16-slim", 20), ("vgg19", 2), ("resnet34", 2)]


class Images(Dataset[torch.Tensor]):
    """Smooth random images, generated on demand: only the current batch is in memory."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(3, 36, 36, generator=torch.Generator().manual_seed(index))
        return torch.nn.functional.avg_pool2d(noise, 5, 1)


def status(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def measure(variant: str, name: str, batches: int, batch_size: int) -> int:
    """Return the peak memory in bytes, minus the memory before."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=100).eval()
    loader = DataLoader(Images(), batch_size)
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sgs.update(next(iter(DataLoader(Images(), 2))))  # load and compile everything first

    def forward() -> None:
        with torch.no_grad():
            for batch, _ in zip(loader, range(batches), strict=False):
                model(batch)

    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    forward() if variant == "forward" else sgs.update(loader, batches=batches)
    return status("VmHWM") - before


def largest_map(name: str, batch_size: int) -> int:
    model, sizes = create_model(name, num_classes=100).to("meta"), []
    convs = [conv for conv in named_convolutions(model).values() if max(conv.kernel_size) > 1]
    for conv in convs:
        conv.register_forward_pre_hook(lambda conv, args: sizes.append(args[0].numel() * 4))
    model(torch.empty(batch_size, 3, 32, 32, device="meta"))
    return max(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--child", nargs=3, metavar=("VARIANT", "MODEL", "BATCHES"), help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures that pages quote")
    args = parser.parse_args()
    if args.child:
        print(measure(args.child[0], args.child[1], int(args.child[2]), args.batch_size))
        return
    # Otherwise glibc keeps freed blocks, and their reuse does not show in the resident memory.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    print(f"batch {args.batch_size}, 32×32 images, float32")
    worst = 0.0
    for name, batches in CASES:
        unit = largest_map(name, args.batch_size)
        peaks = {}
        for variant in ("forward", "update"):
            command = [sys.executable, __file__, "--batch-size", str(args.batch_size)]
            child = subprocess.run(
                [*command, "--child", variant, name, str(batches)],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
            peaks[variant] = int(child.stdout)
        ratio = (peaks["update"] - peaks["forward"]) / unit
        worst = max(worst, ratio)
        print(
            f"  {name:<12} {batches:>2} batches: largest map {unit / 2**20:5.1f} MiB, forward "
            f"{peaks['forward'] / 2**20:6.1f} MiB, update {peaks['update'] / 2**20:6.1f} MiB, extra {ratio:5.2f} maps"
        )
    if args.keep:
        keep(args.keep, "memory", {"largest_extra_maps": worst})
    print(f"largest extra: {worst:.2f} × the largest input map (limit {LIMIT})")


if __name__ == "__main__":
    main()
