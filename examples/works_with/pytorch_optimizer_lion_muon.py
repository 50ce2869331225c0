"""pytorch_optimizer: Lion and Muon, whose updates are scaled. Needs pytorch-optimizer."""

from pytorch_optimizer import Lion, Muon
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import load_dataset

data = load_dataset("fashion-mnist-mini").train
loader = DataLoader(TensorDataset(data.images[:320] / 255, data.labels[:320]), batch_size=32, shuffle=True)


def lion(model):
    return Lion(model.parameters(), lr=1e-3)


def muon(model):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return Muon([{"params": matrices, "use_muon": True}, {"params": others, "use_muon": False}])


def train(make_optimizer):
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    optimizer = make_optimizer(model)
    sgs = SpatialGradientScaling(model, optimizer)
    for epoch in range(2):
        if sgs.due(epoch):
            sgs.update(loader, batches=2)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(sgs)
    return sgs


sgs = [train(lion), train(muon)]
