"""`package.module:function`: a network from the user's own code."""

import inspect

import pytest
import torch

from spatialgrad.models import ModelError, create_model
from spatialgrad.models.outside.function import describe_function
from support.outside import user_module  # noqa: F401 (fixture)

pytestmark = pytest.mark.usefixtures("user_module")


def test_a_function_in_the_working_directory():
    model = create_model("usernets:build", num_classes=5, in_channels=1, channels=6)
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 5)
    assert model.first.out_channels == 6


def test_a_module_of_a_package(user_module):  # noqa: F811
    package = user_module / "research" / "nets"
    package.mkdir(parents=True)
    (package / "resnets.py").write_text("from usernets import build\n")
    assert create_model("research.nets.resnets:build", num_classes=3)(torch.rand(1, 3, 8, 8)).shape == (1, 3)


def test_what_a_function_does_not_take_is_not_passed():
    assert create_model("usernets:color_only", in_channels=1).head.out_features == 7
    assert create_model("usernets:anything", num_classes=3, channels=2).point.out_channels == 2


def test_attributes_of_a_class_work_as_well():
    assert create_model("usernets:Nets.small", num_classes=3).first.out_channels == 2


def test_the_seed_determines_the_weights():
    def weights():
        torch.manual_seed(3)
        return create_model("usernets:build", num_classes=5).first.weight

    assert torch.equal(weights(), weights())


def test_pretrained_weights(user_module):  # noqa: F811
    torch.manual_seed(1)
    source = create_model("usernets:tuned", num_classes=5)
    torch.save(source.first.state_dict(), user_module / "weights.pt")
    torch.manual_seed(2)
    assert torch.equal(create_model("usernets:tuned", num_classes=3, pretrained=True).first.weight, source.first.weight)
    with pytest.raises(ModelError, match="no parameter `pretrained`") as error:
        create_model("usernets:build", num_classes=3, pretrained=True)
    assert error.value.argument == "pretrained"


@pytest.mark.parametrize(
    ("name", "arguments", "message", "argument"),
    [
        ("usernet:build", {}, "module 'usernet' not found; run the command in the folder", "name"),
        ("usernets.more:build", {}, "module 'usernets.more' not found", "name"),
        ("tim:resnet18", {}, "did you mean 'timm'", "name"),
        ("usernets:bild", {}, "no function 'bild'; did you mean 'build'", "name"),
        ("usernets:NUMBER", {}, "no function, but of type int", "name"),
        ("usernets:no_network", {}, "must return a torch.nn.Module, not dict", "name"),
        ("usernets:broken", {}, r"KeyError: 'the weather' \(.*usernets.py, line \d+\)", "name"),
        ("usernets:no_classes", {"channels": 3}, "must take `num_classes`", "name"),
        ("usernets:build", {"chanels": 3}, "no parameter 'chanels'; did you mean 'channels'", "options"),
        ("usernets:build", {"num_classes": None}, "needs a value for 'num_classes'", "options"),
        ("usernets:build", {"channels": "x"}, r"usernets:build\(.*channels='x'.* failed: TypeError", "name"),
        ("user nets:build", {}, "does not have the form", "name"),
        ("usernets:", {}, "does not have the form", "name"),
        (":build", {}, "does not have the form", "name"),
        ("usernets:build", {"width": 0.5}, "width must be 1", "width"),
    ],
)
def test_what_is_wrong_is_said(name, arguments, message, argument):
    with pytest.raises(ModelError, match=message) as error:
        create_model(name, **{"num_classes": 5, **arguments})
    assert error.value.argument == argument


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package\n", "No module named 'no_such_package'"),
        ("x = 1 / 0\n", r"ZeroDivisionError: .*faulty.py, line 1"),
        ("def f(:\n", r"SyntaxError: .*faulty.py, line 1"),
        ("raise SystemExit(2)\n", "SystemExit: 2"),
    ],
)
def test_a_module_that_cannot_be_imported(user_module, source, message):  # noqa: F811
    (user_module / "faulty.py").write_text(source)
    with pytest.raises(ModelError, match=message) as error:
        create_model("faulty:build", num_classes=5)
    assert "not found" not in str(error.value)


def test_the_source_is_described(user_module):  # noqa: F811
    described = describe_function("usernets:build")
    assert described["file"] == str(user_module / "usernets.py")
    assert len(described["sha256"]) == 64


def test_nothing_else_is_passed():
    """The arguments that a function may get are a contract with users."""
    assert list(inspect.signature(create_model).parameters) == [
        *("name", "num_classes", "width", "in_channels", "pretrained", "options")
    ]
