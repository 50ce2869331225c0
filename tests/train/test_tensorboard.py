"""TensorBoard's own reader finds the metrics, G of all layers as a picture, and the centre of each."""

import io
import sys

import numpy as np
import pytest

from spatialgrad.train import ConfigError
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.tensorboard import Board
from support.training import quietly, tiny


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    return events


def test_without_tensorboard_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="--tensorboard needs tensorboard: pip install tensorboard"):
        quietly(tiny(folder, "sgs", epochs=1, tensorboard=True))
    assert not folder.exists()


@pytest.mark.parametrize("scaling", [{"every": 1}, {"every": 1, "live": True, "batches": 1}], ids=["epochs", "live"])
def test_metrics_and_scalings_of_a_run(scaling, tmp_path):
    from PIL import Image

    quietly(tiny(tmp_path, "sgs", epochs=3, tensorboard=True, data={"limit": 96}, scaling=scaling))
    events = read(tmp_path)
    found = {event.step: event.value for event in events.Scalars("test/accuracy")}
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert found == pytest.approx({line["step"]: line["test_accuracy"] for line in lines})

    updates = read_lines(tmp_path / "scalings.jsonl")
    assert len(updates) >= 2
    layers = list(updates[0]["scalings"])
    for layer in layers:
        centres = {event.step: event.value for event in events.Scalars(f"scaling centre/{layer}")}
        assert centres == pytest.approx({each["step"]: each["scalings"][layer][1][1] for each in updates})
    shown = events.Images("scalings")
    assert [event.step for event in shown] == [each["step"] for each in updates]
    pixels = np.asarray(Image.open(io.BytesIO(shown[-1].encoded_image_string)))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20  # colours of many factors


def test_resuming_keeps_what_was_written_at_the_step_of_the_checkpoint(tmp_path):
    for start, steps in ((0, (5, 10, 15)), (10, (15, 20))):
        board = Board(tmp_path, start)
        for step in steps:
            board.add({"test_accuracy": step / 100}, step)
        board.close()
    assert [event.step for event in read(tmp_path).Scalars("test/accuracy")] == [5, 10, 15, 20]
