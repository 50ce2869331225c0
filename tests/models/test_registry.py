"""Names, sizes, options and errors of the registry."""

import importlib
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import spatialgrad.models
from spatialgrad.models import create_model, list_models, model_info
from spatialgrad.models.registry import CATALOGUE
from spatialgrad.reparam import count
from support.imports import loaded_by

# Parameters and multiply-accumulates of one image, at the default input size and number of classes. Those of the
# ImageNet networks are torchvision's; PSPNet and the pose ResNet add heads to these, counted by hand.
SIZES = {
    "convnext-atto": (3_405_180, 44_317_440),
    "convnext-atto-imagenet": (3_695_520, 547_332_480),
    "mobilenetv2": (2_369_380, 64_947_264),
    "poseresnet18": (15_376_464, 3_861_905_408),
    "poseresnet34": (25_484_624, 6_277_824_512),
    "poseresnet50": (33_999_440, 7_234_125_824),
    "preactresnet18": (11_222_244, 555_468_800),
    "preactresnet34": (21_334_116, 1_159_448_576),
    "pspnet18": (16_764_262, 133_407_735_488),
    "pspnet34": (26_872_422, 216_988_819_136),
    "pspnet50": (48_956_262, 350_004_969_152),
    "pyramidnet110-a48": (1_778_556, 403_819_264),
    "pyramidnet110-a84": (3_913_536, 772_177_168),
    "pyramidnet110-a270": (28_511_307, 4_718_009_464),
    "resnet18": (11_220_132, 555_468_800),
    "resnet18-imagenet": (11_689_512, 1_814_073_344),
    "resnet34": (21_328_292, 1_159_448_576),
    "resnet34-imagenet": (21_797_672, 3_663_761_408),
    "resnet50": (23_705_252, 1_298_014_208),
    "resnet50-imagenet": (25_557_032, 4_089_184_256),
    "seresnet18": (11_314_012, 555_555_840),
    "seresnet34": (21_498_000, 1_159_605_760),
    "shufflenet": (1_012_108, 41_693_952),
    "vgg11": (28_518_244, 172_048_384),
    "vgg11-linear": (9_274_532, 152_815_616),
    "vgg11-slim": (9_799_844, 153_339_904),
    "vgg13": (28_703_140, 247_545_856),
    "vgg13-slim": (9_721_892, 228_575_232),
    "vgg16": (34_015_396, 332_480_512),
    "vgg16-slim": (15_032_868, 313_509_888),
    "vgg19": (39_327_652, 417_415_168),
    "vgg19-slim": (20_343_844, 398_444_544),
    "xception": (21_013_988, 1_129_865_728),
}
# As the literature gives them, rounded.
PUBLISHED_SIZES = {
    "resnet18-imagenet": (11.7e6, 1.81e9),
    "resnet34-imagenet": (21.8e6, 3.66e9),
    "resnet50-imagenet": (25.6e6, 4.09e9),
    "convnext-atto-imagenet": (3.7e6, 0.547e9),
    "vgg16-slim": (15e6, 313e6),
    "poseresnet50": (34.0e6, 7.23e9),
}
# Images, classes and name of the task by the end or start of a network's name.
KINDS = {
    "pspnet": ((713, 713), 19, "segmentation"),
    "poseresnet": ((256, 256), 16, "pose"),
    "-imagenet": ((224, 224), 1000, "classification"),
    "": ((32, 32), 100, "classification"),
}
INF = math.inf
DOCS = Path(__file__).parents[2] / "docs"


def kind(name):
    return next(kind for part, kind in KINDS.items() if name.startswith(part) or name.endswith(part))


def size(name, width=1.0, **options):
    """Parameters and multiply-accumulates for one image, without allocating the weights."""
    with torch.device("meta"):
        return count(create_model(name, width=width, **options), (3, *model_info(name).input_size))


def test_every_network_is_there_and_numbers_count_up():
    assert list_models(task=None) == list(SIZES)
    for task in ("classification", "segmentation", "pose"):
        assert list_models(task=task) == [name for name in SIZES if kind(name)[2] == task]


@pytest.mark.parametrize("name", SIZES)
def test_what_is_known_about_a_network(name):
    info = model_info(name)
    assert info.name == name
    assert name in importlib.import_module(f"spatialgrad.models.{info.family}").NETWORKS
    assert name.startswith(info.family.replace("_", ""))
    assert (info.input_size, info.num_classes, info.task) == kind(name)
    assert "arXiv:" in info.paper


WIDENED = ("vgg11", "resnet18", "pspnet18", "poseresnet18")
"""Networks whose widths are not left to the slow tests."""


@pytest.mark.parametrize("name", SIZES)
def test_parameters_and_multiply_accumulates(name):
    assert size(name) == SIZES[name]
    if name in PUBLISHED_SIZES:
        assert SIZES[name] == pytest.approx(PUBLISHED_SIZES[name], rel=0.0025)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in WIDENED else pytest.mark.slow) for each in SIZES]
)
def test_every_width(name):
    options = {"layers": 20} if name.startswith("pyramidnet") else {}  # 110 layers widen in the same way
    for smaller, larger in pairwise(size(name, width, **options) for width in (0.125, 0.25, 1.0)):
        assert smaller.parameters < larger.parameters
        assert smaller.macs < larger.macs
    with torch.device("meta"):
        for width in (0.01, 0.1, 0.3, 0.77):
            outputs = create_model(name, width=width, **options).eval()(torch.empty(1, 3, 64, 64))
            assert outputs.shape[:2] == (1, model_info(name).num_classes)


@pytest.mark.parametrize("page", ["models", "segmentation", "pose"])
def test_the_documentation_gives_these_sizes(page):
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \| ([\d,]+) \|", (DOCS / f"{page}.md").read_text(), flags=re.M)
    documented = {name: tuple(int(n.replace(",", "")) for n in numbers) for name, *numbers in rows}
    task = page if page != "models" else "classification"
    assert documented == {name: SIZES[name] for name in list_models(task=task)}


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
    ("name", "options", "message"),
    [
        ("vgg-16-slim", {}, "unknown model 'vgg-16-slim'; did you mean .*'vgg16-slim'"),
        ("ResNet18", {}, "unknown model 'ResNet18'; did you mean .*'resnet18'"),
        ("mobilenet_v2", {}, "unknown model 'mobilenet_v2'; did you mean .*'mobilenetv2'"),
        ("qqq", {}, r"unknown model 'qqq'; list_models\(task=None\)"),
        ("vgg11", {"num_classes": 0}, "num_classes must be .*, not 0"),
        ("vgg11", {"in_channels": 0}, "in_channels must be .*, not 0"),
        *(("vgg11", {"width": width}, f"width must be .*, not {width}") for width in (0.0, -1.0, INF, math.nan)),
        ("shufflenet", {"groups": 5}, r"groups must be one of \[1, 2, 3, 4, 8\], not 5"),
        *(("pyramidnet110-a48", {"layers": n}, f"6n \\+ 2 .*, not {n}") for n in (109, 2, 0)),
        ("vgg11", {"groups": 3}, "groups"),
    ],
)
def test_wrong_names_and_options_are_refused(name, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        create_model(name, **options)


def test_the_catalogue_has_every_network_of_every_family():
    families = {info.family for info in CATALOGUE}
    built = {name for family in families for name in importlib.import_module(f"spatialgrad.models.{family}").NETWORKS}
    assert built == {info.name for info in CATALOGUE}
    assert len(built) == len(CATALOGUE)


def test_num_classes_defaults_to_the_data_set_of_the_paper():
    assert create_model("resnet18-imagenet", width=0.125).fc.out_features == 1000
    assert create_model("resnet18", width=0.125).fc.out_features == 100
    assert create_model("resnet18", width=0.125, num_classes=10).fc.out_features == 10


def test_public_names_are_there():
    for name in spatialgrad.models.__all__:
        assert hasattr(spatialgrad.models, name)


def test_the_models_need_torch_only():
    assert loaded_by("spatialgrad.models") == ["spatialgrad"]
