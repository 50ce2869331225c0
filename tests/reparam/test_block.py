"""Merging is exact for every method and every kind of convolution, borders included."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from spatialgrad.reparam import ACB, DBB, BranchedConv2d, Branches, RepVGG
from spatialgrad.reparam.branches import BRANCH_NAMES, ConvBranch
from spatialgrad.reparam.fold import Folded
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.preserve import NEW_BRANCH_STRENGTH, absorb_, compensate_
from support.reparam import BLOCKS, randomize_, relative

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own

ALL = {**BLOCKS, "dbb-seven": DBB(branches=BRANCH_NAMES), "large": DBB(branches=("kxk", "1xk", "kx1", "1x1"))}


def config_for(method, kernel):
    """A method; masks have the shape of the kernel."""
    if method != "branches":
        return ALL[method]
    corner, scattered = torch.zeros(kernel), torch.zeros(kernel)
    corner[-1, :2] = 1
    scattered[0, 0] = scattered[-1, -1] = 1
    return Branches(masks=[torch.ones(kernel), corner, scattered])


def random_block(method, conv, *, bn=True):
    norm = nn.BatchNorm2d(conv.out_channels).to(conv.weight) if bn and method.takes_batch_norm else None
    return randomize_(method.build(conv, norm)).eval()


@torch.no_grad()
def check(method, conv, *, bn=True, size=(14, 15)):
    """Compare a block with its convolution: the largest difference, so that one wrong border pixel fails."""
    block = random_block(config_for(method, conv.kernel_size), conv, bn=bn)
    x = torch.randn(2, conv.in_channels, *size).to(conv.weight)
    merged = block.to_conv()
    assert type(merged) is nn.Conv2d
    assert relative(block(x), merged(x)) < (1e-10 if x.dtype == torch.float64 else 1e-4), block
    return block


CASES = {
    "plain": {},
    "odd": {"kernel_size": (7, 5), "padding": (2, 3)},
    "even": {"kernel_size": (4, 2), "padding": 1},
    "same": {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
    "valid": {"padding": "valid"},
    "strided": {"stride": (2, 1)},
    "grouped": {"groups": 2, "bias": False},
    "depthwise": {"groups": 4, "stride": 2},
    "wider": {"out_channels": 6, "groups": 2},
    "dilated": {"dilation": 2, "padding": 2},
    "reflect": {"padding_mode": "reflect", "padding": (2, 1)},
    "replicate": {"padding_mode": "replicate", "dilation": (1, 2)},
    "circular": {"padding_mode": "circular", "padding": "same"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ALL)
def test_merging_is_exact(method, case, device):
    options = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "padding": 1, **CASES[case]}
    for dtype in (torch.float64, torch.float32):
        check(method, nn.Conv2d(**options, dtype=dtype, device=device))


# The table above holds what people use; this searches for what nobody thought of.
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    method=st.sampled_from(sorted(ALL)),
    kernel=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 6), st.integers(0, 6)) | st.sampled_from(["same", "valid"]),
    mode=st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.sampled_from([1, 2, 3, 6]),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_merging_is_exact_for_anything(method, kernel, stride, padding, mode, dilation, groups, channels, bias, seed):
    torch.manual_seed(seed)
    inputs, outputs = (groups * count for count in channels)
    stride = 1 if padding == "same" else stride
    check(
        method,
        nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias, mode, dtype=torch.float64),
        size=(16, 15),
    )


@pytest.mark.parametrize("method", ["repvgg", "qarepvgg", "dbb", "branches", "repopt"])
@pytest.mark.parametrize("kernel", [(1, 7), (5, 1)])
def test_one_dimensional_kernels_merge_where_the_method_can_divide_them(method, kernel):
    check(method, nn.Conv2d(4, 4, kernel, padding=(1, 2), groups=2, dtype=torch.float64))


@pytest.mark.parametrize("method", ALL)
def test_convolutions_without_batch_norm_merge(method):
    block = check(method, nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64), bn=False)
    assert block.norm is None
    if method in ("acb", "repvgg", "dbb"):
        assert block.branches["kxk"].bn is None


@pytest.mark.parametrize("method", ALL)
def test_gradients_are_those_of_the_merged_function(method, device):
    """In evaluation mode the block is its merged kernel, so also its derivative by the input is."""
    conv = nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64, device=device)
    block = random_block(config_for(method, (3, 3)), conv)
    x = torch.randn(1, 4, 5, 5).to(conv.weight)
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


def test_training_mode_normalizes_every_branch(device):
    block = ACB().build(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)).to(device).train()
    x = 5 * torch.randn(16, 3, 8, 8, device=device)
    for _, branch in block.named_branches():
        y = branch(x).cpu()
        torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
        torch.testing.assert_close(y.var((0, 2, 3)), torch.ones(4), atol=1e-2, rtol=0)
    torch.testing.assert_close(block(x), sum(branch(x) for _, branch in block.named_branches()))


@pytest.mark.parametrize("method", BLOCKS)
def test_switch_to_deploy_is_in_place_and_idempotent(method, device):
    block = random_block(BLOCKS[method], nn.Conv2d(4, 4, 3, padding=1, device=device))
    x = torch.randn(2, 4, 6, 6, device=device)
    expected = block(x)
    block.switch_to_deploy()
    deployed = block.merged
    block.switch_to_deploy()
    assert block.merged is deployed
    assert relative(expected, block(x)) < 1e-5
    assert set(block.state_dict()) == {"merged.weight", "merged.bias"}
    torch.testing.assert_close(block.to_conv().weight, deployed.weight)


def test_branches_without_bias_merge_into_a_convolution_without_bias():
    for bias in (False, True):
        block = random_block(BLOCKS["branches"], nn.Conv2d(2, 2, 3, bias=bias))
        assert (block.to_conv().bias is not None) == bias


def test_a_batch_norm_without_a_bias_merges_into_one():
    """In a block of a user's own: those of the package always have a branch with an affine BatchNorm."""
    conv, bn = nn.Conv2d(2, 2, 3, bias=False), nn.BatchNorm2d(2, affine=False)
    geometry = ConvGeometry.of(conv)
    block = randomize_(BranchedConv2d(geometry, {"kxk": ConvBranch.around(conv, geometry, bn)}, method="own")).eval()
    x = torch.randn(2, 2, 6, 6)
    assert relative(block(x), block.to_conv()(x)) < 1e-5


def test_merged_convolutions_keep_dtype_mode_and_freezing():
    block = random_block(RepVGG(), nn.Conv2d(4, 4, 3, padding=1))
    conv = block.to(torch.bfloat16).requires_grad_(False).train().to_conv()
    assert conv.weight.dtype == torch.bfloat16
    assert conv.training
    assert not conv.weight.requires_grad


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("acb", ["kxk", "1xk", "kx1"]),
        ("repvgg", ["kxk", "1x1", "identity"]),
        ("qarepvgg", ["kxk", "1x1", "identity"]),
        ("dbb", ["kxk", "1x1", "1x1_kxk", "1x1_avg"]),
        ("dbb-seven", list(BRANCH_NAMES)),
    ],
)
def test_blocks_are_made_of_named_branches(method, names):
    block = ALL[method].build(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
    assert list(block.branches) == names
    assert f"{ALL[method].name}: 4→4, kernel 3×3" in repr(block)
    for options in ({"out_channels": 8}, {"stride": 2}):
        conv = nn.Conv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **options})
        assert list(ALL[method].build(conv, None).branches) == [name for name in names if name != "identity"]


def test_qarepvgg_normalizes_the_sum_and_the_full_kernel_only(device):
    conv, bn = nn.Conv2d(4, 4, 3, padding=1, device=device), nn.BatchNorm2d(4, eps=1e-3, device=device)
    block = BLOCKS["qarepvgg"].build(conv, bn)
    branches = block.branches
    assert block.norm is bn
    assert branches["kxk"].bn.eps == 1e-3
    assert branches["1x1"].bn is branches["identity"].bn is None
    assert branches["1x1"].conv.bias is None
    x = torch.randn(8, 4, 6, 6, device=device)
    expected = bn(branches["kxk"].bn(conv(x)) + branches["1x1"].conv(x) + x)
    torch.testing.assert_close(block(x), expected)


ADDEND = Folded(torch.randn(4, 3, 3, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64))


def assert_folds_to(block, expected):
    torch.testing.assert_close(block.fold().weight, expected.weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(block.fold().bias, expected.bias, atol=1e-12, rtol=0)


@pytest.mark.parametrize("scale", [1.0, -0.5, 1e-3, 0.0])
def test_absorbing_adds_to_the_function_whatever_the_batch_norm(scale):
    """A zero-initialized BatchNorm weight must not blow the kernel up, nor lose the addend."""
    block = random_block(ACB(), nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64))
    with torch.no_grad():
        block.branches["kxk"].bn.weight[1:3] = scale
    expected = block.fold() + ADDEND
    size = block.branches["kxk"].conv.weight.norm()
    absorb_(block, ADDEND)
    assert_folds_to(block, expected)
    assert block.branches["kxk"].conv.weight.norm() < 4 * size


def test_absorbing_without_affine_batch_norm_uses_the_convolutions_bias():
    norm = nn.BatchNorm2d(4, affine=False, dtype=torch.float64)
    block = randomize_(ACB().build(nn.Conv2d(3, 4, 3, dtype=torch.float64), norm))
    expected = block.fold() + ADDEND
    absorb_(block, ADDEND)
    assert_folds_to(block, expected)


def test_compensating_leaves_the_function_to_all_branches():
    block = random_block(DBB(), nn.Conv2d(4, 4, 3, padding=1, dtype=torch.float64))
    expected = block.branches["kxk"].fold()
    compensate_(block)
    assert_folds_to(block, expected)
    for name, branch in block.named_branches():
        if name != "kxk":
            assert (branch.bn.weight == NEW_BRANCH_STRENGTH).all()
            assert branch.fold().weight.abs().max() > 0


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
