"""The training methods by name; all of them implement the interface `Method`."""

from spatialgrad.train.flags import find_class
from spatialgrad.train.methods.base import Method
from spatialgrad.train.methods.branches import ACB, DBB, DyRep, QARepVGG, RepVGG
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
    "qarepvgg": QARepVGG,
    "dbb": DBB,
    "dyrep": DyRep,
    "repopt-search": RepOptSearch,
    "repopt": RepOptTarget,
    "lemma": Lemma,
    "lemma-unscaled": UnscaledLemma,
}
"""Every method; `METHOD_NAMES` lists the same names, without those that are for studies alone."""


def find_method(name: str) -> type[Method]:
    """The class of a method, by its name or as `package.module:Class`."""
    return METHODS.get(name) or find_class("method.name", name, Method)
