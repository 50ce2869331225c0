"""The flags of a training: recipes, config files, flags that override both, and configs as flags."""

import shlex
from dataclasses import fields, replace

import pytest

from spatialgrad.cli.main import main
from spatialgrad.cli.options import command_of, flags_of, hiding
from spatialgrad.train import ConfigError, TrainConfig, recipe
from spatialgrad.train.config import load_config, with_values
from spatialgrad.train.flags import flag
from spatialgrad.train.optimizers import DEFAULT_LR

CHANGED = {
    **{"model.width": 0.3, "data.name": "folder:/a path/with spaces", "data.image_size": (88, 120)},
    **{"data.drop_last": True, "data.augment": False, "data.validation": 1 / 3, "schedule.name": "step"},
    **{"schedule.milestones": (10, 20), "scaling.live": True, "scaling.bins": 12, "optimizer.lr": 1e-05},
    **{"machine.channels_last": True, "machine.compile": True, "budget.epochs": 7},
}


class TestRecipes:
    """A recipe's learning rate belongs to its optimizer."""

    @pytest.mark.parametrize("optimizer", ["adamw", "lion"])
    @pytest.mark.parametrize("form", ["--optimizer.name {}", "--optimizer.name={}"])
    def test_another_optimizer_has_its_own(self, parsed, optimizer, form):
        name = form.format(optimizer).split()
        assert parsed("--recipe", "cifar_table1", *name).optimizer.learning_rate == DEFAULT_LR[optimizer] != 0.1
        assert parsed(*name, "--recipe=cifar_table1").optimizer.learning_rate == DEFAULT_LR[optimizer]
        given = parsed("--recipe", "cifar_table1", *name, "--optimizer.lr", "0.02")
        assert given.optimizer.learning_rate == 0.02

    def test_a_class_has_its_own(self, parsed):
        name = ("--optimizer.name", "torch.optim:RMSprop")
        found = parsed("--recipe", "cifar_table1", *name, "--optimizer.options", "alpha=0.9", "centered=True").optimizer
        assert found.learning_rate == 0.01
        assert found.parsed_options == {"alpha": 0.9, "centered": True}

    def test_the_same_optimizer_keeps_it(self, parsed):
        assert parsed("--recipe", "pocket", "--optimizer.name", "sgd").optimizer.learning_rate == 0.05
        found = parsed("--recipe", "pose_mpii", "--optimizer.name", "sgd").optimizer
        assert found.learning_rate == DEFAULT_LR["sgd"]


class TestConfigFiles:
    def test_saved_and_read_again(self, tmp_path, parsed, command):
        file = tmp_path / "mine.toml"
        code, said = command("train", "--recipe", "pocket", "--scaling.k", "3", "--save-config", file)
        assert code == 0
        assert f"train --config {file}" in said
        assert load_config(file) == with_values(recipe("pocket"), {"scaling.k": 3.0})
        assert parsed("--config", str(file)) == load_config(file)

    def test_flags_override_the_file_and_the_file_the_recipe(self, tmp_path, parsed):
        file = tmp_path / "mine.toml"
        file.write_text('[budget]\nepochs = 5\n[data]\nbatch_size = 64\nlimit = "none"\n')
        config = parsed("--recipe", "desk", f"--config={file}", "--batch-size", "32")
        assert (config.budget.epochs, config.data.batch_size, config.data.limit) == (5, 32, None)
        assert config.model == recipe("desk").model

    def test_a_mistake_in_it_is_named_with_the_file(self, tmp_path, command):
        file = tmp_path / "mine.toml"
        file.write_text("[data]\nbatchsize = 64\n")
        code, said = command("train", "--config", file)
        assert code == 2
        assert f"{file}: unknown field 'data.batchsize'; did you mean 'data.batch_size'?" in said


def test_hidden_fields_have_no_flag_and_keep_their_values():
    config = recipe("pocket")
    hidden = hiding(config, {"seed", "budget.epochs"})
    assert isinstance(hidden, TrainConfig)
    assert all(
        getattr(hidden, each.name) == getattr(config, each.name) for each in fields(config) if each.name != "budget"
    )
    assert hidden.budget.epochs == config.budget.epochs
    assert hiding(config, ()) is config


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_a_flag_of_one_run_is_not_one_of_many(command, capsys):
    for wrong in ("--seed", flag("method.name") if command == "compare" else "--methods"):
        with pytest.raises(SystemExit):
            main([command, wrong, "3"])
        assert wrong in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cifar_appendix", "segmentation_pocket"])
def test_flags_give_their_config_back(name, parsed):
    default = recipe(name)
    values = {field: value for field, value in CHANGED.items() if name != "cifar_appendix" or "size" not in field}
    if name != "cifar_appendix":
        values["data.name"] = "cityscapes"
    config = default
    for group in dict.fromkeys(field.partition(".")[0] for field in values):
        own = {field.partition(".")[2]: value for field, value in values.items() if field.startswith(f"{group}.")}
        config = replace(config, **{group: replace(getattr(config, group), **own)})
    line = shlex.split(command_of("train", flags_of(config, default), name))
    assert line[:4] == ["spatialgrad", "train", "--recipe", name]
    assert parsed(*line[2:]) == config


def test_where_a_run_computes_is_left_out(tmp_path):
    config = with_values(replace(TrainConfig(), out=tmp_path), {"machine.threads": 2, "data.root": tmp_path})
    assert flags_of(config, TrainConfig()) == []
    assert flags_of(config, TrainConfig(), always=("model.name",)) == ["--model", "vgg11"]
    without = flags_of(recipe("desk"), TrainConfig(), without=("model.name", "data.limit"))
    assert without[:2] == ["--model.width", "0.25"]


def test_a_wrong_value_is_named_by_its_flag():
    with pytest.raises(ConfigError, match=r"--data\.cutout must be at least 0"):
        with_values(TrainConfig(), {"data.cutout": -1})
