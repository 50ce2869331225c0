"""What scaling and its rivals cost, for the pages: from results/cost.json and results/overhead.json."""

from __future__ import annotations

import statistics
from typing import Any

from spatialgrad.report.tables.cells import signed

WIDTHS = {"0.25": "a quarter of its width", "1": "full width"}


def ratio(cost: dict[str, Any], method: str) -> float:
    """Time of a step in units of a plain one: the median over interleaved rounds."""
    steps = cost["methods"]
    pairs = zip(steps[method]["seconds"], steps["plain"]["seconds"], strict=True)
    return statistics.median(seconds / plain for seconds, plain in pairs)


def overhead_table(kept: dict[str, Any]) -> str:
    """What scaling itself takes: measuring, memory, steps and whole trainings."""
    times = kept["update"]["seconds"]
    all_calls, half = ([times[calls] / times[ours] for ours in ("torch", "[fast]")] for calls in ("8 calls", "4 calls"))
    lines = [
        "| | measured | command |",
        "|---|---|---|",
        f"| measuring VGG-16's maps for 256 images | {all_calls[0]:.1f} × as fast as one histogram call per channel "
        f"and displacement, {all_calls[1]:.1f} × with `[fast]`; {half[0]:.1f} and {half[1]:.1f} × as fast as the "
        f"authors' calls for half of the displacements | `{kept['update']['command']}` |",
        f"| a live update | {times['live'] / times['update']:.2f} × the time of `update(loader)` "
        f"| `{kept['update']['command']}` |",
        f"| peak memory of an update beyond a forward pass | at most {kept['memory']['largest_extra_maps']:.1f} × the "
        f"largest layer's input map | `{kept['memory']['command']}` |",
    ]
    for width, name in WIDTHS.items():
        step = kept[f"step at width {width}"]
        most = max(step["schedules_percent"].values())
        whole = f"{signed(step['step_percent'], 1)} ± {step['step_error_percent']:.1f} %"
        lines.append(
            f"| a training step of VGG-16 at {name} | +{step['multiplication_percent']:.2f} % for the multiplication "
            f"(whole steps: {whole}); with the paper's schedules at most +{most:.2f} % | `{step['command']}` |"
        )
    for width, name in WIDTHS.items():
        live = kept[f"live training at width {width}"]
        lines.append(
            f"| a whole training of VGG-16 at {name} that measures live, with the appendix' schedule | "
            f"{signed(live['training_percent'])} ± {live['scaled_error_percent']:.2f} % of the processor time "
            f"| `{live['command']}` |"
        )
    return "\n".join(lines)


def overhead_fact(kept: dict[str, Any]) -> str:
    """The overhead of a step, for the first page."""
    step = kept["step at width 0.25"]
    return (
        f"**+{step['multiplication_percent']:.2f} %**\n\n"
        "time of a training step, VGG-16 at ¼ width, 2 CPU cores; at most "
        f"{max(step['schedules_percent'].values()):.2f} % with the updates of the paper's schedules"
    )


def cost_sentence(cost: dict[str, Any], method: str) -> str:
    """What a method costs, for its own page."""
    plain, own = cost["methods"]["plain"], cost["methods"][method]
    macs, parameters = ([each[key] / 1e6 for each in (own, plain)] for key in ("macs", "parameters"))
    memory = own["peak_mib"] / plain["peak_mib"]
    return (
        f"VGG-16 for CIFAR has {macs[0]:.0f} M multiply-accumulates instead of {macs[1]:.0f} M, and "
        f"{parameters[0]:.1f} M parameters instead of {parameters[1]:.1f} M. A training step takes "
        f"{ratio(cost, method):.2f} times as long as that of the plain network, and {memory:.2f} times its memory "
        "(`python benchmarks/bench_reparam.py`, batch 32, one CPU thread)."
    )
