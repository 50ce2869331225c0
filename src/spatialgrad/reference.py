"""The whole method in one file: slow, plain and complete, in the order and the letters of the paper (section 3).

    feature map X ─▶ S(i, j) for every displacement ─▶ G ─▶ G ⊙ ∂L/∂W ─▶ any optimizer

The package computes the same faster; its tests compare both. ``python -m spatialgrad.reference`` trains a network.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def entropy(counts: Tensor) -> Tensor:
    """H = −Σ p log p of a histogram."""
    p = counts[counts > 0].double() / counts.sum()
    return -(p * p.log()).sum()


def mutual_information(P: Tensor, Q: Tensor, bins: int) -> Tensor:
    """Ĩ(P; Q) = (H(P) + H(Q) − H(P, Q)) / H(P, Q), from the bins of all pixels and of their neighbours."""
    joint = torch.bincount(P * bins + Q, minlength=bins**2).view(bins, bins)
    H = entropy(joint)
    return (entropy(joint.sum(1)) + entropy(joint.sum(0)) - H) / H  # NaN if there is no entropy


def quantize(X: Tensor, bins: int) -> Tensor:
    """Bins of equal width between the smallest and the largest value of a channel."""
    low, high = X.min(), X.max()
    return ((X - low) * (bins / (high - low))).long().clamp(0, bins - 1) if high > low else torch.zeros_like(X).long()


def neighbours(X: Tensor, offset: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """P: all pixels of X (batch, *spatial) that have a neighbour at the displacement, and Q: these neighbours."""
    here = [slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, X.shape[1:], strict=True)]
    there = [slice(max(0, o), n - max(0, -o)) for o, n in zip(offset, X.shape[1:], strict=True)]
    return X[(slice(None), *here)].flatten(), X[(slice(None), *there)].flatten()


def displacements(kernel_size: Sequence[int], dilation: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """The displacements (i, j) of every position from the centre; an even kernel's lie between two, and both count."""
    axes = []
    for side, step in zip(kernel_size, dilation, strict=True):
        twice = [step * (2 * index - (side - 1)) for index in range(side)]
        axes.append([(t // 2,) if t % 2 == 0 else (t // 2, t // 2 + 1) for t in twice])
    return [list(itertools.product(*position)) for position in itertools.product(*axes)]


def spatial_dependence(
    X: Tensor, kernel_size: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """S(i, j) = Ĩ(P; Q_ij) of every channel of a feature map X: shape (channels, *kernel_size)."""
    X = F.pad(X, [side for pad in reversed(padding) for side in (pad, pad)])
    bins = 1 + math.ceil(math.log2(X[:, 0].numel()))  # Sturges' rule
    S = torch.ones(X.shape[1], math.prod(kernel_size), dtype=torch.float64)
    for channel in range(X.shape[1]):
        levels = quantize(X[:, channel], bins)
        for position, offsets in enumerate(displacements(kernel_size, dilation)):
            found = [mutual_information(*neighbours(levels, o), bins) if any(o) else torch.ones(()) for o in offsets]
            S[channel, position] = sum(float(value) for value in found) / len(offsets)
    return S.view(X.shape[1], *kernel_size)


def gradient_scaling(S: Tensor, k: float = 5.0) -> Tensor:
    """G = k·S / ((k − 1)·S + 1), averaged over the channels that have entropy, with mean 1."""
    S = S[~S.flatten(1).isnan().any(1)]
    G = (k * S / ((k - 1) * S + 1)).mean(0)
    return G / G.mean()


def measure(model: nn.Module, X: Tensor, k: float = 5.0) -> dict[str, Tensor]:
    """G of every convolution with more than one kernel position, from the feature maps of a batch X."""
    G: dict[str, Tensor] = {}

    def observe(name: str, conv: Any, X: Tensor) -> None:
        G[name] = gradient_scaling(spatial_dependence(X, conv.kernel_size, conv.padding, conv.dilation), k)

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and max(module.kernel_size) > 1:
            handles.append(module.register_forward_pre_hook(lambda m, x, name=name: observe(name, m, x[0].detach())))
    model(X)
    for handle in handles:
        handle.remove()
    return G


def scale_gradients(model: nn.Module, G: Mapping[str, Tensor]) -> None:
    """∂L/∂W ← G ⊙ ∂L/∂W, after the backward pass and before the optimizer's step."""
    for name, matrix in G.items():
        if (gradient := model.get_parameter(f"{name}.weight").grad) is not None:
            gradient.mul_(matrix.to(gradient))


def main() -> None:
    """Train a tiny network to tell stripes of two directions apart, under a lot of noise."""
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), *head)
    optimizer, G = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), dict[str, Tensor]()
    for step in range(151):
        y = torch.randint(2, (32,))
        stripes = torch.sin(torch.arange(16) + 6 * torch.rand(32, 1, 1, 1)).expand(-1, 1, 16, 16)
        X = torch.where(y.view(-1, 1, 1, 1) == 1, stripes, stripes.mT) + torch.randn(32, 1, 16, 16)
        G = measure(model, X) if step % 50 == 0 else G
        loss = F.cross_entropy(model(X), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        scale_gradients(model, G)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3}: loss {loss:.3f}, G of the second convolution:\n{G['2'].numpy().round(2)}")


if __name__ == "__main__":
    main()
