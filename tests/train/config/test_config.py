"""Configs hold themselves to what makes sense, and come back from JSON as they were."""

import dataclasses
import json
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatialgrad.models import list_models
from spatialgrad.train import (
    METHODS,
    RECIPES,
    BudgetConfig,
    ConfigError,
    DataConfig,
    GrowthConfig,
    MachineConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    ScalingConfig,
    ScheduleConfig,
    TrainConfig,
)
from spatialgrad.train.config.io import FREE, differences, flatten, from_dict, to_dict


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ModelConfig(name="vgg112"), "did you mean 'vgg11'"),
        (lambda: ModelConfig(width=0), "model.width"),
        (lambda: DataConfig(name="cifar1000"), "did you mean 'cifar100'"),
        (lambda: DataConfig(batch_size=0), "data.batch_size"),
        (lambda: DataConfig(limit=0), "data.limit"),
        (lambda: DataConfig(validation=1.0), "data.validation"),
        (lambda: MethodConfig(name="sgd"), "did you mean 'sgs'"),
        (lambda: OptimizerConfig(name="adamw"), "did you mean 'adam"),
        (lambda: OptimizerConfig(lr=0.0), "optimizer.lr"),
        (lambda: OptimizerConfig(lr=float("nan")), "optimizer.lr"),
        (lambda: OptimizerConfig(momentum=1.0), "optimizer.momentum"),
        (lambda: OptimizerConfig(momentum=0.0, nesterov=True), "optimizer.nesterov"),
        (lambda: OptimizerConfig(clip_norm=0.0), "optimizer.clip_norm"),
        (lambda: ScheduleConfig(name="cos"), "did you mean 'cosine'"),
        (lambda: ScheduleConfig(name="step"), "schedule.milestones"),
        (lambda: ScalingConfig(k=0), "scaling.k"),
        (lambda: ScalingConfig(every=0), "scaling.every"),
        (lambda: ScalingConfig(apply="updates"), "did you mean 'update'"),
        (lambda: GrowthConfig(interval=0), "interval"),
        (lambda: BudgetConfig(epochs=0), "budget.epochs"),
        (lambda: BudgetConfig(checkpoint_steps=0), "budget.checkpoint_steps"),
        (lambda: MachineConfig(devices=0), "machine.devices"),
        (lambda: TrainConfig(task="classifikation"), "did you mean 'classification'"),
    ],
)
def test_wrong_values_are_named(build, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build()
    assert caught.value.exit_code == 2


def test_every_model_and_method_is_accepted():
    for name in list_models():
        ModelConfig(name=name)
    for name in METHODS:
        MethodConfig(name=name)


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
        source = inspect.getsource(kind)
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
