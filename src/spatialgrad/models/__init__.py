"""The networks of the paper, by name.

`create_model("vgg16-slim", num_classes=10)` builds one, `list_models()` lists them, `model_info(name)` says
what is known about one. Importing this package registers every family.
"""

from spatialgrad.models.registry import ModelInfo, create_model, list_models, model_info, register
from spatialgrad.models.vgg import VGG

__all__ = [
    "VGG",
    "ModelInfo",
    "create_model",
    "list_models",
    "model_info",
    "register",
]
