"""What must hold for every network: size, shapes, gradients, learning, seeds, width, compilation."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from spatialgrad.models import create_model, list_models, model_info
from support.compiling import needs_compiler
from support.models import settled

# Parameters and multiply-accumulates of one image, at the default input size and number of classes. Those of the
# ImageNet networks are torchvision's; the literature gives them as below, rounded.
SIZES = {
    "convnext-atto": (3_405_180, 44_317_440),
    "convnext-atto-imagenet": (3_695_520, 547_332_480),
    "mobilenetv2": (2_369_380, 64_947_264),
    "preactresnet18": (11_222_244, 555_468_800),
    "preactresnet34": (21_334_116, 1_159_448_576),
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
    "vgg13": (28_703_140, 247_545_856),
    "vgg16": (34_015_396, 332_480_512),
    "vgg19": (39_327_652, 417_415_168),
    "vgg11-linear": (9_274_532, 152_815_616),
    "vgg11-slim": (9_799_844, 153_339_904),
    "vgg13-slim": (9_721_892, 228_575_232),
    "vgg16-slim": (15_032_868, 313_509_888),
    "vgg19-slim": (20_343_844, 398_444_544),
    "xception": (21_013_988, 1_129_865_728),
}
PUBLISHED_SIZES = {
    "resnet18-imagenet": (11.7e6, 1.81e9),
    "resnet34-imagenet": (21.8e6, 3.66e9),
    "resnet50-imagenet": (25.6e6, 4.09e9),
    "convnext-atto-imagenet": (3.7e6, 0.547e9),
    "vgg16-slim": (15e6, 313e6),
}
DOCS_PAGE = Path(__file__).parents[2] / "docs" / "models.md"

every_model = pytest.mark.parametrize("name", list_models())
# The ImageNet networks shrink an image 32 times, so that smaller ones would leave batch normalization one
# pixel per channel.
SIDES = {name: (64, 96) if name.endswith("-imagenet") else (32, 40) for name in list_models()}


def count(name, scale=1.0, **options):
    """Return parameters and multiply-accumulates for one image, without allocating the weights."""
    height, width = model_info(name).input_size
    with torch.device("meta"):
        model = create_model(name, width=scale, **options).eval()
        image = torch.empty(1, 3, height, width)
    with FlopCounterMode(display=False) as counter:
        model(image)
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2


def pocket_model(name, **options):
    # ConvNeXt's blocks do next to nothing at first, which would hide what is wrong with them.
    usual = {"layer_scale": 1.0} if name.startswith("convnext") else {}
    return create_model(name, **{"num_classes": 10, "width": 0.125, **usual, **options})


def batch(name, num_images=8):
    side, _ = SIDES[name]
    return torch.randn(num_images, 3, side, side), torch.arange(num_images) % 10


@every_model
def test_parameters_and_multiply_accumulates(name):
    assert count(name) == SIZES[name]
    if name in PUBLISHED_SIZES:
        assert SIZES[name] == pytest.approx(PUBLISHED_SIZES[name], rel=0.0025)


def test_the_documentation_gives_these_sizes():
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \| ([\d,]+) \|", DOCS_PAGE.read_text(), flags=re.M)
    documented = {name: tuple(int(n.replace(",", "")) for n in numbers) for name, *numbers in rows}
    assert documented == SIZES


@every_model
def test_forward_at_two_sizes(name):
    model = pocket_model(name).eval()
    with torch.no_grad():
        for side in SIDES[name]:
            logits = model(torch.randn(2, 3, side, side))
            assert logits.shape == (2, 10)
            assert logits.isfinite().all()


@every_model
def test_images_that_are_neither_square_nor_coloured_nor_even_sized(name):
    model = pocket_model(name, in_channels=1).eval()
    with torch.no_grad():
        # 28 pixels are fewer than one after patches of 4×4 and three halvings.
        height, width = (60, 67) if name == "convnext-atto-imagenet" else (28, 35)
        assert model(torch.randn(2, 1, height, width)).isfinite().all()


@every_model
def test_one_training_step_lowers_the_loss(name):
    model = pocket_model(name)
    images, labels = batch(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)

    def loss():
        torch.manual_seed(1)  # the same dropout before and after
        return F.cross_entropy(model(images), labels)

    before = loss()
    before.backward()
    optimizer.step()
    with torch.no_grad():
        assert loss() < before


@every_model
def test_gradient_reaches_every_parameter(name):
    # With the batch's own statistics, batch normalization takes every constant and every scale before it out
    # again: such parameters would have no gradient by rights. With fixed statistics, all have one.
    # The few hidden numbers of an excitation may all be rectified to 0 under one seed, not under every seed.
    images, labels = batch(name)
    unreached = {path for path, _ in pocket_model(name).named_parameters()}
    for seed in range(4):
        torch.manual_seed(seed)
        model = settled(pocket_model(name), images)
        F.cross_entropy(model(images), labels).backward()
        for path, parameter in model.named_parameters():
            assert parameter.grad is not None, path
            assert parameter.grad.isfinite().all(), path
            if parameter.grad.abs().max() > 1e-7:
                unreached.discard(path)
        if not unreached:
            break
    assert not unreached


@every_model
def test_the_seed_decides_the_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return pocket_model(name).state_dict()

    first, second, other = weights(1), weights(1), weights(2)
    for path, tensor in first.items():
        assert torch.equal(tensor, second[path]), path
    for path, tensor in first.items():
        if path.endswith("weight") and tensor.ndim > 1:
            assert not torch.equal(tensor, other[path]), path


@every_model
def test_more_width_is_a_larger_network(name):
    options = {"layers": 20} if name.startswith("pyramidnet") else {}  # 110 layers widen in the same way
    sizes = [count(name, width, **options) for width in (0.125, 0.25, 1.0)]
    for (parameters, macs), (more_parameters, more_macs) in pairwise(sizes):
        assert parameters < more_parameters
        assert macs < more_macs


@every_model
@pytest.mark.parametrize("width", [0.01, 0.1, 0.3, 0.77])
def test_odd_widths_work(name, width):
    with torch.device("meta"):
        model = create_model(name, width=width).eval()
        assert model(torch.empty(1, 3, 64, 64)).shape == (1, model_info(name).num_classes)


@every_model
def test_a_batch_of_one_image_gives_the_same_logits_as_within_a_batch(name):
    images, _ = batch(name, num_images=3)
    model = settled(pocket_model(name), images)
    with torch.no_grad():
        together = model(images)
        for index in range(3):
            torch.testing.assert_close(model(images[index : index + 1])[0], together[index], rtol=1e-3, atol=1e-4)


@every_model
def test_channels_last_gives_the_same_logits(name):
    images, _ = batch(name, num_images=2)
    model = settled(pocket_model(name), images)
    with torch.no_grad():
        expected = model(images)
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
        torch.testing.assert_close(model(images), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("convnext-atto", {}),
        ("mobilenetv2", {}),
        ("preactresnet18", {}),
        ("pyramidnet110-a48", {"layers": 20}),  # 110 layers, no two alike, are minutes of C++
        ("resnet18", {}),
        ("seresnet18", {}),
        ("shufflenet", {}),
        ("vgg11", {}),
        ("xception", {}),
    ],
)
def test_the_compiled_network_gives_the_same_logits(name, options):
    images, _ = batch(name, num_images=2)
    model = settled(pocket_model(name, **options), images)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_the_compiled_network_gives_the_same_gradient(name):
    images, labels = batch(name, num_images=2)
    model = settled(pocket_model(name), images)

    def gradient(network):
        model.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    expected = gradient(model)
    torch._dynamo.reset()
    # As a whole, because rounding may take a number that is 0 but for 1e-7 to the rectifier's other side.
    assert (gradient(torch.compile(model, fullgraph=True)) - expected).norm() < 0.02 * expected.norm()
