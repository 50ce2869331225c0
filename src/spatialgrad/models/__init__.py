"""The networks of the paper and ConvNeXt by name, and those of timm, torchvision and users.

`create_model("vgg16-slim", num_classes=10)` builds a network, `list_models()` lists the names, `model_info(name)`
returns what the registry knows about one. Names are known before PyTorch is imported.
"""

from typing import TYPE_CHECKING

from spatialgrad.utils.lazy import import_on_use

if TYPE_CHECKING:
    from spatialgrad.models.convnext import ConvNeXt
    from spatialgrad.models.external import ModelError
    from spatialgrad.models.mobilenetv2 import MobileNetV2
    from spatialgrad.models.pose_resnet import PoseResNet
    from spatialgrad.models.preactresnet import PreActResNet
    from spatialgrad.models.pspnet import PSPNet
    from spatialgrad.models.pyramidnet import PyramidNet
    from spatialgrad.models.registry import ModelInfo, create_model, list_models, model_info
    from spatialgrad.models.resnet import BasicBlock, Bottleneck, ResNet
    from spatialgrad.models.resnet_encoder import EncoderWeightsError, ResNetEncoder, load_encoder_
    from spatialgrad.models.seresnet import SEBasicBlock
    from spatialgrad.models.shufflenet import ShuffleNet
    from spatialgrad.models.vgg import VGG
    from spatialgrad.models.xception import Xception

__all__ = [
    "VGG",
    "BasicBlock",
    "Bottleneck",
    "ConvNeXt",
    "EncoderWeightsError",
    "MobileNetV2",
    "ModelError",
    "ModelInfo",
    "PSPNet",
    "PoseResNet",
    "PreActResNet",
    "PyramidNet",
    "ResNet",
    "ResNetEncoder",
    "SEBasicBlock",
    "ShuffleNet",
    "Xception",
    "create_model",
    "list_models",
    "load_encoder_",
    "model_info",
]

__getattr__, __dir__ = import_on_use(__name__)
