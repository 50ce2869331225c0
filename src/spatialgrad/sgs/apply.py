"""Where G is applied."""

from typing import Literal

Apply = Literal["gradient", "update", "auto"]
"""To the gradient, to the optimizer's update, or wherever the optimizer needs it."""
