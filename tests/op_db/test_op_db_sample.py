"""A sample of torch's table of operations through ``turret.compile``; all of it is ``tests/op_db/run.py``."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's table of operations imports it")

from tests.op_db.opinfo_check import RIGHT, Subject, check_case
from turret.testing.corpus.op_table import SKIPPED, Case, cases, samples

CASES = cases()
EVERY = 29


def test_the_table_has_every_operation_and_names_those_that_are_skipped():
    names = {name for case in CASES for name in (case.op.name, case.name)}
    assert len(names) > 500
    assert {name for name in SKIPPED if name not in names} == set()
    assert sum(case.dtype.is_complex for case in CASES) > 20


@pytest.mark.parametrize("case", [case for case in CASES if case.id in ("add:float32", "linalg.svd:float32")])
def test_samples_are_functions_of_flat_tensors(case: Case):
    for sample in samples(case, 3):
        inputs = sample.make_inputs()
        sample.function(*inputs.args)
        assert inputs.leaves == tuple(a for a in inputs.args if a.requires_grad)


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case.id)
@pytest.mark.thorough
def test_eager_agrees_with_itself(case: Case):
    outcome = check_case(case, Subject("eager", {}), count=1, forward=False)
    assert outcome["status"] in RIGHT, outcome["message"]


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda case: case.id)
@pytest.mark.thorough
def test_turret_agrees_with_eager(case: Case):
    outcome = check_case(case, Subject("turret", {}), count=1, forward=False)
    assert outcome["status"] in RIGHT, outcome["message"]


@pytest.mark.parametrize("name", ["add", "cat", "flip", "matmul", "roll", "softmax", "sum", "topk"])
@pytest.mark.thorough
def test_turret_agrees_with_eager_where_sizes_are_computed(name: str):
    case = next(case for case in CASES if case.id == f"{name}:float32")
    outcome = check_case(case, Subject("turret", {}, dynamic=True), count=1, forward=False, derived=True)
    assert outcome["status"] in RIGHT, outcome["message"]
