"""A world that programs read from: classes, instances, functions, containers, modules, libraries; fresh for each case.

``LINES`` are what a program may consist of.  Each adds to ``y`` something that it reaches through ``w``, a global, a
closure, an argument, a library or a mode of torch.  Nothing is written, so that eager and compiled calls see the same.
"""

from __future__ import annotations

import itertools
import random
import sys
import types
from typing import Any

WORLD = """
import enum, functools, math, operator
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
import torch
import torch.nn.functional as F
from torch import nn

class Root:
    depth = 1.5
    def inherited(self, y): return y * 1.25
    def both(self, y): return y + 0.5
    def __add__(self, other): return other + 2
class Other:
    depth = 2.5
    def inherited(self, y): return y * 0.75
    def only_other(self): return 3
class Thing(Root):
    kind = 3
    table = {"a": 1.0, "b": 2.0}
    items = [1, 2]
    def __init__(self):
        self.scale, self.name, self.flag, self.weights = 2.0, "n", True, [1.0, 2.0, 3.0]
        self.inner = Slotted(4)
    def method(self, y, by=1.5, *, more=0.25): return y * by + more
    def both(self, y): return super().both(y) * 2
    @property
    def prop(self): return self.scale + 1
    @staticmethod
    def static(y): return y - 0.5
    @classmethod
    def klass(cls, y): return y + cls.kind
    def __call__(self, y): return y * 0.5
    def __getitem__(self, n): return self.weights[n]
    def __len__(self): return len(self.weights)
    def __eq__(self, other): return other == self.name
    __hash__ = None
class Near(Thing):
    kind = 4
    def method(self, y, by=2.5, *, more=0.125): return y * by - more
class Falling:
    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        return 6.0
class Slotted:
    __slots__ = ("value", "spare")
    def __init__(self, value): self.value = value
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Descriptor:
    def __init__(self, value): self.value = value
    def __get__(self, instance, owner): return self.value
class Described: item = Descriptor(2.0)
Pair = namedtuple("Pair", ["left", "right"])
@dataclass
class Data:
    a: float = 1.0
    b: list = field(default_factory=lambda: [1.0, 2.0])

class Net(nn.Module):
    rate = 0.5
    def __init__(self):
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.ReLU()
        self.seq = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.Tanh()))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.register_buffer("shift", torch.full((4,), 0.5))
        self.gain = nn.Parameter(torch.full((4,), 1.5))
        self.factor = 2
    def forward(self, y):
        y = self.act(self.lin(y)) * self.gain + self.shift
        if self.training: y = y * self.factor
        for layer in self.layers: y = layer(y)
        return self.seq(y) * self.rate

def helper(y, by=3): return y * by
def decorated(function):
    @functools.wraps(function)
    def inner(*args, **kwargs): return function(*args, **kwargs) + 1
    return inner
@decorated
def wrapped(y): return y * 2
def make(bound, late):
    def closed(y): return y * bound + (late if callable(late) is False else 0)
    return closed
def chain(y): return helper(helper(y, by=2))
closed = make(2.0, 1.0)
partly = functools.partial(helper, by=4)
bare = lambda y: y - 1
w, near, slotted, falling, described, data = Thing(), Near(), Slotted(3), Falling(), Described(), Data()
pair, color, net = Pair(1.0, 2.0), Color.RED, Net()
NUMBER, REAL, TEXT, NOTHING, GLOBALS_LIST, GLOBALS_DICT = 3, 0.5, "text", None, [1.0, 2.0], {"a": 1.0, "b": [2.0, 3.0]}
SET, TUPLE, TENSOR, NESTED = {1, 2}, (1, (2, 3)), torch.full((4,), 0.25), {"w": w, "l": [GLOBALS_LIST]}
HANDLERS = {"relu": F.relu, "mine": helper}
"""

LINES = """
y = y * w.scale
y = y + w.kind + w.depth
y = y + near.kind
y = w.method(y)
y = near.method(y, 0.5)
y = w.inherited(y)
y = near.inherited(y)
y = w.both(y)
y = near.both(y)
y = y + w.prop
y = w.static(y)
y = Thing.static(y)
y = w.klass(y)
y = Near.klass(y)
y = w(y)
y = w + y
y = y * w[0]
y = y + len(w)
y = y + (1 if w == "n" else 2)
y = y * getattr(w, "extra", 7)
y = y + (1 if hasattr(w, "late") else 2)
y = y + (1 if hasattr(near, "only_other") else 2)
y = y * getattr(Thing, "extra", 5)
y = y + falling.anything
y = y + slotted.value + w.inner.value
y = y + (1 if hasattr(slotted, "spare") else 2)
y = y + described.item
y = y + data.a + data.b[1]
y = y + pair.left
y = y + (1 if color is Color.RED else 2) + color.value
y = y + sum(w.weights)
y = y + w.table["a"] + len(w.table)
y = y + sum(Thing.items)
y = y + (1 if isinstance(w, Other) else 2)
y = y + (1 if isinstance(near, Root) else 2)
y = y + (1 if issubclass(Near, Other) else 2)
y = y + (1 if type(near) is Near else 2)
y = y * (2 if w.flag else 3)
y = y + sum(v for v in vars(w).values() if type(v) is float)
y = helper(y)
y = helper(y, by=NUMBER)
y = wrapped(y)
y = closed(y)
y = partly(y)
y = bare(y)
y = chain(y)
y = HANDLERS["relu"](y)
y = HANDLERS["mine"](y)
y = y * NUMBER
y = y * REAL
y = y + (1 if TEXT == "text" else 2)
y = y + (1 if NOTHING is None else 2)
y = y + GLOBALS_LIST[0] + len(GLOBALS_LIST)
y = y + sum(GLOBALS_LIST)
y = y + GLOBALS_DICT["a"] + GLOBALS_DICT["b"][1]
y = y + sum(len(k) for k in GLOBALS_DICT)
y = y + len(SET) + (1 if 2 in SET else 0)
y = y + TUPLE[1][0]
y = y + TENSOR
y = y + NESTED["l"][0][0] + NESTED["w"].scale
y = F.relu(y)
y = F.softmax(y, -1)
y = F.layer_norm(y, (4,))
y = torch.relu(y)
y = torch.sin(y)
y = torch.add(y, 1)
y = y.cos()
y = y.tanh().mul(2)
y = y.norm(dim=-1, keepdim=True) + y
y = -y
y = 2 - y
y = y @ torch.ones(4, 4).to(y.dtype)
y = y * math.pi
y = y + math.floor(2.5)
y = operator.mul(y, 2)
y = y + divmod(7, 2)[0]
y = y + torch.ones(4).to(y.dtype).sum()
y = y + (torch.ones(1).dtype is torch.float32)
y = y + (1 if torch.is_grad_enabled() else 2)
y = y + (1 if torch.is_autocast_enabled("cpu") else 2)
y = y + (1 if torch.get_default_dtype() is torch.float32 else 2)
y = y + (1 if torch.are_deterministic_algorithms_enabled() else 2)
y = y + torch.get_num_threads()
y = y + (1 if y.requires_grad else 2)
y = y + (1 if y.dtype is torch.float32 else 2)
y = y + y.shape[0] + y.stride(0)
y = net(y.to(net.gain.dtype))
y = net.lin(y.to(net.lin.weight.dtype))
y = net.seq(y.to(net.seq.a.weight.dtype))
y = net.layers[1](y.to(net.gain.dtype))
y = net.act(y)
y = y + net.shift + net.factor + net.rate
y = y + (1 if net.training else 2)
y = y + (1 if hasattr(net, "late") else 2)
y = y + len(net.layers) + sum(1 for _ in net.children())
y = y + sum(p.sum() for p in net.parameters())
y = y + sum(1 for p in net.parameters() if p.requires_grad)
y = y + len(args) + args[0]
y = y + options.get("a", 3)
y = y + (options["t"] if "t" in options else 1)
y = wide(y)
""".strip().splitlines()

_PROGRAM = """
def outer(bound):
    def program(x, args, options, n=2):
        y = x.float() * n + bound
{lines}
        return y
    return program
def wide(y):
    import math as local
    return y * local.e
program = outer(1)
"""
_numbers = itertools.count()


class World:
    """A module made of ``WORLD`` and a program, and the arguments of the next call."""

    def __init__(self, rng: random.Random) -> None:
        self.lines = rng.sample(LINES, rng.randrange(1, 10))
        self.name = f"mutation_world_{next(_numbers)}"
        module = sys.modules[self.name] = types.ModuleType(self.name)
        self.space: dict[str, Any] = vars(module)
        body = "\n".join("        " + line for line in self.lines)
        exec(compile(WORLD + _PROGRAM.format(lines=body), f"<{self.name}>", "exec"), self.space)
        self.program = self.space["program"]
        torch = self.space["torch"]
        for parameter in self.space["net"].parameters():
            torch.nn.init.uniform_(parameter, 0.1, 0.9)
        self.x = torch.linspace(-2, 2, 12).reshape(3, 4)
        self.args: list[Any] = [1.5]
        self.options: dict[str, Any] = {"a": 2.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.space[name]
        except KeyError:
            raise AttributeError(name) from None

    def call(self, function: Any) -> Any:
        """The program, or what was compiled of it, on the arguments of the moment."""
        return function(self.x, self.args, self.options)

    def close(self) -> None:
        sys.modules.pop(self.name, None)
