"""A siege: trainings that are killed at random moments, and random convolutions; nothing may be lost or go wrong.

Claim: a training that was killed with SIGKILL or stopped with SIGTERM any number of times, whatever it was doing, ends
as one that was not, bit for bit; and every convolution that torch accepts gets a G that is finite, positive and has
mean 1, the same from the compiled and the plain counts. Methods, moments, signals, checkpoint intervals and
convolutions are drawn from a seed.
Run: python benchmarks/siege.py                  (500 kills and 10,000 convolutions; about 40 minutes on 2 cores)
     python benchmarks/siege.py --kills 20 --convolutions 200
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from spatialgrad import NoEffectWarning, SpatialGradientScaling
from spatialgrad.sgs.dependence import histogram

TESTS = Path(__file__).parents[1] / "tests"
TRAININGS = ("baseline", "sgs", "sgs-autocorrelation", "acb", "repvgg", "qarepvgg", "dbb", "dyrep", "lemma", "live")
CONV: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def besiege_trainings(kills: int, draw: random.Random, folder: Path) -> list[str]:
    """Kill trainings until enough kills have hit a running one; returns what went wrong."""
    sys.path.insert(0, str(TESTS))
    from support.training import Process, assert_same_run, exit_code_of_training, quietly, tiny

    def config(method: str, out: Path, steps: int | None) -> Any:
        settings: dict[str, Any] = {"budget": {"checkpoint_steps": steps}}
        if method == "live":
            settings["scaling"] = {"live": True, "every": 1}
        return tiny(out, "sgs" if method == "live" else method, **settings)

    durations: dict[str, float] = {}
    for method in TRAININGS:
        start = time.perf_counter()
        quietly(config(method, folder / f"{method}-whole", None))
        durations[method] = time.perf_counter() - start
    done, problems, number = Counter[signal.Signals](), list[str](), 0
    while done.total() < kills:
        number += 1
        method, steps = draw.choice(TRAININGS), draw.choice((1, 2, 3, None))
        run = config(method, folder / f"run-{number}", steps)
        for _ in range(draw.randint(1, 8)):
            process = Process(run, function=exit_code_of_training)
            time.sleep(draw.uniform(0, 1.3 * durations[method]))
            sent = draw.choice((signal.SIGKILL, signal.SIGTERM))
            if process.running:
                done[sent] += 1
                process.signal(sent)
            process.wait(timeout=600)
        code, *_ = Process(run, function=exit_code_of_training).wait(timeout=600)
        try:
            assert code == 0, f"exit code {code}"
            assert_same_run(run.folder, folder / f"{method}-whole")
        except (AssertionError, OSError, ValueError) as error:
            problems.append(f"{method}, run {number}, checkpoints every {steps} steps: {error}")
        told = ", ".join(f"{count} {sent.name}" for sent, count in sorted(done.items()))
        print(f"\r{told}, {number} runs, {len(problems)} problems", end="", flush=True)
    print()
    return problems


def besiege_convolutions(number: int, draw: random.Random) -> list[str]:
    """Measure random convolutions; returns what went wrong."""
    problems, accepted = list[str](), 0
    while accepted < number:
        conv, size = random_convolution(draw)
        x = random_input(conv, size, draw)
        try:
            with torch.no_grad():
                conv.eval()(x)
        except RuntimeError:  # torch refuses it, so nobody can train it
            continue
        accepted += 1
        what = f"{conv} on {tuple(x.shape)}"
        drop_near = draw.random() < 0.2
        try:
            plain = measure(conv, x, drop_near=drop_near, compiled=False)
            compiled = measure(conv, x, drop_near=drop_near, compiled=True)
        except Exception as error:  # whatever it is, it is what the siege looks for
            problems.append(f"{what}: {type(error).__name__} {error}")
            continue
        if tuple(plain.shape) != tuple(conv.kernel_size):
            problems.append(f"{what}: G has shape {tuple(plain.shape)}")
        if not (plain.isfinite().all() and (plain > 0).all() and abs(float(plain.double().mean()) - 1) < 1e-5):
            problems.append(f"{what}: G is {plain.tolist()}")
        if not torch.equal(plain, compiled):
            problems.append(f"{what}: compiled counts give another G")
        if accepted % 100 == 0:
            print(f"\r{accepted} convolutions, {len(problems)} problems", end="", flush=True)
    print()
    return problems


def random_convolution(draw: random.Random) -> tuple[Any, tuple[int, ...]]:
    """Any convolution of one to three dimensions, and the size of its input."""
    dims = draw.choice((1, 2, 2, 2, 3))
    groups = draw.choice((1, 1, 2, 4))
    channels = 4 * draw.randint(1, 2)
    kernel = tuple(draw.randint(1, 5) for _ in range(dims))
    kernel = kernel if max(kernel) > 1 else (3,) * dims
    settings = {"groups": groups, "bias": draw.random() < 0.5, "stride": draw.randint(1, 2)}
    settings |= {"dilation": draw.randint(1, 3), "padding": draw.randint(0, 3)}
    size = tuple(draw.randint(3, 14 if dims < 3 else 8) for _ in range(dims))
    if draw.random() < 0.1:
        settings |= {"padding": "same", "stride": 1}
    return CONV[dims](channels, channels, kernel, padding_mode=draw.choice(PADDING_MODES), **settings), size


def random_input(conv: Any, size: tuple[int, ...], draw: random.Random) -> Tensor:
    """Noise, smooth, sparse, constant or nearly constant maps."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    x = torch.randn(draw.randint(1, 4), conv.in_channels, *size, generator=generator)
    kind = draw.choice(("noise", "smooth", "sparse", "constant", "tiny", "large"))
    changes = {
        "noise": lambda: x,
        "smooth": lambda: x.cumsum(-1),
        "sparse": lambda: (x - 1).relu(),
        "constant": lambda: torch.full_like(x, 0.7),
        "tiny": lambda: x * 1e-30,
        "large": lambda: x * 1e30,
    }
    return changes[kind]()


def measure(conv: Any, x: Tensor, *, drop_near: bool, compiled: bool) -> Tensor:
    """The G of a convolution."""
    model = nn.Sequential(conv)
    counts = nullcontext() if compiled else patch.object(histogram, "has_compiled_kernel", lambda: False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with counts, SpatialGradientScaling(model, optimizer, drop_near=drop_near) as sgs:
        return sgs.update(x)["0"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--convolutions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # Maps without information are among the random ones, and are reported.
    warnings.simplefilter("ignore", NoEffectWarning)
    warnings.filterwarnings("ignore", "Using padding='same'")
    problems = besiege_convolutions(args.convolutions, random.Random(args.seed))
    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        problems += besiege_trainings(args.kills, random.Random(args.seed), Path(folder))
    print("\n".join(problems) or "nothing went wrong")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
