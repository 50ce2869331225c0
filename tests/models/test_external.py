"""`timm:NAME`, `torchvision:NAME` with the real libraries, and `package.module:function` of the user's."""

import inspect
import subprocess
import sys
from functools import partial

import pytest
import torch

from spatialgrad.models import ModelError, create_model, list_models
from spatialgrad.models.external import describe_source
from support.common import python_environment
from support.external import user_module  # noqa: F401 (fixture)

pytestmark = pytest.mark.usefixtures("user_module")

TIMM, TORCHVISION = "timm:test_resnet", "torchvision:shufflenet_v2_x0_5"


def parts(name):
    return {key: value for key, value in sys.modules.items() if key.partition(".")[0] == name}


@pytest.mark.parametrize("channels", [1, 3])
def test_timm(channels):
    pytest.importorskip("timm")
    model = create_model(TIMM, num_classes=5, in_channels=channels, drop_rate=0.5)
    assert model.eval()(torch.rand(2, channels, 32, 32)).shape == (2, 5)
    assert model.drop_rate == 0.5
    assert describe_source(TIMM)["library"] == "timm"


def test_torchvision():
    pytest.importorskip("torchvision")
    model = create_model(TORCHVISION, num_classes=5)
    assert model.eval()(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    assert describe_source(TORCHVISION).keys() == {"library", "version"}


def test_without_a_number_of_classes_there_are_those_of_imagenet():
    assert create_model(TIMM).num_classes == create_model(TORCHVISION).fc.out_features == 1000


@pytest.mark.parametrize(
    ("name", "arguments", "message", "argument"),
    [
        ("timm:resnet18dd", {}, "did you mean 'timm:resnet18d'", "name"),
        ("timm:resnet18.a9_in1k", {}, "its weights are resnet18.a1_in1k", "name"),
        (TIMM, {"drop_rat": 1}, "with drop_rat=1 .*drop_rat", "options"),
        (TIMM, {"in_chans": 1}, "number of channels of the images", "options"),
        (TIMM, {"checkpoint_path": "x"}, "pretrained_cfg_overlay", "options"),
        ("timm:resnet18:x", {}, "does not have the form", "name"),
        ("timm:", {}, "does not have the form", "name"),
        ("torchvision:resnet81", {}, "did you mean 'torchvision:resnet18'", "name"),
        ("torchvision:fcn_resnet50", {}, "is not an image classification model", "name"),
        (TORCHVISION, {"drop": 1}, "with drop=1 .*drop", "options"),
        (TORCHVISION, {"in_channels": 1}, "3 channels, not 1; timm's take any", "in_channels"),
        (TORCHVISION, {"weights": "DEFAULT"}, "pretrained is not set", "options"),
        (TORCHVISION, {"weights": "X", "pretrained": True}, "must be one of IMAGENET1K_V1", "options"),
        ("timm:resnet18", {"drop_rat": 1, "pretrained": True}, "cannot be built with drop_rat=1", "options"),
        (TORCHVISION, {"drop": 1, "pretrained": True}, "cannot be built with drop=1", "options"),
        ("vgg11", {"pretrained": True}, "no pre-trained weights for vgg11", "pretrained"),
        ("usernet:build", {}, "module 'usernet' not found; run the command in the folder", "name"),
        ("usernets.more:build", {}, "module 'usernets.more' not found", "name"),
        ("tim:resnet18", {}, "did you mean 'timm'", "name"),
        ("usernets:bild", {}, "has no .bild.; did you mean .build.", "name"),
        ("usernets:NUMBER", {}, "has type int and is not a function", "name"),
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


def test_timm_has_not_all_weights():
    timm = pytest.importorskip("timm")
    name = next(name for name in timm.list_models() if not timm.models.is_model_pretrained(name))
    with pytest.raises(ModelError, match="has no pre-trained weights") as error:
        create_model(f"timm:{name}", pretrained=True)
    assert error.value.argument == "pretrained"


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library(library, monkeypatch):
    for name in parts(library):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=f"{library} is not installed: pip install {library}"):
        create_model(f"{library}:resnet18")
    with pytest.raises(ModelError, match=f"pip install {library}"):
        list_models(f"{library}:*")


@pytest.mark.parametrize("error", ["RuntimeError('operator missing')", "ModuleNotFoundError('No x', name='x')"])
def test_a_library_that_cannot_be_imported_says_so_itself(error, tmp_path, monkeypatch):
    for name in parts("timm"):
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "timm.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ModelError, match=r"timm cannot be imported \((RuntimeError: operator|ModuleNotFoundError: No x)"
    ):
        create_model("timm:resnet18")


def test_lists():
    assert list_models("timm:resnet18*") == ["timm:resnet18", "timm:resnet18d"]
    assert "timm:resnet18d.ra2_in1k" in list_models("timm:resnet18d.*")
    every = list_models("torchvision:")
    assert "torchvision:resnet18" in every
    assert "torchvision:fcn_resnet50" not in every
    assert list_models("timm:*", task="pose") == []
    with pytest.raises(ModelError, match="only the networks of timm and torchvision"):
        list_models("torch:*")


def test_timm_weights_from_a_file(tmp_path):
    """As timm itself reads them: adapted to one channel, with a new last layer."""
    source = create_model(TIMM)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    build = partial(create_model, TIMM, num_classes=5, pretrained_cfg_overlay=overlay)
    tuned, grey = build(pretrained=True), build(pretrained=True, in_channels=1)
    block = "layer2.0.conv2.weight"
    assert torch.equal(tuned.get_parameter(block), source.get_parameter(block))
    assert torch.equal(grey.get_parameter(block), source.get_parameter(block))
    assert tuned.num_classes == 5
    assert not torch.equal(build().get_parameter(block), source.get_parameter(block))
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot be loaded") as error:
        build(pretrained=True)
    assert error.value.argument == "pretrained"


@pytest.mark.parametrize("classes", [1000, 5])
def test_torchvision_weights_from_its_cache(classes, tmp_path, monkeypatch):
    models = pytest.importorskip("torchvision.models")
    source, weights = create_model(TORCHVISION), models.ShuffleNet_V2_X0_5_Weights.DEFAULT
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(source.state_dict(), tmp_path / "hub" / "checkpoints" / weights.url.rpartition("/")[2])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    tuned = create_model(TORCHVISION, num_classes=classes, pretrained=True, weights="IMAGENET1K_V1")
    state = tuned.state_dict()
    kept = [name for name, value in source.state_dict().items() if torch.equal(value, state[name])]
    assert len(kept) == len(state) - (0 if classes == 1000 else 2)
    assert tuned.fc.out_features == classes


def test_torchvision_weights_of_another_network(tmp_path, monkeypatch):
    models = pytest.importorskip("torchvision.models")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    path = tmp_path / "hub" / "checkpoints" / models.ShuffleNet_V2_X0_5_Weights.DEFAULT.url.rpartition("/")[2]
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    state = create_model(TORCHVISION).state_dict()
    for changed, message in [
        ({"conv1.0.weight": torch.zeros(24, 1, 3, 3)}, "other shapes in conv1.0.weight"),
        ({"conv1.0.weight": None}, "lack conv1.0.weight"),
    ]:
        torch.save({name: value for name, value in {**state, **changed}.items() if value is not None}, path)
        with pytest.raises(ModelError, match=message):
            create_model(TORCHVISION, pretrained=True)


def test_without_a_network_connection(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nobody listens
    for name in ("timm:resnet18", TORCHVISION):
        with pytest.raises(ModelError, match=r"weights of .* cannot be loaded .*TORCH_HOME") as error:
            create_model(name, pretrained=True, num_classes=5, **({"cache_dir": tmp_path} if "timm" in name else {}))
        assert error.value.argument == "pretrained"


def test_configs_and_help_import_no_library():
    code = (
        "import sys\nfrom spatialgrad.train import ModelConfig\nModelConfig(name='timm:resnet18', pretrained=True)\n"
        "print([name for name in ('timm', 'torchvision') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=python_environment())
    assert done.stdout.strip() == "[]", done.stderr


# Functions


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
    described = describe_source("usernets:build")
    assert described["file"] == str(user_module / "usernets.py")
    assert len(described["sha256"]) == 64


def test_nothing_else_is_passed():
    """The arguments that a function may get are a contract with users."""
    assert list(inspect.signature(create_model).parameters) == [
        *("name", "num_classes", "width", "in_channels", "pretrained", "options")
    ]
