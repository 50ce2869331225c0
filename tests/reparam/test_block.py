"""Merging is exact for every method and every kind of convolution, borders included."""

import copy
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spatialgrad.reparam import ACB, DBB, BranchedConv2d, Branches, QARepVGG, RepVGG
from spatialgrad.reparam.branch import BRANCH_NAMES
from spatialgrad.reparam.kernels import Folded
from spatialgrad.reparam.preserve import NEW_BRANCH_STRENGTH, absorb_, compensate_, set_strength_
from support.reparam import randomize_, relative

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own

METHODS = {
    "acb": ACB(),
    "repvgg": RepVGG(),
    "qarepvgg": QARepVGG(),
    "dbb": DBB(),
    "dbb-seven": DBB(branches=BRANCH_NAMES),
    "large": DBB(branches=("kxk", "1xk", "kx1", "1x1")),
}
KERNELS = [(3, 3), (7, 7), (3, 5), (2, 2), (4, 3)]


def masks_for(kernel):
    corner = torch.zeros(kernel)
    corner[-1, :2] = 1
    scattered = torch.zeros(kernel)
    scattered[0, 0] = scattered[-1, -1] = 1
    return Branches(masks=[torch.ones(kernel), corner, scattered])


def random_block(method, conv, *, bn=True):
    norm = nn.BatchNorm2d(conv.out_channels, dtype=conv.weight.dtype) if bn and method.takes_batch_norm else None
    return randomize_(method.build(conv, norm)).eval()


@torch.no_grad()
def check(block, x, tolerance):
    conv = block.to_conv()
    assert type(conv) is nn.Conv2d
    # The largest difference anywhere, so that one wrong border pixel is enough to fail.
    assert relative(block(x), conv(x)) < tolerance, (block.method, str(block.geometry), block.geometry.padding_mode)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("method", [*METHODS, "branches"])
def test_merging_is_exact(method, kernel):
    config = masks_for(kernel) if method == "branches" else METHODS[method]
    same = (kernel[0] // 2, kernel[1] // 2)
    shapes = [(3, 5, 1, True), (4, 4, 1, False), (4, 6, 2, False), (4, 4, 4, True), (3, 6, 3, False)]
    for stride, padding, dilation, (inputs, outputs, groups, bias) in product(
        [1, (2, 1)], [0, same, (2, 3)], [1, 2], shapes
    ):
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias, dtype=torch.float64)
        block = random_block(config, conv)
        x = torch.randn(2, inputs, 14, 15, dtype=torch.float64)
        check(block, x, 1e-10)
        check(block.float(), x.float(), 1e-4)


@pytest.mark.parametrize("method", [*METHODS, "branches"])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["same", "valid", (2, 1)])
def test_merging_is_exact_for_every_padding(method, mode, padding):
    for kernel, dilation in product(KERNELS, [1, (1, 2)]):
        config = masks_for(kernel) if method == "branches" else METHODS[method]
        conv = nn.Conv2d(4, 4, kernel, 1, padding, dilation, 2, padding_mode=mode, dtype=torch.float64)
        check(random_block(config, conv), torch.randn(2, 4, 13, 14, dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("method", ["repvgg", "qarepvgg", "dbb", "branches"])
@pytest.mark.parametrize("kernel", [(1, 7), (5, 1)])
def test_one_dimensional_kernels_merge_where_the_method_can_divide_them(method, kernel):
    config = Branches(masks=[torch.ones(kernel), torch.eye(*kernel)]) if method == "branches" else METHODS[method]
    conv = nn.Conv2d(4, 4, kernel, padding=(1, 2), groups=2, dtype=torch.float64)
    check(random_block(config, conv), torch.randn(2, 4, 9, 9, dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_convolutions_without_batch_norm_merge(method):
    conv = nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64)
    block = random_block(METHODS[method], conv, bn=False)
    assert block.norm is None
    assert (block.branches["kxk"].bn is None) == (method != "qarepvgg")
    check(block, torch.randn(2, 4, 8, 8, dtype=torch.float64), 1e-10)


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(sorted(METHODS)),
    kernel=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.sampled_from([1, 2, 3, 6]),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    seed=st.integers(0, 1000),
)
def test_merging_is_exact_for_anything(method, kernel, stride, padding, dilation, groups, channels, seed):
    torch.manual_seed(seed)
    inputs, outputs = (groups * count for count in channels)
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, dtype=torch.float64)
    check(random_block(METHODS[method], conv), torch.randn(2, inputs, 16, 15, dtype=torch.float64), 1e-10)


@pytest.mark.parametrize("method", [*METHODS, "branches"])
def test_gradients_are_those_of_the_merged_function(method):
    """In evaluation mode the block is its merged kernel, so also its derivative by the input is."""
    config = masks_for((3, 3)) if method == "branches" else METHODS[method]
    block = random_block(config, nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64))
    x = torch.randn(1, 4, 5, 5, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(block, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(block.to_conv(), x), expected, atol=1e-9, rtol=0)


def test_the_border_value_learns():
    """The value that a zero pixel takes depends on the inner BatchNorm, and its gradient knows it."""
    block = random_block(DBB(), nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64))
    bias = block.branches["1x1_kxk"].inner_bn.bias
    x = torch.randn(1, 2, 3, 3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(block(x).sum(), bias)
    step = 1e-6
    with torch.no_grad():
        bias[0] += step
        up = block.to_conv()(x).sum()
        bias[0] -= 2 * step
        down = block.to_conv()(x).sum()
    torch.testing.assert_close((up - down) / (2 * step), gradient[0], atol=1e-5, rtol=1e-5)


def test_training_mode_normalizes_every_branch():
    conv = nn.Conv2d(3, 4, 3, padding=1)
    block = ACB().build(conv, nn.BatchNorm2d(4)).train()
    x = 5 * torch.randn(16, 3, 8, 8)
    for _, branch in block.named_branches():
        y = branch(x)
        torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
        torch.testing.assert_close(y.var((0, 2, 3)), torch.ones(4), atol=1e-2, rtol=0)
    torch.testing.assert_close(block(x), sum(branch(x) for _, branch in block.named_branches()))


def test_switch_to_deploy_is_in_place_and_idempotent():
    block = random_block(DBB(), nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(2, 4, 6, 6)
    expected = block(x)
    block.switch_to_deploy()
    deployed = block.merged
    block.switch_to_deploy()
    assert block.merged is deployed
    assert relative(expected, block(x)) < 1e-5
    assert set(block.state_dict()) == {"merged.weight", "merged.bias"}
    torch.testing.assert_close(block.to_conv().weight, deployed.weight)


def test_branches_without_bias_merge_into_a_convolution_without_bias():
    config = masks_for((3, 3))
    assert random_block(config, nn.Conv2d(2, 2, 3, bias=False)).to_conv().bias is None
    assert random_block(config, nn.Conv2d(2, 2, 3, bias=True)).to_conv().bias is not None


def test_merged_convolutions_keep_dtype_mode_layout_and_freezing():
    block = random_block(RepVGG(), nn.Conv2d(4, 4, 3, padding=1)).to(memory_format=torch.channels_last)
    block.to(torch.bfloat16).requires_grad_(False).train()
    conv = block.to_conv()
    assert conv.weight.dtype == torch.bfloat16
    assert conv.training
    assert not conv.weight.requires_grad
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_blocks_are_made_of_named_branches():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    assert list(ACB().build(conv, None).branches) == ["kxk", "1xk", "kx1"]
    assert list(RepVGG().build(conv, None).branches) == ["kxk", "1x1", "identity"]
    assert list(QARepVGG().build(conv, None).branches) == ["kxk", "1x1", "identity"]
    assert list(DBB().build(conv, None).branches) == ["kxk", "1x1", "1x1_kxk", "1x1_avg"]
    assert "DBB: 4→4, kernel 3×3" in repr(DBB().build(conv, None))


@pytest.mark.parametrize("scale", [1.0, -0.5, 1e-3, 0.0])
def test_absorbing_adds_to_the_function_whatever_the_batch_norm(scale):
    """A zero-initialized BatchNorm weight must not blow the kernel up, nor lose the addend."""
    block = random_block(ACB(), nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64))
    bn = block.branches["kxk"].bn
    with torch.no_grad():
        bn.weight[1:3] = scale
    addend = Folded(torch.randn(4, 3, 3, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64))
    expected = block.fold() + addend
    size = block.branches["kxk"].conv.weight.norm()
    absorb_(block, addend)
    torch.testing.assert_close(block.fold().weight, expected.weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(block.fold().bias, expected.bias, atol=1e-12, rtol=0)
    assert block.branches["kxk"].conv.weight.norm() < 4 * size


def test_absorbing_without_affine_batch_norm_uses_the_convolutions_bias():
    block = ACB().build(nn.Conv2d(3, 4, 3, dtype=torch.float64), nn.BatchNorm2d(4, affine=False, dtype=torch.float64))
    randomize_(block)
    addend = Folded(torch.randn(4, 3, 3, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64))
    expected = block.fold() + addend
    absorb_(block, addend)
    torch.testing.assert_close(block.fold().weight, expected.weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(block.fold().bias, expected.bias, atol=1e-12, rtol=0)


def test_compensating_leaves_the_function_to_all_branches():
    block = random_block(DBB(), nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64))
    expected = block.branches["kxk"].fold()
    compensate_(block)
    torch.testing.assert_close(block.fold().weight, expected.weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(block.fold().bias, expected.bias, atol=1e-12, rtol=0)
    for name, branch in block.named_branches():
        if name != "kxk":
            assert (branch.bn.weight == NEW_BRANCH_STRENGTH).all()
            assert branch.fold().weight.abs().max() > 0


def test_strength_needs_a_batch_norm():
    block = ACB().build(nn.Conv2d(3, 4, 3), None)
    with pytest.raises(ValueError, match="ends with an affine BatchNorm"):
        set_strength_(block.branches["kxk"], 1.0)


def test_mixed_up_checkpoints_say_so():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    plain = nn.Sequential(copy.deepcopy(conv)).state_dict()
    model = nn.Sequential(DBB().build(conv, None))
    branched = model.state_dict()
    with pytest.raises(RuntimeError, match="'0' is a DBB block with branches, but the checkpoint contains a merged"):
        model.load_state_dict(plain)
    model[0].switch_to_deploy()
    with pytest.raises(RuntimeError, match="switched to deploy, but the checkpoint contains its branches"):
        model.load_state_dict(branched)
    with pytest.raises(RuntimeError, match="the checkpoint contains a merged"):
        nn.Sequential(DBB().build(nn.Conv2d(4, 4, 3), None)).load_state_dict(model.state_dict())


def test_state_dict_round_trip():
    block = random_block(DBB(), nn.Conv2d(4, 4, 3, padding=1))
    other = DBB().build(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)).eval()
    other.load_state_dict(block.state_dict())
    x = torch.randn(1, 4, 5, 5)
    assert torch.equal(block(x), other(x))
    assert isinstance(copy.deepcopy(block), BranchedConv2d)
