import pytest
import torch
from benchmarks.published import published_dependence, published_scaling
from torch.nn import functional as F

from spatialgrad import normalized_mutual_information, scaling_from_dependence
from spatialgrad.sgs.dependence import histogram
from spatialgrad.sgs.dependence.distant_pairs import DistantMutualInformation
from spatialgrad.sgs.dependence.window import Window


def sparse(number, channels, size, threshold=0.0):
    """Smooth maps, clipped as after a ReLU; a larger threshold leaves fewer values that are not 0."""
    return (F.avg_pool2d(torch.randn(number, channels, size + 2, size + 2), 3, 1) * 3 - threshold).relu()


def distant(maps, kernel_size=3, **options):
    return normalized_mutual_information(maps, kernel_size, drop_near=True, **options)


@pytest.mark.parametrize(("number", "size"), [(16, 2), (128, 2), (64, 4), (16, 7), (8, 32)])
@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_agrees_with_the_published_formulation_on_maps_of_every_size(number, size, threshold):
    maps = sparse(number, 12, size, threshold)
    maps[:, 0] = 0  # a dead channel
    maps[:, 1] = 1.5  # one value
    S = distant(maps, padding=1)
    expected = published_dependence(maps.numpy(), (3, 3), (1, 1), drop_near=True)
    # a value at the edge of two bins may be rounded into the other
    torch.testing.assert_close(S, torch.from_numpy(expected), atol=0.02, rtol=0)
    G = torch.from_numpy(published_scaling(expected))
    torch.testing.assert_close(scaling_from_dependence(S), G, atol=0.002, rtol=0)


@pytest.mark.parametrize(("kernel_size", "padding"), [((5, 5), (2, 2)), ((3, 5), (1, 0)), ((1, 3), (0, 1))])
def test_agrees_for_other_kernels(kernel_size, padding):
    maps = sparse(16, 4, 8)
    S = distant(maps, kernel_size, padding=padding)
    expected = published_dependence(maps.numpy(), kernel_size, padding, drop_near=True)
    torch.testing.assert_close(S, torch.from_numpy(expected), atol=0.02, rtol=0)


def test_neighbours_beyond_small_maps_tell_nothing():
    S = distant(sparse(64, 2, 3) + 0.1, (5, 3), padding=(3, 1), dilation=(2, 1))
    assert (S[:, [0, 4]] == 0).all()  # 4 pixels apart, in maps of 3
    assert (S[:, 1:4] > 0).all()


def test_bins_depend_on_the_pairs_of_their_displacement_alone():
    maps = sparse(16, 1, 8)
    outliers = torch.zeros(2, 1, 8, 8)
    outliers[0, 0, 4, 4] = 1e6  # in no pair without a zero
    alone, with_outlier = distant(maps), distant(torch.cat([maps, outliers[:1]]))
    assert torch.equal(alone, with_outlier)
    outliers[1, 0, 2, 2:4] = 1e6  # in a horizontal pair
    with_pair = distant(torch.cat([maps, outliers]))
    assert torch.equal(alone[:, ::2], with_pair[:, ::2])
    assert not torch.equal(alone[:, 1], with_pair[:, 1])


def test_zero_padding_changes_nothing():
    maps = sparse(8, 2, 16) + 0.1
    assert torch.equal(distant(maps, padding=1), distant(maps))


def test_other_padding_takes_part():
    maps = sparse(8, 2, 8)
    padded = F.pad(maps, (1, 1, 1, 1), mode="circular")
    assert torch.equal(distant(maps, padding=1, padding_mode="circular"), distant(padded))


def test_an_emptied_channel_counts_as_0():
    maps = sparse(8, 2, 16)
    maps[:, 1] = 0
    S = distant(maps)
    assert S[1, 0, 0] == 0
    assert S[1, 1, 1] == 1
    assert distant(maps[:, 1:]).isnan().all()


def test_nothing_left_at_one_displacement():
    rows = sparse(8, 1, 16)[..., :1].expand(-1, -1, -1, 16) + 0.1
    S = distant(rows)[0]
    assert S[1].tolist() == [0, 1, 0]
    assert (S[0] > 0).all()


def test_maps_of_one_pixel_have_nothing_to_measure():
    assert distant(torch.rand(8, 2, 1, 1), padding=1).isnan().all()


@pytest.mark.parametrize("size", [(40,), (8, 9), (5, 6, 7)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_streaming_equals_one_piece(size, dtype):
    maps = torch.randn(12, 4, *size).relu().to(dtype)
    window = Window.of((3,) * len(size), padding=1)
    estimator = DistantMutualInformation(4, window, maps.device)
    for _ in range(estimator.num_passes):
        for part in maps.split([1, 7, 4]):
            estimator.observe(part)
        estimator.end_pass()
    assert torch.equal(estimator.dependence(), distant(maps, 3, padding=1))


@pytest.mark.bits
def test_compiled_and_plain_counts_give_identical_results(monkeypatch):
    maps = sparse(8, 5, 12)
    fast = distant(maps, padding=1)
    monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
    assert torch.equal(distant(maps, padding=1), fast)


def test_a_fixed_number_of_bins():
    maps = sparse(8, 2, 8)
    assert not torch.equal(distant(maps, bins=4), distant(maps, bins=12))
    assert distant(maps, bins=255).isfinite().all()
