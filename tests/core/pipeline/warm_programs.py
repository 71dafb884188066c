"""A program for a process of its own: a model or a plugin's graph, one step, and what had to be done for it."""

from __future__ import annotations

import json
import sys

import torch
from torch import fx, nn

import turret
from turret.pipeline.stored_graph import graph_of, nodes_text

LIBRARY = torch.library.Library("warm_acme", "DEF")
LIBRARY.define("gate(Tensor x, float scale) -> Tensor")
LIBRARY.impl("gate", lambda x, scale: torch.sigmoid(x) * scale, "CompositeExplicitAutograd")
torch.library.register_fake("warm_acme::gate", lambda x, scale: torch.empty_like(x), lib=LIBRARY)


class Watch:
    """Stages that ran, hits of the cache, and why something was not stored."""

    def __init__(self):
        self.stages, self.hits, self.reasons = [], [], []

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "stage_started" and event.stage != "runtime":
            self.stages.append(event.stage)
        elif event.kind == "cache_hit":
            self.hits.append(event.stage)
        elif event.kind == "perf_hint" and "every process" in event.message:
            self.reasons.append(event.message)


class Acme:
    """A plugin with an operator of its own, which it puts in the place of another."""

    cache_key = "acme 1"
    namespaces = ("warm_acme",)

    @turret.hookimpl
    def turret_graph_pass(self, phase, module):
        for node in module.graph.nodes if phase == "joint" else ():
            if node.target is torch.ops.aten.sigmoid.default:
                node.target, node.args = torch.ops.warm_acme.gate.default, (node.args[0], 1.0)


class Wrapper:
    """A plugin that counts calls."""

    cache_key = "wrapper 1"

    def __init__(self):
        self.calls = 0

    @turret.hookimpl
    def turret_wrap_runtime(self, function, role):
        def counted(args):
            self.calls += 1
            return function(args)

        return counted


class Made:
    """What a compiler made, with the text that it is made again from."""

    def __init__(self, graph):
        self.graph, self.module = graph, fx.GraphModule(nn.Module(), graph)

    def __call__(self, *args):
        return self.module(*args)

    def save(self):
        return nodes_text(self.graph).encode()


class Compiler:
    """A plugin that takes graphs, or clusters of them, and saves what it makes."""

    def __init__(self, scope):
        self.scope, self.loaded = scope, 0
        self.cache_key = f"compiler of a {scope}"

    @turret.hookimpl(wrapper=True)
    def turret_place(self, graph):
        placement = yield
        for node in graph.module.graph.nodes:
            if node.target is torch.ops.aten.cumsum.default:
                placement.nodes[node.name] = turret.hooks.products.NodePlacement("eager", "no cumsum")
        return placement

    @turret.hookimpl
    def turret_compile_graph(self, module, scope, name):
        takes = scope == self.scope and not name.endswith("forward.cluster_0")
        return Made(module.graph) if takes else None

    @turret.hookimpl
    def turret_load_graph(self, saved):
        self.loaded += 1
        return Made(graph_of(saved.decode()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.first(x)))) + torch.rand_like(x[:, :2])


def uses_gate(x):
    return torch.ops.warm_acme.gate(torch.sigmoid(x), 2.0).exp()


def scanned(x, w):
    return torch.softmax(torch.sigmoid(x @ w).cumsum(0), -1)


def run(case, options):
    """The result of a step, and its gradients."""
    torch.manual_seed(0)
    watch, x, w = Watch(), torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    extra, function, args, wanted = {
        "random numbers": ((), Net(), (x,), None),
        "operators of a plugin": ((Acme(),), uses_gate, (x,), None),
        "a wrapper": ((Wrapper(),), scanned, (x, w), [w]),
        "a compiler of graphs": ((Compiler("graph"),), scanned, (x, w), [w]),
        "a compiler of clusters": ((Compiler("cluster"),), scanned, (x, w), [w]),
    }[case]
    result = turret.compile(function, plugins=[*extra, watch], options=options)(*args)
    wanted = list(function.parameters()) if isinstance(function, nn.Module) else wanted
    gradients = torch.autograd.grad(result.square().sum(), wanted) if wanted else ()
    known = {name: value for plugin in extra for name, value in vars(plugin).items() if isinstance(value, int)}
    values = [v.tolist() for v in (result, *gradients)]
    return [values, watch.stages, watch.hits, watch.reasons, known]


if __name__ == "__main__":
    print(json.dumps({case: run(case, {"on_error": "raise"}) for case in sys.argv[1:]}))
