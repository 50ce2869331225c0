"""What an import loads, seen from a fresh interpreter."""

import json
import subprocess
import sys

CODE = """
import importlib, json, sys
import torch, numpy
before = {name.split(".")[0] for name in sys.modules}
importlib.import_module(sys.argv[1])
after = {name.split(".")[0] for name in sys.modules}
new = sorted(name for name in after - before if name not in sys.stdlib_module_names)
print(json.dumps(new + [name for name in ("torch._dynamo",) if name in sys.modules]))
"""


def loaded_by(module):
    """Return the packages that importing a module loads besides torch and numpy, and torch._dynamo if it is loaded."""
    run = subprocess.run([sys.executable, "-c", CODE, module], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)
