"""What a compiler of others saved, loaded again; where that fails, the graph is compiled anew, on record."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import turret
from turret.pipeline.stored_graph import graph_of, nodes_text


class Made:
    def __init__(self, graph):
        self.graph, self.module = graph, fx.GraphModule(nn.Module(), graph)

    def __call__(self, *args):
        return self.module(*args)

    def save(self):
        return nodes_text(self.graph).encode()


class Compiler:
    """Takes graphs, and counts what it compiles and loads."""

    cache_key = "test_loading"

    def __init__(self, load=lambda saved: Made(graph_of(saved.decode()))):
        self.load, self.compiled, self.loaded = load, 0, 0
        self.failures, self.reasons = [], []

    @turret.hookimpl
    def turret_compile_graph(self, module, scope):
        if scope == "graph":
            self.compiled += 1
            return Made(module.graph)

    @turret.hookimpl
    def turret_load_graph(self, saved, name):
        self.loaded += 1
        return self.load(saved)

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "cache_failure":
            self.failures.append(event.message)
        elif event.kind == "perf_hint":
            self.reasons.append(event.message)


class WithoutSave(Compiler):
    @turret.hookimpl
    def turret_compile_graph(self, module, scope):
        if scope == "graph":
            self.compiled += 1
            return module.forward


def run(plugin, folder):
    turret.reset()
    x = torch.randn(3, 4)
    compiled = turret.compile(program, plugins=[plugin], options={"cache_dir": str(folder), "on_error": "raise"})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), program(x))
    return plugin


def program(x):
    return torch.softmax(x.sigmoid(), -1)


def test_what_was_saved_is_loaded(tmp_path):
    first, second = run(Compiler(), tmp_path), run(Compiler(), tmp_path)
    assert (first.compiled, first.loaded) == (1, 0)
    assert (second.compiled, second.loaded) == (0, 1) and not second.failures


def raises(saved):
    raise OSError("the machine is gone")


@pytest.mark.parametrize(("load", "message"), [(raises, "OSError: the machine is gone"), (lambda saved: 3, "as a int")])
def test_what_does_not_load_is_compiled_anew_on_record(tmp_path, load, message):
    run(Compiler(), tmp_path)
    again = run(Compiler(load), tmp_path)
    assert (again.compiled, again.loaded) == (1, 1)
    assert any(message in failure for failure in again.failures)


def test_what_cannot_be_saved_is_compiled_in_every_process_on_record(tmp_path):
    for plugin in (run(WithoutSave(), tmp_path), run(WithoutSave(), tmp_path)):
        assert plugin.compiled == 1 and plugin.loaded == 0
        assert any("has no save()" in reason for reason in plugin.reasons)


def test_what_is_saved_has_to_be_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(Made, "save", lambda self: "text")
    with pytest.raises(turret.errors.StageError, match=r"Compiler.*save\(\) returned a str; expected bytes"):
        run(Compiler(), tmp_path)


@pytest.mark.parametrize("namespaces", ["acme", ["aten"], [3], {"acme": 1}])
def test_namespaces_are_a_list_of_names_of_one_s_own(namespaces):
    plugin = Compiler()
    plugin.namespaces = namespaces
    with pytest.raises(turret.errors.PluginError, match="expected a list of names"):
        turret.compile(program, plugins=[plugin])
