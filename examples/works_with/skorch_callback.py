"""skorch: a callback attaches the scaling whenever fit starts. Needs skorch."""

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.data import load_dataset


class Scaling(Callback):
    """Scales the gradients of a net's module."""

    def on_train_begin(self, net, X=None, y=None, **kwargs):
        """Attach the scaling: skorch has just built module and optimizer."""
        # An epoch has 8 steps here; live=True is for trainings of hundreds of steps.
        self.sgs_ = SpatialGradientScaling(net.module_, net.optimizer_, live=Live(at=(2,), every=40))


data = load_dataset("fashion-mnist-mini").train
X, y = (data.images[:320] / 255).numpy(), data.labels[:320].numpy()
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
)
net = NeuralNetClassifier(
    model,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.SGD,
    optimizer__momentum=0.9,
    lr=0.1,
    max_epochs=2,
    batch_size=32,
    callbacks=[("scaling", Scaling())],
)
net.fit(X, y)
sgs = dict(net.callbacks_)["scaling"].sgs_
print(sgs)
