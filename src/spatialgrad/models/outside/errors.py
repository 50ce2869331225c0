"""Why a network cannot be built."""

from __future__ import annotations


class ModelError(ValueError):
    """A network cannot be built; the message says why and what to do.

    Args:
        message: The reason.
        argument: The argument of `create_model` at fault: `name`, `options`, `pretrained` or `in_channels`.
    """

    def __init__(self, message: str, argument: str = "name") -> None:
        super().__init__(message)
        self.argument = argument


def describe_error(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
