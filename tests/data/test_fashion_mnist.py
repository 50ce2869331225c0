import time

import torch

from spatialgrad.data import load_dataset


def test_mini_is_the_shipped_slice():
    data = load_dataset("fashion-mnist-mini")
    assert data.train.images.shape == (5000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.images.dtype == torch.uint8
    assert torch.bincount(data.train.labels).tolist() == [500] * 10
    assert torch.bincount(data.test.labels).tolist() == [100] * 10
    assert data.train.labels[:4].tolist() == [9, 0, 0, 3]
    assert (data.num_classes, data.channels, data.image_size) == (10, 1, 28)
    assert data.class_names[9] == "Ankle boot"


def test_mini_loads_in_well_under_a_second():
    started = time.perf_counter()
    load_dataset("fashion-mnist-mini")
    assert time.perf_counter() - started < 1.0
