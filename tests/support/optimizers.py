"""Optimizers of kinds that torch does not have, each as short as possible."""

import torch


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an average: adaptive without any division."""

    def __init__(self, params, lr=1e-3, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.sub_(group["lr"] * average.lerp_(p.grad, 1 - group["beta"]).sign())


class HomeMadeSGD(torch.optim.Optimizer):
    """Linear in the gradient, but of no class that anybody knows."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)


class GroupsOnly(torch.optim.Optimizer):
    """Refuses parameters that are not in groups with an entry of its own, like most versions of Muon."""

    def __init__(self, params):
        for group in params:
            if "use_sign" not in group:
                raise ValueError("use_sign must be set")
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["coefficients"].append(1.0)
            for p in group["params"]:
                change = p.grad.sign() if group["use_sign"] else p.grad + group["weight_decay"] * p
                total = self.state[p].setdefault("total", torch.zeros_like(p)).add_(change)
                p.sub_(group["lr"] * total)


class SignSGD(torch.optim.SGD):
    """A subclass of SGD that is not linear in the gradient."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.sign_()
        return super().step(closure)


class SGDFromModel(torch.optim.SGD):
    """Cannot be built again from its settings."""

    def __init__(self, model, rate):
        super().__init__(model.parameters(), lr=rate)


class ASGDFromModel(torch.optim.ASGD):
    """Cannot be built again from its settings."""

    def __init__(self, model, rate):
        super().__init__(model.parameters(), lr=rate)


class ScheduleFree(torch.optim.Optimizer):
    """Steps a copy z of the weights, and moves the weights towards it; like Adam if adaptive."""

    def __init__(self, params, lr=0.1, beta=0.9, adaptive=False):
        super().__init__(params, {"lr": lr, "beta": beta, "adaptive": adaptive, "count": 0})

    def train(self):
        self.training = True

    @torch.no_grad()
    def step(self):
        assert self.training
        for group in self.param_groups:
            group["count"] += 1
            weight = 1 / group["count"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                change = -group["lr"] * (p.grad.sign() if group["adaptive"] else p.grad)
                p.lerp_(z, weight).add_(change, alpha=1 - group["beta"] * (1 - weight))
                z.add_(change)


class Anchored(torch.optim.Optimizer):
    """Calculates the weights from where they were at first, like dual averaging."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                start = state.setdefault("start", p.clone())
                total = state.setdefault("total", torch.zeros_like(p)).add_(p.grad.sign())
                p.copy_(start - group["lr"] * total)


class SlowWeights(torch.optim.Adam):
    """Every third step, the weights return half the way to where they were: Lookahead in one class."""

    def step(self, closure=None):
        slow = {p: self.state[p].get("slow", p.detach().clone()) for g in self.param_groups for p in g["params"]}
        super().step(closure)
        with torch.no_grad():
            for p, value in slow.items():
                if int(self.state[p]["step"]) % 3 == 0:
                    p.copy_(value.lerp_(p, 0.5))
                self.state[p]["slow"] = value


class Restarting(torch.optim.Optimizer):
    """Calculates the weights from sums of gradients alone, like FTRL: there is no copy of them."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                total = self.state[p].setdefault("total", torch.zeros_like(p)).add_(p.grad.sign())
                p.copy_(-group["lr"] * total)


class HiddenSlowWeights(torch.optim.Adam):
    """As `SlowWeights`, with the slow ones outside of the optimizer's state."""

    slow = None

    def step(self, closure=None):
        self.slow = self.slow or {p: p.detach().clone() for g in self.param_groups for p in g["params"]}
        super().step(closure)
        with torch.no_grad():
            for p, value in self.slow.items():
                if int(self.state[p]["step"]) % 3 == 0:
                    p.copy_(value.lerp_(p, 0.5))


class DistanceAdapted(torch.optim.Optimizer):
    """Takes its step size from the distance to where the weights were at first, like Prodigy: a harmless copy."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                start = self.state[p].setdefault("start", p.clone())
                p.sub_(group["lr"] * (1 + (p - start).abs().mean()) * p.grad.sign())


class NormalizedAnchored(torch.optim.Optimizer):
    """Calculates the weights from where they were at first, with gradients divided by their common size."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                start = state.setdefault("start", p.clone())
                total = state.setdefault("total", torch.zeros_like(p)).add_(p.grad / p.grad.norm())
                p.copy_(start - group["lr"] * total)
