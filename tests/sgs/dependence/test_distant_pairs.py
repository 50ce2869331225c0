import pytest
import torch
from benchmarks.published import published_dependence, published_scaling
from torch.nn import functional as F

from spatialgrad import normalized_mutual_information, scaling_from_dependence


def sparse(number, channels, size, threshold=0.0):
    """Smooth maps, clipped as after a ReLU; a larger threshold leaves fewer values that are not 0."""
    return (F.avg_pool2d(torch.randn(number, channels, size + 2, size + 2), 3, 1) * 3 - threshold).relu()


def distant(maps, kernel_size=3, **options):
    return normalized_mutual_information(maps, kernel_size, drop_near=True, **options)


@pytest.mark.parametrize(
    ("number", "size", "threshold", "kernel_size", "padding"),
    [
        (16, 2, 0.0, (3, 3), (1, 1)),
        (128, 2, 1.0, (3, 3), (1, 1)),
        (64, 4, 0.0, (3, 3), (1, 1)),
        (16, 7, 1.0, (3, 3), (1, 1)),
        (8, 32, 0.0, (3, 3), (1, 1)),
        (16, 8, 0.0, (5, 5), (2, 2)),
        (16, 8, 0.0, (3, 5), (1, 0)),
        (16, 8, 0.0, (1, 3), (0, 1)),
    ],
)
def test_agrees_with_the_published_formulation(number, size, threshold, kernel_size, padding):
    maps = sparse(number, 12, size, threshold)
    maps[:, 0] = 0  # a dead channel
    maps[:, 1] = 1.5  # one value
    S = distant(maps, kernel_size, padding=padding)
    expected = published_dependence(maps.numpy(), kernel_size, padding, drop_near=True)
    # a value at the edge of two bins may be rounded into the other
    torch.testing.assert_close(S, torch.from_numpy(expected), atol=0.02, rtol=0)
    G = torch.from_numpy(published_scaling(expected))
    torch.testing.assert_close(scaling_from_dependence(S), G, atol=0.002, rtol=0)


def test_neighbours_beyond_small_maps_tell_nothing():
    S = distant(sparse(64, 2, 3) + 0.1, (5, 3), padding=(3, 1), dilation=(2, 1))
    assert (S[:, [0, 4]] == 0).all()  # 4 pixels apart, in maps of 3
    assert (S[:, 1:4] > 0).all()
    assert distant(torch.rand(8, 2, 1, 1), padding=1).isnan().all()


def test_bins_depend_on_the_pairs_of_their_displacement_alone():
    maps = sparse(16, 1, 8)
    outliers = torch.zeros(2, 1, 8, 8)
    outliers[0, 0, 4, 4] = 1e6  # in no pair without a zero
    alone, with_outlier = distant(maps), distant(torch.cat([maps, outliers[:1]]))
    torch.testing.assert_close(alone, with_outlier, atol=1e-12, rtol=0)
    outliers[1, 0, 2, 2:4] = 1e6  # in a horizontal pair
    with_pair = distant(torch.cat([maps, outliers]))
    torch.testing.assert_close(alone[:, ::2], with_pair[:, ::2], atol=1e-12, rtol=0)
    assert not torch.allclose(alone[:, 1], with_pair[:, 1], atol=1e-3)


def test_nothing_left_at_one_displacement_and_a_fixed_number_of_bins():
    rows = sparse(8, 1, 16)[..., :1].expand(-1, -1, -1, 16) + 0.1
    S = distant(rows)[0]
    assert S[1].tolist() == [0, 1, 0]
    assert (S[0] > 0).all()
    maps = sparse(8, 2, 8)
    assert not torch.equal(distant(maps, bins=4), distant(maps, bins=12))
    assert distant(maps, bins=255).isfinite().all()
