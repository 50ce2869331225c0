import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spatialgrad.reparam.geometry import ConvGeometry, KernelWindow, pad2d, pad2d_with_value, split_pads

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own


@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (5, 3)])
@pytest.mark.parametrize("padding", [0, 1, (3, 2), "same", "valid"])
@pytest.mark.parametrize("dilation", [1, (2, 3)])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_every_window_is_aligned_with_the_full_kernel(kernel, padding, dilation, mode):
    stride = 1 if padding == "same" else (2, 1)
    conv = nn.Conv2d(2, 3, kernel, stride, padding, dilation, bias=False, padding_mode=mode, dtype=torch.float64)
    geometry = ConvGeometry.of(conv)
    x = torch.randn(2, 2, 13, 14, dtype=torch.float64)
    for top in range(kernel[0]):
        for left in range(kernel[1]):
            window = KernelWindow(top, left, 1, 1)
            with torch.no_grad():
                conv.weight.zero_()
                conv.weight[..., top, left] = torch.randn(3, 2)
            pads, part = geometry.window_conv(window, like=conv.weight)
            part.weight = nn.Parameter(conv.weight[..., top, left][..., None, None])
            torch.testing.assert_close(part(pad2d(x, pads, mode)), conv(x), atol=1e-12, rtol=0)


def test_same_padding_of_even_kernels_is_torchs():
    geometry = ConvGeometry.of(nn.Conv2d(1, 1, (4, 2), padding="same"))
    assert geometry.pads == (0, 1, 1, 2)


def test_paddings_are_left_to_the_convolution_where_it_can_do_them():
    assert split_pads((1, 1, 2, 2), "zeros") == ((0, 0, 0, 0), (2, 1))
    assert split_pads((1, 1, 2, 2), "reflect") == ((1, 1, 2, 2), (0, 0))
    assert split_pads((0, 1, 0, 0), "zeros") == ((0, 1, 0, 0), (0, 0))
    assert split_pads((-1, -1, 0, 0), "zeros") == ((-1, -1, 0, 0), (0, 0))


def test_padding_with_a_value_per_channel_is_differentiable():
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    value = torch.randn(3, dtype=torch.float64, requires_grad=True)
    expected = F.pad(x - value[:, None, None], (1, 2, 0, 3)) + value[:, None, None]
    torch.testing.assert_close(pad2d_with_value(x, value, (1, 2, 0, 3)), expected)
    assert torch.autograd.gradcheck(lambda a, b: pad2d_with_value(a, b, (1, 2, 0, 3)), (x, value))
    assert pad2d_with_value(x, value, (0, 0, 0, 0)) is x
