"""Two processes grow and cut the same network, and refuse a stale wrapper."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from reparam_helpers import SmallNet, batches
from spatialgrad.reparam import DyRep, DyRepConfig, merge
from spatialgrad.reparam.growth import grown_blocks

torch.set_num_threads(1)
rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
torch.manual_seed(rank)  # other weights, which the wrapper makes equal, and another random state
model = DistributedDataParallel(SmallNet(), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
dyrep = DyRep(model, optimizer, DyRepConfig(interval=1, spread=1e-3))
data = batches(3, seed=rank)  # each its own images
cuts = refused = 0
for epoch in range(6):
    model.train()
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    adjustment = dyrep.adjust(data)
    cuts += len(adjustment.cut)
    try:
        model(data[0][0])
    except RuntimeError as error:
        refused += "rewrap" in str(error)
    model = dyrep.rewrap(model)
    assert model.gradient_as_bucket_view
assert cuts > 0, "nothing was cut"
assert refused == 6, refused
assert len(grown_blocks(model.module)) > 0
for name, value in model.module.state_dict().items():
    mine = value.detach().clone()
    other = mine.clone()
    dist.broadcast(other, src=0)
    assert torch.equal(mine, other), name
structures = [None, None]
dist.all_gather_object(structures, dyrep.state_dict()["structure"])
assert structures[0] == structures[1]

# The next step, on other images again, keeps them equal, new parameters included.
x, y = data[0]
optimizer.zero_grad()
F.cross_entropy(model(x), y).backward()
optimizer.step()
for name, value in model.module.named_parameters():
    other = value.detach().clone()
    dist.broadcast(other, src=0)
    assert torch.equal(value, other), name
dist.barrier()
dist.destroy_process_group()
print("equal", cuts)
"""


@pytest.mark.timeout(180)
def test_two_ranks_stay_identical(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    commands = [[sys.executable, "-W", "error::FutureWarning", "-c", SCRIPT, str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    outputs = [process.communicate(timeout=150) for process in processes]
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
        assert "equal" in out
