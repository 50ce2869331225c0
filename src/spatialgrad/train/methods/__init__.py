"""The training methods by name; all of them implement the interface `Method`."""

from spatialgrad.train.config import METHOD_NAMES
from spatialgrad.train.methods.base import Method
from spatialgrad.train.methods.branches import ACB, DBB, DyRep, RepVGG
from spatialgrad.train.methods.lemma import Lemma, UnscaledLemma
from spatialgrad.train.methods.repopt import RepOptSearch, RepOptTarget
from spatialgrad.train.methods.scaling import AutocorrelationScaling, MutualInformationScaling, StaticScaling

METHODS: dict[str, type[Method]] = {
    "baseline": Method,
    "sgs": MutualInformationScaling,
    "sgs-autocorrelation": AutocorrelationScaling,
    "sgs-static": StaticScaling,
    "acb": ACB,
    "repvgg": RepVGG,
    "dbb": DBB,
    "dyrep": DyRep,
    "repopt-search": RepOptSearch,
    "repopt": RepOptTarget,
    "lemma": Lemma,
    "lemma-unscaled": UnscaledLemma,
}
"""Every method; `METHOD_NAMES` lists the same names, without those that are for studies alone."""


def register_method(name: str, method: type[Method]) -> None:
    """Make a method available under a name, for `MethodConfig` and `--method`."""
    METHODS[name] = method
    if name not in METHOD_NAMES:
        METHOD_NAMES.append(name)
