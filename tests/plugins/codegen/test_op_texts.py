"""Code generators write every scalar op of the table, and take the texts of others from outside."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.codegen.cpp.operator_values import torch_has
from turret.contrib.opencl import language as opencl
from turret.errors import OptionError, UnsupportedError
from turret.graph.dtypes import COMPILED, HALF
from turret.graph.scalar_ops import OPS
from turret.ir.emit.op_texts import LANGUAGES
from turret.plugins.codegen.cpp.emission import operators as cpp
from turret.plugins.codegen.triton.emission import operators as triton

STRUCTURE = {"masked": "its condition decides where its argument is evaluated: emitters write it as a node of its own"}


def kinds(dtype: torch.dtype) -> tuple[str, ...]:
    half = ("half",) if dtype in HALF else ()
    return (*half, "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int")


def test_the_code_generators_of_the_tree_are_the_languages() -> None:
    assert {texts.language for texts in (cpp.TEXTS, triton.TEXTS, opencl.TEXTS)} == set(LANGUAGES)


@pytest.mark.parametrize("language", ["C++", "Triton", "OpenCL"])
def test_a_language_writes_every_op_for_all_its_dtypes_or_says_what_to_do_instead(language: str) -> None:
    texts = LANGUAGES[language]
    unwritten = []
    for name in OPS.keys() - STRUCTURE:
        for dtype in COMPILED:
            if torch_has(name, dtype) and not any((name, kind) in texts.missing for kind in kinds(dtype)):
                try:
                    texts.template(name, dtype, *kinds(dtype))
                except UnsupportedError:
                    unwritten.append(f"{name} of {dtype}")
    assert not unwritten


@pytest.mark.parametrize("language", ["C++", "Triton", "OpenCL"])
def test_a_language_writes_nothing_that_is_no_op(language: str) -> None:
    texts = LANGUAGES[language]
    assert {op for table in texts.tables.values() for op in table} <= set(OPS)
    assert {op for op, _ in texts.missing} <= set(OPS)


def test_what_is_missing_is_named_with_its_dtype_and_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"nextafter of torch.bfloat16 in C\+\+ kernels; cast to float32 first"):
        cpp.TEXTS.template("nextafter", torch.bfloat16, "half", "float")
    with pytest.raises(UnsupportedError, match=r"shl of torch.float32 has no meaning in Triton kernels"):
        triton.TEXTS.template("shl", torch.float32, "float")


def test_a_text_that_cannot_be_registered_is_refused_with_every_reason() -> None:
    with pytest.raises(OptionError, match=r"C\+\+ text of 'exp': it has templates already"):
        cpp.TEXTS.register("exp", float="x")
    with pytest.raises(OptionError, match=r"no kind 'complex'; there is a function 'min_of'.*; register it with"):
        cpp.TEXTS.register("erfcx", {"min_of": ""}, complex="x")
    with pytest.raises(OptionError, match="was not added"):
        cpp.TEXTS.unregister("exp")
