"""Networks from outside the package: of timm, of torchvision, or from any function of the user's."""
