"""The mutual information itself; `tests/test_reference.py` compares it with the paper's formula over random windows."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sgs.dependence.test_estimator import smooth
from spatialgrad import normalized_mutual_information
from spatialgrad.sgs.dependence import histogram


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.9])
def test_pairs_of_gaussian_pixels_have_the_closed_form(rho):
    """−½ log(1 − ρ²) nats, divided by the joint entropy of bins of width w, which is log(2πe √(1 − ρ²) / w²)."""
    bins, x = 64, torch.randn(2, 400_000, dtype=torch.float64)
    pixels = torch.stack([x[0], rho * x[0] + math.sqrt(1 - rho**2) * x[1]], 1).view(-1, 1, 2)
    S = normalized_mutual_information(pixels, 3, bins=bins)[0, 0]
    width = float(pixels.max() - pixels.min()) / bins
    joint = math.log(2 * math.pi * math.e * math.sqrt(1 - rho**2) / width**2)
    assert float(S) == pytest.approx(-math.log(1 - rho**2) / 2 / joint, abs=0.005)


def test_a_range_whose_inverse_overflows_counts_as_empty():
    for exponent in (-44, -41, -38):
        maps = smooth(4, 2, 10, 10)
        maps[:, 0] *= 10.0**exponent
        S = normalized_mutual_information(maps, 3)
        assert S[0].isnan().all()
        torch.testing.assert_close(S[1:], normalized_mutual_information(maps[:, 1:], 3))
        assert normalized_mutual_information(maps.double(), 3).isfinite().all()


def test_no_python_loop_over_channels(monkeypatch):
    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    def operations(channels):
        with Counter() as counter:
            normalized_mutual_information(torch.rand(2, channels, 8, 8), 3, padding=1)
        return counter.calls

    monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
    assert operations(4) == operations(64)
