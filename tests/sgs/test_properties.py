"""Properties that hold for any convolution (hypothesis)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from spatialgrad import NoEffectWarning, SpatialGradientScaling, normalized_mutual_information, scaling_from_dependence

# torch's advice about even kernels, which are among the random ones
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def convolutions(draw):
    num_dims = draw(st.integers(1, 3))
    sides = st.lists(st.integers(1, 5), min_size=num_dims, max_size=num_dims)
    conv = CONV[num_dims](
        4,
        4,
        tuple(draw(sides.filter(lambda kernel_size: max(kernel_size) > 1))),
        padding=draw(st.sampled_from([0, 1, 2, "same"])),
        dilation=draw(st.integers(1, 2)),
        groups=draw(st.sampled_from([1, 2])),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return conv, torch.randn(3, 4, *((12,) if num_dims == 1 else (10,) * num_dims), generator=generator)


def measured(conv, x, **options):
    with SpatialGradientScaling(nn.Sequential(conv), torch.optim.SGD(conv.parameters(), lr=0.1), **options) as sgs:
        return sgs.update(x)["0"]


@settings(deadline=None, max_examples=60)
@given(convolutions(), st.floats(0.5, 20))
def test_positive_with_mean_1_and_symmetric(convolution, k):
    conv, x = convolution
    G = measured(conv, x.relu().cumsum(-1), k=k)
    assert G.shape == conv.kernel_size
    assert (G > 0).all()
    assert abs(float(G.double().mean()) - 1) < 1e-6
    torch.testing.assert_close(G, G.flip(list(range(G.dim()))))


@settings(deadline=None, max_examples=20)
@given(convolutions(), st.floats(-10, 10), st.sampled_from(["mutual-information", "autocorrelation"]))
def test_constant_inputs_leave_a_new_scaling_uniform(convolution, value, measure):
    conv, x = convolution
    pads = conv.padding_mode == "zeros" and conv.padding not in (0, (0,) * len(conv.kernel_size))
    x = torch.full_like(x, 0.0 if pads else value)  # zeros around another constant make an edge
    with pytest.warns(NoEffectWarning, match="have constant inputs"):
        assert torch.equal(measured(conv, x, measure=measure), torch.ones(conv.kernel_size))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.floats(1.0, 30.0), st.floats(1.1, 3.0))
def test_larger_k_evens_out(seed, k, factor):
    x = torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(seed))
    S = normalized_mutual_information(F.avg_pool2d(x, 3, 1, 1), 3)
    assert scaling_from_dependence(S, k * factor)[1, 1] < scaling_from_dependence(S, k)[1, 1]
