"""The time of a CIFAR batch relative to the training step it is for, ours and with kornia's augmentation.

Prints medians and the ratio (batch / step), which must stay below 5 % for our batches: 128 images of 32×32 out of
50,000 in memory, crop with padding 4, flip and cutout 16, and a VGG-11 step (forward, backward, SGD).
The variants are measured alternately, so that changes in the machine's speed affect all of them alike.
`python benchmarks/bench_data.py --check` fails if the ratio is 5 % or more.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import kornia.augmentation as K
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


def kornia_batches(data: ImageDataset, cropping_mode: str) -> Callable[[], tuple[Tensor, Tensor]]:
    """The closest that kornia has: its erasing takes a square of the same area, which stays inside the image."""
    pipeline = nn.Sequential(
        K.RandomCrop((32, 32), padding=4, cropping_mode=cropping_mode),
        K.RandomHorizontalFlip(),
        K.Normalize(torch.tensor(data.mean), torch.tensor(data.std)),
        K.RandomErasing(p=1.0, scale=(0.25, 0.25), ratio=(1.0, 1.0)),
    )
    order = itertools.chain.from_iterable(torch.randperm(50_000).split(BATCH_SIZE)[:-1] for _ in itertools.count())

    def batch() -> tuple[Tensor, Tensor]:
        rows = next(order)
        return pipeline(data.train.images[rows].float() / 255), data.train.labels[rows]

    return batch


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
    data, step = cifar_like(), training_step()
    variants = {
        "ours": our_batches(data),
        "kornia, slice": kornia_batches(data, "slice"),
        "kornia, resample": kornia_batches(data, "resample"),
    }
    times: dict[str, list[float]] = {name: [] for name in [*variants, "step"]}

    def measure(name: str, run: Callable[[], object]) -> object:
        started = time.perf_counter()
        result = run()
        times[name].append(time.perf_counter() - started)
        return result

    for _ in range(options.rounds + 2):
        batches = {name: measure(name, batch) for name, batch in variants.items()}
        images, labels = batches["ours"]
        measure("step", lambda: step(images, labels))  # noqa: B023 (called immediately)

    medians = {name: statistics.median(values[2:]) for name, values in times.items()}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {options.rounds} rounds")
    print(f"{'VGG-11 training step':<24}{medians['step'] * 1e3:9.2f} ms")
    for name in variants:
        ratio = medians[name] / medians["step"]
        print(f"{f'batch, {name}':<24}{medians[name] * 1e3:9.2f} ms {ratio:8.2%} of the step")
    if options.check and medians["ours"] / medians["step"] >= LIMIT:
        sys.exit(f"a batch takes {LIMIT:.0%} of the step or more")


if __name__ == "__main__":
    main()
