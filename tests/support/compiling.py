"""Where PyTorch's own compiler can be used."""

import os
import shutil

import pytest

MISSING = not (shutil.which("g++") or shutil.which("clang++"))
# With PyTorch 2.13, the code that is generated for this setting uses at::vec without including it.
UNUSABLE = os.environ.get("ATEN_CPU_CAPABILITY") == "default"

needs_compiler = pytest.mark.skipif(
    MISSING or UNUSABLE, reason="torch.compile needs a C++ compiler, and not ATEN_CPU_CAPABILITY=default"
)
INDUCTOR = pytest.param("inductor", marks=[pytest.mark.slow, needs_compiler])
"""The backend as a parameter of a test: compiling takes a minute."""
