import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score
from torch.utils._python_dispatch import TorchDispatchMode

from sgs.dependence.test_estimator import smooth
from spatialgrad import normalized_mutual_information
from spatialgrad.sgs.dependence import histogram
from spatialgrad.sgs.dependence.window import shifted_pair


def entropy(labels):
    _, counts = np.unique(labels, return_counts=True, axis=0)
    p = counts / counts.sum()
    return -(p * np.log(p)).sum()


def oracle(maps, kernel_size, dilation=1):
    """S of one channel with scikit-learn's mutual information on bins from numpy's own edges."""
    values = maps.double().numpy()
    bins = 1 + math.ceil(math.log2(values.size))
    edges = np.linspace(values.min(), values.max(), bins + 1)
    labels = torch.from_numpy(np.clip(np.digitize(values, edges) - 1, 0, bins - 1))
    S = np.ones(kernel_size)
    for position in np.ndindex(*kernel_size):
        offset = tuple(dilation * (i - k // 2) for i, k in zip(position, kernel_size, strict=True))
        if any(offset):
            p, q = (part.flatten().numpy() for part in shifted_pair(labels, offset))
            S[position] = mutual_info_score(p, q) / entropy(np.stack([p, q], 1))
    return torch.from_numpy(S)


@pytest.mark.parametrize(
    ("size", "kernel_size", "dilation"),
    [((64,), (5,), 1), ((20, 22), (3, 3), 1), ((20, 22), (3, 5), 2), ((20, 22), (1, 7), 1), ((8, 9, 10), (3, 3, 3), 1)],
)
def test_agrees_with_scikit_learn(size, kernel_size, dilation):
    maps = smooth(6, 3, *size).double()
    S = normalized_mutual_information(maps, kernel_size, dilation=dilation)
    for channel in range(3):
        torch.testing.assert_close(S[channel], oracle(maps[:, channel], kernel_size, dilation), atol=1e-6, rtol=0)


def test_a_range_whose_inverse_overflows_counts_as_empty():
    for exponent in (-44, -41, -38):
        maps = smooth(4, 2, 10, 10)
        maps[:, 0] *= 10.0**exponent
        S = normalized_mutual_information(maps, 3)
        assert S[0].isnan().all()
        torch.testing.assert_close(S[1:], normalized_mutual_information(maps[:, 1:], 3))
        assert normalized_mutual_information(maps.double(), 3).isfinite().all()


def test_no_python_loop_over_channels(monkeypatch):
    """The number of torch operations does not grow with the channels."""

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counter.calls += 1
            return func(*args, **(kwargs or {}))

    def operations(channels):
        Counter.calls = 0
        with Counter():
            normalized_mutual_information(torch.rand(2, channels, 8, 8), 3, padding=1)
        return Counter.calls

    monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
    assert operations(4) == operations(64)
