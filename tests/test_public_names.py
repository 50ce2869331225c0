"""The public names are a contract: one that vanishes, or an import that grows heavy, fails here."""

import subprocess
import sys

import spatialgrad

PUBLIC = {
    "Explanation",
    "NoEffectWarning",
    "SpatialGradientScaling",
    "__version__",
    "autocorrelation",
    "explain",
    "normalized_mutual_information",
    "scale_gradients_",
    "scaling_from_dependence",
    "scaling_from_masks",
    "scaling_from_ratios",
}


def test_inventory():
    assert set(spatialgrad.__all__) == PUBLIC
    assert all(hasattr(spatialgrad, name) for name in PUBLIC)


def test_methods_of_the_class():
    expected = {"attach", "detach", "due", "update", "state_dict", "load_state_dict"}
    expected |= {"scalings", "set_scalings", "dependence"}
    assert expected <= set(dir(spatialgrad.SpatialGradientScaling))


def test_public_names_are_documented():
    for name in PUBLIC - {"__version__"}:
        assert getattr(spatialgrad, name).__doc__


def test_importing_loads_nothing_beyond_torch_and_numpy():
    code = """
import sys
import torch, numpy
before = {name.split(".")[0] for name in sys.modules}
import spatialgrad
after = {name.split(".")[0] for name in sys.modules}
print(sorted(name for name in after - before if name not in sys.stdlib_module_names))
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["['spatialgrad']", "False"]
