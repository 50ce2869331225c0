"""G from a dependence, from ratios and from masks; and back from G to branches."""

import itertools

import pytest
import torch
from scipy.optimize import nnls

from spatialgrad import explain, scaling_from_dependence, scaling_from_masks, scaling_from_ratios
from spatialgrad.sgs.scaling import scaling_and_mean


def test_the_k_transform_comes_before_the_mean_over_channels_and_k_1_is_none():
    S = torch.tensor([[0.2, 1.0, 0.2], [0.6, 1.0, 0.6]], dtype=torch.float64)
    transformed = 5 * S / (4 * S + 1)
    torch.testing.assert_close(scaling_from_dependence(S, k=5), transformed.mean(0) / transformed.mean())
    after = 5 * S.mean(0) / (4 * S.mean(0) + 1)
    assert not torch.allclose(scaling_from_dependence(S, k=5), after / after.mean())
    torch.testing.assert_close(scaling_from_dependence(S[:1], k=1), S[0] / S[0].mean())


def test_channels_without_information_are_left_out():
    S = torch.rand(5, 3, 3)
    S[3:], S[1, 0, 0] = torch.nan, torch.nan
    torch.testing.assert_close(scaling_from_dependence(S), scaling_from_dependence(S[[0, 2]]))
    torch.testing.assert_close(scaling_and_mean(S, 5)[1], S[[0, 2]].mean(0))
    assert torch.equal(scaling_from_dependence(S[3:]), torch.ones(3, 3))
    assert scaling_and_mean(S[1:2], 5)[1].isnan().all()


def test_zeros_stay_strictly_positive_and_no_dependence_at_all_gives_ones():
    S = torch.zeros(4, 3, 3)
    S[:, 1, 1] = 1
    G = scaling_from_dependence(S)
    assert (G > 0).all()
    assert float(G.mean()) == pytest.approx(1, abs=1e-6)
    for nothing in (torch.zeros(4, 2, 2), torch.full((1, 2, 2), 5e-324, dtype=torch.float64)):
        assert torch.equal(scaling_from_dependence(nothing), torch.ones(2, 2))


@pytest.mark.parametrize("k", [5e-324, 1e-300, 1e-50, 1e-17, 1e-6, 1.0, 1e17, 1e50, 1e300, 1.7e308])
def test_every_k_gives_a_finite_positive_scaling_of_mean_one(k):
    S = torch.tensor([[0.0, 0.3, 1.0, 0.7, 1e-8], [1.0, 1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    for channels in (S, S[:1], S[1:], S.float(), S[:1].float()):
        G = scaling_from_dependence(channels, k)
        assert (G > 0).all()
        assert float(G.mean()) == pytest.approx(1, abs=1e-5)
        assert float(G[2]) == pytest.approx(float(G.max()))


@pytest.mark.parametrize(
    ("S", "k", "message"),
    [
        *((torch.rand(2, 3, 3), k, "Invalid k") for k in (0, -1, float("nan"), float("inf"), "5")),
        *(
            (S, 5, "S ")
            for S in (torch.full((1, 3), 1.5), torch.full((1, 3), -0.5), torch.ones(3), torch.ones(1, 3).int())
        ),
    ],
)
def test_invalid_arguments(S, k, message):
    with pytest.raises(ValueError, match=message):
        scaling_from_dependence(S, k=k)


def test_ratios_are_the_paper_s_parameterization():
    for alpha, beta in itertools.product([0.8, 1.0, 1.25, 1.7, 5.0, 10.0, 100.0], repeat=2):
        factor = 9 / (1 + 4 / alpha + 4 / beta)
        a, b = 1 / alpha, 1 / beta
        expected = torch.tensor([[b, a, b], [a, 1, a], [b, a, b]], dtype=torch.float64) * factor
        torch.testing.assert_close(scaling_from_ratios(alpha, beta), expected)
    for beta in (0, 1e-320, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"Invalid beta: {beta}"):
            scaling_from_ratios(1, beta)


def test_masks_are_binary_cover_the_kernel_and_sum_to_the_scaling():
    full, row = torch.ones(3, 3), torch.zeros(3, 3)
    row[1] = 1
    plain = scaling_from_masks([full, row], normalize=False)
    assert plain.tolist() == [[1, 1, 1], [2, 2, 2], [1, 1, 1]]
    torch.testing.assert_close(scaling_from_masks(torch.stack([full, row])), plain / plain.mean())
    assert scaling_from_masks([row], normalize=False).sum() == 3
    for masks, message in (([full / 2], "0 and 1"), ([row], "normalize=False")):
        with pytest.raises(ValueError, match=message):
            scaling_from_masks(masks)


def test_explain_finds_the_branches_of_a_branched_block():
    masks = [torch.ones(3, 3), torch.zeros(3, 3), torch.zeros(3, 3)]
    masks[1][1] = 1
    masks[2][:, 1] = 1
    found = explain(scaling_from_masks(masks, normalize=False))
    assert {size: round(weight, 6) for size, weight in found.weights.items()} == {(3, 3): 1, (1, 3): 1, (3, 1): 1}
    assert found.relative_residual < 1e-12
    assert "1.000·[1×3]" in str(found)
    with pytest.raises(ValueError, match="NaN"):
        explain(torch.full((3, 3), torch.nan))


@pytest.mark.parametrize("shape", [(3,), (3, 3), (1, 5), (4, 4), (7, 7), (2, 3), (3, 3, 3)])
def test_explain_is_the_best_non_negative_combination(shape):
    for _ in range(5):
        G = torch.rand(shape, dtype=torch.float64)
        found = explain(G)
        torch.testing.assert_close(found.fit + found.residual, G)
        masks = []
        for size in itertools.product(*(range(2 - side % 2, side + 1, 2) for side in shape)):
            mask = torch.zeros(shape, dtype=torch.float64)
            mask[tuple(slice((k - s) // 2, (k + s) // 2) for s, k in zip(size, shape, strict=True))] = 1
            masks.append(mask.flatten())
        _, best = nnls(torch.stack(masks, 1).numpy(), G.flatten().numpy())
        assert float(found.residual.norm()) == pytest.approx(best, abs=1e-9)
        assert all(weight > 0 for weight in found.weights.values())
