"""A compiled module is the module: its state, its type, its hooks; only the call differs."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import turret
from turret.errors import OptionError
from turret.hooks.hookspecs import hookimpl

pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.scale = 2.0

    def forward(self, x):
        self.calls.add_(1)
        return self.dropout(torch.relu(self.linear(x))) * self.scale

    def describe(self):
        return f"scale {self.scale}"


class Graphs:
    """The torch-level calls of every captured graph."""

    def __init__(self):
        self.calls = []

    @hookimpl
    def turret_event(self, event):
        if event.kind == "product" and event.stage == "capture":
            self.calls.append([n for n in event.product.module.graph.nodes if n.op.startswith("call")])


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def x():
    return torch.randn(2, 4)


def test_results_and_gradients_are_those_of_the_module(net, x):
    twin = copy.deepcopy(net)
    compiled = turret.compile(net)
    compiled(x).sum().backward()
    twin(x).sum().backward()
    torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(net.linear.weight.grad, twin.linear.weight.grad)
    assert int(net.calls) == 2


def test_it_is_an_instance_of_its_class_with_its_name(net):
    compiled = turret.compile(net)
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module)
    assert type(compiled).__name__ == "Net" and type(compiled).__module__ == Net.__module__
    assert compiled.describe() == "scale 2.0"
    assert repr(compiled) == repr(net)


def test_state_dict_has_the_keys_of_the_module_and_loads_both_ways(net, x):
    compiled = turret.compile(net)
    assert list(compiled.state_dict()) == list(net.state_dict()) == ["calls", "linear.weight", "linear.bias"]
    other = Net().eval()
    compiled.load_state_dict(other.state_dict())
    torch.testing.assert_close(compiled(x), other(x))
    other.load_state_dict(turret.compile(Net()).state_dict())


def test_parameters_buffers_and_submodules_are_the_same_objects(net):
    compiled = turret.compile(net)
    assert [n for n, _ in compiled.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters(), strict=True))
    assert compiled.calls is net.calls and compiled.linear is net.linear
    assert [n for n, _ in compiled.named_modules()] == [n for n, _ in net.named_modules()]


def test_attributes_are_got_and_set_on_both(net, x):
    compiled = turret.compile(net)
    compiled(x)
    compiled.scale = 3.0
    assert net.scale == 3.0
    torch.testing.assert_close(compiled(x), torch.relu(net.linear(x)) * 3)
    net.new = "there"
    assert compiled.new == "there"
    del compiled.new
    assert not hasattr(net, "new")
    compiled.linear = nn.Linear(4, 3)
    torch.testing.assert_close(compiled(x), net(x))


def test_train_and_eval_reach_the_module_and_change_what_is_computed(net, x):
    compiled = turret.compile(net)
    compiled.train()
    assert net.training and net.dropout.training
    assert (compiled(torch.ones(64, 4)) == 0).float().mean() > 0.3
    assert compiled.eval() is compiled
    assert not net.dropout.training
    torch.testing.assert_close(compiled(x), net(x))


def test_an_optimizer_over_the_compiled_module_trains_the_module(net, x):
    twin = copy.deepcopy(net)
    compiled = turret.compile(net)
    for module in (compiled, twin):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(net.linear.weight, twin.linear.weight)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("make", [Net, lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU())], ids=["own", "torch's"])
def test_forward_hooks_run_whenever_they_were_registered(when, make, x):
    net = make().eval()
    expected = (net(x * 2) + 1).detach()
    calls = []

    def pre(module, args):
        calls.append("pre")
        return (args[0] * 2,)

    def post(module, args, output):
        calls.append("post")
        return output + 1

    def register(module):
        return [module.register_forward_pre_hook(pre), module.register_forward_hook(post)]

    if when == "before":
        handles = register(net)
        compiled = turret.compile(net)
    else:
        compiled = turret.compile(net)
        compiled(x)
        handles = register(compiled)
    torch.testing.assert_close(compiled(x), expected)
    assert calls == ["pre", "post"]
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(compiled(x), net(x))
    assert calls == ["pre", "post"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_backward_hooks_see_the_gradients(when, net, x):
    seen = []

    def hook(module, grad_input, grad_output):
        seen.append((grad_input[0].clone(), grad_output[0].clone()))

    if when == "before":
        net.register_full_backward_hook(hook)
    compiled = turret.compile(net)
    if when == "after":
        compiled(x)
        compiled.register_full_backward_hook(hook)
    given = x.clone().requires_grad_()
    compiled(given).sum().backward()
    torch.testing.assert_close(seen[0][1], torch.ones(2, 3))
    torch.testing.assert_close(seen[0][0], given.grad)


def test_hooks_on_a_submodule_run(net, x):
    calls = []
    compiled = turret.compile(net)
    net.linear.register_forward_hook(lambda module, args, output: output * 0)
    net.linear.register_forward_pre_hook(lambda module, args: calls.append("pre"))
    torch.testing.assert_close(compiled(x), torch.zeros(2, 3))
    assert calls == ["pre"]


def test_deepcopy_is_compiled_and_shares_nothing(net, x):
    compiled = turret.compile(net)
    compiled(x)
    twin = copy.deepcopy(compiled)
    assert type(twin) is type(compiled) and twin.linear.weight is not net.linear.weight
    with torch.no_grad():
        twin.linear.weight.zero_()
    torch.testing.assert_close(compiled(x), net(x))
    assert not torch.equal(twin(x), compiled(x))


def test_copy_shares_parameters_and_not_the_dictionary(net, x):
    compiled = turret.compile(net)
    twin = copy.copy(compiled)
    twin.scale = 0.0
    assert compiled.scale == 2.0 and twin.linear is compiled.linear
    torch.testing.assert_close(twin(x), torch.zeros(2, 3))


def test_it_pickles_with_its_options(net, x):
    compiled = turret.compile(net, dynamic=False, options={"partitioner": "save_all"})
    again = pickle.loads(pickle.dumps(compiled))
    assert type(again) is type(compiled)
    assert again._turret_compile.keywords["options"] == {"partitioner": "save_all"}
    torch.testing.assert_close(again(x), compiled(x))
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), compiled(x))


def test_compiling_twice_compiles_the_module_and_not_its_wrapper(net, x):
    compiled = turret.compile(turret.compile(net))
    assert compiled._turret_original is net
    torch.testing.assert_close(compiled(x), net(x))


def test_a_compiled_submodule_works_in_an_eager_and_in_a_compiled_parent(net, x):
    parent = nn.Sequential(turret.compile(net), nn.Sigmoid()).eval()
    assert list(parent.state_dict()) == ["0.calls", "0.linear.weight", "0.linear.bias"]
    expected = torch.sigmoid(net(x))
    torch.testing.assert_close(parent(x), expected)
    graphs = Graphs()
    torch.testing.assert_close(turret.compile(parent, plugins=[graphs], fullgraph=True)(x), expected)
    assert len(graphs.calls) == 1


def test_modules_of_torch_itself_are_compiled_whole(x):
    for module in (nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 4), Net(), nn.ReLU()).eval()):
        graphs = Graphs()
        compiled = turret.compile(module, plugins=[graphs])
        torch.testing.assert_close(compiled(x), module(x))
        assert len(graphs.calls) == 1
        assert len(graphs.calls[0]) >= len(list(module.children()))


def test_to_moves_and_casts_the_module(net, x):
    compiled = turret.compile(net)
    compiled(x)
    assert compiled.to(torch.float64) is compiled
    assert net.linear.weight.dtype == torch.float64
    result = compiled(x.double())
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, net(x.double()))


def test_replacing_forward_on_the_wrapper_takes_effect(net, x):
    compiled = turret.compile(net)
    compiled(x)
    compiled.forward = lambda x: x + 1
    torch.testing.assert_close(compiled(x), x + 1)


def test_torch_s_in_place_compile_takes_turret_as_backend(net, x):
    expected = net(x).detach()
    from turret.contrib.dynamo import backend

    net.compile(backend=backend)
    torch.testing.assert_close(net(x), expected)
    assert list(net.state_dict()) == ["calls", "linear.weight", "linear.bias"]


def test_modules_with_lazy_parameters_are_materialised_by_the_first_call(x):
    module = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    compiled = turret.compile(module, options={"on_error": "fallback"})
    assert compiled(x).shape == (2, 3)
    torch.testing.assert_close(compiled(x), module(x))


def test_classes_are_freed_with_the_last_compiled_module():
    import gc
    import weakref

    def make():
        class Local(nn.Module):
            def forward(self, x):
                return x + 1

        turret.compile(Local())
        return weakref.ref(Local)

    kept = make()
    gc.collect()
    assert kept() is None


class Slotted(nn.Module):
    __slots__ = ("__secret", "scale")

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.scale, self.__secret = 3.0, 2.0

    def forward(self, x):
        return x * self.scale * self.weight * self.__secret


class MoreSlotted(Slotted):
    __slots__ = ("shift",)

    def __init__(self):
        super().__init__()
        self.shift = torch.full((3,), 5.0)

    def forward(self, x):
        return super().forward(x) + self.shift


@pytest.mark.parametrize("kind", [Slotted, MoreSlotted])
def test_slots_are_those_of_the_original(kind):
    original, x = kind(), torch.randn(3)
    compiled = turret.compile(original)
    torch.testing.assert_close(compiled(x), original(x))
    compiled.scale = 5.0
    assert original.scale == 5.0
    original.scale = 7.0
    assert compiled.scale == 7.0
    torch.testing.assert_close(compiled(x), original(x))
    torch.testing.assert_close(compiled.forward(x), original(x))
    del compiled.scale
    assert not hasattr(original, "scale") and not hasattr(compiled, "scale")


def test_what_a_class_does_for_its_subclasses_is_not_done():
    known = []

    class Registry(nn.Module):
        def __init_subclass__(cls, *, tag):
            known.append(tag)

        def forward(self, x):
            return x + 1

    class Registered(Registry, tag="mine"):
        pass

    assert torch.equal(turret.compile(Registered())(torch.ones(2)), torch.full((2,), 2.0))
    assert known == ["mine"]


class Listed(nn.Module, list):
    pass


class Final(type):
    def __new__(meta, name, bases, contents):
        if any(isinstance(base, Final) for base in bases):
            raise TypeError("final")
        return super().__new__(meta, name, bases, contents)


class Last(nn.Module, metaclass=Final):
    pass


@pytest.mark.parametrize("kind", [Listed, Last])
def test_a_class_that_nothing_can_be_derived_from_is_an_error_that_says_what_to_do(kind):
    with pytest.raises(OptionError, match=rf"a module of {kind.__name__}.*compile its forward method"):
        turret.compile(kind())
