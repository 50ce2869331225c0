"""The public names are a contract: one that vanishes, or an import that grows heavy, fails here."""

import importlib

import pytest

import spatialgrad
from support.imports import loaded_by

PUBLIC = {
    "Explanation",
    "Live",
    "NoEffectWarning",
    "SpatialGradientScaling",
    "__version__",
    "autocorrelation",
    "explain",
    "normalized_mutual_information",
    "plot_scalings",
    "scale_gradients_",
    "scaling_from_dependence",
    "scaling_from_masks",
    "scaling_from_ratios",
}

PACKAGES = {
    "models": """
        BasicBlock Bottleneck ConvNeXt EncoderWeightsError MobileNetV2 ModelError ModelInfo PSPNet PoseResNet
        PreActResNet PyramidNet ResNet ResNetEncoder SEBasicBlock ShuffleNet VGG Xception create_model list_models
        load_encoder_ model_info
    """,
    "data": """
        Augmentation Batches CorruptDataError DataError DatasetInfo FileSplit ImageDataset Loader MemorySplit
        MissingDataError People PoseDataset SegmentationDataset UnreachableError data_root eval_batches fingerprint
        get_dataset_files list_datasets load_dataset load_for steps_per_epoch
        stratified_indices train_batches validation_split
    """,
    "train": """
        BudgetConfig CheckpointError ConfigError DamagedFileError DataConfig DeployError DivergedError DyRepGroup
        FolderInUseError Int8Export InterruptedTraining METHODS MachineConfig Method MethodConfig ModelConfig
        OptimizerConfig OtherConfigError PoseConfig RECIPES RepOptGroup Result Run ScalingConfig ScheduleConfig
        SegmentationConfig StorageError TASKS Task TrainConfig TrainError export_int8 export_onnx export_weights
        load_config load_model recipe resume save_config train
    """,
    "studies": """
        Arm Plan Published SCALES STUDIES Scale Search Study StudyRecord get_study list_studies make_plan
        read_study
    """,
    "report": """
        write_report
    """,
}
"""The same for the packages above it; those of `spatialgrad.reparam` are held beside its tests."""


def test_inventory():
    assert set(spatialgrad.__all__) == PUBLIC
    assert all(hasattr(spatialgrad, name) for name in PUBLIC)


@pytest.mark.parametrize("package", PACKAGES)
def test_inventory_of_packages(package):
    module = importlib.import_module(f"spatialgrad.{package}")
    assert sorted(module.__all__) == sorted(PACKAGES[package].split())
    assert all(hasattr(module, name) for name in module.__all__)


def test_methods_of_the_class():
    expected = {"attach", "detach", "due", "update", "state_dict", "load_state_dict"}
    expected |= {"scalings", "set_scalings", "dependence"}
    assert expected <= set(dir(spatialgrad.SpatialGradientScaling))


def test_public_names_are_documented():
    for name in PUBLIC - {"__version__"}:
        assert getattr(spatialgrad, name).__doc__


def test_importing_loads_nothing_beyond_torch_and_numpy():
    assert loaded_by("spatialgrad") == ["spatialgrad"]
