import numpy as np
import pytest
import torch

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
