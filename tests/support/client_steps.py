"""Run an example of another library, and compare the last step of its training with one written by hand.

Run as ``python -m support.client_steps EXAMPLE OUTPUT``, in a process of its own: some libraries change torch itself.
"""

import copy
import json
import runpy
import sys
from functools import partial

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from support.common import define_torchvision_operators


class LastStep:
    """An optimizer as it was before its last step, with the gradients that it was given, and the weights after it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.before = {id(p): p.detach().clone() for p in self.parameters}
        self._twin = _copied(optimizer, dict(self.before))
        self.after = {}

    def keep_gradients(self):
        for p in self.parameters:
            self.before[id(p)].grad = None if p.grad is None else p.grad.detach().clone()

    def keep_weights(self):
        self.after = {id(p): p.detach().clone() for p in self.parameters}

    @torch.no_grad()
    def by_hand(self, filters, apply):
        """The weights after the same step with scalings by the identity of the weight."""
        copies = copy.deepcopy(self.before)
        for key, p in self.before.items():
            copies[key].grad = None if p.grad is None else p.grad * (filters.get(key, 1) if apply == "gradient" else 1)
        _copied(self._twin, {id(p): copies[key] for key, p in self.before.items()}).step()
        if apply == "gradient":
            return copies
        return {key: old + filters.get(key, 1) * (copies[key] - old) for key, old in self.before.items()}


def _copied(optimizer, copies):
    """A copy of an optimizer with other parameters, given by the identities of the present ones."""
    twin = copy.deepcopy(optimizer, copies)
    # Copies lose what a class keeps outside of groups and state. Schedulers put a `step` there, bound to the original.
    vars(twin).update({name: value for name, value in vars(optimizer).items() if name not in vars(twin) | {"step": 0}})
    return twin


class Recorder:
    """Hooks of torch around the steps of all optimizers, outside of those that belong to one optimizer."""

    def __init__(self):
        self.steps = {}
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def stop(self):
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer, args, kwargs):
        self.steps[id(optimizer)] = step = LastStep(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            step.keep_gradients()
            return None
        return (args[0], partial(self._evaluate, closure, step)), {}

    def _evaluate(self, closure, step):
        with torch.enable_grad():
            loss = closure()
        step.keep_gradients()
        return loss

    def _after(self, optimizer, args, kwargs):
        self.steps[id(optimizer)].keep_weights()


def compared(sgs, recorder):
    """What a scaling did in the last step of the optimizer that holds its weights."""
    weights = {name: layer.modules[0].weight for name, layer in sgs._layers.items()}
    filters = {id(weights[name]): G for name, G in sgs.scalings.items()}
    (step,) = (step for step in recorder.steps.values() if filters.keys() <= step.after.keys())
    plain = step.by_hand({}, "gradient")

    def distances(other):
        """For every convolution, the difference to another step, as a share of how far the unscaled one goes."""
        return [
            float((step.after[key] - other[key]).abs().max() / (plain[key] - step.before[key]).abs().max())
            for key in filters
        ]

    return {
        "optimizer": type(step.optimizer).__name__,
        "repr": repr(sgs),
        "updates": sgs.num_updates,
        "unmeasured": [name for name, G in sgs.scalings.items() if torch.equal(G, torch.ones_like(G))],
        "gradient": distances(step.by_hand(filters, "gradient")),
        "update": distances(step.by_hand(filters, "update")),
        "unscaled": distances(plain),
    }


def main(example, output):
    define_torchvision_operators()
    torch.manual_seed(0)
    recorder = Recorder()
    found = runpy.run_path(example)["sgs"]
    recorder.stop()
    results = [compared(sgs, recorder) for sgs in (found if isinstance(found, list) else [found])]
    with open(output, "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
