import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from spatialgrad.sgs.layers import observing, select_convolutions


class Zoo(nn.Module):
    """One convolution of each kind that matters."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 4, 3)
        self.row = nn.Conv2d(4, 4, (1, 3))
        self.line = nn.Conv1d(4, 4, 3)
        self.volume = nn.Conv3d(4, 4, 3)
        self.pointwise = nn.Conv2d(4, 4, 1)
        self.up = nn.ConvTranspose2d(4, 4, 3)
        self.frozen = nn.Conv2d(4, 4, 3).requires_grad_(False)
        self.spectral = parametrizations.spectral_norm(nn.Conv2d(4, 4, 3))
        self.lazy = nn.LazyConv2d(4, 3)
        self.twin = nn.Conv2d(3, 4, 3)
        self.twin.weight = self.plain.weight
        self.again = self.row


def test_every_convolution_is_chosen_or_has_a_reason():
    chosen, skipped = select_convolutions(Zoo())
    assert list(chosen) == ["plain", "row", "line", "volume"]
    assert len(chosen["plain"]) == 2  # one weight, two modules
    reasons = {
        "pointwise": "1×1",
        "up": "transposed",
        "frozen": "frozen",
        "spectral": "parametrized",
        "lazy": "not initialized",
        "twin": "shares its weight with 'plain'",
    }
    assert set(skipped) == set(reasons)
    for name, reason in reasons.items():
        assert reason in skipped[name]


def test_the_old_weight_norm_counts_as_parametrized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3)))
    assert "parametrized" in select_convolutions(model)[1]["0"]


def test_include_and_exclude_by_name_and_module():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 5), nn.Conv2d(4, 4, 3, groups=4))
    chosen, skipped = select_convolutions(
        model, include=lambda name, module: name != "0", exclude=lambda name, module: module.groups > 1
    )
    assert list(chosen) == ["1"]
    assert skipped == {"0": "not included", "2": "excluded"}


def test_observing_sees_positional_and_keyword_inputs_and_cleans_up():
    conv = nn.Conv2d(3, 4, 3)
    seen = []
    with observing({conv: seen.append}):
        conv(torch.zeros(1, 3, 8, 8))
        conv(input=torch.ones(1, 3, 8, 8))
    conv(torch.zeros(1, 3, 8, 8))
    assert [float(maps.mean()) for maps in seen] == [0.0, 1.0]
    assert not conv._forward_pre_hooks
