"""Spatial gradient scaling in an Accelerate loop with gradient accumulation.

Run with: python examples/accelerate_loop.py (needs accelerate), or on several processes with accelerate launch.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import load_dataset


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = load_dataset("fashion-mnist-mini")
    train, test = (TensorDataset(split.images / 255, split.labels) for split in (data.train, data.test))

    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 3 * 3, data.num_classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(train, batch_size=25, shuffle=True))
    sgs = SpatialGradientScaling(model, optimizer)
    accelerator.register_for_checkpointing(sgs)  # save_state and load_state then keep the scalings too

    for epoch in range(2):
        if sgs.due(epoch):
            sgs.update(loader, batches=4)
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 500))
    accelerator.print(sgs)
    accelerator.print(f"test accuracy: {correct / len(test):.1%}")


if __name__ == "__main__":
    main()
