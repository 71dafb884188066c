"""Warm starts: a second process loads what the first compiled, and what differs in any way is compiled anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import turret
from turret.hooks.hookspecs import hookimpl
from turret.storage import artifact_cache

pytestmark = pytest.mark.usefixtures("fresh")

PROGRAM = """
import json, sys, torch, turret
from torch import nn
from torch.nn import functional as F
from turret.hooks.hookspecs import hookimpl

class Watch:
    def __init__(self):
        self.stages, self.hits = [], []
    @hookimpl
    def turret_event(self, event):
        if event.kind == "stage_started":
            self.stages.append(event.stage)
        elif event.kind in ("cache_hit", "cache_miss"):
            self.hits.append(f"{event.stage} {event.kind}")

watch = Watch()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
compiled = turret.compile(net, plugins=[watch], options=dict(cache_dir=sys.argv[1], on_error="raise"))
x = torch.randn(4, 8)
compiled(x).square().sum().backward()
with torch.no_grad():
    result = compiled(x)
torch.testing.assert_close(result, net(x))
grads = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
net(x).square().sum().backward()
for grad, p in zip(grads, net.parameters()):
    torch.testing.assert_close(grad, p.grad)
print(json.dumps({"stages": watch.stages, "hits": watch.hits}))
"""


def start(folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_a_later_process_loads_what_two_at_once_compiled(tmp_path):
    """Two processes compile the same thing into one empty cache; a third neither traces, lowers nor generates."""
    running = [start(tmp_path) for _ in range(2)]
    found = [finish(process) for process in running]  # the later one may find what the earlier one has made by then
    assert {"joint", "partition", "lower", "schedule", "codegen", "runtime"} <= {s for f in found for s in f["stages"]}
    assert any("graph cache_miss" in f["hits"] for f in found)
    third = finish(start(tmp_path))
    assert set(third["stages"]) == {"runtime"}
    assert set(third["hits"]) == {"capture cache_hit", "graph cache_hit"}


WARM = """
import sys, torch, turret
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
x = torch.randn(4, 8)
net(x).square().sum().backward()
expected = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
turret.compile(net, options=dict(cache_dir=sys.argv[1], on_error="raise"))(x).square().sum().backward()
for grad, p in zip(expected, net.parameters()):
    assert torch.allclose(p.grad, grad, atol=1e-5)
slow = ("torch._dynamo", "torch._inductor", "sympy", "triton", "torch.fx.experimental.symbolic_shapes",
        "turret.plugins.capture.interpreter.tracer", "turret.ir", "turret.plugins.joint.trace",
        "turret.plugins.cudagraphs.wrap")
print([name for name in slow if name in sys.modules])
"""


@pytest.mark.slow
def test_a_warm_start_imports_no_compiler(tmp_path):
    """The second process loads a training step and needs neither the tracer nor what it stands on."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", WARM, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout.splitlines()[-1])
    assert "turret.plugins.capture.interpreter.tracer" in found[0] and found[1] == "[]"


class Watch:
    def __init__(self):
        self.stages = []

    @hookimpl
    def turret_event(self, event):
        if event.kind == "stage_started":
            self.stages.append(event.stage)


def stages_of(function, *args, options, autocast=False):
    """Stages that ran for one call of a freshly compiled function."""
    turret.reset()
    watch = Watch()
    with torch.autocast("cpu", enabled=autocast, dtype=torch.bfloat16):
        turret.compile(function, options=options, plugins=[watch])(*args)
    return watch.stages


def program(x, y):
    return torch.softmax(x @ y, -1) * 2


@pytest.fixture
def options(tmp_path):
    return {"cache_dir": str(tmp_path)}


X, Y = torch.randn(4, 8), torch.randn(8, 4)


def test_an_equal_graph_is_found_in_the_same_process(options):
    assert "lower" in stages_of(program, X, Y, options=options)
    assert stages_of(program, X, Y, options=options) == ["runtime"]


@pytest.mark.parametrize(
    "change",
    [
        lambda: ((X.double(), Y.double()), {}, False),
        lambda: ((X[:3], Y), {}, False),
        lambda: ((X.t().contiguous().t(), Y), {}, False),
        lambda: ((X, X.as_strided((8, 4), (4, 1))), {}, False),
        lambda: ((X.clone().requires_grad_(), Y), {}, False),
        lambda: ((X, Y), {"max_fusion_size": 1}, False),
        lambda: ((X, Y), {"cpp_flags": "-g0"}, False),
        lambda: ((X, Y), {}, True),
    ],
    ids=["dtype", "shape", "strides", "aliasing", "gradients", "options", "flags", "autocast"],
)
def test_whatever_differs_is_compiled_anew(options, change):
    stages_of(program, X, Y, options=options)
    args, further, autocast = change()
    assert "lower" in stages_of(program, *args, options={**options, **further}, autocast=autocast)


def test_constants_and_ops_are_part_of_the_key(options):
    def other(x, y):
        return torch.softmax(x @ y, -1) * 3

    stages_of(program, X, Y, options=options)
    assert "lower" in stages_of(other, X, Y, options=options)


def test_the_option_and_the_environment_switch_it_off(options, monkeypatch, tmp_path):
    off = {**options, "cache": False}
    for _ in range(2):
        assert "lower" in stages_of(program, X, Y, options=off)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TURRET_CACHE", "0")
    assert "lower" in stages_of(program, X, Y, options=options)
    assert list(tmp_path.iterdir()) == []


def files_of(folder, name):
    return [path for path in Path(folder).rglob(name) if path.is_file()]


@pytest.mark.parametrize("name", ["artifact.json", "kernels.so", "manifest.json"])
@pytest.mark.parametrize("content", [b"", b"{}", b"damaged"], ids=["empty", "other", "damaged"])
def test_a_corrupted_entry_is_rebuilt(options, name, content):
    stages_of(program, X, Y, options=options)
    for path in files_of(options["cache_dir"], name):
        path.unlink()  # a library that is loaded must not be written over
        path.write_bytes(content)
    turret.reset()
    torch.testing.assert_close(turret.compile(program, options=options)(X, Y), program(X, Y))
    assert stages_of(program, X, Y, options=options) == ["runtime"]


def test_an_artifact_that_does_not_fit_this_version_is_compiled_anew(options, monkeypatch):
    """A manifest can verify and the content still not be what this code reads."""
    stages_of(program, X, Y, options=options)
    for path in files_of(options["cache_dir"], "artifact.json"):
        path.write_text('{"$": "Artifact", "unknown": 1}')
        manifest = json.loads((path.parent / "manifest.json").read_text())
        manifest["files"][path.name] = artifact_cache._hash(path.read_bytes())
        (path.parent / "manifest.json").write_text(json.dumps(manifest))
    turret.reset()
    torch.testing.assert_close(turret.compile(program, options=options)(X, Y), program(X, Y))


def test_a_cache_cleared_between_calls_costs_time_alone(options):
    layer = nn.Linear(4, 4)
    compiled = turret.compile(layer, options=options)
    x = torch.randn(2, 4)
    result = compiled(x)
    artifact_cache.ArtifactCache(options["cache_dir"]).clear()
    result.sum().backward()
    compiled(torch.randn(3, 4)).sum().backward()
    assert stages_of(layer, x, options=options)[-1] == "runtime"
    torch.testing.assert_close(compiled(x), layer(x))


def test_plugins_without_a_key_are_not_cached_and_those_with_one_are_apart(options):
    class Unnamed:
        @hookimpl
        def turret_fusion_score(self):
            return None

    class Named(Unnamed):
        def __init__(self, cache_key):
            self.cache_key = cache_key

    def stages(plugin):
        turret.reset()
        watch = Watch()
        turret.compile(program, options=options, plugins=[plugin, watch])(X, Y)
        return watch.stages

    assert all("lower" in stages(Unnamed()) for _ in range(2))
    assert "lower" in stages(Named("one"))
    assert stages(Named("one")) == ["runtime"]
    assert "lower" in stages(Named("two"))


def test_a_forward_stored_without_its_backward_gets_the_right_one(options):
    x = torch.randn(4, 8)
    layer = nn.Linear(8, 8)
    turret.compile(layer, options=options)(x)
    turret.reset()
    compiled = turret.compile(layer, options=options)
    compiled(x).square().sum().backward()
    found, layer.weight.grad = layer.weight.grad, None
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, layer.weight.grad)


@pytest.mark.parametrize("other", [lambda x: F.adaptive_max_pool2d(x, 2), lambda x: F.max_pool2d(x, 3)])
def test_functions_that_torch_made_in_one_place_are_told_apart(tmp_path, other):
    options = {"cache_dir": str(tmp_path), "on_error": "raise"}
    x = torch.randn(1, 2, 6, 6)
    for function in (lambda x: F.max_pool2d(x, 2), other):
        torch.testing.assert_close(turret.compile(function, options=options)(x), function(x))
