"""Ultralytics: YOLO classification with several of its optimizers. Needs ultralytics."""

import tempfile
from pathlib import Path

from PIL import Image
from ultralytics import YOLO

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.data import load_dataset


def attach(trainer):
    # An epoch has 4 steps here; live=True is for trainings of hundreds of steps.
    trainer.sgs = SpatialGradientScaling(trainer.model, trainer.optimizer, live=Live(at=(4,), every=40))


def train(folder, optimizer):
    model = YOLO("yolo11n-cls.yaml")
    model.add_callback("on_train_start", attach)
    small = {"epochs": 3, "batch": 64, "imgsz": 32, "workers": 0, "device": "cpu", "amp": False, "plots": False}
    model.train(data=folder, optimizer=optimizer, project=f"{folder}/runs", **small)
    print(model.trainer.sgs)
    return model.trainer.sgs


with tempfile.TemporaryDirectory() as folder:
    data = load_dataset("fashion-mnist-mini")
    for split, images in (("train", data.train.select(range(256))), ("val", data.test.select(range(64)))):
        for index, (image, label) in enumerate(zip(images.images, images.labels, strict=True)):
            path = Path(folder, split, str(int(label)), f"{index}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(path)
    # "auto", the default, is AdamW up to 10,000 steps and MuSGD beyond.
    sgs = [train(folder, optimizer) for optimizer in ("SGD", "auto", "MuSGD")]
