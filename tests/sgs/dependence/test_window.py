"""The geometry of kernels; `tests/test_reference.py` compares it with the reference over random windows."""

import itertools

import pytest
import torch
from torch import nn

from spatialgrad.sgs.dependence.window import Window, shifted_pair


def test_half_of_the_displacements_and_a_centre():
    window = Window.of((3, 3))
    assert window.displacements == ((0, 1), (1, -1), (1, 0), (1, 1))
    S = window.arrange(torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, torch.nan, 0.3, 0.4]]))
    torch.testing.assert_close(S[0], torch.tensor([[0.4, 0.3, 0.2], [0.1, 1.0, 0.1], [0.2, 0.3, 0.4]]))
    assert S[1].isnan().all()  # a channel that is not known at one displacement is not known
    for kernel_size in ((1, 5), (7, 7), (1, 3, 5)):
        window = Window.of(kernel_size, dilation=2)
        everything = set(itertools.product(*(range(-(s - 1), s, 2) for s in kernel_size)))
        mirrored = {tuple(-step for step in offset) for offset in window.displacements}
        assert set(window.displacements) | mirrored | {(0,) * len(kernel_size)} == everything
        assert not set(window.displacements) & mirrored


@pytest.mark.parametrize(("kernel_size", "dilation"), [((2, 2), 1), ((4, 3), 1), ((2, 4), 3)])
def test_even_kernels_prefer_no_side(kernel_size, dilation):
    window = Window.of(kernel_size, dilation=dilation)
    S = window.arrange(torch.rand(3, len(window.displacements), dtype=torch.float64))
    torch.testing.assert_close(S, S.flip(list(range(1, S.dim()))))


def test_padding_by_name_follows_torch():
    conv = nn.Conv2d(1, 1, (4, 3), padding="same", dilation=(1, 2))
    window = Window.of_convolution(conv)
    assert window.padding == ((1, 2), (2, 2))
    maps = torch.rand(1, 1, 5, 6)
    assert torch.equal(window.inside(window.pad(maps), (5, 6)), maps)
    assert Window.of_convolution(nn.Conv2d(1, 1, 3, padding="valid")).padding == ((0, 0), (0, 0))


def test_each_pixel_is_paired_with_its_neighbour_if_it_has_one():
    here, there = shifted_pair(torch.arange(12.0).view(1, 1, 3, 4), (1, -2))
    assert (there - here == 4 - 2).all()
    assert here.shape == (1, 1, 2, 2)
    for offset in ((3, 0), (5, 1), (-4, 0), (0, 9), (7, -7)):
        here, there = shifted_pair(torch.rand(2, 3, 3, 4), offset)
        assert here.numel() == 0
        assert here.shape == there.shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_size": (0, 3)}, "at least 1"),
        ({"kernel_size": (3, 3), "dilation": 0}, "at least 1"),
        ({"kernel_size": (3, 3), "padding": -1}, "negative"),
        ({"kernel_size": (3, 3), "padding": (1, 2, 3)}, "does not fit"),
        ({"kernel_size": (3, 3), "padding": "some"}, "'same' or 'valid'"),
        ({"kernel_size": (3, 3), "padding_mode": "mirror"}, "mirror.*the modes are zeros, reflect"),
        ({"kernel_size": (3,) * 4}, "1 to 3 dimensions"),
        ({"kernel_size": (3, 3), "num_dims": 1}, "does not fit 1 spatial"),
    ],
)
def test_bad_geometry_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Window.of(**arguments)


@pytest.mark.parametrize(
    ("kernel_size", "dilation", "smallest"), [(3, 1, 2), (3, 3, 4), (4, 1, 3), (2, 3, 3), (1, 5, 1)]
)
def test_maps_need_a_pair_for_every_displacement(kernel_size, dilation, smallest):
    window = Window.of((kernel_size,), dilation=dilation)
    assert [window.fits((size,)) for size in (smallest - 1, smallest)] == [False, True]
    assert Window.of((kernel_size,), dilation=dilation, padding=1).fits((smallest - 1,))
