"""The core op set and the check that names what is outside it."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from turret.graph import op_set
from turret.graph.op_set import Family, family_of, outside_op_set, resolve, template_kind, why_unsupported

aten = torch.ops.aten


def test_every_listed_op_is_in_one_family_only():
    names = [name for text in op_set._TABLE_TEXT.values() for name in text.split()]
    assert len(names) == len(set(names))


def test_names_resolve_to_overloads():
    table = op_set.core_ops()
    assert len(table) > 300 and all(isinstance(op, torch._ops.OpOverload) for op in table)
    assert resolve("add.Tensor") is aten.add.Tensor
    assert resolve("prims.iota") is torch.ops.prims.iota.default
    assert resolve("no_such_op") is None


def test_families_of_some_ops():
    assert family_of(aten.exp.default) is Family.POINTWISE
    assert family_of(aten.sum.dim_IntList) is Family.REDUCTION
    assert family_of(aten.view.default) is Family.VIEW
    assert family_of(aten.mm.default) is Family.EXTERN
    assert family_of(aten.gelu.default) is None


def test_contractions_are_library_calls_of_a_kind_that_templates_can_take_over():
    assert template_kind(aten.addmm.default) == "matmul"
    assert template_kind(aten.convolution.default) == "convolution"
    assert template_kind(aten._scaled_dot_product_flash_attention.default) == "attention"
    assert family_of(aten.convolution.default) is Family.EXTERN
    assert template_kind(aten.sort.default) is None and template_kind(aten.add.Tensor) is None


def test_check_names_ops_outside_with_a_reason():
    module = make_fx(lambda x: torch.ops.aten.gelu(x + 1).sum(0))(torch.randn(3, 3))
    found = outside_op_set(module)
    assert [o.op for o in found] == ["aten.gelu.default"]
    assert found[0].reason == "no decomposition into the op set" and found[0].node in str(found[0])


def test_custom_and_higher_order_ops_are_outside():
    library = torch.library.Library("turret_surface_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    assert "custom op" in why_unsupported(torch.ops.turret_surface_test.twice.default)
    assert why_unsupported(torch.ops.higher_order.cond) == "higher-order op"
    assert why_unsupported(torch.ops.turret.seed.default) == ""
