"""Batches of every kind of data set: the same for any number of workers and ranks, and after any restart."""

import hashlib
import inspect
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
    load_for,
    steps_per_epoch,
    train_batches,
)
from spatialgrad.data.augment import augment, draw, normalize
from spatialgrad.data.batches import batch_bounds, epoch_order
from spatialgrad.data.files.images import SquareCrop, crop_square, decode
from spatialgrad.data.pose import PersonMaker, PoseAugmentation
from spatialgrad.data.rng import generator_for
from spatialgrad.data.warp import Geometry, crop_matrix, draw_move, warp_image, warp_mask
from support.data_files import write_tree
from support.dense_files import write_camvid, write_cityscapes
from support.pose_files import write_lspet

KINDS = ["memory", "folder", "camvid", "cityscapes", "lspet"]
AUGMENTATIONS = {
    "memory": Augmentation(crop_padding=2, flip=True, cutout=8, brightness=0.4, contrast=0.4, saturation=0.4),
    "folder": Augmentation(resized_crop=(0.08, 1.0), flip=True, brightness=0.4, contrast=0.4, saturation=0.4),
    "camvid": Geometry(scale=(0.5, 2.0), rotation=10, flip=True),
    "cityscapes": Geometry(scale=(0.5, 2.0), rotation=10, flip=True),
    "lspet": PoseAugmentation(),
}


def _memory(count=103, size=16):
    """Every image tells its own number: as the value of all its pixels, in two channels."""
    number = torch.arange(count)
    images = torch.stack([number % 256, number // 256, number * 0], 1).to(torch.uint8)
    images = images[:, :, None, None].expand(-1, -1, size, size).contiguous()
    split = MemorySplit(images, number % 7)
    return ImageDataset(
        name="memory",
        description="numbers",
        train=split,
        test=split,
        class_names=tuple("abcdefg"),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        image_size=size,
    )


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_tree(root / "pets", train=7)
    write_camvid(root / "CamVid", train=21)
    write_cityscapes(root / "cityscapes", train=21)
    write_lspet(root / "lspet", 26)
    return {
        "memory": _memory(),
        "folder": load_dataset(f"folder:{root / 'pets'}", image_size=32),
        "camvid": load_for("segmentation", "camvid", root).with_crop_size((24, 32)),
        "cityscapes": load_for("segmentation", "cityscapes", root).with_crop_size((24, 32)),
        "lspet": load_for("pose", "lspet", root),
    }


@pytest.fixture
def folder(datasets):
    return datasets["folder"]


@pytest.fixture(params=KINDS)
def dataset(request, datasets):
    return datasets[request.param]


def _augmentation(dataset):
    return AUGMENTATIONS[dataset.name.partition(":")[0]]


def _epoch(dataset, batch_size=8, seed=3, epoch=4, **options):
    options = {"augmentation": _augmentation(dataset)} | options
    return list(train_batches(dataset, batch_size, seed=seed, epoch=epoch, **options))


def _same(one, other):
    return len(one) == len(other) and all(
        len(a) == len(b) and all(map(torch.equal, a, b)) for a, b in zip(one, other, strict=True)
    )


def _numbers(batches):
    return [int(image[0, 0, 0] * 255 + 0.5) for images, *_ in batches for image in images]


def _made_by_hand(dataset, indices, draws, *, seed, epoch):
    """A training batch, from the functions that make one image or augment one batch."""
    split, config = dataset.train, _augmentation(dataset)

    def stack(make):
        return [torch.stack(tensors) for tensors in zip(*map(make, indices.tolist()), strict=True)]

    def normalized(images, *targets):
        return normalize(images, dataset.mean, dataset.std), *targets

    def crop(index):
        image = decode(split.files.read(index), split.files.name(index))
        how = SquareCrop(size=dataset.image_size, area=config.resized_crop, seed=seed, epoch=epoch)
        return (crop_square(image, how, index),)

    def warp(index):
        image, mask = split.read(index)
        matrix = crop_matrix(draw_move(config, seed=seed, epoch=epoch, index=index), mask.shape, dataset.crop_size)
        fill = tuple(255 * value for value in dataset.mean)
        return warp_image(image, matrix, (24, 32), fill), warp_mask(mask, matrix, (24, 32), 255).long()

    if isinstance(config, Geometry):
        return normalized(*stack(warp))
    if isinstance(config, PoseAugmentation):
        options = {"skeleton": dataset.skeleton, "size": dataset.image_size, "augmentation": config}
        return normalized(*stack(PersonMaker(people=split, seed=seed, epoch=epoch, **options)))
    images = split.images[indices] if dataset.name == "memory" else stack(crop)[0]
    return augment(images, config, draws, mean=dataset.mean, std=dataset.std), split.labels[indices]


def test_batches_are_what_the_functions_beneath_them_make(dataset):
    """So that no change of the way from a file to a batch can give a resumed run other batches."""
    order, expected = epoch_order(len(dataset.train), seed=3, epoch=4), []
    for number, (first, last) in enumerate(batch_bounds(len(dataset.train), 8)):
        draws = draw(last - first, generator_for("augment", 3, 4, number))
        expected.append(_made_by_hand(dataset, order[first:last], draws, seed=3, epoch=4))
    assert _same(_epoch(dataset), expected)


def test_images_keep_their_labels():
    batches = _epoch(_memory(), augmentation=None)
    assert sorted(_numbers(batches)) == list(range(103))
    assert [number % 7 for number in _numbers(batches)] == torch.cat([labels for _, labels in batches]).tolist()


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_batches_are_float32_and_int64_of_the_right_shape(kind, datasets):
    dataset = datasets[kind]
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
    together = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True)]
    assert _same(alone, together)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_ranks_of_an_epoch_are_disjoint_and_complete(world_size):
    ranks = [_epoch(_memory(), augmentation=None, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    assert sorted(number for batches in ranks for number in _numbers(batches)) == list(range(103))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("kind", ["folder", "cityscapes", "lspet"])
def test_the_number_of_workers_changes_nothing(kind, datasets):
    dataset = datasets[kind]
    for options in ({}, {"augmentation": None}):
        assert _same(_epoch(dataset, **options), _epoch(dataset, num_workers=3, **options))
    assert _same(list(eval_batches(dataset, 4)), list(eval_batches(dataset, 4, num_workers=1)))


def test_no_global_random_state_is_read_or_moved(dataset):
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        results.append(_epoch(dataset))
        list(eval_batches(dataset, 8))
        assert torch.equal(state, torch.get_rng_state())
    assert _same(*results)


def _digest_of_the_middle(folder, **options):
    """Of two batches from the middle of an epoch, of class folders."""
    dataset = load_dataset(f"folder:{folder}", image_size=32)
    start, augmentation = options.pop("start", 0), Augmentation(resized_crop=(0.08, 1.0), flip=True, cutout=8)
    batches = train_batches(
        dataset, 4, seed=7, epoch=2, augmentation=augmentation, rank=1, world_size=2, start=start, **options
    )
    digest = hashlib.sha256()
    for images, labels in list(batches)[2 - start : 4 - start]:
        digest.update(images.numpy().tobytes() + labels.numpy().tobytes())
    return digest.hexdigest()


def test_another_process_resumes_with_the_same_batches(folder):
    """As after a restart: a new interpreter, another number of workers, and a start in mid-epoch."""
    tree = str(folder.train.files.root)
    code = f"""
import hashlib
from spatialgrad.data import Augmentation, load_dataset, train_batches
{inspect.getsource(_digest_of_the_middle)}
print(_digest_of_the_middle({tree!r}, start=2, num_workers=2))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == _digest_of_the_middle(tree)


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
    images, labels = next(split.load([torch.arange(4)], SquareCrop(size=16), device=device, num_workers=0))
    assert images.device == labels.device == device
    assert images.shape == (4, 3, 16, 16)


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_moving_a_data_set_changes_no_batch(kind, datasets):
    assert _same(_epoch(datasets[kind]), _epoch(datasets[kind].to("cpu")))


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
