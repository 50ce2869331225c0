import pytest

from spatialgrad.train.errors import ConfigError
from spatialgrad.train.flags import parse_key_values, sorted_key_values


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


def test_two_orders_are_the_same_options():
    assert sorted_key_values(["b=1", "a=2"]) == sorted_key_values(["a=2", "b=1"])
