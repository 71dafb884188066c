"""Settings of torch that a program switches are switched in one graph, guarded, and left as eager leaves them."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed
from turret.frames.trace_modes import mode_values, restore_modes
from turret.torch_compat import settings

pytestmark = pytest.mark.usefixtures("torchs_settings")
PROGRAMS = {
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "deterministic, by name": lambda: torch.use_deterministic_algorithms(mode=True, warn_only=True),
    "not deterministic": lambda: torch.use_deterministic_algorithms(False),
    "debug mode": lambda: torch.set_deterministic_debug_mode("warn"),
    "fill": lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "products": lambda: torch.set_float32_matmul_precision("medium"),
    "tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "precision": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "reduced": lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn flags": lambda: torch.backends.cudnn.set_flags(_deterministic=True, _allow_tf32=False),
    "mkldnn": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "nnpack": lambda: torch.backends.nnpack.set_flags(False),
    "warnings": lambda: torch.set_warn_always(True),
}
ASKED = {
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "warn only": torch.is_deterministic_algorithms_warn_only_enabled,
    "debug mode": torch.get_deterministic_debug_mode,
    "fill": lambda: torch.utils.deterministic.fill_uninitialized_memory,
    "products": torch.get_float32_matmul_precision,
    "cudnn": lambda: torch.backends.cudnn.enabled,
    "benchmark": lambda: torch.backends.cudnn.benchmark,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
}


def left_by(function, *args):
    before = mode_values()
    try:
        return function(*args), mode_values()
    finally:
        restore_modes(before)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_switch_is_one_graph_and_is_left_as_eager_leaves_it(name):
    def function(v):
        w = v * 2
        PROGRAMS[name]()
        return torch.tanh(w)

    for first in (None, *PROGRAMS.values()):  # whatever is set before the call
        observed = Observed(function, fullgraph=True)
        left_by(observed, torch.ones(3))
        before = mode_values()
        if first is not None:
            first()
        expected, found = left_by(function, torch.ones(3)), left_by(observed, torch.ones(3))
        restore_modes(before)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]


@pytest.mark.parametrize("name", ASKED)
def test_answers_about_settings_are_those_of_the_moment(name):
    def function(v):
        return v + 1, ASKED[name](), [(switch(), ASKED[name]())[1] for switch in PROGRAMS.values()]

    for first in (None, *PROGRAMS.values()):
        observed = Observed(function, fullgraph=True)
        before = mode_values()
        if first is not None:
            first()
        try:
            expected = left_by(function, torch.ones(3))
        except RuntimeError:  # torch's, where two ways to set a precision were mixed
            with pytest.raises(RuntimeError):
                observed(torch.ones(3))
        else:
            assert left_by(observed, torch.ones(3))[0][1:] == expected[0][1:]
        restore_modes(before)


def test_precisions_are_taken_back_to_where_they_came_from():
    set_precision = torch._C._set_fp32_precision_setter
    set_precision("cuda", "matmul", "none")  # other tests may have given it one
    before = settings.float32_precisions()
    torch.set_float32_matmul_precision("medium")
    settings.set_float32_precisions(*before)
    assert settings.float32_precisions() == before
    set_precision("generic", "all", "tf32")  # what says nothing of its own follows it, as before
    changed = settings.float32_precisions()
    assert changed[4] == "tf32"
    settings.set_float32_precisions(*before)
    assert settings.float32_precisions() == before


def test_what_a_setter_refuses_the_program_gets():
    def function(v):
        try:
            torch.backends.cudnn.enabled = 3
        except RuntimeError as error:
            return v + 1, str(error)

    assert Observed(function, fullgraph=True)(torch.ones(3))[1] == function(torch.ones(3))[1]


def test_a_switch_in_a_branch_of_a_graph_breaks_it():
    def function(v):
        def branch(v):
            torch.use_deterministic_algorithms(True)
            return v + 1

        return torch.cond(v.sum() > 0, branch, lambda v: v - 1, (v,))

    observed = Observed(function)
    try:
        observed(torch.ones(3))
    except Exception:  # torch's own compiler captures the branches then, and takes no such call
        pass
    assert any("switched in a function" in m for m in observed.breaks + observed.fallbacks)
