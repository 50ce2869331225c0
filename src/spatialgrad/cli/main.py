"""The command ``spatialgrad``: parse, call the subcommand, and turn errors into messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        from spatialgrad.train.exit_codes import exit_code_of
    except ModuleNotFoundError as error:
        print(f"spatialgrad: the command line needs {error.name}: pip install 'spatialgrad[train]'", file=sys.stderr)
        return 1
    return exit_code_of(lambda: _run(given))


def _run(arguments: list[str]) -> None:
    # Imported here, so that a missing package is reported by `main`.
    from tyro.extras import SubcommandApp

    from spatialgrad.cli import data, demo, report, study, train

    app = SubcommandApp()
    app.command(name="demo")(demo.demo)
    app.command(name="train")(train.train_command(train.default_config(arguments)))
    app.command(name="resume")(train.resume)
    app.command(name="export")(train.export)
    app.command(data.build_app(), name="data", help="List and download data sets.")
    app.command(study.build_app(), name="study", help="Reproduce the paper's tables and figures: list, show, run.")
    app.command(name="report")(report.report)
    app.cli(prog="spatialgrad", description="Spatial gradient scaling for ConvNets.", args=arguments)


if __name__ == "__main__":
    sys.exit(main())
