"""Captures kept on disk: a later run traces nothing, and a program that was edited never gets what was."""

from __future__ import annotations

import builtins
import json

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.stored_lab import Programs, Watch
from turret.storage import artifact_cache

NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
make = Net
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    turret.reset()
    yield Programs(tmp_path, monkeypatch)
    turret.reset()


# Taken again.


def test_the_second_run_of_a_program_traces_nothing(programs):
    first = programs.run({"prog": NET})
    assert first.captures == ["miss"] and first.of("graph") == ["miss"]
    second = programs.run({"prog": NET})
    assert second.captures == ["hit"] and second.of("graph") == ["hit"]
    kinds = [[(g.kind, str(g.source)) for g in run.guards[0].guards] for run in (first, second)]
    assert kinds[0] == kinds[1] and len(kinds[0]) > 10


def portable(text: str) -> dict[str, str]:
    return {"prog": text}


PORTABLE = {
    "function": "def f(x):\n    return x.sin() * 2\ndef make(): return f",
    "closure": "def make():\n    k = 3\n    def f(x): return x * k\n    return f",
    "default": "def g(x, k=2.5): return x * k\ndef f(x): return g(x)\ndef make(): return f",
    "class that answers for any name": """
class Answers(type):
    def __getattr__(cls, name): raise KeyError(f"{name} was asked for")
class Settings(metaclass=Answers):
    scale = 3
class Counts:
    def __init__(self): self.scale, self.asked = 2, []
    def __getattr__(self, name): self.asked.append(name); return 1
counts = Counts()
def f(x): return x * Settings.scale * counts.scale + len(counts.asked)
def make(): return f
""",
    "keyword default": "def g(x, *, k=2.5): return x * k\ndef f(x): return g(x)\ndef make(): return f",
    "lambda in a module": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = lambda x: x.sin()
    def forward(self, x): return self.act(x)
make = Net
""",
    "decorated forward": """
import functools
def twice(factor):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(self, x): return f(self, x) * factor
        return wrapper
    return decorate
class Net(nn.Module):
    @twice(2)
    @torch.no_grad()
    def forward(self, x): return x.cos()
make = Net
""",
    "property, classmethod, staticmethod": """
class Net(nn.Module):
    @property
    def scale(self): return 2
    @classmethod
    def shift(cls): return 1
    @staticmethod
    def act(x): return x.tanh()
    def forward(self, x): return self.act(x) * self.scale + self.shift()
make = Net
""",
    "random numbers": """
import random
generator = random.Random(3)
def f(x):
    generator.seed(3)
    random.setstate(random.Random(2).getstate())
    return x * generator.random() + random.randint(0, 9) + random.choice([1.0, 2.0])
def make(): return f
""",
    "enum": """
import enum
class Kind(enum.Enum):
    SIN = 1
    COS = 2
kind = Kind.COS
def f(x): return x.sin() if kind is Kind.SIN else x.cos()
def make(): return f
""",
    "configuration object": """
class Config:
    def __init__(self): self.scale, self.names = 2.0, ["a", "b"]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
    def forward(self, x): return x * self.config.scale + len(self.config.names)
make = Net
""",
    "dataclass result": """
import dataclasses
@dataclasses.dataclass
class Result:
    value: torch.Tensor
    scale: float = 2.0
def f(x):
    r = Result(x.sin())
    return r.value * r.scale
def make(): return f
""",
    "namedtuple": """
import collections
Pair = collections.namedtuple("Pair", "a b")
def f(x): return Pair(x + 1, x - 1)
def make(): return f
""",
    "batch norm and dropout": """
def make(): return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0), nn.GELU())
""",
    "module list": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x
make = Net
""",
    "tied weights": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
    def forward(self, x): return self.b(self.a(x))
make = Net
""",
    "signature": """
import inspect
def g(x, scale=2): return x * scale
def f(x): return g(x) * len(inspect.signature(g).parameters)
def make(): return f
""",
    "slice of modules": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        for layer in self.layers[1:]: x = layer(x)
        return x
make = Net
""",
    "weak references": """
import weakref
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.refs = [weakref.ref(self.layer.weight)]
    def forward(self, x):
        return nn.functional.linear(x, self.refs[0]()) + self.layer(x)
make = Net
""",
    "method": """
class Thing:
    def __init__(self): self.k = 2
    def call(self, x): return x * self.k
def make(): return Thing().call
""",
    "environment": """
import os
def f(x): return x * (2 if os.environ.get("TURRET_TEST_SWITCH") else 3)
def make(): return f
""",
    "autocast": """
def f(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()
def make(): return f
""",
}


@pytest.mark.parametrize("name", PORTABLE)
def test_what_is_portable_is_taken_again(programs, name):
    first = programs.run({"prog": PORTABLE[name]})
    assert first.captures == ["miss"] and len(first.reasons) == 1, first.reasons
    assert programs.run({"prog": PORTABLE[name]}).captures == ["hit"]


def test_gradients_of_a_stored_capture_are_eagers(programs):
    x = torch.linspace(-2, 2, 12).reshape(3, 4)

    def gradients(compiled):
        program = programs.load({"prog": NET})
        torch.manual_seed(0)
        net = program.make()
        watch = Watch()
        function = programs.compile(net, watch) if compiled else net
        function(x).square().sum().backward()
        return [p.grad for p in net.parameters()], watch.captures

    expected, _ = gradients(False)
    for captures in (["miss"], ["hit"]):
        found, seen = gradients(True)
        assert seen == captures
        torch.testing.assert_close(found, expected)


def test_a_backward_that_nobody_compiled_is_compiled_when_it_is_asked_for(programs):
    programs.run({"prog": NET})  # never asks for a gradient
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    for graphs in (["hit"], ["hit"]):
        net, watch = programs.load({"prog": NET}).make(), Watch()
        programs.compile(net, watch)(x).square().sum().backward()
        found = [p.grad for p in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        torch.testing.assert_close(found, [p.grad for p in net.parameters()])
        assert watch.captures == ["hit"] and watch.of("graph") == graphs


def test_inputs_that_share_memory_otherwise_run_the_stored_graph_eagerly(programs):
    text = "def f(x, y):\n    x.add_(1)\n    return x + y\ndef make(): return f"
    program = programs.load({"prog": text})
    whole = torch.arange(6.0)
    for captures in (["miss"], ["hit"]):
        watch = Watch()
        compiled = programs.compile(program.make(), watch)
        torch.testing.assert_close(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
        mine, theirs = whole.clone(), whole.clone()
        torch.testing.assert_close(compiled(mine[:3], mine[1:4]), program.f(theirs[:3], theirs[1:4]))
        torch.testing.assert_close(mine, theirs)
        assert watch.captures[:1] == captures


def test_other_weights_of_the_same_model_are_used(programs):
    program = programs.load({"prog": NET})
    x = torch.randn(3, 4)
    for seed, captures in ((1, ["miss"]), (2, ["hit"])):
        torch.manual_seed(seed)
        net, watch = program.make(), Watch()
        with torch.no_grad():
            torch.testing.assert_close(programs.compile(net, watch)(x), net(x))
            net.first.weight.mul_(2)
            torch.testing.assert_close(programs.compile(net, Watch())(x), net(x))
        assert watch.captures == captures


def test_side_effects_of_a_stored_capture_happen_once(programs):
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.seen = 0, []
        self.register_buffer("total", torch.zeros(4))
    def forward(self, x):
        self.count += 1
        self.seen.append(x.shape[0])
        self.total += x.sum(0)
        return x + self.count
make = Net
"""
    x = torch.ones(3, 4)
    for captures in (["miss"], ["hit"]):
        net, watch = programs.load({"prog": text}).make(), Watch()
        compiled = programs.compile(net, watch)
        torch.testing.assert_close(compiled(x), x + 1)
        assert (net.count, net.seen, net.total.tolist()) == (1, [3], [3.0] * 4)
        assert watch.captures == captures


def test_units_of_several_shapes_are_kept_and_sizes_seen_to_change_become_symbols(programs):
    program = programs.load(portable("def f(x):\n    return x.sin() * 2\ndef make(): return f"))
    sizes = (3, 5, 7)
    for captures in (["miss", "miss"], ["hit", "hit"]):
        watch = Watch()
        compiled = programs.compile(program.make(), watch)
        for size in sizes:
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), x.sin() * 2)
        assert watch.captures == captures  # the second one is of any size


def test_an_unknown_size_after_a_stored_unit_makes_the_size_a_symbol(programs):
    program = programs.load(portable("def f(x):\n    return x.sin() * 2\ndef make(): return f"))
    programs.compile(program.make(), Watch())(torch.randn(3, 4))
    watch = Watch()
    compiled = programs.compile(program.make(), watch)
    for size in (3, 5, 7):
        compiled(torch.randn(size, 4))
    assert watch.captures == ["hit", "miss"]


def test_a_guard_filter_holds_for_stored_captures(programs):
    program = programs.load(portable("k = 2\ndef f(x):\n    return x.sin() * k\ndef make(): return f"))
    x = torch.randn(3)
    programs.compile(program.make(), Watch())(x)
    watch = Watch()
    drop = {"guard_filter_fn": lambda entries: [not e.is_global for e in entries]}
    compiled = programs.compile(program.make(), watch, options=drop)
    compiled(x)
    assert watch.captures == ["hit"] and not any("G[prog]" in str(g) for g in watch.guards[0].guards)
    program.k = 3
    torch.testing.assert_close(compiled(x), x.sin() * 2)  # nobody looks any more


# Edited between two runs.

WEAK = """
import weakref
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.refs = [weakref.ref({})]
    def forward(self, x):
        return nn.functional.linear(x, self.refs[0]()) + self.a(x) + self.b(x)
make = Net
"""
SEQUENTIAL = "def make(): return nn.Sequential({})"
EDITS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "the function": (
        {"prog": "def f(x):\n    return x * 2\ndef make(): return f"},
        {"prog": "def f(x):\n    return x * 3\ndef make(): return f"},
    ),
    "an operator": (
        {"prog": "def f(x):\n    return x.sin()\ndef make(): return f"},
        {"prog": "def f(x):\n    return x.cos()\ndef make(): return f"},
    ),
    "a helper in another file": (
        {"prog": "import aside\ndef f(x): return aside.g(x)\ndef make(): return f", "aside": "def g(x): return x * 2"},
        {"prog": "import aside\ndef f(x): return aside.g(x)\ndef make(): return f", "aside": "def g(x): return x * 3"},
    ),
    "a helper of a helper": (
        {"prog": "from aside import g\ndef make(): return g", "aside": "def h(x): return x * 2\ndef g(x): return h(x)"},
        {"prog": "from aside import g\ndef make(): return g", "aside": "def h(x): return x * 3\ndef g(x): return h(x)"},
    ),
    "a name that means another function": (
        {"prog": "from aside import a as g\ndef f(x): return g(x)\ndef make(): return f",
         "aside": "def a(x): return x * 2\ndef b(x): return x * 3"},
        {"prog": "from aside import b as g\ndef f(x): return g(x)\ndef make(): return f",
         "aside": "def a(x): return x * 2\ndef b(x): return x * 3"},
    ),
    "a global constant": (
        {"prog": "k = 2\ndef f(x): return x * k\ndef make(): return f"},
        {"prog": "k = 3\ndef f(x): return x * k\ndef make(): return f"},
    ),
    "a constant of another file": (
        {"prog": "import aside\ndef f(x): return x * aside.k\ndef make(): return f", "aside": "k = 2"},
        {"prog": "import aside\ndef f(x): return x * aside.k\ndef make(): return f", "aside": "k = 3"},
    ),
    "the type of a constant": (
        {"prog": "import aside\ndef f(x): return x * aside.k\ndef make(): return f", "aside": "k = 2"},
        {"prog": "import aside\ndef f(x): return x * aside.k\ndef make(): return f", "aside": "k = torch.ones(4) * 3"},
    ),
    "a constant that appears": (
        {"prog": "import aside\ndef f(x): return x * (3 if hasattr(aside, 'k') else 2)\ndef make(): return f",
         "aside": "j = 2"},
        {"prog": "import aside\ndef f(x): return x * (3 if hasattr(aside, 'k') else 2)\ndef make(): return f",
         "aside": "k = 2"},
    ),
    "a class attribute": (
        {"prog": "from aside import Net as make", "aside": """
class Net(nn.Module):
    k = 2
    def forward(self, x): return x * self.k
"""},
        {"prog": "from aside import Net as make", "aside": """
class Net(nn.Module):
    k = 3
    def forward(self, x): return x * self.k
"""},
    ),
    "a class attribute that hides one of a base": (
        {"prog": "from base import Base\nclass Net(Base): pass\nmake = Net",
         "base": "class Base(nn.Module):\n    k = 2\n    def forward(self, x): return x * self.k"},
        {"prog": "from base import Base\nclass Net(Base): k = 3\nmake = Net",
         "base": "class Base(nn.Module):\n    k = 2\n    def forward(self, x): return x * self.k"},
    ),
    "a method that hides one of a base": (
        {"prog": "from base import Base\nclass Net(Base): pass\nmake = Net",
         "base": "class Base(nn.Module):\n    def act(self, x): return x * 2\n"
                 "    def forward(self, x): return self.act(x)"},
        {"prog": "from base import Base\nclass Net(Base):\n    def act(self, x): return x * 3\nmake = Net",
         "base": "class Base(nn.Module):\n    def act(self, x): return x * 2\n"
                 "    def forward(self, x): return self.act(x)"},
    ),
    "the bases of a class": (
        {"prog": "from base import A, B\nclass Net(A, B, nn.Module):\n    def forward(self, x): return self.act(x)\n"
                 "make = Net",
         "base": "class A:\n    def act(self, x): return x * 2\nclass B:\n    def act(self, x): return x * 3"},
        {"prog": "from base import A, B\nclass Net(B, A, nn.Module):\n    def forward(self, x): return self.act(x)\n"
                 "make = Net",
         "base": "class A:\n    def act(self, x): return x * 2\nclass B:\n    def act(self, x): return x * 3"},
    ),
    "a default argument": (
        {"prog": "from aside import g\ndef f(x): return g(x)\ndef make(): return f",
         "aside": "def g(x, k=2): return x * k"},
        {"prog": "from aside import g\ndef f(x): return g(x)\ndef make(): return f",
         "aside": "def g(x, k=3): return x * k"},
    ),
    "a keyword default": (
        {"prog": "from aside import g\ndef f(x): return g(x)\ndef make(): return f",
         "aside": "def g(x, *, k=2): return x * k"},
        {"prog": "from aside import g\ndef f(x): return g(x)\ndef make(): return f",
         "aside": "def g(x, *, k=3): return x * k"},
    ),
    "the default of the function itself": (
        {"prog": "def f(x, k=2): return x * k\ndef make(): return f"},
        {"prog": "def f(x, k=3): return x * k\ndef make(): return f"},
    ),
    "a closure's value": (
        {"prog": "from aside import scaled\ndef make(): return scaled(2)",
         "aside": "def scaled(k):\n    def f(x): return x * k\n    return f"},
        {"prog": "from aside import scaled\ndef make(): return scaled(3)",
         "aside": "def scaled(k):\n    def f(x): return x * k\n    return f"},
    ),
    "a decorator's argument": (
        {"prog": "from aside import scaled\n@scaled(2)\ndef g(x): return x + 1\ndef f(x): return g(x)\n"
                 "def make(): return f",
         "aside": "def scaled(k):\n    def d(g):\n        def w(x): return g(x) * k\n        return w\n    return d"},
        {"prog": "from aside import scaled\n@scaled(3)\ndef g(x): return x + 1\ndef f(x): return g(x)\n"
                 "def make(): return f",
         "aside": "def scaled(k):\n    def d(g):\n        def w(x): return g(x) * k\n        return w\n    return d"},
    ),
    "a lambda held by a module": (
        {"prog": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                 "        self.act = lambda x: x * 2\n    def forward(self, x): return self.act(x)\nmake = Net"},
        {"prog": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                 "        self.act = lambda x: x * 3\n    def forward(self, x): return self.act(x)\nmake = Net"},
    ),
    "a property": (
        {"prog": "from aside import Net as make",
         "aside": "class Net(nn.Module):\n    @property\n    def k(self): return 2\n"
                  "    def forward(self, x): return x * self.k"},
        {"prog": "from aside import Net as make",
         "aside": "class Net(nn.Module):\n    @property\n    def k(self): return 3\n"
                  "    def forward(self, x): return x * self.k"},
    ),
    "an enum's value": (
        {"prog": "from aside import K\ndef f(x): return x * K.A.value\ndef make(): return f",
         "aside": "import enum\nclass K(enum.Enum):\n    A = 2"},
        {"prog": "from aside import K\ndef f(x): return x * K.A.value\ndef make(): return f",
         "aside": "import enum\nclass K(enum.Enum):\n    A = 3"},
    ),
    "a namedtuple's default": (
        {"prog": "from aside import P\ndef f(x):\n    p = P(x)\n    return p.x * p.k\ndef make(): return f",
         "aside": "import collections\nP = collections.namedtuple('P', 'x k', defaults=(2,))"},
        {"prog": "from aside import P\ndef f(x):\n    p = P(x)\n    return p.x * p.k\ndef make(): return f",
         "aside": "import collections\nP = collections.namedtuple('P', 'x k', defaults=(3,))"},
    ),
    "a dataclass's default": (
        {"prog": "from aside import P\ndef f(x):\n    p = P(x)\n    return p.x * p.k\ndef make(): return f",
         "aside": "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: object\n    k: int = 2"},
        {"prog": "from aside import P\ndef f(x):\n    p = P(x)\n    return p.x * p.k\ndef make(): return f",
         "aside": "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: object\n    k: int = 3"},
    ),
    "an attribute of a configuration": (
        {"prog": "from aside import C\nc = C()\ndef f(x): return x * c.k\ndef make(): return f",
         "aside": "class C:\n    def __init__(self): self.k = 2"},
        {"prog": "from aside import C\nc = C()\ndef f(x): return x * c.k\ndef make(): return f",
         "aside": "class C:\n    def __init__(self): self.k = 3"},
    ),
    "an instance check": (
        {"prog": "import aside\ndef f(x): return x * (2 if isinstance(aside.c, aside.A) else 3)\ndef make(): return f",
         "aside": "class A: pass\nclass B(A): pass\nc = B()"},
        {"prog": "import aside\ndef f(x): return x * (2 if isinstance(aside.c, aside.A) else 3)\ndef make(): return f",
         "aside": "class A: pass\nclass B: pass\nc = B()"},
    ),
    "the kind of a layer": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4), nn.ReLU()")},
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4), nn.Sigmoid()")},
    ),
    "the number of layers": (
        {"prog": SEQUENTIAL.format("*(nn.Linear(4, 4) for _ in range(2))")},
        {"prog": SEQUENTIAL.format("*(nn.Linear(4, 4) for _ in range(3))")},
    ),
    "the order of layers": (
        {"prog": SEQUENTIAL.format("nn.Tanh(), nn.Linear(4, 4)")},
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4), nn.Tanh()")},
    ),
    "a layer's argument": (
        {"prog": SEQUENTIAL.format("nn.LeakyReLU(0.1)")},
        {"prog": SEQUENTIAL.format("nn.LeakyReLU(0.2)")},
    ),
    "a layer that becomes a function": (
        {"prog": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                 "        self.act = nn.ReLU()\n    def forward(self, x): return self.act(x)\nmake = Net"},
        {"prog": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                 "        self.act = torch.sigmoid\n    def forward(self, x): return self.act(x)\nmake = Net"},
    ),
    "weights that are tied": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4), nn.Linear(4, 4)")},
        {"prog": "def make():\n    n = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))\n"
                 "    n[1].weight = n[0].weight\n    return n"},
    ),
    "parameters that share memory": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)")},
        {"prog": "def make():\n    n = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))\n"
                 "    n[1].weight = nn.Parameter(n[0].weight.data)\n    return n"},
    ),
    "one layer used twice": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4), nn.Linear(4, 4)")},
        {"prog": "def make():\n    one = nn.Linear(4, 4)\n    return nn.Sequential(one, one)"},
    ),
    "the dtype": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4)") + "\ndef args(): return (torch.ones(3, 4),)"},
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4)") + ".double()\ndef args(): return (torch.ones(3, 4).double(),)"},
    ),
    "training": (
        {"prog": SEQUENTIAL.format("nn.BatchNorm1d(4)") + ".train()"},
        {"prog": SEQUENTIAL.format("nn.BatchNorm1d(4)") + ".eval()"},
    ),
    "a hook": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4)")},
        {"prog": "def make():\n    n = nn.Sequential(nn.Linear(4, 4))\n"
                 "    n[0].register_forward_hook(lambda m, a, r: r * 3)\n    return n"},
    ),
    "what a weak reference leads to": (
        {"prog": WEAK.format("self.a.weight")},
        {"prog": WEAK.format("self.b.weight")},
    ),
    "a parameter without gradients": (
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4)")},
        {"prog": SEQUENTIAL.format("nn.Linear(4, 4)") + ".requires_grad_(False)"},
    ),
    "a torch function that is patched": (
        {"prog": "import torch.nn.functional as F\ndef f(x): return F.softplus(x)\ndef make(): return f"},
        {"prog": "import torch.nn.functional as F\ndef f(x): return F.softplus(x)\ndef make(): return f\n"
                 "def mine(x): return x * 3\nF.softplus = mine"},
    ),
    "a layer of torch that is patched": (
        {"prog": SEQUENTIAL.format("nn.Softsign()"), "aside": ""},
        {"prog": "import aside\n" + SEQUENTIAL.format("nn.Softsign()"),
         "aside": "def forward(self, x): return x * 3\nnn.Softsign.forward = forward"},
    ),
    "a flag of torch": (
        {"prog": "def f(x): return x * (2 if torch.backends.cudnn.benchmark else 3)\ndef make(): return f"},
        {"prog": "def f(x): return x * (2 if torch.backends.cudnn.benchmark else 3)\ndef make(): return f\n"
                 "torch.backends.cudnn.benchmark = True"},
    ),
}  # fmt: skip


@pytest.fixture
def unpatched(monkeypatch):
    """What some programs change in torch; its test library forbids some of it."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    kept = torch.nn.functional.softplus, nn.Softsign.forward, torch.backends.cudnn.benchmark
    yield
    torch.nn.functional.softplus, nn.Softsign.forward, torch.backends.cudnn.benchmark = kept


@pytest.mark.usefixtures("unpatched")
@pytest.mark.parametrize("name", EDITS)
@pytest.mark.thorough
def test_an_edited_program_gets_its_own_code(programs, name):
    before, after = EDITS[name]
    with torch.no_grad():
        first = programs.run(before)
        assert first.captures == ["miss"] and len(first.reasons) == 1, first.reasons
        assert programs.run(before).captures == ["hit"]
        assert programs.run(after).captures == ["miss"]  # and is equal to eager


def test_a_comment_in_the_file_of_followed_code_is_an_edit(programs):
    programs.run({"prog": "def f(x): return x * 2\ndef make(): return f"})
    watch = programs.run({"prog": "def f(x): return x * 2\ndef make(): return f\n# really"})
    assert watch.captures == ["miss"] and "prog.py was changed" in watch.reasons[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.setattr(builtins, "divmod", lambda a, b: (5, 0)),
        lambda m: m.setenv("TURRET_TEST_SWITCH", "1"),
        lambda m: m.setattr(torch.Tensor, "softplus_", None, raising=False),
    ],
    ids=["builtin", "environment", "Tensor"],
)
def test_what_the_process_is_like_is_compared(programs, monkeypatch, change):
    text = """
import os
def f(x): return x * divmod(7, 2)[0] * (2 if os.environ.get("TURRET_TEST_SWITCH") else 3) + isinstance(x, torch.Tensor)
def make(): return f
"""
    programs.run({"prog": text})
    program = programs.load({"prog": text})
    assert programs.run(program).captures == ["hit"]
    change(monkeypatch)
    x = torch.linspace(-1, 1, 5)
    watch = Watch()
    torch.testing.assert_close(programs.compile(program.make(), watch)(x), program.f(x))
    assert watch.captures == ["miss"]


@pytest.mark.parametrize(
    ("enter", "leave"),
    [
        (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (lambda: torch.set_float32_matmul_precision("medium"), lambda: torch.set_float32_matmul_precision("highest")),
        (lambda: torch._C._set_grad_enabled(False), lambda: torch._C._set_grad_enabled(True)),
    ],
    ids=["deterministic", "default dtype", "matmul precision", "gradients"],
)
def test_settings_of_torch_are_part_of_it(programs, enter, leave):
    text = "def f(x): return (x @ x.t()) + torch.ones(3)\ndef make(): return f"
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    programs.run({"prog": text}, x)
    assert programs.run({"prog": text}, x).captures == ["hit"]
    enter()
    try:
        assert programs.run({"prog": text}, x).captures == ["miss"]
    finally:
        leave()


@pytest.mark.parametrize("arguments", [{"fullgraph": True}, {"dynamic": True}, {"options": {"max_fusion_size": 3}}])
def test_arguments_of_compile_are_part_of_it(programs, arguments):
    programs.run({"prog": NET})
    assert programs.run({"prog": NET}, **arguments).captures == ["miss"]


# What is not kept.

NOT_KEPT = {
    "break": ("def f(x):\n    y = x * 2\n    print(end='')\n    return y + 1\ndef make(): return f", None),
    "address": ("def f(x): return x * (id(f) % 2 + 1)\ndef make(): return f", "address"),
    "constant result": (
        "@torch.compiler.assume_constant_result\ndef g(): return 2\ndef f(x): return x * g()\ndef make(): return f",
        "assumed to be constant",
    ),
    "metaclass": (
        "class M(type):\n    def __instancecheck__(cls, x): return True\nclass A(metaclass=M): pass\n"
        "def f(x): return x * (2 if isinstance(3, A) else 3)\ndef make(): return f",
        "says of instances",
    ),
    "cached function": (
        "import functools\n@functools.lru_cache\ndef g(k): return k * 2\ndef f(x): return x * g(2)\ndef make(): return f",
        "remembers its results",
    ),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_holds_in_one_process_alone_is_not_kept(programs, name):
    text, reason = NOT_KEPT[name]
    first = programs.run({"prog": text})
    assert "miss" in programs.run({"prog": text}).captures
    assert reason is None or any(reason in r for r in first.reasons), first.reasons


def test_without_the_cache_nothing_is_kept_or_taken(programs):
    programs.run({"prog": NET})
    entries = len(artifact_cache.ArtifactCache(programs.cache).entries())
    watch = programs.run({"prog": NET}, options={"cache": False})
    assert watch.captures == []
    assert len(artifact_cache.ArtifactCache(programs.cache).entries()) == entries


def test_a_cleared_cache_has_no_captures(programs):
    programs.run({"prog": NET})
    artifact_cache.ArtifactCache(programs.cache).clear()
    assert programs.run({"prog": NET}).captures == ["miss"]


def test_an_entry_that_was_tampered_with_is_captured_again(programs):
    programs.run({"prog": NET})
    units = list(programs.cache.rglob("unit.json"))
    assert len(units) == 1
    units[0].write_text(units[0].read_text().replace("relu", "tanh")[:-7])
    again = programs.run({"prog": NET})
    assert again.captures == ["miss"] and "unit.json is not what was written" in again.failures[0]
    assert programs.run({"prog": NET}).captures == ["hit"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"parameters": 3}'])
def test_nonsense_in_an_entry_is_a_miss_and_a_failure_on_record(programs, content):
    programs.run({"prog": NET})
    (unit,) = programs.cache.rglob("unit.json")
    unit.write_text(content)
    manifest = json.loads((unit.parent / "manifest.json").read_text())
    manifest["files"][unit.name] = artifact_cache._hash(unit.read_bytes())
    (unit.parent / "manifest.json").write_text(json.dumps(manifest))
    watch = programs.run({"prog": NET}, torch.ones(3, 4))
    assert watch.captures == ["miss"] and len(watch.failures) == 1


def test_a_graph_that_is_gone_is_a_miss(programs):
    programs.run({"prog": NET})
    for artifact in programs.cache.rglob("artifact.json"):
        artifact.unlink()
    watch = programs.run({"prog": NET})
    assert watch.captures == ["miss"] and "not in the cache" in watch.reasons[0]


def test_the_oldest_of_many_captures_makes_place(programs, monkeypatch):
    monkeypatch.setattr("turret.plugins.capture.store.units.SLOTS", 2)
    text = "k = {}\ndef f(x): return x * k\ndef make(): return f"
    for k in (2, 3, 4):
        assert programs.run({"prog": text.format(k)}).captures == ["miss"]
    assert programs.run({"prog": text.format(4)}).captures == ["hit"]
    assert programs.run({"prog": text.format(2)}).captures == ["miss"]
