"""Shared by the tests of the networks: batch normalization with settled statistics."""

import torch
from torch import nn


def settled(model, images):
    """Return the model in evaluation mode, its batch normalization with the statistics of these images.

    Without them, deep networks explode or fall silent.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    return model.eval()
