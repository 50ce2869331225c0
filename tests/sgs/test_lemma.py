"""The paper's Lemma: N masked branches learn exactly as one convolution with G = Σ masks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling, scaling_from_masks

CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "weight-decay": {"momentum": 0.9, "weight_decay": 1e-2},
    "dampening": {"momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-3},
}


class MaskedBranches(nn.Module):
    """Written from the paper's equation alone: the sum of masked kernels, convolved branch by branch."""

    def __init__(self, weight, masks):
        super().__init__()
        self.masks = masks
        parts = [torch.randn_like(weight) for _ in masks]
        total = sum(masks)
        # any decomposition with Σ Mₙ ⊙ Wₙ = W will do
        rest = weight - sum(mask * part for mask, part in zip(masks, parts, strict=True))
        self.weights = nn.ParameterList([part + rest / total for part in parts])

    def forward(self, x):
        convolve = CONVOLVE[x.dim() - 2]
        return sum(convolve(x, mask * weight, padding=1) for mask, weight in zip(self.masks, self.weights, strict=True))

    def merged(self):
        return sum(mask * weight for mask, weight in zip(self.masks, self.weights, strict=True))


@pytest.mark.parametrize(("num_dims", "kind"), [(1, "nesterov"), (3, "dampening"), *((2, kind) for kind in OPTIMIZERS)])
def test_branches_and_scaling_stay_equal_over_200_steps(num_dims, kind):
    size = {1: (12,), 2: (6, 6), 3: (4, 4, 4)}[num_dims]
    conv = CONV[num_dims](2, 3, 3, padding=1, bias=False, dtype=torch.float64)
    kernel = (3,) * num_dims
    masks = [torch.ones(kernel, dtype=torch.float64), *torch.randint(0, 2, (3, *kernel)).double()]
    branched = MaskedBranches(conv.weight.detach(), masks)
    torch.testing.assert_close(branched.merged(), conv.weight, atol=1e-14, rtol=0)

    settings = {"lr": 0.01, **OPTIMIZERS[kind]}
    optimizer = torch.optim.SGD(conv.parameters(), **settings)
    branch_optimizer = torch.optim.SGD(branched.parameters(), **settings)
    G = scaling_from_masks(masks, normalize=False)
    SpatialGradientScaling(conv, optimizer, measure=None, scalings=G)

    start = conv.weight.detach().clone()
    for _ in range(200):
        x, y = torch.randn(4, 2, *size, dtype=torch.float64), torch.randn(4, 3, *size, dtype=torch.float64)
        for model, opt in ((conv, optimizer), (branched, branch_optimizer)):
            opt.zero_grad()
            F.mse_loss(model(x).tanh(), y).backward()
            opt.step()
    assert (conv.weight - start).abs().max() > 0.05
    torch.testing.assert_close(branched.merged(), conv.weight, atol=1e-10, rtol=0)
