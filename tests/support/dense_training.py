"""A tiny training for segmentation."""

from dataclasses import replace
from pathlib import Path

from spatialgrad.train import DataConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from support.training import tiny, with_groups


def tiny_segmentation(out, root, method="baseline", *, epochs=2, **groups):
    """A training of a few seconds on `write_camvid(root / "CamVid")`: 3 steps an epoch, the last one incomplete."""
    config = replace(
        tiny(out, method, epochs=epochs),
        task="segmentation",
        model=ModelConfig(name="pspnet18", width=1 / 16),
        data=DataConfig(name="camvid", root=Path(root), batch_size=4, image_size=(32, 48)),
        optimizer=OptimizerConfig(lr=0.02, head_factor=10),
        schedule=ScheduleConfig(name="poly"),
    )
    return with_groups(config, groups)
