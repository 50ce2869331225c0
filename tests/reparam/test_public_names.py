"""The public names of reparameterization are a contract too."""

import torch
from torch import nn

from spatialgrad import reparam
from support.imports import loaded_by

PUBLIC = set(
    """
    ACB Adjustment BranchedConv2d Branches Count DBB Difference DyRep DyRepConfig LayerScales MergeError MergeReport
    Merged QARepVGG RepOpt RepOptScaling RepVGG Reparameterization ScalesSummary UnsupportedLayerError count
    equivalent_scaling explain_scales merge merge_with_report named_blocks reparameterize_ repopt_init_
    repopt_multipliers searched_scales
    """.split()
)


def test_inventory():
    assert set(reparam.__all__) == PUBLIC
    assert all(getattr(reparam, name).__doc__ for name in PUBLIC)


def test_importing_loads_nothing_beyond_torch_and_numpy():
    # torch's own counter of multiply-accumulates imports triton where there is one.
    assert [name for name in loaded_by("spatialgrad.reparam") if name != "triton"] == ["spatialgrad"]


def test_blocks_train_under_autocast():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, dilation=1), nn.BatchNorm2d(4))
    reparam.reparameterize_(model, reparam.DBB())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 3, 8, 8)).square().mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
