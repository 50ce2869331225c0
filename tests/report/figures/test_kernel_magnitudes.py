"""The average kernel magnitude."""

import pytest
import torch
from torch import nn

from spatialgrad.report.figures.kernels import kernel_magnitude, magnitudes_of_run
from spatialgrad.train import CheckpointError, Run, load_model
from spatialgrad.train.checkpoint import save_checkpoint
from spatialgrad.utils.modules import named_convolutions
from support.training import quietly, tiny


def test_by_hand():
    weight = torch.zeros(2, 3, 3, 3)
    weight[0, 0, 1, 1] = -6.0
    weight[1, 2, 0, 0] = 3.0
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[1, 1], expected[0, 0] = 6.0, 3.0
    torch.testing.assert_close(kernel_magnitude(weight), expected)  # 1 and 0.5, whose mean is 1.5 / 9


def test_scale_and_channels_do_not_matter():
    weight = torch.randn(8, 4, 5, 3)
    found = kernel_magnitude(weight)
    assert found.mean().item() == pytest.approx(1)
    torch.testing.assert_close(kernel_magnitude(-7 * weight), found)
    torch.testing.assert_close(kernel_magnitude(weight[torch.randperm(8)][:, torch.randperm(4)]), found)


def test_a_kernel_of_zeros_is_even():
    assert torch.equal(kernel_magnitude(torch.zeros(1, 1, 3, 3)), torch.ones(3, 3, dtype=torch.float64))


def test_only_convolutions_with_several_positions(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    save_checkpoint(tmp_path, {"model": model.state_dict(), "step": 0, "epoch": 0, "batch": 0})
    assert list(magnitudes_of_run(Run.open(tmp_path))) == ["0"]


def test_a_run_and_its_network_agree(tmp_path):
    quietly(tiny(tmp_path, "sgs", epochs=1))
    expected = {
        name: kernel_magnitude(conv.weight).tolist() for name, conv in named_convolutions(load_model(tmp_path)).items()
    }
    assert magnitudes_of_run(Run.open(tmp_path)) == expected
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        magnitudes_of_run(Run.open(tmp_path / "elsewhere"))
