"""Spatial gradient scaling in a Fabric loop: as in plain PyTorch, with what Fabric has set up.

Run with: python examples/fabric_loop.py (needs spatialgrad[lightning])
"""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import load_dataset


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(0)
    data = load_dataset("fashion-mnist-mini")
    train, test = (TensorDataset(split.images / 255, split.labels) for split in (data.train, data.test))

    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 3 * 3, data.num_classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(train, batch_size=50, shuffle=True))
    sgs = SpatialGradientScaling(model, optimizer)

    for epoch in range(2):
        if sgs.due(epoch):
            sgs.update(loader, batches=2)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            fabric.backward(F.cross_entropy(model(x), y))
            optimizer.step()

    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 500))
    fabric.print(sgs)
    fabric.print(f"test accuracy: {correct / len(test):.1%}")


if __name__ == "__main__":
    main()
