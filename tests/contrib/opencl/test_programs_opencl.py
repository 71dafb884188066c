"""Programs compiled with OpenCL kernels show what eager shows, and every loop of theirs is such a kernel."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

import turret
from tests.contrib.opencl.opencl_lab import Kernels, compiled
from tests.op_db.opinfo_check import RIGHT, Subject, check_case
from turret.contrib.opencl import Plugin, language
from turret.testing import Program, assert_same, check, programs
from turret.testing.corpus.op_table import cases

CASES = cases()
EVERY = 41
PLUGIN = Plugin()


def compiler(function):
    return turret.compile(function, plugins=[PLUGIN], options={"on_error": "raise"})


@settings(max_examples=5)
@given(programs())
def test_random_programs_show_what_eager_shows(program: Program) -> None:
    check(program, compiler)


class OnOpenCl(Subject):
    def __call__(self, function):
        plugins = [self.counter, PLUGIN]
        return turret.compile(function, dynamic=False, plugins=plugins, options={"on_error": "raise"})


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case.id)
def test_a_sample_of_torchs_operations_agrees_with_eager(case) -> None:
    outcome = check_case(case, OnOpenCl("turret", {}), count=1, forward=False)
    assert outcome["status"] in RIGHT, outcome["message"]


def normalised(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b).softmax(-1).cumsum(0).amax(1)


def gathered(table, places, other):
    picked = table[places] * other.unsqueeze(-1)
    return picked, torch.zeros_like(table).index_add(0, places, picked)


def divided(a, b):
    return a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"), (a.float() / b).to(torch.int16)


def extremes(x):
    return x.amax(-1), x.argmin(-1), torch.minimum(x, x.flip(-1)), x.max(), x.cummax(-1)[0], x.var(-1)


def in_place(x, y):
    x.mul_(y).add_(1)
    x[1:].copy_(y[:-1])
    return x.t(), x


def mixed(x):
    return x * 2 + 1, x.float().exp(), x.sum(0), x.mean(-1), x.double().sin().to(x.dtype)


NAN = torch.tensor([[1.0, float("nan"), -0.0], [0.0, float("-inf"), 3.0]])
INTS = torch.tensor([-9, -7, -1, 0, 1, 6, 7, 9])
SAMPLES = {
    "rows and scans": (normalised, lambda: [torch.randn(7, 33), *(torch.randn(33, requires_grad=True) for _ in "wb")]),
    "gathers and scatters": (
        gathered,
        lambda: [torch.randn(9, 5, requires_grad=True), torch.tensor([8, 0, -1, 8, 8]), torch.randn(5)],
    ),
    "signs of quotients": (divided, lambda: [INTS.repeat_interleave(3), torch.tensor([-4, 3, 5]).repeat(8)]),
    "8-bit quotients": (divided, lambda: [INTS.to(torch.int8), torch.tensor([-4, 3, 5, 2] * 2, dtype=torch.int8)]),
    "NaN in minima and maxima": (extremes, lambda: [NAN.clone()]),
    "writes to inputs": (in_place, lambda: [torch.randn(6, 6), torch.randn(6, 6)]),
    "bfloat16": (mixed, lambda: [torch.randn(5, 40).bfloat16().requires_grad_()]),
    "float16": (mixed, lambda: [torch.randn(5, 40).half().requires_grad_()]),
    "no elements": (mixed, lambda: [torch.randn(0, 4)]),
    "no dimensions": (lambda x, n: (x * 2 + n, x.sum(), (x > 0) & (n > 1)), lambda: [torch.randn(()), torch.tensor(3)]),
    "booleans": (lambda x: (x.any(0), x.all(-1), x ^ ~x, x.sum(), x.cumsum(0)), lambda: [torch.randn(4, 9) > 0]),
    "padding": (lambda x: F.pad(x, (2, 1)).unfold(-1, 3, 2).exp(), lambda: [torch.randn(3, 8, requires_grad=True)]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_program_shows_what_eager_shows(name: str) -> None:
    function, make = SAMPLES[name]
    assert_same(function, compiler(function), make)


def test_all_kernels_of_a_plan_are_opencl_and_nothing_is_compiled_as_cpp() -> None:
    kernels = Kernels()
    function = compiled(lambda x, w: torch.relu(x @ w).softmax(-1).sum(0), kernels)
    w = torch.randn(8, 6, requires_grad=True)
    function(torch.randn(5, 8), w).sum().backward()
    assert len(kernels.plans) == 2 and all("__kernel void turret" in plan.source for plan in kernels.plans)
    assert "#include" not in "".join(plan.source for plan in kernels.plans)


def test_one_program_serves_all_sizes_of_a_dimension() -> None:
    kernels = Kernels()
    function = compiled(lambda x: (x.softmax(-1), x.cumsum(0), x.reshape(-1) * x.shape[0]), kernels, dynamic=True)
    for shape in ((5, 7), (2, 300), (64, 3), (130, 129)):
        x = torch.randn(shape)
        want = x.softmax(-1), x.cumsum(0), x.reshape(-1) * x.shape[0]
        torch.testing.assert_close(function(x), want)
    assert len(kernels.plans) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_work_groups_share_long_loops(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(300, 2001)
        result = compiled(lambda x: (x.sin(), x.sum(-1), x.sum(0), x.argmax(0)))(x)
        torch.testing.assert_close(result, (x.sin(), x.sum(-1), x.sum(0), x.argmax(0)), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        (lambda x, i: x[i] + 1, (torch.randn(4), torch.tensor([0, 4])), IndexError),
        (lambda x, i: x[i] + 1, (torch.randn(4), torch.tensor([-5, 1])), IndexError),
        (lambda a, b: a // b, (torch.tensor([1, 2]), torch.tensor([1, 0])), RuntimeError),
        (lambda x, i: x.gather(0, i) * 2, (torch.randn(4), torch.tensor([9])), RuntimeError),
    ],
)
def test_errors_in_kernels_are_eagers(function, arguments, error) -> None:
    with pytest.raises(error):
        function(*arguments)
    with pytest.raises(error):
        compiled(function)(*arguments)


def test_threads_share_a_program() -> None:
    function = compiled(lambda x: (x.softmax(-1), (x * 2).sum(0)))
    inputs = [torch.randn(50, 60) for _ in range(16)]
    function(inputs[0])
    with ThreadPoolExecutor(8) as pool:
        for x, (rows, total) in zip(inputs * 4, pool.map(function, inputs * 4), strict=True):
            torch.testing.assert_close(rows, x.softmax(-1))
            torch.testing.assert_close(total, (x * 2).sum(0))


def test_random_numbers_are_those_of_the_other_code_generators() -> None:
    def drawn(x):
        noise = torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 100)
        return *noise, F.dropout(x, 0.3), torch.rand_like(x, dtype=torch.float64), torch.randn_like(x.bfloat16())

    x = torch.ones(40, 50)
    torch.manual_seed(3)
    found = compiled(drawn)(x)
    torch.manual_seed(3)
    for one, other in zip(found, turret.compile(drawn)(x), strict=True):
        torch.testing.assert_close(one, other)


def test_what_kernels_cannot_do_runs_eagerly_with_a_warning_or_is_an_error(monkeypatch) -> None:
    monkeypatch.delitem(language.TEXTS.tables["float"], "tanh")
    x = torch.randn(7)
    reason = r"turret\.contrib\.opencl\.Plugin.*tanh of float has no meaning in OpenCL kernels"
    with pytest.raises(turret.TurretError, match=reason):
        compiled(lambda x: x.tanh() + 1)(x)
    function = turret.compile(lambda x: x.tanh() + 1, plugins=[PLUGIN], options={"cache": False})
    with pytest.warns(turret.TurretWarning, match=reason):
        torch.testing.assert_close(function(x), x.tanh() + 1)


PROCESS = """
    import sys, torch, turret
    from turret.contrib.opencl import Plugin

    class Misses:
        cache_key = "misses"
        count = 0

        @turret.hookimpl
        def turret_event(self, event):
            self.count += event.kind == "stage_ended" and event.stage == "codegen"

    misses = Misses()
    function = turret.compile(lambda x: x.exp().sum(-1), plugins=[Plugin(), misses], options={"on_error": "raise"})
    result = function(torch.ones(3, 4))
    print(misses.count, "sympy" in sys.modules)
    torch.testing.assert_close(result, torch.ones(3, 4).exp().sum(-1))
"""


def test_a_second_process_takes_the_programs_binary_from_the_cache_and_traces_nothing(tmp_path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROCESS))
    environment = {**os.environ, "TURRET_CACHE_DIR": str(tmp_path / "cache"), "POCL_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(script)]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == ["1 True", "0 False"], [run.stderr for run in runs]


def test_a_forked_process_is_refused_rather_than_left_waiting() -> None:
    function = compiled(lambda x: x.sin() + 1)
    x = torch.randn(5)
    function(x)

    def child(results) -> None:
        try:
            function(x)
        except turret.TurretError as error:
            results.put(str(error))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert "spawn" in results.get(timeout=60)
    process.join(60)
