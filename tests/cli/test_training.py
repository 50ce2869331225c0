"""The flags of `spatialgrad train` in commands that train several times, and configs as flags."""

import shlex
from dataclasses import fields, replace

import pytest

from spatialgrad.cli.main import main
from spatialgrad.cli.training import TrainingOptions, command_of, flags_of
from spatialgrad.train import RECIPES, ConfigError, TrainConfig, recipe
from spatialgrad.train.config import with_values
from spatialgrad.train.flags import flag


def test_all_options_of_a_training_but_those_that_a_study_sets():
    names = {each.name for each in fields(TrainConfig)} - {"method", "seed", "out"}
    assert {each.name for each in fields(TrainingOptions)} == names


@pytest.mark.parametrize("name", RECIPES)
def test_options_give_their_config_back(name):
    config = recipe(name)
    assert TrainingOptions.of(config).config(config.method.name) == config


def test_the_folder_of_the_data_sets_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = with_values(TrainConfig(), {"data.root": tmp_path.__class__("here")})
    assert TrainingOptions.of(config).config("sgs").data.root == tmp_path / "here"


CHANGED = {
    "model.width": 0.3,
    "data.name": "folder:/a path/with spaces",
    "data.image_size": (88, 120),
    "data.drop_last": True,
    "data.augment": False,
    "data.validation": 1 / 3,
    "schedule.name": "step",
    "schedule.milestones": (10, 20),
    "scaling.live": True,
    "scaling.bins": 12,
    "optimizer.lr": 1e-05,
    "machine.channels_last": True,
    "machine.compile": True,
    "budget.epochs": 7,
}


@pytest.mark.parametrize("name", ["cifar_appendix", "segmentation_pocket"])
def test_flags_give_their_config_back(name, monkeypatch):
    default = recipe(name)
    values = {field: value for field, value in CHANGED.items() if name != "cifar_appendix" or "size" not in field}
    if name != "cifar_appendix":
        values["data.name"] = "cityscapes"
    config = default
    for group in dict.fromkeys(field.partition(".")[0] for field in values):
        own = {field.partition(".")[2]: value for field, value in values.items() if field.startswith(f"{group}.")}
        config = replace(config, **{group: replace(getattr(config, group), **own)})
    found = []
    monkeypatch.setattr("spatialgrad.cli.train.run_training", found.append)
    line = shlex.split(command_of("train", flags_of(config, default), name))
    assert line[:4] == ["spatialgrad", "train", "--recipe", name]
    assert main(line[1:]) == 0
    assert found == [config]


def test_where_a_run_computes_is_left_out(tmp_path):
    config = with_values(replace(TrainConfig(), out=tmp_path), {"machine.threads": 2, "data.root": tmp_path})
    assert flags_of(config, TrainConfig()) == []
    assert flags_of(recipe("desk"), TrainConfig(), without=("model.name", "data.limit"))[:2] == [
        "--model.width",
        "0.25",
    ]


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_a_flag_of_one_run_is_not_one_of_many(command, capsys):
    for wrong in ("--seed", flag("method.name") if command == "compare" else "--methods"):
        with pytest.raises(SystemExit):
            main([command, wrong, "3"])
        assert wrong in capsys.readouterr().err


def test_a_wrong_value_is_named_by_its_flag():
    with pytest.raises(ConfigError, match=r"--data\.cutout must be at least 0"):
        with_values(TrainConfig(), {"data.cutout": -1})
