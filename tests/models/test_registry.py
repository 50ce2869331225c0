"""Names, options and errors of the registry."""

import importlib

import pytest
from torch import nn

import spatialgrad.models
from spatialgrad.models import ModelInfo, create_model, list_models, model_info, register
from spatialgrad.models.registry import _REGISTRY, CATALOGUE
from support.imports import loaded_by

NAMES = [
    "convnext-atto",
    "convnext-atto-imagenet",
    "mobilenetv2",
    "preactresnet18",
    "preactresnet34",
    "pyramidnet110-a48",
    "pyramidnet110-a84",
    "pyramidnet110-a270",
    "resnet18",
    "resnet18-imagenet",
    "resnet34",
    "resnet34-imagenet",
    "resnet50",
    "resnet50-imagenet",
    "seresnet18",
    "seresnet34",
    "shufflenet",
    "vgg11",
    "vgg11-linear",
    "vgg11-slim",
    "vgg13",
    "vgg13-slim",
    "vgg16",
    "vgg16-slim",
    "vgg19",
    "vgg19-slim",
    "xception",
]


def test_every_network_of_the_paper_is_there_and_numbers_count_up():
    assert list_models() == NAMES


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("vgg1?", ["vgg11", "vgg13", "vgg16", "vgg19"]),
        ("resnet*-imagenet", ["resnet18-imagenet", "resnet34-imagenet", "resnet50-imagenet"]),
        ("pyramidnet110-a*", ["pyramidnet110-a48", "pyramidnet110-a84", "pyramidnet110-a270"]),
        ("shufflenet", ["shufflenet"]),
        ("densenet*", []),
    ],
)
def test_a_pattern_selects_names(pattern, expected):
    assert list_models(pattern) == expected


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("vgg-16-slim", "vgg16-slim"), ("ResNet18", "resnet18"), ("mobilenet_v2", "mobilenetv2")],
)
def test_an_unknown_name_suggests_the_nearest(wrong, nearest):
    with pytest.raises(ValueError, match=f"unknown model '{wrong}'; did you mean .*'{nearest}'"):
        create_model(wrong)


def test_a_name_unlike_any_other_points_to_the_list():
    with pytest.raises(ValueError, match=r"unknown model 'qqq'; list_models\(task=None\)"):
        create_model("qqq")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_classes", 0),
        ("in_channels", 0),
        ("width", 0.0),
        ("width", -1.0),
        ("width", float("nan")),
        ("width", float("inf")),
    ],
)
def test_numbers_out_of_range_are_named(option, value):
    with pytest.raises(ValueError, match=f"{option} must be .*, not {value}"):
        create_model("vgg11", **{option: value})


def test_an_option_of_another_network_is_refused():
    with pytest.raises(TypeError, match="groups"):
        create_model("vgg11", groups=3)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_known_about_a_network(name):
    info = model_info(name)
    imagenet = name.endswith("-imagenet")
    assert info.name == name
    assert name in importlib.import_module(f"spatialgrad.models.{info.family}").NETWORKS
    assert name.startswith(info.family)
    assert info.input_size == ((224, 224) if imagenet else (32, 32))
    assert info.num_classes == (1000 if imagenet else 100)
    assert "arXiv:" in info.paper


def test_the_catalogue_has_every_network_of_every_family():
    families = {info.family for info in CATALOGUE}
    built = {name for family in families for name in importlib.import_module(f"spatialgrad.models.{family}").NETWORKS}
    assert built == {info.name for info in CATALOGUE}
    assert len(built) == len(CATALOGUE)


def test_num_classes_defaults_to_the_data_set_of_the_paper():
    assert create_model("resnet18-imagenet", width=0.125).fc.out_features == 1000
    assert create_model("resnet18", width=0.125).fc.out_features == 100
    assert create_model("resnet18", width=0.125, num_classes=10).fc.out_features == 10


def test_a_network_of_ones_own_can_be_registered_once(monkeypatch):
    for name in list_models():  # undone by monkeypatch, with everything the test adds
        monkeypatch.delitem(_REGISTRY, name)

    def build(num_classes, width, in_channels, bias=True):
        return nn.Linear(in_channels, num_classes, bias=bias)

    info = ModelInfo(name="mine", family="mine", build=build, paper="none", num_classes=7)
    monkeypatch.setitem(_REGISTRY, "mine", info)
    assert create_model("mine", bias=False).weight.shape == (7, 3)
    with pytest.raises(ValueError, match="'mine' is already registered"):
        register(info)


def test_public_names_are_there():
    for name in spatialgrad.models.__all__:
        assert hasattr(spatialgrad.models, name)


def test_the_models_need_torch_only():
    assert loaded_by("spatialgrad.models") == ["spatialgrad"]
