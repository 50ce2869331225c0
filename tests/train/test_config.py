"""Configs check their values, and survive a round trip through JSON."""

import dataclasses
import io
import json
import re
import typing
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import tyro
from hypothesis import given
from hypothesis import strategies as st

from spatialgrad.models import list_models
from spatialgrad.reparam import DyRepConfig
from spatialgrad.train import (
    METHODS,
    RECIPES,
    TASKS,
    BudgetConfig,
    ConfigError,
    DataConfig,
    DyRepGroup,
    MachineConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    RepOptGroup,
    ScalingConfig,
    ScheduleConfig,
    TrainConfig,
)
from spatialgrad.train.config import (
    HIDDEN_METHODS,
    METHOD_NAMES,
    TASK_NAMES,
    flatten,
    from_dict,
    load_config,
    save_config,
    to_dict,
    with_values,
)
from spatialgrad.train.flags import SHORT_FLAGS, flag, parse_key_values
from spatialgrad.train.methods import find_method

TIMM = ModelConfig(name="timm:resnet18", pretrained=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ModelConfig(name="vgg112"), "did you mean 'vgg11'"),
        (lambda: ModelConfig(width=0), "--model.width must be positive, got 0"),
        (lambda: DataConfig(name="cifar1000"), "did you mean 'cifar100'"),
        (lambda: DataConfig(batch_size=0), "--batch-size must be at least 1, got 0"),
        (lambda: DataConfig(limit=0), "--data.limit must be at least 1, got 0"),
        (lambda: DataConfig(validation=1.0), "--data.validation must be at least 0 and below 1, got 1.0"),
        (lambda: MethodConfig(name="sgd"), "did you mean 'sgs'"),
        (lambda: OptimizerConfig(name="adamm"), "did you mean 'adam"),
        (lambda: OptimizerConfig(lr=0.0), "--optimizer.lr must be positive"),
        (lambda: OptimizerConfig(lr=float("nan")), "--optimizer.lr must be positive, got nan"),
        (lambda: OptimizerConfig(momentum=1.0), "--optimizer.momentum"),
        (
            lambda: OptimizerConfig(momentum=0.0, nesterov=True),
            "momentum must be positive with --optimizer.nesterov",
        ),
        (lambda: OptimizerConfig(clip_norm=0.0), "--optimizer.clip-norm"),
        (lambda: ScheduleConfig(name="cos"), "did you mean 'cosine'"),
        (lambda: ScheduleConfig(name="step"), "--schedule.milestones must not be empty with --schedule.name step"),
        (lambda: ScalingConfig(k=0), "--scaling.k"),
        (lambda: ScalingConfig(every=0), "--scaling.every"),
        (lambda: ScalingConfig(apply="updates"), "unknown --scaling.apply 'updates'; did you mean 'update'"),
        (lambda: DyRepGroup(interval=0), "--dyrep.interval must be at least 1, got 0"),
        (lambda: DyRepGroup(threshold=-1), "--dyrep: threshold must be at least 0, not -1"),
        (lambda: BudgetConfig(epochs=0), "--epochs must be at least 1, got 0"),
        (lambda: BudgetConfig(checkpoint_steps=0), "--budget.checkpoint-steps"),
        (lambda: MachineConfig(devices=0), "--machine.devices"),
        (lambda: TrainConfig(task="classifikation"), "did you mean 'classification'"),
        *(
            (lambda groups=groups: TrainConfig(method=MethodConfig(name="lemma"), **groups), message)
            for groups, message in (
                (
                    {"optimizer": OptimizerConfig(name="adam")},
                    "--optimizer.name must be sgd with --method lemma, got 'adam'",
                ),
                (
                    {"optimizer": OptimizerConfig(clip_norm=1.0)},
                    "--optimizer.clip-norm cannot be set with --method lemma",
                ),
                ({"machine": MachineConfig(precision="bf16-mixed")}, "--machine.precision must be 32-true or 64-true"),
            )
        ),
        (lambda: ModelConfig(name="timm:"), "--model: 'timm:' does not have the form"),
        (lambda: ModelConfig(name="my nets:build"), "--model: .* does not have the form"),
        (lambda: ModelConfig(name="timm:resnet18", width=0.5), "--model.width must be 1 for timm:resnet18"),
        (lambda: ModelConfig(pretrained=True), "--model.pretrained: there are no pre-trained weights for"),
        (lambda: ModelConfig(options=("num_classes=3",)), "number of classes of the data set"),
        (lambda: TrainConfig(model=TIMM, task="segmentation"), "'timm:resnet18' is for classification"),
        (
            lambda: TrainConfig(model=TIMM, method=MethodConfig(name="repopt-search")),
            "--model.pretrained: --method repopt-search draws new weights",
        ),
        (
            lambda: TrainConfig(model=TIMM, repopt=RepOptGroup(scales=Path("search"))),
            "--model.pretrained: --repopt.scales draws new weights",
        ),
    ],
)
def test_wrong_values_are_named(build, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert caught.value.exit_code == 2


def test_every_model_is_accepted():
    for name in list_models():
        ModelConfig(name=name)


def test_the_names_of_methods_and_tasks_are_those_of_the_implementations():
    """Configs do not import the implementations to check names."""
    assert list(METHODS) == [*METHOD_NAMES, *HIDDEN_METHODS]
    assert list(TASKS) == TASK_NAMES


def test_a_task_of_ones_own():
    with pytest.raises(ConfigError, match="unknown task 'toy'"):
        TrainConfig(task="toy")
    with pytest.raises(ConfigError, match=r"model 'vgg11' is for classification, but the task is 'my\.tasks:Toy'"):
        TrainConfig(task="my.tasks:Toy")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at.all:Method", "--method: module 'nowhere.at.all' not found; run the command in the folder"),
        ("spatialgrad.train:Metod", "--method: spatialgrad.train has no 'Metod'; did you mean"),
        ("spatialgrad.train:TrainConfig", "it is not a subclass of spatialgrad.train.Method"),
    ],
)
def test_a_method_of_ones_own_that_is_none(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_method(name)


def test_errors_name_flags_that_exist():
    fields = set(flatten(to_dict(TrainConfig())))
    assert set(SHORT_FLAGS) < fields
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit):
        tyro.cli(TrainConfig, default=TrainConfig(), args=["--help"])
    # A flag ends with a space, a bar (--a | --no-a) or its line; in narrow columns it may stand between frames.
    words = set(re.findall(r"--[\w.-]+", shown.getvalue()))
    assert {flag(field) for field in fields} <= words
    assert "--dyrep.seed" not in words  # it is that of the training


def test_the_seed_of_dyrep_is_that_of_the_training():
    group = DyRepGroup(interval=3, threshold=0.2)
    assert group.with_seed(7) == DyRepConfig(interval=3, threshold=0.2, seed=7)
    assert "seed" not in to_dict(group)
    with pytest.raises(ConfigError, match=r"unknown field 'dyrep\.seed'"):
        from_dict({"dyrep": {"seed": 1}})


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_come_back_from_json(name):
    config = RECIPES[name]()
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@given(
    st.builds(
        TrainConfig,
        optimizer=st.builds(
            OptimizerConfig,
            name=st.sampled_from(["sgd", "adam"]),
            lr=st.none() | st.floats(1e-6, 10),
            momentum=st.floats(0.1, 0.99),
            clip_norm=st.none() | st.integers(1, 5),
        ),
        schedule=st.builds(ScheduleConfig, name=st.just("step"), milestones=st.tuples(st.integers(1), st.integers(1))),
        machine=st.builds(MachineConfig, devices=st.just("auto") | st.integers(1, 8)),
        out=st.none() | st.builds(Path, st.text("abc/", min_size=1)),
        seed=st.integers(0),
    )
)
def test_any_config_comes_back_from_json(config):
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize("values", [{"seed": True}, {"seed": 1.5}, {"model": 3}, {"machine": {"precision": "8"}}])
def test_values_of_another_type(values):
    with pytest.raises(ConfigError, match=r"--(seed|model|machine.precision) \((seed|model|machine.precision)\): "):
        from_dict(values)


@pytest.mark.parametrize("name", RECIPES)
def test_toml_files_come_back(name, tmp_path):
    config = RECIPES[name]()
    save_config(config, tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config
    # What is not in a file is taken from another config.
    (tmp_path / "part.toml").write_text("seed = 3\n[budget]\nepochs = 7\n[dyrep]\nuntil = 'none'\n")
    changes = {"seed": 3, "budget.epochs": 7, "dyrep.until": None}
    assert load_config(tmp_path / "part.toml", base=config) == with_values(config, changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimizer]\nlrr = 1", "unknown field 'optimizer.lrr'; did you mean 'optimizer.lr'"),
        ("[budget]\nepochz = 3", "unknown field 'budget.epochz'; did you mean 'budget.epochs'"),
        ("[budget]\nepochs = 'x'", r"--epochs \(budget.epochs\): expected `int`, got `str`"),
        ("[budget]\nepochs = 0", "--epochs must be at least 1, got 0"),
        ("[budget", "cannot read the config file"),
    ],
)
def test_a_config_file_that_is_wrong(text, message, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(tmp_path / "a.toml")
    assert "a.toml" in str(caught.value)


def test_every_field_is_explained():
    """`--help` takes its text from the docstring under each field."""
    import inspect

    def check(kind):
        source = "".join(inspect.getsource(base) for base in kind.__mro__ if dataclasses.is_dataclass(base))
        for field in dataclasses.fields(kind):
            hint = typing.get_type_hints(kind)[field.name]
            if dataclasses.is_dataclass(hint):
                assert hint.__doc__
                check(hint)
            else:
                after = source.split(f"    {field.name}: ", 1)[1].split("\n", 1)[1]
                assert after.lstrip().startswith('"""'), f"{kind.__name__}.{field.name}"

    check(TrainConfig)


def test_the_folder_says_what_is_in_it():
    config = TrainConfig(data=DataConfig(name="folder:/some/where"), model=ModelConfig(width=0.25), seed=3)
    assert str(config.folder) == "runs/vgg11-w0.25-folder__some_where-sgs-seed3"
    assert TrainConfig(model=TIMM).folder.name == "timm_resnet18-pretrained-cifar100-sgs-seed0"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("(64, 128)", (64, 128)),
        ("True", True),
        ("true", True),
        ("false", False),
        ("FALSE", False),
        ("none", None),
        ("batch", "batch"),
        ("a=b", "a=b"),
        ("", ""),
        ("'true'", "true"),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_values_are_what_was_meant(text, value):
    found = parse_key_values("model.options", [f"key={text}"])["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["dropout"], "--model.options takes key=value"),
        (["=3"], "takes key=value"),
        (["a b=3"], "takes key=value"),
        (["a=1", "a=2"], "a occurs twice"),
        (["name=x"], "name cannot be set here; use --model"),
    ],
)
def test_other_forms_are_refused_by_flag(texts, message):
    with pytest.raises(ConfigError, match=message):
        parse_key_values("model.options", texts, reserved={"name": "use --model"})


@pytest.mark.parametrize("kind", [ModelConfig, OptimizerConfig])
def test_two_orders_are_the_same_options(kind):
    assert kind(options=("b=1", "a=2")) == kind(options=("a=2", "b=1"))
