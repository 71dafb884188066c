"""Code that a trace runs without following it: an edit of it between two runs is a miss, and never a wrong result."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch

import turret
from tests.plugins.capture.stored_lab import Programs, Watch

_names = itertools.count()


@pytest.fixture
def programs(tmp_path, monkeypatch):
    turret.reset()
    yield Programs(tmp_path, monkeypatch)
    turret.reset()


@pytest.fixture
def operators(monkeypatch):
    """Programs define the same operators anew in one process; whatever they hang on torch is taken off again."""
    members = dict(vars(torch.Tensor))
    functions = {name: getattr(torch.nn.functional, name) for name in ("softplus", "relu")}
    yield
    for name in set(vars(torch.Tensor)) - set(members):
        delattr(torch.Tensor, name)
    for name, raw in members.items():
        if vars(torch.Tensor).get(name) is not raw:
            setattr(torch.Tensor, name, raw)
    for name, function in functions.items():
        setattr(torch.nn.functional, name, function)


def program(text: str, aside: str = "") -> dict[str, str]:
    return {"prog": text, "aside": aside}


OPERATOR = """
@torch.library.custom_op("turret_stored::{name}", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@op.register_fake
def _(x): return torch.empty_like(x)
{further}
def f(x): return op(x).sin()
def make(): return f
"""
GRADIENT = "import aside\ndef backward(ctx, grad): return {}\nop.register_autograd(backward)\n"


def edits(name: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """Two versions of a program that an operator's code was edited between."""
    before, after = EDITS[name]
    unique = f"op{next(_names)}"
    return unique, *({k: v.replace("{name}", unique) for k, v in files.items()} for files in (before, after))


def operator(further: str = "", aside: str = "") -> dict[str, str]:
    return program(OPERATOR.replace("{further}", further), aside)


EDITS = {
    "a formula": (operator(GRADIENT.format("grad * 2")), operator(GRADIENT.format("grad * 3"))),
    "a helper of a formula": (
        operator(GRADIENT.format("aside.g(grad)"), "def g(x): return x * 2"),
        operator(GRADIENT.format("aside.g(grad)"), "def g(x): return x * 3"),
    ),
    "a helper of a helper": (
        operator(GRADIENT.format("aside.g(grad)"), "def h(x): return x * 2\ndef g(x): return h(x)"),
        operator(GRADIENT.format("aside.g(grad)"), "def h(x): return x * 3\ndef g(x): return h(x)"),
    ),
    "a constant of another file": (
        operator(GRADIENT.format("grad * aside.k"), "k = 2"),
        operator(GRADIENT.format("grad * aside.k"), "k = 3"),
    ),
    "an attribute of an object": (
        operator(GRADIENT.format("grad * aside.c.k"), "class C: pass\nc = C()\nc.k = 2"),
        operator(GRADIENT.format("grad * aside.c.k"), "class C: pass\nc = C()\nc.k = 3"),
    ),
    "a method of an object": (
        operator(GRADIENT.format("aside.c.g(grad)"), "class C:\n    def g(self, x): return x * 2\nc = C()"),
        operator(GRADIENT.format("aside.c.g(grad)"), "class C:\n    def g(self, x): return x * 3\nc = C()"),
    ),
    "a method of a base": (
        operator(GRADIENT.format("aside.c.g(grad)"), "class B:\n    def g(self, x): return x * 2\nclass C(B): pass\nc = C()"),
        operator(GRADIENT.format("aside.c.g(grad)"), "class B:\n    def g(self, x): return x * 3\nclass C(B): pass\nc = C()"),
    ),
    "a value in a table": (
        operator(GRADIENT.format("aside.t['a'](grad)"), "t = {'a': lambda x: x * 2}"),
        operator(GRADIENT.format("aside.t['a'](grad)"), "t = {'a': lambda x: x * 3}"),
    ),
    "a closure": (
        operator("from aside import made\nop.register_autograd(made(2))\n", "def made(k):\n    return lambda ctx, g: g * k"),
        operator("from aside import made\nop.register_autograd(made(3))\n", "def made(k):\n    return lambda ctx, g: g * k"),
    ),
    "a default": (
        operator("from aside import b\nop.register_autograd(b)\n", "def b(ctx, g, k=2): return g * k"),
        operator("from aside import b\nop.register_autograd(b)\n", "def b(ctx, g, k=3): return g * k"),
    ),
    "a partial": (
        operator("import functools, aside\nop.register_autograd(functools.partial(aside.b, 2))\n", "def b(k, ctx, g): return g * k"),
        operator("import functools, aside\nop.register_autograd(functools.partial(aside.b, 3))\n", "def b(k, ctx, g): return g * k"),
    ),
    "a tensor": (
        operator(GRADIENT.format("grad * aside.k"), "k = torch.tensor(2.0)"),
        operator(GRADIENT.format("grad * aside.k"), "k = torch.tensor(3.0)"),
    ),
    "which of two formulas": (
        operator("import aside\nop.register_autograd(aside.b if aside.k else aside.c)\n",
                 "k = True\ndef b(ctx, g): return g * 2\ndef c(ctx, g): return g * 3"),
        operator("import aside\nop.register_autograd(aside.b if aside.k else aside.c)\n",
                 "k = False\ndef b(ctx, g): return g * 2\ndef c(ctx, g): return g * 3"),
    ),
    "what is kept for a formula": (
        operator("def s(ctx, inputs, output): ctx.k = 2\nop.register_autograd(lambda ctx, g: g * ctx.k, setup_context=s)\n"),
        operator("def s(ctx, inputs, output): ctx.k = 3\nop.register_autograd(lambda ctx, g: g * ctx.k, setup_context=s)\n"),
    ),
}  # fmt: skip
X = torch.linspace(-2, 2, 12).reshape(3, 4)


def gradient(programs: Programs, files: dict[str, str]) -> Watch:
    """Compile and run the program in training, and compare values and gradients with eager's."""
    loaded = programs.load(files)
    results = []
    watch = Watch()
    for function in (loaded.make(), programs.compile(loaded.make(), watch)):
        x = X.clone().requires_grad_()
        y = function(x)
        y.sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])
    return watch


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("name", EDITS)
def test_an_edited_operator_gets_its_own_gradient(programs, name):
    _, before, after = edits(name)
    first = gradient(programs, before)
    turret.reset()
    again = gradient(programs, before)
    assert again.of("graph") == ["hit"], (first.events, again.events)
    turret.reset()
    assert "miss" in gradient(programs, after).of("graph")


# What a program hangs on torch.

ON_TORCH = {
    "a method of tensors": ("def f(x): return x.my_ext() + 1", [
        "torch.Tensor.my_ext = lambda self: self * 2", "torch.Tensor.my_ext = lambda self: self * 3",
        "k = 2\ntorch.Tensor.my_ext = lambda self: self * k", "k = 3\ntorch.Tensor.my_ext = lambda self: self * k",
    ]),
    "a method that calls a function": ("def f(x): return x.my_ext() + 1", [
        "def g(x): return x * 2\ndef ext(self): return g(self)\ntorch.Tensor.my_ext = ext",
        "def g(x): return x * 3\ndef ext(self): return g(self)\ntorch.Tensor.my_ext = ext",
    ]),
    "a method made by a function": ("def f(x): return x.my_ext() + 1", [
        "def made(k):\n    return lambda self: self * k\ntorch.Tensor.my_ext = made(2)",
        "def made(k):\n    return lambda self: self * k\ntorch.Tensor.my_ext = made(3)",
    ]),
    "a partial as a method": ("def f(x): return x.my_ext(x, x) + 1", [
        "import functools\ntorch.Tensor.my_ext = functools.partial(torch.add, alpha=2)",
        "import functools\ntorch.Tensor.my_ext = functools.partial(torch.add, alpha=3)",
    ]),
    "an operator of tensors": ("def f(x): return (x + 1).sin()", [
        "", "old = torch.Tensor.__add__\ndef add(self, other): return old(self, other) * 2\ntorch.Tensor.__add__ = add",
        "", "old = torch.Tensor.__add__\ndef add(self, other): return old(self, other) * 3\ntorch.Tensor.__add__ = add",
        "torch.Tensor.__add__ = torch.Tensor.__mul__",
    ]),
    "a method of torch": ("def f(x): return x.relu() + x.sin()", [
        "", "torch.Tensor.relu = lambda self: self * 2", "torch.Tensor.relu = torch.Tensor.cos",
        "torch.Tensor.sin = torch.Tensor.cos", "",
    ]),
    "a function of torch": ("import torch.nn.functional as F\ndef f(x): return F.softplus(x) + F.relu(x)", [
        "", "torch.nn.functional.softplus = lambda x: x * 2", "torch.nn.functional.relu = torch.sigmoid", "",
    ]),
    "a function that torch calls": ("def f(x): return nn.functional.silu(x)", [
        "", "torch._C._nn.silu = lambda x: x * 3", "",
    ]),
}  # fmt: skip


@pytest.fixture
def silu(monkeypatch):
    monkeypatch.setattr(torch._C._nn, "silu", torch._C._nn.silu)


@pytest.mark.usefixtures("operators", "silu")
@pytest.mark.parametrize("name", ON_TORCH)
def test_what_a_program_put_into_torch_is_part_of_the_key(programs, name, request):
    text, versions = ON_TORCH[name]
    members, silu = dict(vars(torch.Tensor)), torch._C._nn.silu
    functions = {n: getattr(torch.nn.functional, n) for n in ("softplus", "relu")}
    for version in versions:
        for again in (False, True):
            torch._C._nn.silu = silu
            for n, function in functions.items():
                setattr(torch.nn.functional, n, function)
            for n in set(vars(torch.Tensor)):
                if n not in members:
                    delattr(torch.Tensor, n)
                elif vars(torch.Tensor)[n] is not members[n]:
                    setattr(torch.Tensor, n, members[n])
            turret.reset()
            files = program(f"import aside\n{text}\ndef make(): return f", version)
            watch = programs.run(programs.load(files), X)  # and is equal to eager
            if again:
                assert "hit" in watch.captures or "hit" in watch.of("graph"), watch.events


# What torch does not show.

HIDDEN = {
    "a composite kernel": """
lib = torch.library.Library("turret_stored", "FRAGMENT")
lib.define("{name}(Tensor x) -> Tensor")
@torch.library.impl(lib, "{name}", "CompositeImplicitAutograd")
def body(x): return x * {k}
def f(x): return torch.ops.turret_stored.{name}(x).sin()
def make(): return f
""",
    "a gradient of an operator that was defined by hand": """
lib = torch.library.Library("turret_stored", "FRAGMENT")
lib.define("{name}(Tensor x) -> Tensor")
lib.impl("{name}", lambda x: x * 2, "CPU")
torch.library.register_fake("turret_stored::{name}", lambda x: torch.empty_like(x), lib=lib)
torch.library.register_autograd("turret_stored::{name}", lambda ctx, g: g * {k}, lib=lib)
def f(x): return torch.ops.turret_stored.{name}(x).sin()
def make(): return f
""",
    "a function that lies behind what cannot be compared": """
from torch.library import custom_op
@custom_op("turret_stored::{name}", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return x * 2
@op.register_fake
def _(x): return torch.empty_like(x)
numbers = iter([{k}] * 99)
op.register_autograd(lambda ctx, g: g * next(numbers))
def f(x): return op(x).sin()
def make(): return f
""",
    "a function that is named while it runs": """
import sys
from torch.library import custom_op
@custom_op("turret_stored::{name}", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return x * 2
@op.register_fake
def _(x): return torch.empty_like(x)
def hid_den(g): return g * {k}
op.register_autograd(lambda ctx, g: getattr(sys.modules[__name__], "_".join(["hid", "den"]))(g))
def f(x): return op(x).sin()
def make(): return f
""",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_code_that_cannot_be_compared_is_compiled_in_every_process_on_record(programs, name):
    unique = f"hidden{next(_names)}"
    for k in (2, 2, 3):
        turret.reset()
        files = program(HIDDEN[name].replace("{name}", unique).replace("{k}", str(k)))
        watch = gradient(programs, files)
        assert "hit" not in watch.of("graph") and "hit" not in watch.captures
        assert any("in every process" in message for kind, _, message in watch.events if kind == "perf_hint")
        if hasattr(sys.modules["prog"], "lib"):
            sys.modules["prog"].lib._destroy()  # as the end of a process does
