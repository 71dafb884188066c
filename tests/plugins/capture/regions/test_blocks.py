"""Layers that are alike are followed once; what differs in any way that matters is followed anew."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import OptionError

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


class Layer(nn.Module):
    """A feed-forward layer with attributes to look at."""

    def __init__(self, width: int = 8, inner: int = 16, bias: bool = True, p: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(p)
        self.scale, self.number = scale, 0

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, **rest: object) -> torch.Tensor:
        found = self.second(self.dropout(torch.relu(self.first(x)))) * self.scale
        if mask is not None:
            found = found * mask
        return self.norm(x + found)


class Stack(nn.Module):
    """Layers in a row."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.start, self.layers = nn.Parameter(torch.ones(8)), nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x * self.start
        for layer in self.layers:
            x = layer(x, mask)
        return x


def stack(count: int = 4, **options: object) -> Stack:
    torch.manual_seed(1)
    made = [Layer(**options) for _ in range(count)]
    for number, layer in enumerate(made):
        layer.number = number
    return Stack(made)


def watch(model: nn.Module, **options) -> Observed:
    return Observed(model.__call__, **options)


def agree(model: nn.Module, *args, breaks: int = 0, **options) -> Observed:
    """Results, gradients of parameters and arguments, and buffers are eager's."""
    theirs = copy.deepcopy(model)
    observed = watch(model, **options)
    for _ in range(2):
        mine_args, their_args = copy.deepcopy(args), copy.deepcopy(args)
        torch.manual_seed(3)
        found = observed(*mine_args)
        torch.manual_seed(3)
        expected = theirs(*their_args)
        assert_same(found, expected)
        assert_same(mine_args, their_args, "arguments")
        if isinstance(expected, torch.Tensor) and expected.requires_grad:
            found.square().sum().backward()
            expected.square().sum().backward()
        for (name, one), (_, other) in zip(model.named_parameters(), theirs.named_parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, msg=lambda m, n=name: f"gradient of {n}: {m}")
        for one, other in zip(model.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    assert len(observed.breaks) == breaks, observed.breaks
    return observed


def test_equal_layers_are_followed_once():
    observed = agree(stack(5), X.clone().requires_grad_())
    assert observed.reuses == ["Layer: followed 1 times, repeated 4 times"]
    assert len(observed.graphs) == 1


def test_the_graph_is_the_one_that_following_each_layer_gives():
    repeated, followed = watch(stack(4)), watch(stack(4))
    repeated(X)
    followed.settings.reuse_blocks = False
    followed(X)
    assert repeated.reuses and not followed.reuses
    mine, theirs = (o.graphs[0] for o in (repeated, followed))
    assert mine.module.code == theirs.module.code
    assert [tuple(v.shape) for v in mine.example_inputs] == [tuple(v.shape) for v in theirs.example_inputs]
    assert mine.static_inputs == theirs.static_inputs
    one, other = (sorted(str(g) for g in o.units[0].guards.guards if g.kind != "ID") for o in (repeated, followed))
    assert one == other


def test_the_number_of_a_layer_that_nobody_reads_does_not_matter():
    model = stack(3)
    assert [layer.number for layer in model.layers] == [0, 1, 2]
    assert agree(model, X).reuses == ["Layer: followed 1 times, repeated 2 times"]


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "scale", 2.0),
        lambda layer: setattr(layer.norm, "eps", 0.5),
        lambda layer: setattr(layer.first, "bias", None),
        lambda layer: setattr(layer, "second", nn.Linear(16, 8, bias=False)),
        lambda layer: layer.first.requires_grad_(False),
        lambda layer: setattr(layer, "dropout", nn.Identity()),
        lambda layer: setattr(layer, "forward", lambda x, mask=None: x * 3),
        lambda layer: setattr(layer.first, "forward", lambda x: x.repeat(1, 2)),
        lambda layer: layer.dropout.train(False),
        lambda layer: layer.register_forward_hook(lambda m, a, out: out + 1),
        lambda layer: setattr(layer.first, "weight", nn.Parameter(torch.ones(8, 16).t())),
        lambda layer: setattr(layer, "extra", 1),
    ],
)
def test_a_layer_that_differs_is_followed_anew(change):
    model = stack(5, p=0.5)
    change(model.layers[2])
    observed = agree(model, X.clone().requires_grad_())
    assert observed.reuses and "repeated 4" not in observed.reuses[0]


def test_one_layer_called_again_and_again():
    class Again(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                x = self.layers[0](x * self.start)
            return x

    torch.manual_seed(0)
    observed = agree(Again([Layer(p=0.5)]), X.clone().requires_grad_())
    assert observed.reuses == ["Layer: followed 1 times, repeated 3 times"]


def test_objects_that_layers_and_arguments_have_in_common():
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.a, self.b = nn.Linear(8, 8), nn.ReLU(), nn.Tanh()
            self.act = functools.partial(torch.nn.functional.gelu, approximate="tanh")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.linear(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Partial() for _ in range(4)])

        def forward(self, *args: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
            x = rest["x"].sin()
            assert not args
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    model = Model()
    observed = watch(model)
    assert_same(observed(x=X), model(x=X))
    assert "repeated" in observed.reuses[0]


def test_layers_of_other_sizes_are_followed_anew():
    torch.manual_seed(0)
    model = Stack([Layer(inner=16), Layer(inner=24), Layer(inner=16), Layer(inner=24)])
    assert agree(model, X.clone().requires_grad_()).reuses == ["Layer: followed 2 times, repeated 2 times"]


def test_layers_that_share_modules_or_parameters():
    model = stack(5)
    model.layers[1].first = model.layers[0].first
    model.layers[2] = model.layers[0]
    model.layers[3].first.weight = model.layers[3].second.weight = nn.Parameter(torch.randn(16, 8))
    model.layers[3].second.weight = model.layers[4].second.weight
    model.layers[4].norm = model.layers[4].norm
    agree(model, X.clone().requires_grad_())


def test_dropout_draws_new_numbers_in_each_layer():
    model = stack(4, p=0.5)
    for layer in model.layers[1:]:
        layer.load_state_dict(model.layers[0].state_dict())
    observed = agree(model, X.clone().requires_grad_())
    assert observed.reuses == ["Layer: followed 1 times, repeated 3 times"]
    assert sum(n.name.startswith("dropout") for n in observed.graphs[0].module.graph.nodes) == 4


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.relu = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.relu(self.norm(self.linear(x)))


def test_statistics_of_batch_norm_are_each_layer_s_own():
    torch.manual_seed(0)
    observed = agree(Stack([Norms() for _ in range(4)]), X.clone().requires_grad_())
    assert not observed.reuses
    assert agree(Stack([Norms() for _ in range(4)]).eval(), X).reuses


class Counting(nn.Module):
    def __init__(self, log: list | None = None) -> None:
        super().__init__()
        self.linear, self.a, self.b, self.log, self.calls = nn.Linear(8, 8), nn.ReLU(), nn.Tanh(), log, 0

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        if self.log is not None:
            self.log.append(self.calls)
        return self.a(self.linear(x))


@pytest.mark.parametrize("log", [None, []])
def test_side_effects_happen_in_each_layer(log):
    model = Stack([Counting(log) for _ in range(4)])
    theirs = copy.deepcopy(model)
    observed = watch(model)
    for _ in range(2):
        assert_same(observed(X), theirs(X))
    assert [layer.calls for layer in model.layers] == [layer.calls for layer in theirs.layers] == [2] * 4
    assert log is None or log == theirs.layers[0].log


class Shared(nn.Module):
    """Reads what the stack around sets between the calls."""

    def __init__(self, box: dict) -> None:
        super().__init__()
        self.linear, self.a, self.b, self.box = nn.Linear(8, 8), nn.ReLU(), nn.Tanh(), box

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.linear(x)) * self.box["factor"]


class Setting(nn.Module):
    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.box: dict = {"factor": 1.0}
        self.layers, self.changes = nn.ModuleList([Shared(self.box) for _ in range(4)]), changes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.box["log"] = []
        for number, layer in enumerate(self.layers):
            if self.changes:
                self.box["factor"] = number + 0.5
            x = layer(x)
        self.box["log"].append(1)
        return x


@pytest.mark.parametrize("changes", [False, True])
def test_layers_see_what_is_set_between_them(changes):
    torch.manual_seed(0)
    observed = agree(Setting(changes), X.clone().requires_grad_())
    assert bool(observed.reuses) is not changes


class Filling(nn.Module):
    """Appends to a list that the stack around made and put where it is found."""

    def __init__(self, box: dict) -> None:
        super().__init__()
        self.linear, self.a, self.b, self.box = nn.Linear(8, 8), nn.ReLU(), nn.Tanh(), box

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(self.linear(x))
        self.box["made"].append(x)
        return x


class Collecting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box: dict = {}
        self.layers = nn.ModuleList([Filling(self.box) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        made: list = []
        self.box["made"] = made
        for layer in self.layers:
            x = layer(x)
        self.box["made"] = None
        return made


def test_a_list_that_layers_fill_is_filled_by_each():
    torch.manual_seed(0)
    assert not agree(Collecting(), X).reuses


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Layer() for _ in range(2)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for part in self.parts:
            x = part(x, mask)
        return x.sin()


def test_blocks_of_blocks():
    torch.manual_seed(0)
    model = Stack([Nested() for _ in range(3)])
    observed = agree(model, X.clone().requires_grad_(), torch.ones(3, 8))
    assert sorted(observed.reuses) == [
        "Layer: followed 1 times, repeated 1 times", "Nested: followed 1 times, repeated 2 times",
    ]  # fmt: skip


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.a, self.b = nn.Linear(8, 8), nn.ReLU(), nn.Tanh()

    def forward(self, state: dict, *, shift: tuple) -> dict:
        x = self.linear(state["x"])
        return {"x": self.a(x), "all": [*state["all"], x], "same": state["x"], "weight": self.linear.weight, "n": 3}


class Threaded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Structured() for _ in range(3)])

    def forward(self, x: torch.Tensor) -> dict:
        state = {"x": x, "all": [x]}
        for layer in self.layers:
            found = layer(state, shift=(1, 2.0))
            state = {"x": found["x"] + found["same"] + found["n"], "all": found["all"][-1:]}
            state["x"] = state["x"] * found["weight"].sum()
        return state


def test_structured_arguments_and_results():
    torch.manual_seed(0)
    model = Threaded()
    observed = agree(model, X)
    assert observed.reuses == ["Structured: followed 2 times, repeated 1 times"]


class Identity(nn.Module):
    """Results that are arguments, or views of them."""

    def __init__(self, view: bool) -> None:
        super().__init__()
        self.linear, self.a, self.b, self.view = nn.Linear(8, 8), nn.ReLU(), nn.Tanh(), view

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x[:, :8] if self.view else x


@pytest.mark.parametrize("view", [False, True])
def test_results_in_the_memory_of_arguments(view):
    class Changing(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).mul_(2)
            return x

    agree(Changing([Identity(view) for _ in range(3)]), X)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.a, self.b = nn.Linear(8, 8), nn.ReLU(), nn.Tanh()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.total += x.detach().sum(0)
        return self.linear(x) + self.total


def test_buffers_that_layers_change():
    torch.manual_seed(0)
    assert not agree(Stack([InPlace() for _ in range(3)]), X).reuses


def test_a_changed_layer_is_captured_anew_and_followed():
    model = stack(4)
    observed = watch(model)
    observed(X)
    model.layers[2].scale = 5.0
    assert_same(observed(X), model(X))
    assert "scale" in observed.recompiles[0]
    assert observed.reuses[-1] == "Layer: followed 2 times, repeated 2 times"
    model.layers[3].norm.weight = nn.Parameter(torch.full((8,), 3.0))
    assert_same(observed(X), model(X))
    assert len(observed.graphs) == 3


def test_gradients_taken_inside_go_through_repeated_layers():
    class Inner(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(super().forward(x).sum(), x)[0]

    torch.manual_seed(0)
    model = Inner([Layer() for _ in range(3)])
    agree(model, X.clone().requires_grad_())


def test_a_break_behind_repeated_layers():
    class Breaking(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            turret.graph_break()
            return super().forward(x * 2)

    torch.manual_seed(0)
    agree(Breaking([Layer() for _ in range(3)]), X.clone().requires_grad_(), breaks=2)


def test_layers_under_no_grad_and_autocast():
    class Modes(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](x)
            with torch.no_grad():
                x = self.layers[1](x) + self.layers[2](x)
            with torch.autocast("cpu", torch.bfloat16):
                return self.layers[3](x) + x

    torch.manual_seed(0)
    agree(Modes([Layer() for _ in range(4)]), X)


def test_sizes_that_change():
    model = stack(4)
    observed = watch(model)
    for rows in (3, 5, 7, 9):
        x = torch.randn(rows, 8)
        assert_same(observed(x), model(x))
    assert len(observed.graphs) == 2
    assert observed.reuses == ["Layer: followed 1 times, repeated 3 times"] * 2


@turret.nested_compile_region
def marked(layer: nn.Module, x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.tanh(layer(x)) * factor


@torch.compiler.nested_compile_region
def marked_for_torch(layer: nn.Module, x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.tanh(layer(x)) * factor


@pytest.mark.parametrize("region", [marked, marked_for_torch])
def test_marked_functions_are_followed_once_for_arguments_that_are_alike(region):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = region(self.two, region(self.one, x.sin(), 2.0), 2.0)
            return region(self.one, region(self.three, x, 2.0), 3.0)

    torch.manual_seed(0)
    (message,) = agree(Model(), X.clone().requires_grad_()).reuses
    assert message.endswith("followed 3 times, repeated 1 times")


def test_a_region_that_was_met_before_the_block_around_it():
    class Around(nn.Module):
        def __init__(self, bias: bool) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(8, 8, bias=bias), nn.ReLU(), nn.Tanh()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return marked(self.one, x.cos(), 2.0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Around(True), Around(True), Around(False), Around(True)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = marked(self.layers[0].one, x.cos(), 2.0)
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    model = Model()
    for layer in model.layers:
        layer.one.weight.requires_grad_(False)
    assert agree(model, X).reuses


def test_a_marked_method():
    class Method(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        @turret.nested_compile_region
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x @ self.weight

    assert "repeated 2" in agree(Stack([Method() for _ in range(3)]), X).reuses[0]


def test_a_marked_module_is_repeated_however_small():
    class Lines(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * self.start
            for layer in self.layers:
                x = layer(x)
            return x

    lines = [turret.nested_compile_region(nn.Linear(8, 8)) for _ in range(3)]
    assert "repeated 2" in agree(Lines(lines), X).reuses[0]
    with pytest.raises(OptionError, match="expected a function or a module"):
        turret.nested_compile_region(3)


def test_the_explanation_names_blocks():
    text = turret.explain(stack(4), options={"capture": "turret"})(X)
    assert text.reuses[0] == "Layer: followed 1 times, repeated 3 times"
    assert "Layer: followed 1 times" in str(text)


def test_compiled_training_is_eager_s():
    model = stack(4)
    theirs = copy.deepcopy(model)
    fast = turret.compile(model, options=OPTIONS)
    fast(X).square().sum().backward()
    theirs(X).square().sum().backward()
    for one, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


LAYERS = st.lists(
    st.tuples(
        st.sampled_from([8, 16]), st.booleans(), st.sampled_from([0.0, 0.5]), st.sampled_from([1.0, 2.0]),
        st.sampled_from(["", "frozen", "eval", "shared", "double", "hook", "doubled"]),
    ),
    min_size=2, max_size=6,
)  # fmt: skip


@settings(max_examples=10, deadline=None, derandomize=True)
@given(LAYERS, st.booleans(), st.booleans())
def test_stacks_of_any_layers_are_eager_s(rows, masked, gradients):
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inner, bias, p, scale, twist in rows:
        layer = Layer(inner=inner, bias=bias, p=p, scale=scale)
        if twist == "frozen":
            layer.requires_grad_(False)
        elif twist == "eval":
            layer.eval()
        elif twist == "shared" and layers:
            layer.norm = layers[-1].norm if isinstance(layers[-1], Layer) else layer.norm
        elif twist == "hook":
            layer.first.register_forward_hook(lambda m, a, out: out * 2)
        elif twist == "doubled" and layers:
            layer = layers[-1]
        layers.append(layer)
    x = X.clone().requires_grad_() if gradients else X
    agree(Stack(layers), x, *([torch.full((8,), 0.5)] if masked else []))


def test_layers_that_have_something_else_in_place_of_modules_are_looked_at():
    model = stack()
    for layer in model.layers:
        layer.modules = [layer.first]
    agree(model, X)


def test_layers_may_hand_on_a_number_that_changes():
    class Times(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, x, number):
            return self.layer(x) * number

    class Before(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(8), Times()

        def forward(self, x, **named):
            return self.inner(self.norm(x), **named)

    class Sized(Stack):
        def forward(self, x):
            number = x.shape[0]
            print(end="")
            for layer in self.layers:
                x = layer(x, number=number)
            return x

    model = Sized([Before() for _ in range(4)])
    compiled = turret.compile(model, options=OPTIONS, dynamic=True)
    for rows in (3, 5, 7):
        x = torch.ones(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
