"""The training methods by name, all through the one small interface `Method`."""

from spatialgrad.train.methods.base import Deployed, EpochContext, Method, Update
from spatialgrad.train.methods.branches import ACB, DBB, RepVGG
from spatialgrad.train.methods.dyrep import DyRep
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
}
"""Every method; to add one, write its file and name it here."""

__all__ = ["METHODS", "Deployed", "EpochContext", "Method", "Update"]
