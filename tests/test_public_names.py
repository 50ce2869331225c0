"""The public names are a contract: one that vanishes, or an import that grows heavy, fails here."""

import spatialgrad
from support.imports import loaded_by

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
    expected = {"attach", "detach", "due", "update", "scalings", "set_scalings", "state_dict", "load_state_dict"}
    assert expected <= set(dir(spatialgrad.SpatialGradientScaling))


def test_public_names_are_documented():
    for name in PUBLIC - {"__version__"}:
        assert getattr(spatialgrad, name).__doc__


def test_importing_loads_nothing_beyond_torch_and_numpy():
    assert loaded_by("spatialgrad") == ["spatialgrad"]
