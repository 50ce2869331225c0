"""fastai: a Learner with a torch optimizer in fastai's OptimWrapper. Needs fastai."""

from functools import partial

import torch
from fastai.vision.all import CrossEntropyLossFlat, DataLoaders, Learner, OptimWrapper, accuracy, xresnet18
from torch.utils.data import TensorDataset

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.data import load_dataset

data = load_dataset("fashion-mnist-mini")
train, valid = (TensorDataset(s.images[:320] / 255, s.labels[:320]) for s in (data.train, data.test))
dls = DataLoaders.from_dsets(train, valid, bs=32)

learn = Learner(
    dls,
    xresnet18(c_in=1, n_out=data.num_classes),
    loss_func=CrossEntropyLossFlat(),
    opt_func=partial(OptimWrapper, opt=torch.optim.SGD, momentum=0.9),
    metrics=accuracy,
)
learn.create_opt()
# An epoch has 10 steps here; live=True is for trainings of hundreds of steps.
sgs = SpatialGradientScaling(learn.model, learn.opt, live=Live(at=(2,), every=40))
learn.fit_one_cycle(1, 0.1)
print(sgs)
