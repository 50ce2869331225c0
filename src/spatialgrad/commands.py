"""The subcommands of ``spatialgrad``, each a thin function over the package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import tyro
from tyro.extras import SubcommandApp

from spatialgrad.demo import DemoConfig, run_demo

app = SubcommandApp()


@app.command
def demo(config: Annotated[DemoConfig, tyro.conf.arg(name="")] = DemoConfig()) -> None:  # noqa: B008 (frozen)
    """Train with and without scaling on the images that come with the package (under 3 minutes on 2 cores)."""
    run_demo(config)


def run(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; errors that a user can mend become one line and an exit code."""
    try:
        app.cli(prog="spatialgrad", description="Spatial gradient scaling for ConvNets.", args=arguments)
    except (ValueError, OSError) as error:
        print(f"spatialgrad: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("spatialgrad: interrupted", file=sys.stderr)
        return 130
    return 0
