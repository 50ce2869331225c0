"""schedulefree: SGDScheduleFree, whose gradients are scaled. Needs schedulefree."""

import schedulefree
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import load_dataset

data = load_dataset("fashion-mnist-mini").train
loader = DataLoader(TensorDataset(data.images[:320] / 255, data.labels[:320]), batch_size=32, shuffle=True)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
optimizer = schedulefree.SGDScheduleFree(model.parameters(), lr=1.0)
sgs = SpatialGradientScaling(model, optimizer)

for epoch in range(2):
    optimizer.eval()
    if sgs.due(epoch):
        sgs.update(loader, batches=2)  # measured with the averaged weights
    model.train()
    optimizer.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
optimizer.eval()
print(sgs)
