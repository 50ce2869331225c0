"""The recipes hold the paper's numbers."""

import pytest

from spatialgrad.data.augment import IMAGENET
from spatialgrad.train import ConfigError, TrainConfig, recipe

CIFAR = {"cutout": 16, "min_lr": 1e-6, "drop_last": True}
"""What the authors' configuration for CIFAR adds to the paper's text."""


def numbers(config):
    return {
        "model": config.model.name,
        "epochs": config.budget.epochs,
        "batch": config.data.batch_size,
        "lr": config.optimizer.learning_rate,
        "momentum": config.optimizer.momentum,
        "decay": config.optimizer.weight_decay,
        "schedule": config.schedule.name,
        "min_lr": config.schedule.min_lr,
        "cutout": config.data.cutout,
        "drop_last": config.data.drop_last,
        "warmup": config.scaling.warmup,
        "every": config.scaling.every,
        "batches": config.scaling.batches,
        "k": config.scaling.k,
    }


def test_table_1():
    assert numbers(recipe("cifar_table1")) == {
        **{"model": "vgg16-slim", "epochs": 600, "batch": 128, "lr": 0.1, "momentum": 0.9, "decay": 1e-4},
        **{"schedule": "cosine", "warmup": 1, "every": 30, "batches": 20, "k": 5, **CIFAR},
    }
    assert not recipe("cifar_table1").optimizer.nesterov
    assert recipe("cifar_table1").optimizer.decay_norms_and_biases
    assert (recipe("cifar_table1").dyrep.interval, recipe("cifar_table1").dyrep.until) == (15, 500)


def test_appendix_is_the_default():
    assert numbers(recipe("cifar_appendix")) == {
        **{"model": "vgg11", "epochs": 200, "batch": 128, "lr": 0.1, "momentum": 0.9, "decay": 5e-4},
        **{"schedule": "cosine", "warmup": 1, "every": 5, "batches": 2, "k": 5, **CIFAR},
    }
    # A user's own few images are neither dropped nor trained at a learning rate that never reaches 0.
    assert numbers(TrainConfig()) == {**numbers(recipe("cifar_appendix")), "min_lr": 0.0, "drop_last": False}


def test_imagenet():
    config = recipe("imagenet")
    assert numbers(config) == {
        **{"model": "resnet18-imagenet", "epochs": 120, "batch": 256, "lr": 0.1, "momentum": 0.9, "decay": 1e-4},
        **{"schedule": "cosine", "warmup": 1, "every": 5, "batches": 2, "k": 5},
        **{"cutout": 0, "min_lr": 1e-7, "drop_last": True},
    }
    assert config.scaling.drop_near
    assert config.optimizer.nesterov
    assert not config.optimizer.decay_norms_and_biases
    augmentation = IMAGENET
    assert (augmentation.brightness, augmentation.contrast, augmentation.saturation) == (0.06, 0.06, 0.06)
    assert (config.dyrep.interval, config.dyrep.until) == (5, 100)


def test_segmentation():
    config = recipe("segmentation-cityscapes")
    assert numbers(config) == {
        **{"model": "pspnet18", "epochs": 200, "batch": 16, "lr": 0.01, "momentum": 0.9, "decay": 1e-4},
        **{"schedule": "poly", "warmup": 1, "every": 5, "batches": 2, "k": 5},
        **{"cutout": 0, "min_lr": 0.0, "drop_last": False},
    }
    assert (config.schedule.power, config.optimizer.head_factor, config.data.image_size) == (0.9, 10, 713)
    group = config.segmentation
    assert (group.auxiliary, group.scale, group.rotation) == (0.4, (0.5, 2.0), 10)


def test_pose():
    config = recipe("pose-mpii")
    assert (config.task, config.data.name, config.model.name) == ("pose", "mpii", "poseresnet18")
    optimizer, schedule = config.optimizer, config.schedule
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == ("adam", 1e-3, 0)
    assert (schedule.name, schedule.milestones, schedule.gamma) == ("step", (90, 120), 0.1)
    assert (config.data.batch_size, config.budget.epochs) == (32, 140)
    assert (config.pose.scale, config.pose.rotation, config.pose.flip_test) == (0.25, 30, True)
    for name, data in (("pose_lspet", "lspet"), ("pose_pocket", "figures-mini")):
        assert (recipe(name).task, recipe(name).data.name) == ("pose", data)


def test_ablation():
    assert numbers(recipe("ablation-search")) == {
        **{"model": "vgg11-slim", "epochs": 200, "batch": 512, "lr": 0.1, "momentum": 0.9, "decay": 5e-4},
        **{"schedule": "cosine", "warmup": 1, "every": 10, "batches": 2, "k": 5, **CIFAR},
    }


def test_unknown_recipe():
    with pytest.raises(ConfigError, match="did you mean 'cifar_table1'"):
        recipe("cifar-table2")
