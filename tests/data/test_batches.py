"""Batches of every kind of data set: the same for any number of workers and ranks, and after any restart."""

import hashlib
import inspect
import itertools
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.data import (
    Augmentation,
    ImageDataset,
    Loader,
    MemorySplit,
    eval_batches,
    load_dataset,
    load_for,
    steps_per_epoch,
    train_batches,
)
from spatialgrad.data.batches import Pass, batch_bounds, count_workers, epoch_order, rank_bounds
from spatialgrad.data.pose import PoseAugmentation
from spatialgrad.data.rng import generator_for
from spatialgrad.data.warp import Geometry
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


def test_images_keep_their_labels():
    batches = _epoch(_memory(), augmentation=None)
    assert sorted(_numbers(batches)) == list(range(103))
    assert [number % 7 for number in _numbers(batches)] == torch.cat([labels for _, labels in batches]).tolist()


def test_the_same_seed_and_epoch_give_the_same_batches(dataset):
    batches = train_batches(dataset, 8, seed=3, epoch=4, augmentation=_augmentation(dataset))
    first = list(batches)
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        assert _same(first, list(batches))
        list(eval_batches(dataset, 8))
        assert torch.equal(state, torch.get_rng_state()), "the global random state is neither read nor changed"
    assert not _same(first, _epoch(dataset, epoch=5))
    assert not _same(first, _epoch(dataset, seed=4))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_image_is_augmented_anew_for_every_seed_epoch_and_index(kind, datasets):
    def read(seed, epoch):
        run = Pass(split="train", training=True, augmentation=_augmentation(datasets[kind]), seed=seed, epoch=epoch)
        return datasets[kind].read(run, torch.tensor([5, 5, 6]))[0]

    first, again, other = read(1, 2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for seed, epoch in ((2, 2), (1, 3)):
        assert not torch.equal(first, read(seed, epoch)[0])


def test_an_epoch_can_be_entered_at_any_batch(dataset):
    whole = _epoch(dataset)
    assert steps_per_epoch(dataset, 8) == len(whole)
    for start in (1, len(whole)):
        rest = train_batches(dataset, 8, seed=3, epoch=4, augmentation=_augmentation(dataset), start=start)
        assert len(rest) == len(whole) - start
        assert _same(list(rest), whole[start:])


def test_ranks_together_see_what_one_process_sees(dataset):
    for world_size, drop_last in ((2, False), (4, True)):
        alone = _epoch(dataset, drop_last=drop_last)
        ranks = [_epoch(dataset, rank=rank, world_size=world_size, drop_last=drop_last) for rank in range(world_size)]
        together = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True)]
        assert _same(alone, together)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("kind", ["folder", "camvid", "cityscapes", "lspet"])
def test_the_number_of_workers_changes_nothing(kind, datasets):
    dataset = datasets[kind]
    loader, augmentation, state = Loader(dataset, workers=3), _augmentation(dataset), torch.get_rng_state()
    for epoch, start in ((4, 0), (5, 1), (4, 0)):
        found = loader.train_batches(8, seed=3, epoch=epoch, augmentation=augmentation, start=start)
        assert _same(list(found), _epoch(dataset, epoch=epoch)[start:])
        assert _same(list(loader.eval_batches(4)), list(eval_batches(dataset, 4)))
    assert _same(list(loader.train_batches(8, seed=3, epoch=4)), _epoch(dataset, augmentation=None))
    assert torch.equal(state, torch.get_rng_state())


def test_workers_start_once_and_serve_all_epochs(folder):
    loader = Loader(folder, workers=2)

    def processes():
        return {worker.pid for worker in loader._loader._iterator._workers}

    list(loader.train_batches(8, seed=0, epoch=0))
    first = processes()
    next(iter(loader.train_batches(8, seed=0, epoch=1)))  # as `update` does, which takes a few batches of an epoch
    for epoch in (1, 2):
        list(loader.train_batches(8, seed=0, epoch=epoch))
        list(loader.eval_batches(8))
    assert processes() == first
    assert os.getpid() not in first


def test_two_passes_over_one_loader_do_not_disturb_each_other(folder):
    loader = Loader(folder, workers=1)
    outer = []
    for batch in loader.train_batches(8, seed=3, epoch=4, augmentation=_augmentation(folder)):
        outer.append(batch)
        assert _same(list(loader.eval_batches(4)), list(eval_batches(folder, 4)))
    assert _same(outer, _epoch(folder))


@pytest.mark.parametrize(
    ("kind", "cores", "world_size", "auto", "three"),
    [
        ("memory", 16, 1, 0, 0),
        ("camvid", 16, 1, 0, 3),
        ("folder", 16, 1, 8, 3),
        ("folder", 16, 4, 4, 3),
        ("cityscapes", 1, 2, 1, 3),
        ("lspet", 3, 1, 3, 3),
    ],
)
def test_the_number_of_workers_by_default(kind, cores, world_size, auto, three, datasets, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert count_workers(datasets[kind], "auto", world_size) == auto
    assert count_workers(datasets[kind], 3, world_size) == three
    if auto == 8:  # 16 processes on two machines
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        assert count_workers(datasets[kind], "auto", 16) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_batch_waits_for_the_device(dataset):
    loader = Loader(dataset.to("cuda") if dataset.name == "memory" else dataset, device="cuda")
    batches = loader.train_batches(8, seed=3, epoch=4, augmentation=_augmentation(dataset))
    list(batches)  # constants are moved once
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for batch, expected in zip(found, _epoch(dataset), strict=True):
        torch.testing.assert_close([tensor.cpu() for tensor in batch], list(expected), atol=1e-4, rtol=1e-4)


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
import hashlib, sys
from spatialgrad.data import Augmentation, load_dataset, train_batches
{inspect.getsource(_digest_of_the_middle)}
data = load_dataset("fashion-mnist-mini", image_size=32)
next(iter(train_batches(data, 8, seed=0, epoch=0, augmentation=data.augmentation)))
print([name for name in ("PIL", "pooch", "rich", "scipy", "torchvision") if name in sys.modules])
print(_digest_of_the_middle({tree!r}, start=2, workers=2))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, digest = run.stdout.splitlines()
    assert digest == _digest_of_the_middle(tree)
    assert imported == "[]", "the shipped images need torch and numpy only"


@pytest.mark.parametrize(("world_size", "count"), [(1, 103), (2, 103), (4, 3)])
def test_evaluation_sees_every_image_once_in_order_and_unchanged(world_size, count):
    data = _memory(count)
    ranks = [eval_batches(data, 8, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert all(len(batches) == len(list(batches)) for batches in ranks)
    assert all(len(labels) for batches in ranks for _, labels in batches)
    assert sorted(number for batches in ranks for number in _numbers(batches)) == list(range(count))
    if world_size == 1:
        assert _numbers(ranks[0]) == list(range(103))
        images, _ = list(eval_batches(data, 8, split="train"))[1]
        torch.testing.assert_close(images, data.train.images[8:16] / 255)


def test_a_data_set_on_another_device_makes_batches_there():
    device = torch.device("meta")
    data = _memory()
    object.__setattr__(data, "test", data.test.to(device))  # without the check of labels, which `meta` does not have
    images, labels = next(iter(eval_batches(data, 4, device=device)))
    assert images.device == labels.device == device
    assert images.shape == (4, 3, 16, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 14}, "start must be a batch of the epoch, 0 to 13, got 14"),
        (
            {"world_size": 3},
            "--batch-size 8 must be a multiple of the number of processes, 3",
        ),
        ({"rank": 2, "world_size": 2}, "rank 2 is not one of 0 to 1"),
        (
            {"batch_size": 200, "drop_last": True},
            "103 training images, fewer than --batch-size 200. Use --data.no-drop-last",
        ),
        ({"batch_size": 128, "world_size": 128}, "103 training images, too few for 128 processes"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        train_batches(_memory(), options.pop("batch_size", 8), seed=0, epoch=0, **options)


def test_resized_crops_of_images_in_memory_are_refused():
    with pytest.raises(ValueError, match="use crop_padding for images in memory"):
        _epoch(_memory(), augmentation=Augmentation(resized_crop=(0.1, 1.0)))


@settings(deadline=None)
@given(
    count=st.integers(1, 300),
    per_rank=st.integers(1, 16),
    world_size=st.integers(1, 5),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**63),
)
def test_ranks_share_an_epoch_without_overlap_or_loss(count, per_rank, world_size, drop_last, seed):
    batch_size = per_rank * world_size
    bounds = batch_bounds(count, batch_size, world_size=world_size, drop_last=drop_last)
    order = epoch_order(count, seed=seed, epoch=3)
    seen = []
    for bound in bounds:
        shares = [rank_bounds(*bound, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert (shares[0][0], shares[-1][1]) == bound
        assert all(left[1] == right[0] for left, right in itertools.pairwise(shares))
        sizes = [last - first for first, last in shares]
        assert max(sizes) - min(sizes) <= 1
        if count >= batch_size:
            assert min(sizes) >= min(2, per_rank)
        seen += [order[first:last] for first, last in shares]
    images = torch.cat(seen).tolist() if seen else []
    assert len(set(images)) == len(images)
    expected = count // batch_size * batch_size if drop_last else count
    assert len(images) == expected


@pytest.mark.parametrize(
    ("count", "world_size", "drop_last", "sizes"),
    [
        (20, 1, False, [8, 8, 4]),
        (20, 1, True, [8, 8]),
        (17, 1, False, [8, 9]),  # batch normalization cannot train on one image
        (18, 1, False, [8, 8, 2]),
        (19, 2, False, [8, 11]),
        (20, 2, False, [8, 8, 4]),
        (5, 4, False, [5]),
    ],
)
def test_sizes_of_batches(count, world_size, drop_last, sizes):
    bounds = batch_bounds(count, 8, world_size=world_size, drop_last=drop_last)
    assert [stop - start for start, stop in bounds] == sizes


def test_the_order_depends_on_seed_and_epoch_and_nothing_else():
    first = epoch_order(1000, seed=1, epoch=2)
    # Held, so that no change of ours can give a resumed run another order.
    assert first[:8].tolist() == [819, 84, 674, 267, 387, 248, 821, 271]
    torch.rand(5)
    assert torch.equal(first, epoch_order(1000, seed=1, epoch=2))
    assert not torch.equal(first, epoch_order(1000, seed=1, epoch=3))
    assert not torch.equal(first, epoch_order(1000, seed=2, epoch=1))
    assert first.sort().values.tolist() == list(range(1000))


def test_generators_of_different_purposes_differ():
    draws = {
        torch.rand(1, generator=generator_for(*key)).item()
        for key in (("a", 1, 2), ("a", 2, 1), ("a", 12), ("a", 1, 2, 0), ("b", 1, 2), ("a", 2**40, 0), ("a", 0, 2**40))
    }
    assert len(draws) == 7
