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
from spatialgrad.train.config.io import differences

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
    ScalingConfig,
    ScheduleConfig,
    Task,
    TrainConfig,
    register_task,
)
from spatialgrad.train.config import FREE, METHOD_NAMES, TASK_NAMES, flatten, from_dict, to_dict
from spatialgrad.train.flags import SHORT_FLAGS, flag


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
    assert list(METHODS) == METHOD_NAMES
    assert list(TASKS) == TASK_NAMES


def test_a_task_of_ones_own(request):
    with pytest.raises(ConfigError, match="unknown task 'toy'"):
        TrainConfig(task="toy")
    register_task("toy", Task)
    request.addfinalizer(lambda: (TASKS.pop("toy"), TASK_NAMES.remove("toy")))
    with pytest.raises(ConfigError, match="model 'vgg11' is for classification, but the task is 'toy'"):
        TrainConfig(task="toy")


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
    assert not differences(config, config)


def test_a_field_that_does_not_exist():
    with pytest.raises(ConfigError, match=r"did you mean 'optimizer\.lr'"):
        from_dict({"optimizer": {"lrr": 1}})


@pytest.mark.parametrize("values", [{"seed": True}, {"seed": 1.5}, {"model": 3}, {"machine": {"precision": "8"}}])
def test_values_of_another_type(values):
    with pytest.raises(ConfigError, match="invalid"):
        from_dict(values)


def test_fields_that_may_differ_exist():
    assert set(FREE) <= set(flatten(to_dict(TrainConfig())))


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
