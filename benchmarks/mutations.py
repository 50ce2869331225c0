"""Plausible bugs, each a small change of the source, and the tests that should notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug: `old` occurs exactly once in the file and is replaced by `new`."""

    name: str
    """What goes wrong."""
    file: str
    """Relative to src/spatialgrad."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Files or folders, relative to tests; those that notice soonest first."""


_GROUPS = ("utils/test_distributed.py", "sgs/test_distributed.py")
_HISTOGRAM = ("sgs/dependence/test_histogram.py",)
_INFORMATION = ("sgs/dependence/test_estimator.py", "sgs/dependence/test_mutual_information.py")
_DYREP = ("reparam/dyrep/test_controller.py",)
_ARCHIVES = ("data/files/test_archives.py",)
_LOOP = ("train/test_loop.py", "train")

MUTATIONS = (
    # Distributed training
    Mutation(
        "sums are reduced over all processes instead of the group",
        "utils/distributed.py",
        "_OPS[reduction]), group=group)",
        "_OPS[reduction]))",
        _GROUPS,
    ),
    Mutation(
        "a failure in another group counts",
        "utils/distributed.py",
        "dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)",
        "dist.all_reduce(flag, op=dist.ReduceOp.MAX)",
        _GROUPS,
    ),
    Mutation(
        "settings must agree with those of other groups",
        "utils/distributed.py",
        "dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)",
        "dist.all_reduce(extremes, op=dist.ReduceOp.MAX)",
        _GROUPS,
    ),
    Mutation(
        "a layer that only another process calls counts as not called",
        "sgs/measure.py",
        "observer.status = highest_status",
        "pass",
        ("sgs/test_distributed.py",),
    ),
    Mutation(
        "statistics are broadcast from the first process of all",
        "reparam/dyrep/controller.py",
        "first = 0 if self._group is None else dist.get_global_rank(self._group, 0)",
        "first = 0",
        ("reparam/dyrep/test_ddp.py",),
    ),
    # Measuring
    Mutation(
        "restoring buffers breaks a pending backward pass",
        "utils/modules.py",
        "buffer.data.copy_(value)",
        "buffer.copy_(value)",
        ("sgs/test_update.py",),
    ),
    Mutation(
        "inputs are observed before the user's hooks change them",
        "sgs/measure.py",
        "register_forward_pre_hook(self, with_kwargs=True)",
        "register_forward_pre_hook(self, with_kwargs=True, prepend=True)",
        ("sgs/test_update.py",),
    ),
    Mutation(
        "samplers that count their epochs are not restored",
        "utils/loaders.py",
        'partial(setattr, part, "epoch", part.epoch)',
        'partial(getattr, part, "epoch")',
        ("utils/test_loaders.py",),
    ),
    Mutation(
        "a user's dependence function is averaged over batches instead of samples",
        "sgs/dependence/estimator.py",
        "self._weight += usable * len(maps)",
        "self._weight += usable",
        ("sgs/dependence/test_estimator.py",),
    ),
    # Dependence
    Mutation(
        "counts overflow beyond 2^31 pixels",
        "sgs/dependence/mutual_information.py",
        "dtype=count_dtype(self.num_pixels)",
        "dtype=torch.int32",
        _INFORMATION,
    ),
    Mutation(
        "counts of distant pairs overflow beyond 2^31 pixels",
        "sgs/dependence/distant_pairs.py",
        "dtype=count_dtype(self.num_pixels)",
        "dtype=torch.int32",
        _INFORMATION,
    ),
    Mutation(
        "the inverse of a tiny range overflows",
        "sgs/dependence/histogram.py",
        "usable = half > bins / torch.finfo(half.dtype).max",
        "usable = half > 0",
        _INFORMATION,
    ),
    Mutation(
        "only the first block is counted",
        "sgs/dependence/histogram.py",
        "for block in blocks(levels, block_size):",
        "for block in [next(blocks(levels, block_size))]:",
        _HISTOGRAM,
    ),
    Mutation(
        "indices of 16 bits overflow",
        "sgs/dependence/histogram.py",
        "fitting = torch.iinfo(torch.int16).max // counts[0, 0].numel()",
        "fitting = torch.iinfo(torch.int32).max // counts[0, 0].numel()",
        _HISTOGRAM,
    ),
    Mutation(
        "the first block takes the place of every other",
        "sgs/dependence/mutual_information.py",
        "part.copy_(quantize(block, low, high, bins))",
        "part.copy_(quantize(maps[: len(part)], low, high, bins))",
        _INFORMATION,
    ),
    Mutation(
        "the compiled kernel leaves out the rest of a row",
        "sgs/dependence/histogram_numba.py",
        "for d in range(whole, length):",
        "for d in range(whole, whole):",
        _HISTOGRAM,
    ),
    Mutation(
        "only the last block's moments count",
        "sgs/dependence/autocorrelation.py",
        "counts[row] += torch.stack",
        "counts[row] = torch.stack",
        ("sgs/dependence/test_estimator.py",),
    ),
    Mutation(
        "padding does not belong to the range of a channel",
        "sgs/dependence/mutual_information.py",
        "self.low.clamp_(max=0)",
        "pass",
        _INFORMATION,
    ),
    Mutation(
        "the odd pixel of 'same' padding is added at the beginning",
        "sgs/dependence/window.py",
        "(total // 2, total - total // 2)",
        "(total - total // 2, total // 2)",
        ("sgs/dependence/test_window.py",),
    ),
    # Scalings and where they are applied
    Mutation(
        "k transforms the mean over channels instead of each channel",
        "sgs/scaling.py",
        "_with_mean_one(k_transform(S.clamp(0, 1), k).sum(0) / number)",
        "_with_mean_one(k_transform(S.clamp(0, 1).sum(0) / number, k))",
        ("sgs/test_scaling.py",),
    ),
    Mutation(
        "a scaling may be exactly 0",
        "sgs/scaling.py",
        ".clamp(min=SMALLEST)",
        "",
        ("sgs/test_scaling.py", "sgs/test_properties.py"),
    ),
    Mutation(
        "updates are counted from the end of the warm-up",
        "sgs/scaler.py",
        "epoch % self.every == 0",
        "(epoch - self.warmup) % self.every == 0",
        ("sgs/test_scaler.py",),
    ),
    Mutation(
        "scalings are set while they are checked",
        "sgs/layers.py",
        "            self[name].check(scaling)",
        "            self[name].check(scaling)\n            self[name].set_scaling(scaling)",
        ("sgs/test_scaler.py",),
    ),
    Mutation(
        "'auto' scales updates of ASGD",
        "sgs/apply_mode.py",
        "(torch.optim.SGD, torch.optim.ASGD, torch.optim.LBFGS)",
        "(torch.optim.SGD, torch.optim.LBFGS)",
        ("sgs/test_apply_mode.py",),
    ),
    Mutation(
        "'auto' scales updates of LBFGS",
        "sgs/apply_mode.py",
        "(torch.optim.SGD, torch.optim.ASGD, torch.optim.LBFGS)",
        "(torch.optim.SGD, torch.optim.ASGD)",
        ("sgs/test_apply_mode.py",),
    ),
    Mutation(
        "SGD with weight decay does not count as linear",
        "utils/optimizer_trial.py",
        "slope = (once[-1] - run(start, -gradients)[-1]) / 2",
        "slope = once[-1] - start",
        ("utils/test_optimizer_trial.py",),
    ),
    Mutation(
        "a step within a step scales again",
        "sgs/step_hook.py",
        "if not compiling and getattr(gradient, _MARK, None) == (own._version, self._watch.count):",
        "if False:",
        ("sgs/test_step_hook.py",),
    ),
    # Trainers of other frameworks
    Mutation(
        "an epoch that was resumed in its middle is measured again",
        "integrations/scheduled_scaling.py",
        " or epoch == self._updated_epoch:",
        ":",
        ("integrations/test_scheduled_scaling.py",),
    ),
    Mutation(
        "a resumed training draws other batches to measure",
        "integrations/scheduled_scaling.py",
        'self._updated_epoch, self._seed = self._restored["updated_epoch"], self._restored["seed"]',
        'self._updated_epoch = self._restored["updated_epoch"]',
        ("integrations/test_scheduled_scaling.py",),
    ),
    # Reparameterization
    Mutation(
        "a score that is not finite lets a convolution grow",
        "reparam/dyrep/controller.py",
        " if math.isfinite(score)}",
        "}",
        _DYREP,
    ),
    Mutation(
        "the last epoch with an adjustment has none",
        "reparam/dyrep/controller.py",
        "epoch <= until",
        "epoch < until",
        _DYREP,
    ),
    Mutation(
        "all growths start from the same random weights",
        "reparam/dyrep/controller.py",
        "seed = self.config.seed + self.num_adjustments",
        "seed = self.config.seed",
        _DYREP,
    ),
    Mutation(
        "the centre of an even kernel is the other one",
        "reparam/fold.py",
        "(kernel_size[0] - 1) // 2, (kernel_size[1] - 1) // 2",
        "kernel_size[0] // 2, kernel_size[1] // 2",
        ("reparam/test_fold.py", "reparam/test_geometry.py", "reparam/test_merging.py"),
    ),
    # Models and data
    Mutation(
        "a shortcut where the number of channels changes",
        "models/mobilenetv2.py",
        "stride == 1 and in_channels == out_channels",
        "stride == 1",
        ("models/test_families.py",),
    ),
    Mutation(
        "names and links may lead out of an archive's folder",
        "data/files/archives.py",
        'filter="data"',
        'filter="fully_trusted"',
        _ARCHIVES,
    ),
    Mutation(
        "an archive without its end is accepted",
        "data/files/archives.py",
        "if tar.fileobj.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:",
        "if False:",
        _ARCHIVES,
    ),
    Mutation(
        "the same images are held out for every seed",
        "data/splits.py",
        'torch.randperm(len(members), generator=generator_for("split", seed, label))[:count]',
        "torch.arange(len(members))[:count]",
        ("data/test_splits.py",),
    ),
    Mutation(
        "a process may get a batch of one image",
        "data/batches.py",
        "0 < rest < 2 * world_size",
        "0 < rest < world_size",
        ("data/test_batches.py",),
    ),
    Mutation(
        "images are flipped or not by where they are cropped",
        "data/augment.py",
        "u[:, 2, None, None, None] < 0.5",
        "u[:, 1, None, None, None] < 0.5",
        ("data/test_augment.py",),
    ),
    # Training
    Mutation(
        "gradients are not clipped",
        "train/learner.py",
        "if clip_norm is not None:",
        "if False:",
        _LOOP,
    ),
    Mutation(
        "the logged learning rate is the next step's",
        "train/loop.py",
        "self.learner.learning_rate(at.step - 1)",
        "self.learner.learning_rate(at.step)",
        _LOOP,
    ),
    Mutation(
        "the best value is the last",
        "train/loop.py",
        "best=max(line[headline] for line in tested)",
        "best=tested[-1][headline]",
        _LOOP,
    ),
    Mutation(
        "a warm-up of a fraction of an epoch ends too low",
        "train/optimizers.py",
        "(math.floor(warmup) + 1)",
        "(warmup + 1)",
        ("train/test_optimizers.py",),
    ),
    Mutation(
        "the previous checkpoint is not kept",
        "train/jsonfiles.py",
        "path.replace(keep_as)",
        "pass",
        ("train/test_jsonfiles.py", "train/test_checkpoint.py"),
    ),
    Mutation(
        "weights that are not finite are saved",
        "train/loop.py",
        "if not self.learner.is_finite():",
        "if False:",
        _LOOP,
    ),
    Mutation(
        "each process has the metrics of its own test images",
        "train/evaluation.py",
        'all_reduce_([(totals[name], "sum") for name in sorted(totals)])',
        "pass",
        ("train/test_in_parallel.py",),
    ),
    # Studies and reports
    Mutation(
        "a study of another format is read",
        "studies/record.py",
        'if values.get("format", FORMAT) != FORMAT:',
        "if False:",
        ("studies/test_damage.py",),
    ),
    Mutation(
        "the backbone is not part of what identifies a run",
        "studies/plan.py",
        "(arm.config, arm.tuned_by, arm.backbone)",
        "(arm.config, arm.tuned_by, None)",
        ("studies/test_plan.py",),
    ),
    Mutation(
        "the deviation is that of a population",
        "report/statistics.py",
        "for value in values) / (n - 1)",
        "for value in values) / n",
        ("report/test_statistics.py",),
    ),
    Mutation(
        "Holm's correction is Bonferroni's",
        "report/statistics.py",
        "(number - rank) * p_values[index]",
        "number * p_values[index]",
        ("report/test_statistics.py",),
    ),
)
