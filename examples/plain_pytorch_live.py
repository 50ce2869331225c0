"""Spatial gradient scaling in a plain PyTorch loop: one line more than without.

Run with: python examples/plain_pytorch_live.py
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling, explain
from spatialgrad.data import load_dataset


def main() -> None:
    torch.manual_seed(0)
    data = load_dataset("fashion-mnist-mini")
    train, test = (TensorDataset(split.images / 255, split.labels) for split in (data.train, data.test))
    loader = DataLoader(train, batch_size=50, shuffle=True)

    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 3 * 3, data.num_classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    # The only line.
    sgs = SpatialGradientScaling(model, optimizer, live=True)

    for _ in range(2):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 500))
    for name, G in sgs.scalings.items():
        print(f"convolution {name} learns like {explain(G)}")
    print(f"test accuracy: {correct / len(test):.1%}")


if __name__ == "__main__":
    main()
