"""Class folders of image files, as users have them: the shipped images as PNG files."""

from PIL import Image

from spatialgrad.data import load_dataset


def write_class_folders(folder, train=12, test=6, classes=3):
    """`train/<class>/…` and `val/<class>/…` with so many images per class; the folder."""
    dataset = load_dataset("fashion-mnist-mini")
    for split, images, count in (("train", dataset.train, train), ("val", dataset.test, test)):
        for label in range(classes):
            place = folder / split / dataset.class_names[label].replace("/", "-")
            place.mkdir(parents=True)
            chosen = (images.labels == label).nonzero().flatten()[:count]
            for number, index in enumerate(chosen.tolist()):
                Image.fromarray(images.images[index].squeeze().numpy()).convert("RGB").save(place / f"{number}.png")
    return folder
