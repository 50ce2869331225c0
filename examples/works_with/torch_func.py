"""torch.func: parameters and gradients are dicts, and scale_gradients_ scales a dict of gradients."""

import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling, scale_gradients_
from spatialgrad.data import load_dataset

data = load_dataset("fashion-mnist-mini").train
loader = DataLoader(TensorDataset(data.images[:320] / 255, data.labels[:320]), batch_size=32, shuffle=True)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
params = {name: p.detach().clone() for name, p in model.named_parameters()}
# It only measures here: its optimizer never steps.
sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters()))


def forward(model, batch):
    return functional_call(model, params, batch[0])


def loss(params, x, y):
    return F.cross_entropy(functional_call(model, params, x), y)


def step(params, x, y):
    gradients = grad(loss)(params, x, y)
    scale_gradients_(gradients, sgs.scalings)
    return {name: p - 0.1 * gradients[name] for name, p in params.items()}


for epoch in range(2):
    if sgs.due(epoch):
        sgs.update(loader, batches=2, forward=forward)
    for x, y in loader:
        params = step(params, x, y)
print(sgs)
