"""The rows of the table of optimizers."""

import pytest
import torch

from spatialgrad.studies.paper.table5_optimizers import ROWS, with_row
from spatialgrad.train import TrainConfig
from spatialgrad.train.optimizers import build_optimizer
from spatialgrad.train.recipes import cifar_appendix


def test_the_nine_rows_of_the_optimizer_table():
    names = ["SGD", "SGD + Momentum", "Adadelta", "Adagrad", "Adagrad*", "Adam", "Adamax", "NAdam", "RAdam"]
    assert list(ROWS) == names
    layer = torch.nn.Linear(1, 1)
    for row in ROWS:
        config = with_row(cifar_appendix(), row)
        optimizer = build_optimizer(config.optimizer, layer)
        assert type(optimizer).__name__ == row.split()[0].strip("*")
        assert config.scaling.apply == ("update" if row.endswith("*") else "gradient")
        defaults = optimizer.defaults
        if row.startswith("SGD"):
            assert defaults["lr"] == 0.1
            assert defaults["momentum"] == (0.9 if "Momentum" in row else 0.0)
        else:  # everything that is not searched is PyTorch's
            usual = type(optimizer)(layer.parameters()).defaults
            assert {**defaults, "weight_decay": 0} == {**usual, "weight_decay": 0}


def test_unknown_row():
    with pytest.raises(ValueError, match="AdamW"):
        with_row(TrainConfig(), "AdamW")
