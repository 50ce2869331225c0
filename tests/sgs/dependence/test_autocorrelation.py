import numpy as np
import pytest
import torch
from torch.nn import functional as F

from spatialgrad import autocorrelation
from spatialgrad.sgs.dependence.window import shifted_pair


@pytest.mark.parametrize(("size", "kernel_size"), [((40,), (5,)), ((12, 13), (3, 5)), ((6, 7, 8), (3, 3, 3))])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_agrees_with_numpy(size, kernel_size, offset):
    maps = torch.randn(6, 2, *size, dtype=torch.float64).cumsum(-1) + offset
    S = autocorrelation(maps, kernel_size)
    for channel in range(2):
        for position in np.ndindex(*kernel_size):
            shift = tuple(i - k // 2 for i, k in zip(position, kernel_size, strict=True))
            p, q = (part.flatten().numpy() for part in shifted_pair(maps[:, channel], shift))
            assert float(S[channel][position]) == pytest.approx(abs(np.corrcoef(p, q)[0, 1]), abs=1e-9)


def test_negative_correlation_is_dependence():
    stripes = torch.tensor([1.0, -1.0]).repeat(8).view(1, 1, 16)
    assert autocorrelation(stripes, (3,))[0].tolist() == pytest.approx([1, 1, 1])


def test_maps_of_several_blocks():
    noise = torch.randn(3, 1, 1 << 20)
    maps = torch.stack([noise[0], noise[1] + 3, 4 * F.avg_pool1d(noise[2], 3, 1, 1)])  # each sample is a block
    S = autocorrelation(maps, 3)[0]
    p, q = maps[..., :-1].double().flatten().numpy(), maps[..., 1:].double().flatten().numpy()
    assert float(S[0]) == pytest.approx(np.corrcoef(p, q)[0, 1], abs=1e-9)
    alone = [float(autocorrelation(sample[None], 3)[0, 0]) for sample in maps]
    assert all(abs(value - float(S[0])) > 0.01 for value in alone), "one block looks like all of them"
