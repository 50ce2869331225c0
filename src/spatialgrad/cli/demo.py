"""``spatialgrad demo``: what can be shown in three minutes, on the images shipped with the package."""

from __future__ import annotations

from typing import Annotated

import tyro

from spatialgrad.cli.demo_config import DemoConfig
from spatialgrad.cli.importing import importing


def demo(config: Annotated[DemoConfig, tyro.conf.arg(name="")] = DemoConfig()) -> None:  # noqa: B008 (frozen)
    """Show on the shipped images that scaling learns as branches do, and what each costs (under 3 minutes)."""
    with importing():
        from spatialgrad.cli.demo_run import run_demo

    run_demo(config)
