"""Modules from before the call whose submodules, parameters and buffers compiled code sets, replaces and deletes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.linspace(-1, 1, 6).reshape(2, 3)
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


class Holder(nn.Module):
    """A module that does in ``forward`` what it is told to."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.lin = nn.Linear(3, 3)
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.params = nn.ParameterList([torch.ones(3)])
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("buf", torch.ones(3))
        self.register_buffer("kept", torch.ones(3), persistent=False)
        self.register_buffer("unset", None)
        self.register_parameter("absent", None)
        self.plain = None

    def forward(self, x):
        return self.act(self, x)


def state(module):
    """What can be seen of a module and its parts; of tensors, their kinds and values."""
    names = [
        (n, type(m).__name__, m.training, sorted(m._non_persistent_buffers_set), [*m._parameters], [*m._buffers], [*m._modules],
         [k for k in vars(m) if k != "act"])
        for n, m in module.named_modules()
    ]  # fmt: skip
    tensors = [*module.named_parameters(), *module.named_buffers()]
    kinds = [(n, type(v).__name__, v.requires_grad, v.is_leaf) for n, v in tensors]
    return names, kinds, {n: v.detach().clone() for n, v in tensors}, module.state_dict()


def new_submodule(m, x):
    m.extra = nn.Linear(3, 2, bias=False)
    nn.init.constant_(m.extra.weight, 0.5)
    return m.extra(x)


def made_before(m, x):
    part = nn.Sequential(nn.ReLU())
    part.add_module("last", nn.Tanh())
    part.register_buffer("q", x.mean(0))
    m.extra = part
    return part(x) + part.q


def replaced(m, x):
    m.lin = nn.Tanh()
    return m.lin(x)


def shared(m, x):
    m.again = m.lin
    return m.again(x)


def added(m, x):
    m.add_module("one", nn.ReLU())
    m.register_module("two", nn.Tanh())
    m.one = nn.Sigmoid()
    return m.two(m.one(x)) + len(list(m.children()))


def deleted(m, x):
    y = m.lin(x)
    del m.lin
    return y + (1 if hasattr(m, "lin") else 2)


def deleted_and_set(m, x):
    y = m.lin(x)
    del m.lin
    m.lin = 3
    return y * m.lin


def set_to_none(m, x):
    y = m.lin(x) * m.weight
    m.lin = m.weight = m.buf = None
    return y


def none_to_module(m, x):
    m.plain = nn.ReLU()
    return m.plain(x)


def item_of_a_sequence(m, x):
    m.seq[1] = nn.Tanh()
    m.seq.append(nn.Linear(3, 3))
    nn.init.zeros_(m.seq[2].weight)
    nn.init.ones_(m.seq[2].bias)
    return m.seq(x)


def new_parameter(m, x):
    m.extra = nn.Parameter(torch.full((3,), 3.0))
    return x * m.extra


def replaced_parameter(m, x):
    m.weight = nn.Parameter(m.weight.detach() * 2)
    return x * m.weight


def registered_parameter(m, x):
    m.register_parameter("extra", nn.Parameter(x.sum(0)))
    m.register_parameter("nothing", None)
    return x * m.extra * m.weight


def parameter_for_none(m, x):
    m.absent = nn.Parameter(torch.ones(3))
    return m.absent * x


def frozen_parameter(m, x):
    m.extra = nn.Parameter(x.sum(0), requires_grad=False)
    return x * m.extra * m.weight


def listed_parameter(m, x):
    m.params.append(nn.Parameter(torch.ones(3)))
    return x * m.params[1] * m.params[0]


def deleted_parameter(m, x):
    y = x * m.weight
    del m.weight
    return y


def buffers(m, x):
    m.buf = x.sum(0)
    m.unset = x.mean(0)
    m.register_buffer("extra", x.exp().sum(0), persistent=False)
    m.marked = nn.Buffer(x.sum(0) * 2)
    m.other = nn.Buffer(x[0] * 2, persistent=False)
    return x * m.buf + m.unset * m.extra + m.marked * m.other


def deleted_buffers(m, x):
    y = x * m.buf
    del m.buf, m.kept
    return y


def refused(m, x):
    """Assignments that raise."""
    texts = []
    for name, value in (("weight", x), ("lin", 3), ("buf", "text")):
        try:
            setattr(m, name, value)
        except TypeError as error:
            texts.append(str(error))
    try:
        m.add_module("a.b", nn.ReLU())
    except KeyError as error:
        texts.append(str(error))
    return x + len("".join(texts))


PROGRAMS = [
    new_submodule, made_before, replaced, shared, added, deleted, deleted_and_set, set_to_none, none_to_module,
    item_of_a_sequence, new_parameter, replaced_parameter, registered_parameter, parameter_for_none, frozen_parameter,
    listed_parameter, deleted_parameter, buffers, deleted_buffers, refused,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_compiled_code_changes_of_a_module(program):
    module = Holder(program)
    expected, found = copy.deepcopy(module), copy.deepcopy(module)
    observed = Observed(found, fullgraph=True)
    torch.testing.assert_close(observed(X), expected(X))
    assert_same(state(found), state(expected))


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_what_compiled_code_sets(program):
    module = Holder(program)
    expected, found = copy.deepcopy(module), copy.deepcopy(module)
    old = [dict(m.named_parameters()) for m in (expected, found)]
    results = [expected(X), turret.compile(found, fullgraph=True, options=OPTIONS)(X)]
    torch.testing.assert_close(results[1], results[0])
    assert results[0].requires_grad == results[1].requires_grad
    if results[0].requires_grad:
        for result in results:
            result.square().sum().backward()
    for one, other in ((old[0], old[1]), (dict(expected.named_parameters()), dict(found.named_parameters()))):
        torch.testing.assert_close({n: p.grad for n, p in other.items()}, {n: p.grad for n, p in one.items()})


def test_a_module_made_once_is_found_by_the_next_calls():
    def act(m, x):
        if not hasattr(m, "extra"):
            m.extra = nn.Linear(3, 3)
        return m.extra(x)

    module = Holder(act)
    observed = Observed(module, fullgraph=True)
    first = observed(X)
    extra = module.extra
    for _ in range(2):
        assert torch.equal(observed(X), first)
        assert module.extra is extra
    assert len(observed.graphs) == 2


def test_each_call_makes_a_parameter_of_its_own():
    module = Holder(new_parameter)
    call = turret.compile(module, options=OPTIONS)
    made = []
    for number in range(1, 4):
        result = call(X * number)
        made.append(module.extra)
        assert type(module.extra) is nn.Parameter and module.extra.is_leaf
        result.sum().backward()
        torch.testing.assert_close(module.extra.grad, (X * number).sum(0))
    assert len({id(p) for p in made}) == 3


def test_an_attribute_that_became_a_buffer_since_is_set_as_one():
    def act(m, x):
        m.plain = None
        return x + 1

    module = Holder(act)
    call = Observed(module, fullgraph=True)
    call(X)
    del module.plain
    module.register_buffer("plain", X)
    call(X)
    assert module._buffers["plain"] is None and "plain" not in vars(module)


def by_the_method(module, hook):
    return module.register_forward_hook(hook).remove


def by_the_dict(module, hook):
    module._forward_hooks[7] = hook
    return lambda: module._forward_hooks.pop(7)


def of_all_modules(module, hook):
    return torch.nn.modules.module.register_module_forward_hook(hook).remove


@pytest.mark.parametrize("register", [by_the_method, by_the_dict, of_all_modules])
def test_a_hook_that_compiled_code_registers_is_called_until_it_is_removed(register):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def program(x):
        seen = []
        remove = register(net[0], lambda module, args, output: seen.append(output * 2))
        first = net(x)
        remove()
        return first, net(x), seen

    observed = Observed(program)
    for n in range(3):
        x = torch.full((2, 3), n + 1.0)
        assert_same(observed(x), program(x))
    assert not net[0]._forward_hooks and not torch.nn.modules.module._global_forward_hooks


def of_one_module(module, hook, **options):
    return module.register_forward_hook(hook, **options).remove


def of_every_module(module, hook, **options):
    return torch.nn.modules.module.register_module_forward_hook(hook, always_call=options["always_call"]).remove


@pytest.mark.parametrize("register", [of_one_module, of_every_module])
@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_hook_that_is_always_called_is_called_where_forward_raises(register, always, fails):
    class Failing(torch.nn.Module):
        def forward(self, x):
            if fails:
                raise ValueError("refused")
            return x * 2

    net, seen = Failing(), []
    remove = register(net, lambda module, args, output: seen.append(output), always_call=always)

    def program(x):
        try:
            y = net(x)
        except ValueError as error:
            y = x
            seen.append(str(error))
        return y + 1

    try:
        observed, x = Observed(program), torch.ones(2)
        for _ in range(2):
            expected = [program(x), *seen]
            seen.clear()
            assert_same([observed(x), *seen], expected)
            seen.clear()
        assert not observed.fallbacks
    finally:
        remove()
