import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from spatialgrad.sgs.layers import observing, select_convolutions
from spatialgrad.torch_utils.modules import named_convolutions, quiet_evaluation, unwrap_model


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
    import warnings

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


def test_wrappers_do_not_change_names():
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)))
    expected = ["0", "1.0"]
    assert list(named_convolutions(inner)) == expected
    assert list(named_convolutions(nn.DataParallel(inner))) == expected
    assert list(named_convolutions(torch.compile(inner))) == expected
    partly = nn.Sequential(inner[0], torch.compile(inner[1]))
    assert list(named_convolutions(partly)) == expected
    assert unwrap_model(torch.compile(nn.DataParallel(inner))) is inner


def test_observing_sees_positional_and_keyword_inputs_and_cleans_up():
    conv = nn.Conv2d(3, 4, 3)
    seen = []
    with observing({conv: seen.append}):
        conv(torch.zeros(1, 3, 8, 8))
        conv(input=torch.ones(1, 3, 8, 8))
    conv(torch.zeros(1, 3, 8, 8))
    assert [float(maps.mean()) for maps in seen] == [0.0, 1.0]
    assert not conv._forward_pre_hooks


def test_quiet_evaluation_restores_every_flag_even_after_an_error():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3)))
    model[1].eval()
    flags = [module.training for module in model.modules()]
    try:
        with quiet_evaluation(model):
            assert not any(module.training for module in model.modules())
            assert not torch.is_grad_enabled()
            raise KeyError
    except KeyError:
        pass
    assert [module.training for module in model.modules()] == flags
    assert torch.is_grad_enabled()
