"""What a program put into torch, its operators' code and libraries in C are told; torch as it is says nothing."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import subprocess
import sys
import types
from unittest import mock

import pytest
import torch

from turret.pipeline.keys.code_fingerprint import fingerprint
from turret.pipeline.keys.executed_code import recorded, unrecorded
from turret.pipeline.keys.libraries import extension_text
from turret.pipeline.keys.op_code import library_patches
from turret.pipeline.keys.operators import Opaque, library_operator, registrations

_names = itertools.count()


def test_torch_as_it_is_has_no_patches():

    assert library_patches() == ""


class _Called:
    def __call__(self, x):
        return x * 3


PATCHES = {
    "a method": lambda m, k: m.setattr(torch.Tensor, "my_ext", lambda self: self * k, raising=False),
    "a replaced method": lambda m, k: m.setattr(torch.Tensor, "split", lambda self, *_: self * k),
    "an operator": lambda m, k: m.setattr(torch.Tensor, "__add__", lambda self, other: self * k, raising=False),
    "a property": lambda m, k: m.setattr(torch.Tensor, "my_own", property(lambda self: self * k), raising=False),
    "a static method": lambda m, k: m.setattr(torch.Tensor, "my", staticmethod(lambda x: x * k), raising=False),
    "a value": lambda m, k: m.setattr(torch.Tensor, "my_value", k, raising=False),
    "a function": lambda m, k: m.setattr(torch.nn.functional, "softplus", lambda x: x * k),
    "a builtin": lambda m, k: m.setattr(torch, "relu", lambda x: x * k),
    "a builtin by another": lambda m, k: m.setattr(torch, "relu", (torch.sin, torch.cos)[k % 2]),
    "a builtin that functions call": lambda m, k: m.setattr(torch._C._nn, "gelu", lambda x: x * k),
    "a partial": lambda m, k: m.setattr(torch, "relu", functools.partial(torch.mul, k)),
    "a mock": lambda m, k: m.setattr(torch.nn.functional, "relu", mock.MagicMock(return_value=k)),
    "a reference": lambda m, k: m.setattr(torch._prims_common, "is_same_shape", lambda *_: k),
    "a decomposition": lambda m, k: m.setitem(
        torch._decomp.decomposition_table, torch.ops.aten.elu.default, lambda x: x * k
    ),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_is_told_with_its_code_and_gone_with_it(monkeypatch, name):
    found = []
    for k in (2, 2, 3):
        with monkeypatch.context() as patch:
            PATCHES[name](patch, k)
            try:
                found.append(library_patches())
            except Opaque as error:
                found.append(f"opaque {error}" if name == "a mock" else pytest.fail(str(error)))
        assert library_patches() == ""
    assert found[0] and (found[0].startswith("opaque") or found[0] == found[1] or name == "a mock")
    assert found[0].startswith("opaque") or found[0] != found[2]


def test_an_object_that_is_called_in_place_of_a_function_is_told(monkeypatch):
    monkeypatch.setattr(torch, "relu", _Called())
    assert "relu" in library_patches()


def test_a_kernel_of_torch_in_python_has_no_key():
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("special_zeta", lambda x, y: x, "AutogradCPU")
        with pytest.raises(Opaque, match="aten/special_zeta/AutogradCPU"):
            library_patches()
    finally:
        library._destroy()
    assert library_patches() == ""


def test_operators_of_torch_and_turret_are_libraries_and_functional_forms_of_others_are_not():
    import turret.graph.ops.random_ops
    from turret.graph.ops.functional_ops import functional_op

    assert library_operator(torch.ops.aten.add.Tensor) and library_operator(turret.graph.ops.random_ops.seed)
    assert library_operator(torch.ops.aten.add) and library_operator(torch.ops.higher_order.cond)
    op = written()
    assert not library_operator(op._opoverload) and not library_operator(functional_op(op._opoverload, "r"))


def written():
    @torch.library.custom_op(f"turret_op_code::written{next(_names)}", mutates_args=("x",))
    def op(x: torch.Tensor) -> None:
        x.add_(1)

    return op


def test_what_is_registered_for_an_operator_is_told():
    def made(**parts):
        @torch.library.custom_op("turret_op_code::one", mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return x * 1

        for part, value in parts.items():
            getattr(op, part)(*value) if isinstance(value, tuple) else getattr(op, part)(value)
        return fingerprint(op)[0]

    plain = made()
    assert made() == plain
    for part in ("register_fake", "register_autograd", "register_vmap"):
        one, same, other = made(**{part: lambda *a: 1}), made(**{part: lambda *a: 1}), made(**{part: lambda *a: 2})
        assert one == same and one not in (other, plain), part
    mode = torch.utils._python_dispatch.TorchDispatchMode
    rules = [made(register_torch_dispatch=(mode, lambda *a: 1)) for _ in range(2)]
    assert rules[0] == rules[1] != plain


def test_a_decomposition_that_is_registered_for_an_operator_is_told(monkeypatch):
    op = written()._opoverload
    before = fingerprint(op)[0]
    monkeypatch.setitem(torch._decomp.decomposition_table, op, lambda x: x * 2)
    assert fingerprint(op)[0] != before


def test_the_body_of_an_operator_runs_when_the_program_does_and_is_no_part_of_its_trace():
    def made(k):
        @torch.library.custom_op("turret_op_code::body", mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return x * k

        return fingerprint(op)[0]

    assert made(2) == made(3)


def test_a_library_in_c_is_told_by_its_content(tmp_path, monkeypatch):
    file = tmp_path / "in_c.so"
    module = types.ModuleType("in_c")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "in_c", module)
    texts = []
    for content in (b"one", b"two", b"one"):
        file.unlink(missing_ok=True)
        file.write_bytes(content)
        texts.append(extension_text("in_c"))
    assert texts[0] == texts[2] != texts[1]


def test_an_operator_in_c_is_told_by_every_library_that_may_hold_it(tmp_path, monkeypatch):
    """An operator of a namespace of the program's, with kernels that nobody registered from Python."""
    file = tmp_path / "in_c.so"
    module = types.ModuleType("in_c")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "in_c", module)
    texts = []
    for content in (b"one", b"two"):
        file.write_bytes(content)
        texts.append(str(list(registrations(torch.ops.aten.dropout.default))))
    assert texts[0] != texts[1] and "in_c.so" in texts[0]


# The record of what ran.


def helper(x):
    return x + 1


def test_the_record_has_the_program_s_functions_and_not_the_libraries():
    with recorded() as record:
        helper(1)
        (lambda: helper(2))()
        torch.nn.functional.relu(torch.ones(1))
        functools.reduce(lambda a, b: a + b, [1, 2])
    names = [code.co_name for code in record.codes]
    assert record.complete and sorted(names) == ["<lambda>", "<lambda>", "helper"]
    assert record.codes[helper.__code__] == __name__


def test_what_observers_run_and_what_an_import_runs_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "imported_in_a_trace.py").write_text("def g(): return 1\ng()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with recorded() as record:
        with unrecorded():
            helper(1)
        import imported_in_a_trace  # type: ignore[import-not-found]
    assert not record.codes
    with recorded() as record:
        imported_in_a_trace.g()
    assert [code.co_name for code in record.codes] == ["g"]


def test_what_runs_when_garbage_is_collected_is_left_out():
    def callback(phase, details):
        helper(1)

    gc.collect()  # generators of other tests, which run as they are closed
    gc.callbacks.append(callback)
    try:
        with recorded() as record:
            gc.collect()
    finally:
        gc.callbacks.remove(callback)
    assert not record.codes


def test_a_profiler_goes_on_and_is_put_back():
    seen = []

    def profile(frame, event, argument):
        seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        with recorded() as record:
            helper(1)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert record.complete and "helper" in seen and helper.__code__ in record.codes


def test_beside_a_profiler_in_c_the_record_has_what_ran_or_says_that_it_is_incomplete():
    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        with recorded() as record:
            helper(1)
    finally:
        profiler.disable()
    assert record.complete == (helper.__code__ in record.codes)  # both see all from Python 3.12 on


# Kernels that were registered from Python for torch's operators.

OF_TORCH = """
import torch
from turret.pipeline.keys import op_code
torch.vmap(lambda v: torch.addr(v, v[0], v[0]))(torch.ones(2, 3, 3))
assert "aten/addr/FuncTorchBatched" in torch.library._impls, "torch registers none any more"
assert op_code.library_patches() == ""
"""
REGISTRATIONS = {
    "through torch.library.impl": "torch.library.impl('aten::addmv', 'FuncTorchBatched')(lambda *args: args[0])",
    "under a library of its own": "mine.impl('addmv', lambda *args: args[0], 'FuncTorchBatched')",
    "in place of one of torch's": "mine.impl('addr', lambda *args: args[0], 'FuncTorchBatched', allow_override=True)",
    "for every key": "mine.impl('addmv', lambda *args: args[0], 'CompositeImplicitAutograd')",
    "for no key": "mine.impl('addmv', lambda *args: args[0])",
}


ASKED = """
import json, os, sys
for name, registration in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        mine, told = torch.library.Library('aten', 'IMPL'), ""
        exec(registration)
        try:
            op_code.library_patches()
        except op_code.Opaque as error:
            told = str(error)
        print(json.dumps([name, told]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Each registration in a copy of the process, as what torch's libraries were told stays."""


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What is said of each of the registrations, in a process that torch has registered kernels of its own in."""
    command = [sys.executable, "-W", "ignore", "-c", OF_TORCH + ASKED, json.dumps({"none": "", **REGISTRATIONS})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def test_kernels_that_torch_itself_registers_for_transforms_are_no_change_of_torch(told):
    assert told["none"] == ""


@pytest.mark.parametrize("registration", REGISTRATIONS)
def test_a_kernel_that_a_program_registers_for_an_operator_of_torch_is_told(told, registration):
    assert "kernels of torch" in told[registration]
