import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spatialgrad.reparam import fold
from spatialgrad.reparam.fold import Folded
from support.reparam import randomize_


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_batch_norm_folds_into_the_convolution_before_it():
    conv, bn = nn.Conv2d(4, 6, 3).double(), randomize_(nn.BatchNorm2d(6).double()).eval()
    folded = fold.fold_batch_norm(Folded(conv.weight, conv.bias), bn)
    x = double(2, 4, 8, 8)
    torch.testing.assert_close(F.conv2d(x, *folded), bn(conv(x)), atol=1e-12, rtol=0)


def test_batch_norm_without_affine_part_folds_too():
    bn = randomize_(nn.BatchNorm2d(3, affine=False).double()).eval()
    scale, shift = fold.batch_norm_affine(bn)
    x = double(2, 3, 4, 4)
    torch.testing.assert_close(x * scale[:, None, None] + shift[:, None, None], bn(x), atol=1e-12, rtol=0)


def test_batch_norm_without_statistics_is_refused():
    with pytest.raises(ValueError, match="track_running_stats=False"):
        fold.batch_norm_affine(nn.BatchNorm2d(3, track_running_stats=False))


@pytest.mark.parametrize(
    ("small", "large", "at"),
    [((1, 1), (3, 3), (1, 1)), ((1, 3), (3, 3), (1, 0)), ((3, 1), (5, 7), (1, 3)), ((1, 1), (2, 4), (0, 1))],
)
def test_small_kernels_sit_in_the_centre_of_larger_ones(small, large, at):
    weight = double(2, 3, *small)
    embedded = fold.embed_kernel(weight, large)
    assert embedded.shape == (2, 3, *large)
    window = embedded[..., at[0] : at[0] + small[0], at[1] : at[1] + small[1]]
    torch.testing.assert_close(window, weight)
    assert embedded.count_nonzero() == weight.numel()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_sequence_with_groups_is_one_convolution_borders_included(groups):
    first = Folded(double(8, 4 // groups, 1, 1), double(8))
    second = Folded(double(12, 8 // groups, 3, 3), double(12))
    merged = fold.sequence_pointwise(first, second, groups)
    x = double(2, 4, 6, 6)
    middle = F.conv2d(x, *first, groups=groups)
    # The border of the middle map holds what zero pixels become: the first bias.
    canvas = first.bias[None, :, None, None].expand(2, 8, 8, 8).clone()
    canvas[:, :, 1:-1, 1:-1] = middle
    expected = F.conv2d(canvas, *second, groups=groups)
    torch.testing.assert_close(F.conv2d(x, *merged, padding=1, groups=groups), expected, atol=1e-12, rtol=0)
    # With zeros in the border instead, the two differ, and only there.
    wrong = F.conv2d(middle, *second, padding=1, groups=groups)
    assert (wrong - expected)[..., 0, :].abs().min() > 0
    torch.testing.assert_close(wrong[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1], atol=1e-12, rtol=0)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("size", [(1, 1), (3, 3), (3, 5)])
def test_identity_and_average_are_kernels(groups, size):
    x = double(2, 6, 7, 9)
    padding = (size[0] // 2, size[1] // 2)
    identity = fold.identity_kernel(6, size, groups=groups)
    torch.testing.assert_close(F.conv2d(x, identity, padding=padding, groups=groups), x)
    average = fold.average_kernel(6, size)
    torch.testing.assert_close(F.conv2d(x, average, groups=6), F.avg_pool2d(x, size, 1))


def test_folded_maps_add_up():
    a, b = (Folded(double(2, 2, 3, 3), double(2)) for _ in range(2))
    x = double(1, 2, 5, 5)
    torch.testing.assert_close(F.conv2d(x, *(a + b)), F.conv2d(x, *a) + F.conv2d(x, *b))


def test_folding_is_differentiable():
    bn = randomize_(nn.BatchNorm2d(2).double())
    weight = double(2, 2, 3, 3).requires_grad_()
    fold.fold_batch_norm(Folded(weight, weight.new_zeros(2)), bn).weight.sum().backward()
    assert weight.grad.abs().sum() > 0
    assert bn.weight.grad.abs().sum() > 0
