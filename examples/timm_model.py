"""Spatial gradient scaling for a model and an optimizer of timm.

Run with: python examples/timm_model.py (needs timm)
"""

import timm
import torch
from timm.optim import create_optimizer_v2
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import load_dataset


def main() -> None:
    torch.manual_seed(0)
    data = load_dataset("fashion-mnist-mini")
    some = data.train.select(torch.randperm(len(data.train))[:2000])
    train, test = (TensorDataset(split.images / 255, split.labels) for split in (some, data.test))
    loader = DataLoader(train, batch_size=50, shuffle=True)

    model = timm.create_model("resnet10t", in_chans=1, num_classes=data.num_classes)
    # Lookahead wraps another optimizer, which is detected and scaled. Adaptive optimizers divide a factor on the
    # gradient out again, so they get it on the update instead.
    optimizer = create_optimizer_v2(model, "lookahead_adamw", lr=2e-3)
    sgs = SpatialGradientScaling(model, optimizer)
    print(sgs)

    for epoch in range(2):
        if sgs.due(epoch):
            sgs.update(loader, batches=2)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    optimizer.sync_lookahead()

    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 500))
    print(f"test accuracy: {correct / len(test):.1%}")


if __name__ == "__main__":
    main()
