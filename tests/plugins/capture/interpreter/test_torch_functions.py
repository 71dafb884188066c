"""Functions of torch that are no operations: answered while capturing, or without any effect there."""

from __future__ import annotations

import functools
import typing
from typing import Dict, List, Optional, Tuple, Union

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, check
from turret.errors import CaptureError


def test_torchs_count_of_its_own_uses_is_no_operation():
    def f(x):
        torch._C._log_api_usage_once("a name")
        return x + 1

    check(f, torch.ones(2), graphs=1)


@pytest.mark.parametrize(
    "question",
    [
        torch.cuda.is_available, torch.cuda.device_count, torch.backends.mkl.is_available,
        torch.backends.mps.is_available, torch.accelerator.is_available, torch.accelerator.device_count,
        torch.backends.cudnn.version,
    ],
)  # fmt: skip
def test_what_devices_there_are_is_known_while_capturing(question):
    answer = question()
    check(lambda x: (x + 1, question()), torch.ones(2), graphs=1)
    assert question() == answer


def test_questions_about_devices_are_asked_and_not_followed(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: eval("0"), raising=False)
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    observed = Observed(lambda x: x * (2 if torch.cuda.is_available() else 3), fullgraph=True)
    assert torch.equal(observed(torch.ones(2)), torch.full((2,), 3.0))


def test_tracing_may_be_switched_off_and_not_on():
    def f(x):
        before = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)
        y = x + 1
        torch._C._set_tracing_state(before)
        return y

    check(f, torch.ones(2), graphs=1)
    observed = Observed(lambda x, s: (torch._C._set_tracing_state(s), x + 1), fullgraph=True)
    with pytest.raises(CaptureError, match=r"torch\.jit\.trace"):
        observed(torch.ones(2), 1)


def test_annotations_of_torchscript_are_their_values():
    check(lambda x: torch.jit.annotate(List[int], [x.shape[0]]) + [1], torch.ones(2), breaks=0)
    check(lambda x: torch.jit.annotate(typing.Any, x) + 1, torch.ones(2), graphs=1)


@pytest.mark.parametrize(
    "kind",
    [
        str, torch.Tensor, (int, str), List[torch.Tensor], List[str], Dict[str, torch.Tensor],
        Tuple[torch.Tensor, int], Optional[Dict[str, torch.Tensor]], Union[int, str], list[torch.Tensor],
    ],
)  # fmt: skip
def test_types_that_torchscript_asks_for(kind):
    def f(x, *values):
        return x + 1, [torch.jit.isinstance(v, kind) for v in values]

    x = torch.ones(2)
    check(f, x, x, 1, "a", [x, x], ["a"], {"a": x}, (x, 1), (x,), None, graphs=1)


def test_types_made_while_running():
    def f(x, v):
        return x + 1, torch.jit.isinstance(v, List[str]), torch.jit.isinstance(v, Dict[str, torch.Tensor])

    check(f, torch.ones(2), ["a"], graphs=1)
    check(f, torch.ones(2), {"a": torch.ones(2)}, graphs=1)


def test_legacy_constructors_take_ranges():
    check(lambda x: (torch.LongTensor(range(x.shape[0])), x.new(range(1, 3)) + 1), torch.ones(3), graphs=1)


class Answering:
    """Answers for itself when torch's functions are called with it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return "answered"


ANSWERING, PLAIN = Answering(), object()


def test_what_is_like_a_tensor_is_told_as_in_eager():
    def f(x):
        like = [torch.overrides.is_tensor_like(o) for o in (x, ANSWERING, Answering(), Answering, PLAIN, 3, None)]
        asked = [torch.overrides.has_torch_function(v) for v in ((x,), (x, ANSWERING), (Answering(),), (PLAIN,), ())]
        each = torch.overrides.has_torch_function_unary(ANSWERING), torch.overrides.has_torch_function_unary(x)
        return like, asked, each, torch.overrides.has_torch_function_variadic(x, ANSWERING), x + 1

    check(f, torch.ones(2))


def test_functions_of_torch_ask_what_answers_for_itself():
    check(
        lambda x: (torch.nn.functional.relu(ANSWERING), torch.nn.functional.linear(x, ANSWERING), x + 1),
        torch.ones(2),
        breaks=None,
    )


def test_all_ways_to_ask_whether_code_is_compiled_answer_yes():
    import torch._dynamo as dynamo

    def f(x):
        answers = dynamo.is_compiling(), torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()
        return answers, x + 1

    observed = Observed(f, fullgraph=True)
    for _ in range(2):
        assert observed(torch.ones(2))[0] == (True, True, True)
    assert f(torch.ones(2))[0] == (False, False, False)


def test_attributes_of_partials_are_those_of_eager():
    bare, named = functools.partial(torch.add, other=1), functools.partial(torch.add, other=2)
    functools.update_wrapper(named, torch.nn.functional.relu)
    names = ("__call__", "func", "args", "keywords", "__name__", "__wrapped__", "__doc__", "__self__", "missing")

    def f(x):
        found = [[hasattr(p, n) for n in names] for p in (bare, named)]
        return found, named.__name__, callable(bare), bare.__call__(x), getattr(bare, "missing", 3)

    check(f, torch.ones(2), breaks=None)


def test_an_attribute_that_a_partial_gets_later_is_noticed():
    held = functools.partial(torch.add, other=1)

    def f(x):
        return x + 1 if hasattr(held, "marked") else x - 1

    observed = Observed(f)
    assert observed(torch.ones(2))[0] == 0
    held.marked = True
    assert observed(torch.ones(2))[0] == 2
    del held.marked
    assert observed(torch.ones(2))[0] == 0


@pytest.mark.parametrize(
    "question",
    [
        torch.is_autocast_cpu_enabled, torch._C._is_any_autocast_enabled, torch.is_grad_enabled, torch.get_autocast_cpu_dtype,
        torch.is_autocast_cache_enabled, torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack,
        torch._C._get_math_sdp_enabled,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_answers_are_of_the_place_where_the_program_asks(question):
    def program(x):
        found = [question()]
        with torch.autocast("cpu", torch.float16, cache_enabled=False), torch.no_grad():
            found.append(question())
            with torch.autocast("cpu", enabled=False), torch.nn.attention.sdpa_kernel([]):
                found.append(question())
        return x + 1, [*found, question()]

    observed = check(program, torch.ones(2), graphs=1)
    with torch.autocast("cpu"):
        assert observed(torch.ones(2))[1] == program(torch.ones(2))[1]


def test_the_tracers_own_modes_are_not_seen():
    stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack
    check(lambda x: (x + len(stack()), stack()), torch.ones(2), graphs=1)
