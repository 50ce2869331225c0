"""The time of a CIFAR batch relative to the training step it is for.

Prints medians and the ratio (batch / step), which must stay below 5 %: 128 images of 32×32 out of
50,000 in memory, crop with padding 4, flip and cutout 16, and a VGG-11 step (forward, backward, SGD).
Both are measured alternately, so that changes in the machine's speed affect them alike.
`python benchmarks/bench_data.py --check` fails if the ratio is 5 % or more.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spatialgrad.data import Augmentation, ImageDataset, MemorySplit, train_batches
from spatialgrad.models import create_model

BATCH_SIZE = 128
LIMIT = 0.05
AUGMENTATION = Augmentation(crop_padding=4, flip=True, cutout=16)


def cifar_like() -> ImageDataset:
    """Noise in the size of CIFAR: the content of images does not affect the time."""
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    split = MemorySplit(images, torch.randint(0, 100, (50_000,)))
    return ImageDataset(
        name="noise",
        description="noise",
        train=split,
        test=split,
        class_names=tuple(map(str, range(100))),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        image_size=32,
    )


def our_batches(data: ImageDataset) -> Callable[[], tuple[Tensor, Tensor]]:
    endless = itertools.chain.from_iterable(
        train_batches(data, BATCH_SIZE, seed=0, epoch=epoch, augmentation=AUGMENTATION) for epoch in itertools.count()
    )
    return lambda: next(endless)


def training_step() -> Callable[[Tensor, Tensor], None]:
    model = create_model("vgg11", num_classes=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

    def step(images: Tensor, labels: Tensor) -> None:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--check", action="store_true", help=f"fail if our ratio is {LIMIT:.0%} or more")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    batch, step = our_batches(cifar_like()), training_step()
    times: dict[str, list[float]] = {"batch": [], "step": []}

    def measure(name: str, run: Callable[[], tuple[Tensor, Tensor] | None]) -> tuple[Tensor, Tensor] | None:
        started = time.perf_counter()
        result = run()
        times[name].append(time.perf_counter() - started)
        return result

    for _ in range(options.rounds + 2):
        images, labels = measure("batch", batch)
        measure("step", lambda: step(images, labels))  # noqa: B023 (called immediately)

    medians = {name: statistics.median(values[2:]) for name, values in times.items()}
    ratio = medians["batch"] / medians["step"]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {options.rounds} rounds")
    print(f"{'VGG-11 training step':<24}{medians['step'] * 1e3:9.2f} ms")
    print(f"{'batch':<24}{medians['batch'] * 1e3:9.2f} ms {ratio:8.2%} of the step")
    if options.check and ratio >= LIMIT:
        sys.exit(f"a batch takes {LIMIT:.0%} of the step or more")


if __name__ == "__main__":
    main()
