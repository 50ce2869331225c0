"""Training on images in files: worker processes, signals that reach them, and files that break on the way."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image

from spatialgrad.data import CorruptDataError
from spatialgrad.train import resume, save_config
from spatialgrad.train.checkpoint import read_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from support.training import SILENT, Process, assert_same_run, at_step, quietly, tiny, wait_for


@pytest.fixture
def images(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for split, number in (("train", 20), ("val", 6)):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for index in range(number):
                pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8, generator=generator).numpy()
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "images"


def config(out, images, *, workers=2, epochs=3):
    data = {"name": f"folder:{images}", "image_size": 32, "limit": None, "test_limit": None, "batch_size": 8}
    data |= {"augment": False, "cutout": 0}
    return tiny(out, epochs=epochs, data=data, machine={"workers": workers})


def train_in_own_group(out, images, epochs, start_method):
    from spatialgrad.cli.main import main

    os.setpgid(0, 0)
    multiprocessing.set_start_method(start_method, force=True)
    # Where workers are not forked, each imports everything.
    workers = 2 if start_method == "fork" else 1
    file = out.with_suffix(".toml")
    save_config(config(out, images, workers=workers, epochs=epochs), file)
    return main(["train", "--config", str(file), "--out", str(out)])


@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_ctrl_c_reaches_the_workers_and_nothing_is_lost(start_method, images, tmp_path):
    """A terminal sends SIGINT to every process of the command: forked workers go on, others end."""
    process = Process(tmp_path / "run", images, 4, start_method, function=train_in_own_group)
    wait_for(lambda: len(read_lines(tmp_path / "run" / "metrics.jsonl")) >= 1)
    os.killpg(process._process.pid, signal.SIGINT)
    code, said, error = process.wait()
    assert code == 130, error
    assert said.count("SIGINT received") == 1
    assert "Traceback" not in error
    quietly(config(tmp_path / "run", images, epochs=4))
    quietly(config(tmp_path / "whole", images, workers=0, epochs=4))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_file_that_breaks_on_the_way(images, tmp_path):
    """What was learned until then is saved, and goes on when the file is mended."""
    path = Path(next(iter(sorted((images / "train" / "dog").iterdir()))))
    content = path.read_bytes()
    # With the last step of the first epoch.
    with at_step(5, lambda _: path.write_bytes(b"no picture")), pytest.raises(CorruptDataError, match=path.name):
        quietly(config(tmp_path / "run", images, workers=0))
    saved = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert saved["epoch"] == 1
    path.write_bytes(content)
    resume(tmp_path / "run", console=SILENT)
    quietly(config(tmp_path / "whole", images, workers=0))
    assert_same_run(tmp_path / "run", tmp_path / "whole")
