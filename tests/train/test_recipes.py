"""The recipes hold the paper's numbers."""

import pytest

from spatialgrad.data.augment import IMAGENET
from spatialgrad.train import ConfigError, TrainConfig, recipe
from spatialgrad.train.config import flatten, to_dict

CIFAR = {
    **{"optimizer.name": "sgd", "optimizer.lr": 0.1, "optimizer.momentum": 0.9, "optimizer.weight_decay": 5e-4},
    **{"optimizer.nesterov": False, "optimizer.decay_norms_and_biases": True, "data.batch_size": 128},
    **{"schedule.name": "cosine", "budget.epochs": 200, "scaling.apply": "gradient", "scaling.k": 5.0},
    **{"scaling.warmup": 1, "scaling.every": 5, "scaling.batches": 2, "scaling.drop_near": False},
    # What the authors' configuration adds to the paper's text.
    **{"data.cutout": 16, "data.drop_last": True, "schedule.min_lr": 1e-6},
}
FINE_TUNED = {**CIFAR, "data.cutout": 0, "data.drop_last": False, "schedule.min_lr": 0.0, "scaling.drop_near": True}
RECIPES = {
    "cifar_appendix": {**CIFAR, "model.name": "vgg11"},
    "cifar_table1": {
        **{**CIFAR, "model.name": "vgg16-slim", "budget.epochs": 600, "optimizer.weight_decay": 1e-4},
        **{"scaling.every": 30, "scaling.batches": 20, "dyrep.interval": 15, "dyrep.until": 500},
    },
    "ablation-search": {**CIFAR, "model.name": "vgg11-slim", "data.batch_size": 512, "scaling.every": 10},
    "imagenet": {
        **{**CIFAR, "model.name": "resnet18-imagenet", "budget.epochs": 120, "data.batch_size": 256},
        **{"optimizer.weight_decay": 1e-4, "optimizer.nesterov": True, "optimizer.decay_norms_and_biases": False},
        **{"schedule.min_lr": 1e-7, "data.cutout": 0, "scaling.drop_near": True},
        **{"dyrep.interval": 5, "dyrep.until": 100},
    },
    "segmentation-cityscapes": {
        **{**FINE_TUNED, "model.name": "pspnet18", "task": "segmentation", "data.batch_size": 16},
        **{"data.image_size": 713, "optimizer.lr": 0.01, "optimizer.weight_decay": 1e-4, "optimizer.head_factor": 10},
        **{"schedule.name": "poly", "schedule.power": 0.9, "segmentation.auxiliary": 0.4},
        **{"segmentation.scale": [0.5, 2.0], "segmentation.rotation": 10},
    },
    "pose-mpii": {
        **{**FINE_TUNED, "model.name": "poseresnet18", "task": "pose", "data.name": "mpii", "data.batch_size": 32},
        **{"optimizer.name": "adam", "optimizer.lr": 1e-3, "optimizer.weight_decay": 0, "budget.epochs": 140},
        **{"schedule.name": "step", "schedule.milestones": [90, 120], "schedule.gamma": 0.1},
        **{"pose.scale": 0.25, "pose.rotation": 30, "pose.flip_test": True},
    },
    "pose_lspet": {"task": "pose", "data.name": "lspet"},
    "pose_pocket": {"task": "pose", "data.name": "figures-mini"},
}


@pytest.mark.parametrize("name", RECIPES)
def test_numbers(name):
    found = flatten(to_dict(recipe(name)))
    assert {field: found[field] for field in RECIPES[name]} == RECIPES[name]


def test_the_appendix_is_the_default():
    """But a user's own few images are neither dropped nor trained at a learning rate that never reaches 0."""
    expected = {**CIFAR, "optimizer.lr": None, "scaling.apply": "auto", "schedule.min_lr": 0.0, "data.drop_last": False}
    found = flatten(to_dict(TrainConfig()))
    assert {field: found[field] for field in CIFAR} == expected
    assert TrainConfig().optimizer.learning_rate == CIFAR["optimizer.lr"]


def test_the_colours_of_imagenet():
    assert (IMAGENET.brightness, IMAGENET.contrast, IMAGENET.saturation) == (0.06, 0.06, 0.06)


def test_unknown_recipe():
    with pytest.raises(ConfigError, match="did you mean 'cifar_table1'"):
        recipe("cifar-table2")
