"""``turret.compile`` takes what ``torch.compile`` takes and means the same by it."""

from __future__ import annotations

import functools
import sys
import types

import pytest
import torch
from torch import nn

import turret
from turret.errors import CacheError, CaptureError, OptionError, PluginError, TurretError
from turret.hooks import plugin_manager
from turret.hooks.hookspecs import hookimpl

pytestmark = pytest.mark.usefixtures("fresh")


class Count:
    """Counts the graphs that are captured."""

    def __init__(self):
        self.graphs = 0
        self.shapes = []

    @hookimpl
    def turret_event(self, event):
        if event.kind == "product" and event.stage == "capture":
            self.graphs += 1
            self.shapes.append([str(s) for x in event.product.example_inputs for s in getattr(x, "shape", (x,))])


def double(x):
    return torch.sin(x) * 2


def test_a_function_computes_what_it_did():
    x = torch.randn(3, 5)
    torch.testing.assert_close(turret.compile(double)(x), double(x))


def test_it_decorates_with_and_without_arguments():
    @turret.compile
    def plain(x):
        return torch.sin(x) * 2

    @turret.compile(dynamic=False, options={"max_fusion_size": 8})
    def with_arguments(x):
        return torch.sin(x) * 2

    x = torch.randn(3, 5)
    torch.testing.assert_close(plain(x), double(x))
    torch.testing.assert_close(with_arguments(x), double(x))
    assert plain.__name__ == "plain"


def test_methods_compile_bound_and_as_decorated_functions_of_a_class():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @turret.compile
        def decorated(self, x):
            return torch.sin(x) * self.factor

        def plain(self, x):
            return torch.sin(x) * self.factor

    x = torch.randn(3, 5)
    for factor in (2, 3):
        scale = Scale(factor)
        torch.testing.assert_close(scale.decorated(x), torch.sin(x) * factor)
        torch.testing.assert_close(turret.compile(scale.plain)(x), torch.sin(x) * factor)


def test_a_decorated_forward_makes_a_module_compiled():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5))

        @turret.compile
        def forward(self, x):
            return torch.sin(x) * self.weight

    layer, x = Layer(), torch.randn(3, 5)
    torch.testing.assert_close(layer(x), torch.sin(x) * layer.weight)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.sin(x).sum(0))


def test_partials_and_callable_objects_compile():
    class Callable:
        def __call__(self, x):
            return double(x)

    x = torch.randn(3, 5)
    torch.testing.assert_close(turret.compile(Callable())(x), double(x))
    torch.testing.assert_close(turret.compile(functools.partial(torch.add, 1))(x), x + 1)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(OptionError, match=r"given 3 \(of type int\); expected a function"):
        turret.compile(3)


def test_keyword_arguments_defaults_and_nested_containers_go_through():
    def program(pair, *rest, scale=2, **named):
        return {"sum": pair[0] + rest[0] * scale, "list": [named["extra"], pair[1]]}

    x = torch.randn(3, 5)
    given = ((x, "kept"), x + 1)
    compiled = turret.compile(program)(*given, extra=x * 3)
    expected = program(*given, extra=x * 3)
    torch.testing.assert_close(compiled["sum"], expected["sum"])
    torch.testing.assert_close(compiled["list"][0], expected["list"][0])
    assert compiled["list"][1] == "kept"


def test_fullgraph_raises_at_a_graph_break_and_names_the_line():
    def broken(x):
        x = x + 1
        print("out of the graph")
        return x * 2

    assert turret.compile(broken, options={"on_error": "fallback"})(torch.ones(3)).tolist() == [4, 4, 4]
    with pytest.raises(CaptureError, match="print"):
        turret.compile(broken, fullgraph=True)(torch.ones(3))


def test_fullgraph_leaves_errors_of_the_program_alone():
    def program(x):
        return x.view(7, 7)

    with pytest.raises(Exception, match="7, 7"):
        turret.compile(program, fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize(("dynamic", "graphs"), [(False, 4), (True, 1), (None, 2)])
def test_dynamic_says_when_a_dimension_is_dynamic(dynamic, graphs):
    count = Count()
    compiled = turret.compile(double, dynamic=dynamic, plugins=[count])
    for length in (4, 5, 6, 7):
        x = torch.randn(length, 3)
        torch.testing.assert_close(compiled(x), double(x))
    assert count.graphs == graphs


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_all_four_modes_compute_the_same(mode):
    x = torch.randn(3, 5)
    torch.testing.assert_close(turret.compile(double, mode=mode)(x), double(x))


def test_modes_set_options_that_every_stage_sees():
    class Look:
        @hookimpl
        def turret_partition(self, context, joint):
            self.config = context.config

    expected = {
        "default": (False, False),
        "reduce-overhead": (True, False),
        "max-autotune": (True, True),
        "max-autotune-no-cudagraphs": (False, True),
    }
    for mode, (cudagraphs, max_autotune) in expected.items():
        look = Look()
        turret.compile(double, mode=mode, plugins=[look])(torch.randn(3, 5))
        assert (look.config.cudagraphs, look.config.max_autotune) == (cudagraphs, max_autotune)


def test_unknown_modes_and_options_name_the_nearest_known_one():
    with pytest.raises(OptionError, match=r"'reduce-overheads'; did you mean 'reduce-overhead'\?"):
        turret.compile(double, mode="reduce-overheads")
    with pytest.raises(OptionError, match=r"'partitoner' \(given 'min_cut'\); did you mean 'partitioner'\?"):
        turret.compile(double, options={"partitoner": "min_cut"})
    with pytest.raises(OptionError, match=r"'mincut', expected one of .*; did you mean 'min_cut'\?"):
        turret.compile(double, options={"partitioner": "mincut"})
    with pytest.raises(OptionError, match=r"'memory_budget' is 2.0, expected 0 to 1"):
        turret.compile(double, options={"memory_budget": 2})


def test_options_override_the_mode_and_the_mode_the_environment(monkeypatch):
    class Look:
        @hookimpl
        def turret_partition(self, context, joint):
            self.config = context.config

    look = Look()
    monkeypatch.setenv("TURRET_MAX_AUTOTUNE", "0")
    monkeypatch.setenv("TURRET_MEMORY_BUDGET", "0.5")
    turret.compile(double, mode="max-autotune", options={"cudagraphs": False}, plugins=[look])(torch.randn(3, 5))
    assert (look.config.cudagraphs, look.config.max_autotune, look.config.memory_budget) == (False, True, 0.5)


def test_lists_name_every_option_and_mode():
    options = turret.list_options()
    assert {"on_error", "partitioner", "cache", "guard_filter_fn"} <= set(options)
    assert all("default" in text for text in options.values())
    assert set(turret.list_mode_options()) == {
        "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs",
    }  # fmt: skip
    assert turret.list_mode_options("reduce-overhead") == {"cudagraphs": True}
    for mode_options in turret.list_mode_options().values():
        assert set(mode_options) <= set(options)
    with pytest.raises(OptionError, match="did you mean 'default'"):
        turret.list_mode_options("defualt")


def test_disable_gives_the_callable_back():
    layer = nn.Linear(2, 2)
    assert turret.compile(double, disable=True) is double
    assert turret.compile(disable=True)(layer) is layer


def test_a_backend_of_torch_s_own_names_is_torch_compile_s():
    x = torch.randn(3, 5)
    torch.testing.assert_close(turret.compile(double, backend="eager_noexcept")(x), double(x))


def test_backends_that_do_not_fit_are_refused_with_what_is_known():
    with pytest.raises(OptionError, match="'inductr'; did you mean 'inductor'"):
        turret.compile(double, backend="inductr")
    with pytest.raises(OptionError, match="expected a name or a function"):
        turret.compile(double, backend=7)
    with pytest.raises(OptionError, match="not both"):
        turret.compile(double, backend="inductor", mode="default", options={"max_autotune": True})
    with pytest.raises(OptionError, match="does not ask them"):
        turret.compile(double, backend="inductor", plugins=[Count()])


def test_plugins_hold_for_one_callable_alone():
    count = Count()
    x = torch.randn(3, 5)
    turret.compile(double)(x)
    assert count.graphs == 0
    turret.compile(double, plugins=[count])(x)
    turret.compile(double)(x)
    assert count.graphs == 1


def test_plugins_are_objects_classes_or_dotted_names(monkeypatch):
    x, module = torch.randn(3, 5), types.ModuleType("my_plugins")
    module.Count, module.turret_event = Count, hookimpl(lambda event: None)
    monkeypatch.setitem(sys.modules, "my_plugins", module)
    for plugin in (Count, "my_plugins:Count", "my_plugins"):
        torch.testing.assert_close(turret.compile(double, plugins=[plugin])(x), double(x))
    with pytest.raises(PluginError, match=r"no plugin 'turret\.nothing'"):
        turret.compile(double, plugins=["turret.nothing"])
    with pytest.raises(OptionError, match="expected a list"):
        turret.compile(double, plugins="turret.plugins.observers.logs")


def test_reset_forgets_compiled_code():
    count = Count()
    compiled = turret.compile(double, plugins=[count])
    x = torch.randn(3, 5)
    compiled(x)
    compiled(x)
    assert count.graphs == 1
    turret.reset()
    compiled(x)
    assert count.graphs == 2


def test_disabled_functions_run_as_plain_python_and_compiling_is_known():
    seen = []

    @turret.disable
    def plain(x):
        seen.append(turret.is_compiling())
        return x + 1

    def program(x):
        factor = 2 if turret.is_compiling() else 3
        return plain(x) * factor

    assert turret.compile(program)(torch.ones(2)).tolist() == [4, 4]
    assert seen == [False]
    assert program(torch.ones(2)).tolist() == [6, 6]


def test_a_named_cache_folder_that_cannot_be_used_is_an_error_at_once(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(CacheError, match="cannot be made"):
        turret.compile(double, options={"cache_dir": str(occupied)})


def test_grad_modes_follow_the_caller():
    x = torch.randn(3, 5, requires_grad=True)
    compiled = turret.compile(double)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x.detach()) * 2)


VALUES = [3, 2.5, float("nan"), "x", b"x", [], {"a": 1}, (1,), {1}, None, object(), True, torch.ones(2), len, torch, ""]
TAKEN = {
    "fullgraph": lambda v: isinstance(v, bool),
    "dynamic": lambda v: v is None or isinstance(v, bool),
    "disable": lambda v: isinstance(v, bool),
    "mode": lambda v: v is None,
    "backend": lambda v: v is None or callable(v),
    "options": lambda v: v is None,
    "plugins": lambda v: v in ([],) if isinstance(v, list) else False,
}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_a_wrong_argument_is_an_error_that_says_what_is_expected(name, value):
    if TAKEN[name](value):
        return
    with pytest.raises(TurretError, match=r"expected|unknown|known") as caught:
        turret.compile(double, **{name: value})
    assert name in str(caught.value) or "option" in str(caught.value) or "plugin" in str(caught.value)
    if name != "plugins":
        with pytest.raises(TurretError):
            turret.compile(**{name: value})(double)  # as a decorator


@pytest.mark.parametrize(
    "value", [v for v in VALUES if not callable(v) and v is not None], ids=lambda v: type(v).__name__
)
def test_what_cannot_be_called_is_an_error_that_says_so(value):
    for arguments in ({}, {"disable": True}, {"backend": "eager"}):
        with pytest.raises(OptionError, match="expected a function, a method or a module"):
            turret.compile(value, **arguments)


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_what_is_no_plugin_is_an_error_that_says_so(value):
    with pytest.raises(PluginError, match=r"implements no hook|no plugin"):
        turret.compile(double, plugins=[value])


@pytest.mark.parametrize("option", sorted(turret.list_options()))
@pytest.mark.parametrize("value", [object(), [], {"a": 1}, None, torch.ones(2), b"x"], ids=lambda v: type(v).__name__)
def test_a_wrong_option_is_an_error_that_says_what_is_expected(option, value):
    if option == "guard_filter_fn" and value is None:
        return
    declared = plugin_manager.default_manager().options.get(option)
    if declared is not None and declared.kind is tuple and value == []:
        return
    with pytest.raises(OptionError, match=rf"{option}.*expected"):
        turret.compile(double, options={option: value})
