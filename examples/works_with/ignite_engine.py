"""ignite: an event handler updates the scalings between epochs. Needs pytorch-ignite."""

import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spatialgrad import SpatialGradientScaling
from spatialgrad.data import load_dataset

data = load_dataset("fashion-mnist-mini").train
loader = DataLoader(TensorDataset(data.images[:320] / 255, data.labels[:320]), batch_size=32, shuffle=True)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sgs = SpatialGradientScaling(model, optimizer)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())


@trainer.on(Events.EPOCH_STARTED)
def update_scalings(engine):
    if sgs.due(engine.state.epoch - 1):  # ignite counts epochs from 1
        sgs.update(loader, batches=2)


trainer.run(loader, max_epochs=2)
print(sgs)
