import copy

import pytest
import torch
from torch import nn

from spatialgrad import SpatialGradientScaling, scaling_from_masks
from spatialgrad.models import create_model
from spatialgrad.reparam import (
    DBB,
    Branches,
    UnsupportedLayerError,
    equivalent_scaling,
    merge,
    named_blocks,
    reparameterize_,
)
from support.reparam import batches, train

MASKS = [
    [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
    [[0, 0, 0], [1, 1, 1], [0, 0, 0]],
    [[0, 1, 0], [0, 1, 0], [0, 1, 0]],
    [[1, 0, 1], [0, 1, 0], [1, 0, 1]],
]


def test_the_equivalent_scaling_is_the_sum_of_the_masks():
    block = Branches(masks=MASKS).build(nn.Conv2d(2, 3, 3), None)
    expected = torch.tensor([[2.0, 2, 2], [2, 4, 2], [2, 2, 2]])
    torch.testing.assert_close(equivalent_scaling(block), expected)
    masks = [torch.tensor(mask, dtype=torch.float64) for mask in MASKS]
    torch.testing.assert_close(scaling_from_masks(masks, normalize=False).float(), expected)


def test_the_gradient_reaches_each_branch_through_its_mask():
    conv = nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64)
    block = Branches(masks=MASKS).build(conv, None)
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    conv(x).square().sum().backward()
    block(x).square().sum().backward()
    for mask, (_, branch) in zip(MASKS, block.named_branches(), strict=True):
        expected = branch.crop(conv.weight.grad * torch.tensor(mask))
        torch.testing.assert_close(branch.weight.grad, expected, atol=1e-10, rtol=0)


def test_branches_are_computed_on_their_bounding_boxes():
    block = Branches(masks=MASKS).build(nn.Conv2d(2, 3, 3), None)
    shapes = [tuple(branch.weight.shape[2:]) for _, branch in block.named_branches()]
    assert shapes == [(3, 3), (1, 3), (3, 1), (3, 3)]


def test_the_batch_norm_stays_behind_the_block():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    bn = model[1]
    reparameterize_(model, Branches(masks=MASKS))
    assert [name for name, _ in named_blocks(model)] == ["0"]
    assert model[1] is bn
    assert [type(part) for part in merge(model)] == [nn.Conv2d, nn.BatchNorm2d, nn.Conv2d]


def test_masks_survive_a_move_and_are_not_in_the_checkpoint():
    block = Branches(masks=MASKS).build(nn.Conv2d(2, 3, 3), None).double()
    assert all("mask" not in key.split(".")[-1] for key in block.state_dict())
    assert equivalent_scaling(block).dtype == torch.float64


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([], "at least one mask"),
        ([[[1, 1, 1]], [[1], [1]]], "the same shape"),
        ([torch.ones(3)], "matrices"),
        ([[[1, 2]]], "binary"),
        ([[[1, 1]], [[0, 0]]], "all zeros"),
        ([[[1, 0]], [[1, 0]]], r"covers the positions \[\[0, 1\]\]"),
    ],
)
def test_wrong_masks_are_refused(masks, message):
    with pytest.raises(ValueError, match=message):
        Branches(masks=masks)


def test_a_kernel_of_another_shape_is_refused_by_name():
    model = nn.Sequential(nn.Conv2d(1, 1, 5))
    with pytest.raises(UnsupportedLayerError, match=r"'0' has kernel \(5, 5\), the masks have shape \(3, 3\)"):
        reparameterize_(model, Branches(masks=MASKS), include=lambda name, module: True)


def test_other_blocks_have_no_equivalent_scaling():
    with pytest.raises(TypeError, match="not DBB"):
        equivalent_scaling(DBB().build(nn.Conv2d(2, 2, 3), None))
    with pytest.raises(TypeError, match="not Conv2d"):
        equivalent_scaling(nn.Conv2d(2, 2, 3))


def fresh(state=None):
    model = create_model("vgg11", num_classes=5, width=0.0625).double()
    if state is not None:
        model.load_state_dict(state)
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)


def test_the_lemma_on_a_whole_network():
    """Every convolution of a VGG as masked branches, and the plain VGG under their G, learn the same weights."""
    plain, optimizer = fresh()
    start = copy.deepcopy(plain.state_dict())
    branched, branched_optimizer = fresh(start)
    reparameterize_(branched, Branches(masks=MASKS), optimizer=branched_optimizer)
    assert len(list(named_blocks(branched))) == 8
    masks = [torch.tensor(mask, dtype=torch.float64) for mask in MASKS]
    G = scaling_from_masks(masks, normalize=False)
    SpatialGradientScaling(plain, optimizer, measure=None, scalings=G)

    data = batches(50, size=6, side=32, dtype=torch.float64)
    for model, opt in ((plain, optimizer), (branched, branched_optimizer)):
        torch.manual_seed(1)  # the same dropout in both
        train(model, opt, data)
    merged = merge(branched)
    assert (plain.features[0].weight - start["features.0.weight"]).abs().max() > 0.1
    for name, parameter in merged.state_dict().items():
        expected = plain.state_dict()[name]
        assert (parameter - expected).abs().max() <= 1e-8 * max(1.0, expected.abs().max()), name

    # Without G, the plain network ends elsewhere: the test above can fail.
    control, control_optimizer = fresh(start)
    torch.manual_seed(1)
    train(control, control_optimizer, data)
    assert (control.features[0].weight - plain.features[0].weight).abs().max() > 1e-2
