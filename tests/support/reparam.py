"""What the tests of reparameterization share: randomized statistics, small networks, a training loop."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam import ACB, DBB, Branches, QARepVGG, RepOpt, RepVGG

BLOCKS = {
    "acb": ACB(),
    "repvgg": RepVGG(),
    "qarepvgg": QARepVGG(),
    "dbb": DBB(),
    "branches": Branches(masks=[[[1, 1, 1], [1, 1, 1], [1, 1, 1]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]]),
    "repopt": RepOpt(initial=0.5),
}
"""Every method that converts a network, for 3×3 kernels."""


@torch.no_grad()
def randomize_(model):
    """Gives every parameter and every BatchNorm statistic a value that a wrong merge would notice."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.3, 2)
            module.num_batches_tracked.fill_(7)
            if module.weight is not None:
                module.weight.uniform_(0.5, 1.5).mul_(torch.sign(torch.randn_like(module.weight)))
                module.bias.normal_()
        else:
            for parameter in module.parameters(recurse=False):
                parameter.normal_()
    return model


@torch.no_grad()
def disturb_statistics_(model):
    """Move the statistics of every BatchNorm a little, as training does."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model


def relative(reference, other):
    """The largest difference relative to the largest value."""
    assert reference.shape == other.shape
    return ((reference - other).abs().max() / reference.abs().max()).item()


class SmallNet(nn.Module):
    """Convolutions with BatchNorm in the shapes that matter: plain, strided, grouped, residual."""

    def __init__(self, channels=8, classes=5, bias=False):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=bias)
        self.stem_bn = nn.BatchNorm2d(channels)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=2, bias=bias)
        self.down_bn = nn.BatchNorm2d(channels)
        self.res = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.res_bn = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.stem_bn(self.stem(x)))
        x = F.relu(self.down_bn(self.down(x)))
        x = F.relu(x + self.res_bn(self.res(x)))
        return self.head(x.mean((2, 3)))


def batches(count, size=8, side=10, classes=5, seed=0, dtype=torch.float32, device="cpu"):
    """Fixed random images whose classes can be learned."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(classes, 3, side, side, generator=generator, dtype=dtype)
    found = []
    for _ in range(count):
        labels = torch.randint(0, classes, (size,), generator=generator)
        noise = torch.randn(size, 3, side, side, generator=generator, dtype=dtype)
        found.append(((prototypes[labels] + noise).to(device), labels.to(device)))
    return found


def train(model, optimizer, data):
    """One pass over some batches."""
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, x):
    """The output in evaluation mode; the mode stays as it was."""
    training = model.training
    model.eval()
    y = model(x)
    model.train(training)
    return y
