import hashlib
import subprocess
import sys

import pytest
import torch

from spatialgrad.data import (
    Augmentation,
    ImageDataset,
    MemorySplit,
    eval_batches,
    load_dataset,
    steps_per_epoch,
    train_batches,
)
from support.data_files import write_tree

JITTER = Augmentation(crop_padding=2, flip=True, cutout=8, brightness=0.4, contrast=0.4, saturation=0.4)


def _memory(count=103, size=16):
    """Every image says its own number: as the value of all its pixels, in two channels."""
    number = torch.arange(count)
    images = torch.stack([number % 256, number // 256, number * 0], 1).to(torch.uint8)
    images = images[:, :, None, None].expand(-1, -1, size, size).contiguous()
    split = MemorySplit(images, number % 7)
    return ImageDataset(
        name="numbers",
        description="numbers",
        train=split,
        test=split,
        class_names=tuple("abcdefg"),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        image_size=size,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tree = write_tree(tmp_path_factory.mktemp("tree") / "pets", train=7)
    return load_dataset(f"folder:{tree}", image_size=32)


@pytest.fixture(params=["memory", "folder"])
def dataset(request):
    return _memory() if request.param == "memory" else request.getfixturevalue("folder")


def _augmentation(dataset):
    return JITTER if dataset.name == "numbers" else dataset.augmentation


def _epoch(dataset, batch_size=8, seed=3, epoch=4, **options):
    options = {"augmentation": _augmentation(dataset)} | options
    return list(train_batches(dataset, batch_size, seed=seed, epoch=epoch, **options))


def _same(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) and torch.equal(c, d) for (a, c), (b, d) in zip(one, other, strict=True)
    )


def _numbers(batches):
    return [int(image[0, 0, 0] * 255 + 0.5) for images, _ in batches for image in images]


def test_images_keep_their_labels():
    data = _memory()
    batches = _epoch(data, augmentation=None)
    assert sorted(_numbers(batches)) == list(range(103))
    assert [number % 7 for number in _numbers(batches)] == torch.cat([labels for _, labels in batches]).tolist()


def test_batches_are_float32_and_int64_of_the_right_shape(dataset):
    size = dataset.image_size
    batches = train_batches(dataset, 8, seed=0, epoch=0, augmentation=_augmentation(dataset))
    assert len(batches) == steps_per_epoch(dataset, 8) == len(list(batches))
    images, labels = next(iter(batches))
    assert (images.shape, images.dtype) == ((8, 3, size, size), torch.float32)
    assert (labels.shape, labels.dtype) == ((8,), torch.int64)


def test_the_same_seed_and_epoch_give_the_same_batches(dataset):
    first = _epoch(dataset)
    torch.manual_seed(99)
    assert _same(first, _epoch(dataset))
    assert not _same(first, _epoch(dataset, epoch=5))
    assert not _same(first, _epoch(dataset, seed=4))


def test_batches_can_be_iterated_again(dataset):
    batches = train_batches(dataset, 8, seed=0, epoch=0, augmentation=_augmentation(dataset))
    assert _same(list(batches), list(batches))


@pytest.mark.parametrize("start", [0, 1, 2, -1])
def test_an_epoch_can_be_entered_at_any_batch(dataset, start):
    whole = _epoch(dataset)
    start = start % (len(whole) + 1)
    rest = train_batches(dataset, 8, seed=3, epoch=4, augmentation=_augmentation(dataset), start=start)
    assert len(rest) == len(whole) - start
    assert _same(list(rest), whole[start:])


@pytest.mark.parametrize(("world_size", "drop_last"), [(2, False), (2, True), (4, True)])
def test_ranks_together_see_what_one_process_sees(dataset, world_size, drop_last):
    alone = _epoch(dataset, drop_last=drop_last)
    ranks = [_epoch(dataset, rank=rank, world_size=world_size, drop_last=drop_last) for rank in range(world_size)]
    together = [
        (torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))
        for parts in zip(*ranks, strict=True)
    ]
    assert _same(alone, together)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_ranks_of_an_epoch_are_disjoint_and_complete(world_size):
    ranks = [_epoch(_memory(), augmentation=None, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(number for batches in ranks for number in _numbers(batches)) == list(range(103))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("augmented", [True, False])
def test_the_number_of_workers_changes_nothing(folder, num_workers, augmented):
    options = {} if augmented else {"augmentation": None}
    assert _same(_epoch(folder, **options), _epoch(folder, num_workers=num_workers, **options))
    assert _same(list(eval_batches(folder, 4)), list(eval_batches(folder, 4, num_workers=num_workers)))


def test_no_global_random_state_is_read_or_moved(dataset):
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        results.append(_epoch(dataset))
        list(eval_batches(dataset, 8))
        assert torch.equal(state, torch.get_rng_state())
    assert _same(*results)


def test_another_process_goes_on_with_the_same_batches(folder):
    """As after a restart: a new interpreter, another number of workers, and a start in mid-epoch."""
    code = f"""
import hashlib
from spatialgrad.data import Augmentation, load_dataset, train_batches
for data, augmentation in (
    (load_dataset({folder.name!r}, image_size=32), None),
    (load_dataset("fashion-mnist-mini", image_size=32), Augmentation(crop_padding=4, flip=True, cutout=16)),
):
    rest = train_batches(data, 4, seed=7, epoch=2, augmentation=augmentation or data.augmentation, start=2,
                         num_workers=2, rank=1, world_size=2)
    digest = hashlib.sha256()
    for images, labels in list(rest)[:2]:
        digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
    print(digest.hexdigest())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = []
    for data, augmentation in (
        (folder, folder.augmentation),
        (load_dataset("fashion-mnist-mini", image_size=32), Augmentation(crop_padding=4, flip=True, cutout=16)),
    ):
        whole = train_batches(data, 4, seed=7, epoch=2, augmentation=augmentation, rank=1, world_size=2)
        digest = hashlib.sha256()
        for number, (images, labels) in enumerate(whole):
            if 2 <= number < 4:
                digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
            elif number == 4:
                break
        expected.append(digest.hexdigest())
    assert run.stdout.split() == expected


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_evaluation_sees_every_image_once_in_order_and_unchanged(world_size):
    data = _memory()
    ranks = [list(eval_batches(data, 8, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert [len(batches) for batches in ranks] == [
        len(eval_batches(data, 8, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    assert sorted(number for batches in ranks for number in _numbers(batches)) == list(range(103))
    if world_size == 1:
        assert _numbers(ranks[0]) == list(range(103))
    images, _ = ranks[0][1]
    torch.testing.assert_close(images[:1], data.test.images[8:9] / 255)


def test_more_ranks_than_images_left_give_no_empty_evaluation_batch():
    data = _memory(count=3)
    sizes = [len(labels) for rank in range(4) for _, labels in eval_batches(data, 8, rank=rank, world_size=4)]
    assert sizes == [1, 1, 1]


def test_evaluation_can_be_on_the_training_images(folder):
    labels = torch.cat([labels for _, labels in eval_batches(folder, 4, split="train")])
    assert torch.equal(labels, folder.train.labels)


def test_a_data_set_on_another_device_makes_batches_there():
    device = torch.device("meta")
    split = _memory().train.to(device)
    loaded = split.load([torch.arange(4)], image_size=16, resized_crop=None, device=device, num_workers=0)
    images, labels = next(loaded)
    assert images.device == labels.device == device
    assert images.shape == (4, 3, 16, 16)


def test_moving_a_data_set_changes_no_batch(dataset):
    assert _same(_epoch(dataset), _epoch(dataset.to("cpu")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 14}, "start must be a batch of the epoch, 0 to 13, got 14"),
        ({"start": -1}, "got -1"),
        ({"world_size": 3}, "batch size 8 counts the images of all ranks together"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not one of 0 to 1"),
        ({"batch_size": 200, "drop_last": True}, "drop_last leaves no batch of 200"),
        ({"batch_size": 128, "world_size": 128}, "103 training images, too few for 128 ranks"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        train_batches(_memory(), options.pop("batch_size", 8), seed=0, epoch=0, **options)


def test_resized_crops_of_images_in_memory_are_refused():
    with pytest.raises(ValueError, match="use crop_padding for images in memory"):
        _epoch(_memory(), augmentation=Augmentation(resized_crop=(0.1, 1.0)))
