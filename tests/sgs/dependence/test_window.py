import itertools

import pytest
import torch
from torch import nn

from spatialgrad.sgs.dependence.window import Window, shifted_pair


def test_odd_kernel_has_half_of_its_displacements_and_a_centre():
    window = Window.of((3, 3))
    assert window.displacements == ((0, 1), (1, -1), (1, 0), (1, 1))
    S = window.arrange(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))[0]
    torch.testing.assert_close(S, torch.tensor([[0.4, 0.3, 0.2], [0.1, 1.0, 0.1], [0.2, 0.3, 0.4]]))


@pytest.mark.parametrize("kernel_size", [(3,), (1, 5), (5, 1), (7, 7), (3, 5), (3, 3, 3), (1, 3, 5)])
def test_odd_kernels_of_any_shape_count_each_pair_once(kernel_size):
    window = Window.of(kernel_size, dilation=2)
    everything = set(itertools.product(*(range(-(s - 1), s, 2) for s in kernel_size)))
    mirrored = {tuple(-step for step in offset) for offset in window.displacements}
    assert set(window.displacements) | mirrored | {(0,) * len(kernel_size)} == everything
    assert not set(window.displacements) & mirrored


@pytest.mark.parametrize(("kernel_size", "dilation"), [((2, 2), 1), ((4,), 1), ((4, 3), 1), ((2, 4), 3), ((4, 4), 2)])
def test_even_kernels_prefer_no_side(kernel_size, dilation):
    window = Window.of(kernel_size, dilation=dilation)
    S = window.arrange(torch.rand(3, len(window.displacements), dtype=torch.float64))
    torch.testing.assert_close(S, S.flip(list(range(1, S.dim()))))


def test_a_nan_displacement_makes_the_channel_nan():
    S = Window.of((3,)).arrange(torch.tensor([[float("nan")], [0.5]]))
    assert S[0].isnan().all()
    assert S[1].tolist() == [0.5, 1.0, 0.5]


def test_padding_string_same_follows_torch():
    conv = nn.Conv2d(1, 1, (4, 3), padding="same", dilation=(1, 2))
    assert Window.of_convolution(conv).padding == ((1, 2), (2, 2))
    assert Window.of_convolution(nn.Conv2d(1, 1, 3, padding="valid")).padding == ((0, 0), (0, 0))


def test_shifted_pair_pairs_each_pixel_with_its_neighbour():
    maps = torch.arange(12.0).view(1, 1, 3, 4)
    here, there = shifted_pair(maps, (1, -2))
    assert (there - here == 4 - 2).all()
    assert here.shape == (1, 1, 2, 2)


@pytest.mark.parametrize("offset", [(3, 0), (4, 0), (5, 1), (-4, 0), (0, 9), (7, -7)])
def test_pixels_without_a_neighbour_make_no_pair(offset):
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
    displacements = [offset for (offset,) in window.displacements]
    assert max(displacements, default=0) == smallest - 1
