import pytest

from spatialgrad.utils.text import did_you_mean

KNOWN = ("resnet18", "resnet34", "vgg11")


@pytest.mark.parametrize(
    ("name", "most", "hint"),
    [
        ("resnet-18", 1, "did you mean 'resnet18'?"),
        ("ResNet34", 2, "did you mean 'resnet34' or 'resnet18'?"),
        ("lenet", 1, "did you mean 'resnet34'?"),
        ("", 3, "choose one"),
        ("xyz", 3, "choose one"),
    ],
)
def test_the_most_similar_names_come_first(name, most, hint):
    assert did_you_mean(name, iter(KNOWN), otherwise="choose one", most=most) == hint
