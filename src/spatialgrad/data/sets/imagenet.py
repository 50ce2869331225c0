"""ImageNet (ILSVRC 2012): 1,281,167 training and 50,000 validation images in a thousand classes.

Russakovsky et al. 2015, "ImageNet Large Scale Visual Recognition Challenge", https://arxiv.org/abs/1409.0575.
It may not be redistributed: users download it from image-net.org and unpack it into class folders.
"""

from __future__ import annotations

from spatialgrad.data.registry import Source
from spatialgrad.data.sets import folder

SOURCE = Source(
    name="imagenet",
    description="1,281,167 + 50,000 colour images, 1000 classes, as class folders",
    places=["imagenet", "ILSVRC2012"],
    read=lambda place: folder.read(place, name="imagenet", title="ImageNet"),
    manual=(
        "register at https://image-net.org and unpack its archives into {root}/imagenet/train/<class>/ and "
        "{root}/imagenet/val/<class>/; docs/data.md shows the commands"
    ),
)
