"""Random functions of numbers that a tensor's data give, and of tensors whose sizes they give: ``item``, ``tolist``,
masks, what is computed of these in Python, and operators of torch that take them.

Kinds: ``int``, ``float``, ``bool`` (all of data, mostly), ``vec`` (a dimension, floats), ``mat`` (two), ``ten`` (any number of them),
``mask`` (a dimension, bools), ``places`` (a dimension, ints), ``scalar`` (a tensor without dimensions), ``shape``.

Variances are drawn of small numbers only: of numbers whose squares no float holds, rounding decides what overflows.
"""

from __future__ import annotations

import ast
import random
import re

from tests.fuzz.function_expressions import Grammar, rule, rules_of
from tests.fuzz.function_prelude import MARK

DATA_PRELUDE = '''
import math, operator
import torch
from torch.nn import functional as F

def written(x, at, value):
    """A copy in which something is written."""
    made = x.clone()
    made[at] = value
    return made

def longer(v):
    return v * 2

def kept(v):
    return v + 0

DYNAMIC, GRADIENTS, MARKED = None, False, False
'''
"""What a program finds in its module; the last line are settings, which it may give anew."""

_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp)
_FEATURES = ("checks", "writes", "loops", "masks", "floats", "bools", "branches")
_RESULTS = ("int", "float", "bool", "vec", "mat", "ten", "mask", "places", "scalar", "shape")


class DataWriter(Grammar):
    """Writes one program of numbers of data; the same one for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"data {seed}")
        self.features = frozenset(f for f in _FEATURES if self.random.random() < (0.15 if f == "branches" else 0.6))
        self.kinds: dict[str, list[str]] = {"vec": ["x"], "mat": ["w"], "places": ["m"]}
        self.lines: list[str] = []
        self.indent = "    "

    def some(self, kind: str, deep: int = 2) -> str:
        text = super().some(kind, deep)
        body = ast.parse(text, mode="eval").body
        return f"({text})" if isinstance(body, _OPERATORS) and body.col_offset == 0 else text

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def bind(self, kind: str, expression: str) -> None:
        names = self.kinds.setdefault(kind, [])
        names.append(f"{kind[0] if kind != 'mask' else 'k'}{sum(map(len, self.kinds.values()))}")
        self.line(f"{names[-1]} = {expression}")

    # Ints.

    @rule("int", 6)
    def leaf_int(self, d: int) -> str:
        return self.one(
            "int(m[0])",
            "m[1].item()",
            "int(m[2])",
            "m.max().item()",
            "int(m.min())",
            "m.tolist()[0]",
            "int((x > 1).sum())",
        )

    @rule("int", 1)
    def leaf_int_of_shape(self, d: int) -> str:
        v = self.var(self.one("vec", "vec", "ten"))
        return self.one(f"{v}.shape[0]", f"{v}.numel()", f"len({v})", f"{v}.size(-1)", f"{v}.dim()")

    @rule("int", 1)
    def leaf_constant(self, d: int) -> str:
        return str(self.random.randint(-1, 4))

    @rule("int", 5)
    def int_of_ints(self, d: int) -> str:
        i, j, c = self.some("int", d), self.some("int", d), self.one("1", "2", "3", "-1")
        return self.one(
            f"({i} + {j})", f"({i} - {j})", f"({i} * {c})", f"({i} // {self.one('2', '3', '-2', j)})", f"({i} % {self.one('2', '3', '-3', j)})",
            f"(-{i})", f"abs({i})", f"max({i}, {c})", f"max({c}, {i})", f"min({i}, {j})", f"max(0, {i})", f"min(5, max(0, {i}))",
            f"({i} * {j})", f"({i} + {c})", f"({i} - {c})", f"({i} ** 2)", "sum(m.tolist())", f"divmod({i}, 2)[1]", f"({i} << 1)", f"({i} & 3)",
            f"({i} | 1)", f"({i} >> 1)", f"(~{i})", "max(m.tolist())", f"torch.sym_max({i}, {j})", f"torch.sym_min({i}, {c})", f"operator.index({i})",
        )  # fmt: skip

    @rule("int", 1.5, "floats")
    def int_of_float(self, d: int) -> str:
        f = self.some("float", d)
        return self.one(f"int({f})", f"round({f})", f"math.floor({f})", f"math.ceil({f})", f"math.trunc({f})")

    @rule("int", 1.5, "bools")
    def int_of_bool(self, d: int) -> str:
        b, i = self.some("bool", d), self.some("int", d)
        return self.one(
            f"int({b})",
            f"({b} + {i})",
            f"({b} * {i})",
            f"(+{b})",
            f"({b} + {self.some('bool', 0)})",
            f"torch.sym_ite({b}, {i}, 2)",
        )

    # Floats.

    @rule("float", 5)
    def leaf_float(self, d: int) -> str:
        return self.one(
            "t[0].item()",
            "float(t[1])",
            "t.tolist()[2]",
            "x.sum().item()",
            "t.max().item()",
            "float(x.amax())",
            "t.sum().item()",
            "float(t[0])",
        )

    @rule("float", 1)
    def leaf_float_of_int(self, d: int) -> str:
        i = self.some("int", 0)
        return self.one(f"float({i})", f"({i} / 2)", f"({i} * 0.5)", f"({i} + 0.5)", f"{i} / 4", "1.5")

    @rule("float", 5)
    def float_of_floats(self, d: int) -> str:
        f, g, c = (
            self.some("float", d),
            self.some("float", d),
            self.one("0.5", "2.0", "0.0", "-0.0", "1", "0", "-1.5", "3"),
        )
        return self.one(
            f"({f} + {g})", f"({f} - {g})", f"({f} * {g})", f"({f} / {c})", f"({c} / {f})", f"({f} * {c})", f"({c} * {f})", f"({f} - {c})", f"({c} - {f})",
            f"(-{f})", f"abs({f})", f"max({f}, {c})", f"max({c}, {f})", f"min({f}, {g})", f"min({c}, {f})", f"round({f}, 1)", f"({f} ** 2)", f"({f} // {c})",
            f"({f} % {c})", f"({f} + {c})", f"max({f}, {g})", f"(+{f})", f"({f} / {g})", "sum(t.tolist())", "max(t.tolist())", f"({f} + {self.some('int', 0)})",
            f"({f} * {self.some('int', 0)})", f"({self.some('int', 0)} - {f})", f"({f} ** 0.5)", f"torch.sym_float({self.some('int', 0)})",
            f"float(max({f}, 1))", f"max({f}, {self.some('int', 0)})", f"min({self.some('int', 0)}, {f})", f"({f} ** {self.some('int', 0)})", f"divmod({f}, 2)[0]",
        )  # fmt: skip

    @rule("float", 2, "floats")
    def float_of_math(self, d: int) -> str:
        f = self.some("float", d)
        return self.one(
            f"math.sqrt({f})", f"math.exp({f})", f"math.log({f})", f"math.sin({f})", f"math.atan2({f}, 1.0)", f"math.fabs({f})", f"math.copysign({f}, 2.0)", f"math.copysign({f}, -1.0)",
            f"math.pow({f}, 2)", f"math.hypot({f}, 1.0)", f"math.fmod({f}, 2.0)", f"math.tanh({f})", f"math.degrees({f})", f"math.log1p(abs({f}))", f"math.log2({f})", f"math.modf({f})[0]",
            f"math.ldexp({f}, 2)", f"float(math.floor({f}))", f"torch.sym_sqrt({f})" if self.random.random() < 0.2 else f"math.cosh({f})", f"math.erf({f})",
        )  # fmt: skip

    @rule("float", 1, "bools")
    def float_of_bool(self, d: int) -> str:
        b, f = self.some("bool", d), self.some("float", d)
        return self.one(f"float({b})", f"({b} * {f})", f"({f} + {b})", f"({b} / 2)")

    # Bools.

    @rule("bool", 2)
    def leaf_bool(self, d: int) -> str:
        return self.one(
            "bool(x[0] > 0)",
            "(m > 1).any().item()",
            "bool((t > 0).all())",
            "(m > 2).tolist()[0]",
            "t.isnan().any().item()",
            "bool(m[0])",
            "bool(t[1])",
            "torch.isfinite(t[0]).item()",
        )

    @rule("bool", 4)
    def bool_of_numbers(self, d: int) -> str:
        kind, sign = self.one("int", "float"), self.one("<", "<=", ">", ">=", "==", "!=")
        a, b, c = self.some(kind, d), self.some(kind, d), self.some(kind, 0)
        return self.one(
            f"({a} {sign} {b})", f"({a} {sign} {self.one('0', '1', '2', '0.5', '-1')})", f"({self.one('0', '1', '1.0')} {sign} {a})", f"({a} {sign} {a})",
            f"(not {a} {sign} {b})", f"bool({a})", f"(not {a})", f"isinstance({a}, {kind})", f"({a} {sign} {self.some('int', 0)})", f"({a} {sign} {c} {sign} 3)",
        )  # fmt: skip

    @rule("bool", 2, "bools")
    def bool_of_bools(self, d: int) -> str:
        a, b, f = self.some("bool", d), self.some("bool", d), self.some("float", 0)
        return self.one(
            f"({a} & {b})", f"({a} | {b})", f"({a} ^ {b})", f"(not {a})", f"({a} == {b})", f"({a} != True)", f"({a} < {b})", f"({a} and {b})", f"({a} or {b})",
            f"torch.sym_not({a})", f"math.isnan({f})", f"math.isinf({f})", f"math.isfinite({f})", f"max({a}, {b})", f"all([{a}, {b}])", f"any([{a}, {b}])", f"({a} is True)",
        )  # fmt: skip

    # Vectors.

    @rule("vec", 3)
    def leaf_part(self, d: int) -> str:
        v, i, j, c = self.var("vec"), self.some("int", 1), self.some("int", 0), self.one("-1", "0", "1", "2")
        return self.one(
            f"{v}[:{i}]", f"{v}[{i}:]", f"{v}[-{i}:]" if i[0] not in "-(" else f"{v}[-abs({i}):]", f"{v}[{i}:{j}]", f"{v}[::max({i}, 1)]", f"{v}[::{i}]", f"{v}[{c}:{i}]", f"{v}[{i}:{c}]",
            f"{v}.narrow(0, 0, {i})", f"{v}.narrow(0, {i}, 1)", f"{v}.narrow(0, {j}, {i})", f"torch.split({v}, [{i}, {v}.shape[0] - {i}])[{self.one('0', '1')}]", f"{v}.split([{i}, 5 - {i}])[0]",
            f"{v}[{i}::2]", f"{v}.unfold(0, {i}, 1).reshape(-1)", f"{v}.chunk({i})[0]", f"{v}.tensor_split({i})[0]", f"torch.tensor_split({v}, [{i}])[1]", f"{v}.split({i})[0]",
        )  # fmt: skip

    @rule("vec", 3)
    def leaf_made(self, d: int) -> str:
        i, f, v, j = self.some("int", 1), self.some("float", 0), self.var("vec"), self.some("int", 0)
        return self.one(
            f"torch.zeros({i})", f"torch.ones({i})", f"torch.full(({i},), {f})", f"torch.arange({i}) * 1.0", f"torch.arange({i}, {j}) * 0.5", f"torch.linspace(0, 1, {i})", f"torch.linspace(0, {f}, 3)",
            f"torch.full((2,), {f})", f"{v}.new_zeros({i})", f"{v}.new_full(({i},), {f})", f"torch.full_like({v}, {f})", f"torch.full_like({v}, {j})", f"torch.tensor([{f}, {f}, 1.0])", f"torch.arange(0, {i}, 2) * 1.0",
            f"torch.tensor([{i}, {j}]) * 1.0", f"torch.arange({i}, -2, -1) * 1.0", f"torch.full(({i},), {j}) * 0.5", f"torch.arange(0.0, min({f}, 9.0), 0.5)", f"torch.empty({i}).fill_({f})", f"torch.full((3,), {i}, dtype=torch.float32)",
        )  # fmt: skip

    @rule("vec", 3)
    def repeated(self, d: int) -> str:
        v, i, s = self.some("vec", d), self.some("int", d), self.some("scalar", 0)
        return self.one(
            f"{v}.repeat({i})", f"F.pad({v}, ({i}, 0))", f"F.pad({v}, (0, {i}), value={self.some('float', 0)})", f"F.pad({v}, (1, {i}))", f"{v}.repeat_interleave({i})", f"{v}.roll({i})", f"{v}[:1].expand({i})",
            f"torch.cat([{v}, {self.var('vec')}])", f"torch.cat([{v}, torch.ones({i})])", f"{v}.view({i}, -1).reshape(-1)", f"{s}.expand({i})", f"{s}.repeat({i})", f"{v}.tile({i})", f"torch.stack([{s}, {s} * 2])",
            f"torch.cat([{v}[:{i}] * 2, {v}[{i}:]])", f"{v}.topk({i})[0]", f"{v}.as_strided(({i},), (1,))", f"{v}.resize_as(torch.ones({i}))" if self.random.random() < 0.1 else f"{v}.flip(0)",
        )  # fmt: skip

    @rule("vec", 4)
    def with_number(self, d: int) -> str:
        v, n = self.some("vec", d), self.some(self.one("float", "float", "int", "bool"), d)
        f, i = self.some("float", 0), self.some("int", 0)
        return self.one(
            f"({v} * {n})", f"({v} + {n})", f"({n} - {v})", f"({v} / {n})", f"({n} / {v})", f"{v}.clamp(max={n})", f"{v}.clamp(min={n})", f"{v}.clamp({f}, {n})", f"torch.where({v} > 1, {v}, {n})", f"torch.where({v} > {n}, {v}, {f})",
            f"{v}.masked_fill({v} > 1, {n})", f"torch.where({v} > 1, {n}, {f})", f"{v}.add({v}, alpha={n})", f"torch.lerp({v}, {v} * 2, {f})", f"{v}.pow({n})", f"torch.pow({n}, {v})", f"({v} % {n})", f"({v} // {n})",
            f"torch.addcmul({v}, {v}, {v}, value={n})", f"F.leaky_relu({v}, {f})", f"F.threshold({v}, {f}, {f})", f"torch.nan_to_num({v} * {n}, {f})", f"F.softplus({v}, {f})", f"F.elu({v}, {f})", f"{v}.fmod({n})",
            f"F.hardtanh({v}, {f}, 4.0)", f"torch.sub({v}, {n})", f"torch.maximum({v}, torch.tensor({f}))", f"({v} * torch.tensor({n}))", f"torch.full_like({v}, {n})", f"{v}.remainder({n})", f"({v} + torch.full((), {n}))",
            f"({v} ** {i})", f"({v} * ({n} == {f}))", f"torch.isclose({v}, {v} + 0.5, atol={f}) * 1.0", f"F.layer_norm({v}, {v}.shape, eps={f})", f"torch.special.xlog1py({v}, {n})", f"torch.copysign({v}, {i})",
            f"torch.where({self.some('bool', 0)}, {v}, {n})" if self.random.random() < 0.3 else f"{v}.mul({n})", f"F.dropout({v}, {f}, False)", f"torch.clamp({v}, {i}, {n})", f"({v} * {n}).to(torch.int64) * 1.0",
        )  # fmt: skip

    @rule("vec", 3, "masks")
    def selected(self, d: int) -> str:
        v, k, n = self.some("vec", d), self.var("mask"), self.some(self.one("int", "float"), 0)
        return self.one(
            f"{v}[{v} > {n}]", f"{v}[{v} < {n}]", f"torch.masked_select({v}, {v} > {n})", f"({v} > {n}).nonzero().squeeze(1) * 1.0", f"({v} > {n}).nonzero().squeeze(-1) * 0.5", f"{v}.unique()", f"{v}.clamp(max={n}).unique()",
            f"torch.where({v} > {n})[0] * 1.0", f"{v}[({v} > {n}).nonzero().flatten()]", f"x[{k}]", f"{v}.repeat_interleave({v}.detach().clamp(0, 3).to(torch.int64))", "torch.arange(3.0).repeat_interleave(m.clamp(0, 3))", "torch.bincount(m.clamp(0)) * 1.0",
            f"{v}[torch.isnan({v}) == False]", f"torch.unique_consecutive({v})", f"torch.argwhere({v} > {n})[:, 0] * 1.0", f"{v}.index_select(0, ({v} > {n}).nonzero().view(-1))", f"{v}.masked_scatter({v} > {n}, {v}[{v} > {n}] * 2)",
            f"{v}.unique(return_counts=True)[1] * 1.0", f"torch.bincount(m.abs(), minlength={n if isinstance(n, int) else 2}) * 1.0", f"{v}.unique(return_inverse=True)[1] * 1.0", f"w[w > {n}]", f"w[{self.one('w[:, 0]', 'w.sum(1)')} > {n}].sum(0)",
        )  # fmt: skip

    @rule("vec", 5)
    def changed(self, d: int) -> str:
        v, u = self.some("vec", d), self.var("vec")
        return self.one(
            f"{v}.relu()", f"({v} + torch.ones(1))", f"({v} + torch.ones(5))", f"({v} * {u})", f"({v} + {u})", f"{v}.cumsum(0)", f"{v}.sort()[0]", f"{v}.softmax(0)", f"{v}.flip(0)", f"{v}[1:]", f"{v}[::2]", f"{v}[:-1]",
            f"torch.outer({v}, {u}).sum(0)", f"({v}[:, None] * {u}).sum(1)", f"{v}.clone()", f"{v}.contiguous()", f"{v}[torch.arange({v}.shape[0])]", f"{v}.cummax(0)[0]", f"{v}.diff()", f"torch.where({v} > 1, {v}, 0.0)", f"({v} * {v}.numel())",
            f"({v} + {v}.shape[0])", f"({v} / {v}.shape[0])", f"{v}.roll(1, 0)", f"{v}.argsort() * 1.0", f"torch.zeros_like({v}) + 1", f"{v}.new_zeros({v}.shape) + 1", f"{v}.gather(0, torch.zeros_like({v}, dtype=torch.int64))", f"{v}.view(1, -1).squeeze(0)",
            f"{v}.unsqueeze(0).expand(2, -1).sum(0)", f"{v}[:{v}.shape[0] // 2]", f"torch.cat([{v}, {v}])", f"{v}.reshape(-1, 1).squeeze()", f"{v}.squeeze()", f"{v}.logcumsumexp(0)", f"F.pad({v}, (1, 1))", f"{v}.index_add(0, torch.tensor([0]), torch.ones(1, dtype={v}.dtype))",
            f"{v}.scatter(0, torch.tensor([0]), 2.0)", f"({v} - {v}.mean())", f"{v}.double()", f"{v}.to(torch.float64)", f"{v}.detach()", f"({v} @ torch.ones({v}.shape[0], 2, dtype={v}.dtype))", f"{v}.cumprod(0)", f"F.softmax({v}, -1) * 2", f"(-{v})", f"{v}.abs()",
            f"F.conv1d({v}.view(1, 1, -1), torch.ones(1, 1, 2, dtype={v}.dtype)).view(-1)", f"F.interpolate({v}.view(1, 1, -1), scale_factor=2).view(-1)", f"F.avg_pool1d({v}.view(1, 1, -1), 2).view(-1)", f"F.max_pool1d({v}.view(1, 1, -1), 2).view(-1)",
        )  # fmt: skip

    @rule("vec", 2, "writes")
    def with_writes(self, d: int) -> str:
        v, i, n = self.some("vec", d), self.some("int", d), self.some(self.one("float", "int", "bool"), 0)
        return self.one(
            f"written({v}, slice(None, {i}), {n})", f"written({v}, {i}, {n})", f"written({v}, slice({i}, None), {n})", f"written({v}, 0, {n})", f"written({v}, {v} > 1, {n})", f"written({v}, slice(0, 2), torch.ones({i}))", f"{v}.clone().fill_({n})",
            f"{v}.clone().mul_({n})", f"{v}.clone().add_(torch.ones({i}))", f"{v}.clone().copy_(torch.ones({i}))", f"written({v}, slice(None, None, max({i}, 1)), {n})", f"{v}.index_fill(0, torch.tensor([0]), {n})", f"{v}.clone().clamp_(max={n})",
            f"{v}.slice_scatter(torch.ones(1, dtype={v}.dtype), 0, {i}, {i} + 1)", f"{v}.select_scatter(torch.tensor(2.0, dtype={v}.dtype), 0, {i})", f"{v}.clone().masked_fill_({v} > 1, {n})", f"torch.zeros({i}).scatter(0, torch.tensor([0]), {n})",
            f"{v}.clone().resize_({i}).fill_(2.0)", f"{v}.clone().add_({n})", f"{v}.clone().sub_({v}, alpha={n})", f"written({v}, torch.tensor([{i}]), {n})",
        )  # fmt: skip

    # Other tensors.

    @rule("mat", 3)
    def leaf_mat(self, d: int) -> str:
        i, j, f, v = self.some("int", 1), self.some("int", 0), self.some("float", 0), self.var("vec")
        return self.one(
            f"torch.zeros({i}, 3)", f"torch.ones(2, {i})", f"torch.full(({i}, {j}), {f})", f"torch.eye({i})", f"w[:{i}]", f"w[:, {i}:]", f"w[{i}:, :{j}]", f"{v}[:{i}, None] * {v}", f"{v}[None].expand({i}, -1)", f"{v}.unsqueeze(0).repeat({i}, 1)",
            f"w.narrow(0, {i}, 1)", f"torch.outer({v}, {v}[:{i}])", f"F.embedding(torch.arange({i}), w)", f"F.one_hot(m.clamp(0), {i}) * 1.0", f"F.pad(w, (0, {i}))", f"torch.arange({i} * 2).view({i}, 2) * 1.0", f"w.roll({i}, 0)", f"w.tril({i})", f"w.triu({i}) * {f}",
            f"w[w[:, 0] > {f}]", f"w[torch.arange({i})]", f"torch.ones({i}, 1) * torch.ones(1, {j})", f"w.repeat({i}, 1)", f"torch.stack([{v}[:{i}], torch.ones({i})])", f"w.index_select(1, torch.arange({i}))", f"torch.diag_embed({v}[:{i}])",
        )  # fmt: skip

    @rule("mat", 4)
    def mat_changed(self, d: int) -> str:
        a, b, i = self.some("mat", d), self.var("mat"), self.some("int", 0)
        return self.one(
            f"{a}.relu()", f"{a}.mT", f"{a}.t().contiguous()", f"{a}.t()", f"({a} * 2 + 1)", f"({a} @ {a}.mT)", f"({a}.mT @ {a})", f"{a}.softmax(0)", f"{a}.softmax(1)", f"torch.cat([{a}, {a}], 1)", f"torch.cat([{a}, {b}])", f"({a} + {b})", f"({a} * {self.var('vec')})",
            f"F.layer_norm({a}, {a}.shape[-1:])", f"{a}.cumsum(0)", f"{a}.view({i}, -1)", f"{a}.reshape(-1, {i})", f"{a}.flip(0)", f"{a}[:, :2]", f"{a}[1:]", f"F.linear({a}, torch.ones(4, {a}.shape[1]))", f"torch.mm({a}, torch.ones({a}.shape[1], 2))",
            f"{a}.masked_fill({a} > 1, {self.some('float', 0)})", f"({a} * {self.some('float', 0)})", f"{a}.sort(0)[0]", f"torch.addmm({a}, {a}, torch.eye({a}.shape[1]), beta={self.some('float', 0)}, alpha={i})", f"{a}.expand(2, -1, -1).sum(0)", f"{a}.roll(1, 1)", f"F.normalize({a})",
            f"torch.tril({a}, {i})", f"F.log_softmax({a}, 1)", f"({a} / {a}.shape[0])", f"{a}.clone()", f"{a}.movedim(0, 1)", f"({a} - {a}.mean(0))", f"{a}.nan_to_num({self.some('float', 0)})", f"F.group_norm({a}[None].mT, 1)[0]", f"{a}.unflatten(0, (-1, {i})).sum(1)",
        )  # fmt: skip

    @rule("ten", 4)
    def leaf_ten(self, d: int) -> str:
        v, a, i, j = self.var("vec"), self.var("mat"), self.some("int", 0), self.some("int", 0)
        return self.one(
            f"{a}.squeeze()", f"{a}.squeeze(0)", f"{v}.unsqueeze(0).squeeze()", f"{a}.nonzero()", f"{a}.sum({i})", f"{a}.amax({i})", f"{a}.select(0, {i})", f"{a}.flatten()", f"{v}.view({i}, -1)", f"{a}.reshape({i}, {j}, -1)", f"{v}[{i}]", f"{a}[{i}]", f"{a}[:, {i}]",
            f"{a}.transpose(0, {i})", f"{v}.unsqueeze({i})", f"torch.zeros({i}, 2, {j}) + 1", f"{a}.expand({i}, -1, -1)", f"{a}.argmax({i})", f"{a}.diagonal({i})", f"{a}.softmax({i})", f"torch.stack([{a}, {a} * 2], {i})", f"torch.tensordot({a}, {a}, 2)", f"{a}.cumsum({i})",
            f"{a}.unbind(1)[0]", f"{a}.mean({i}, keepdim=True)", f"{a}.flip({i})", f"{a}.topk(1, 0)[0]", f"{v}.kthvalue({i})[0]", f"torch.broadcast_to({v}, ({i}, {v}.shape[0]))", f"{a}.std(0, correction={i})", f"{v}.quantile({self.some('float', 0)})", f"{a}.norm(p={i}, dim=0)",
            f"F.interpolate({a}[None], size={i})", f"F.adaptive_avg_pool1d({a}[None], {i})", f"F.unfold({a}[None, None], (1, {i}))", f"torch.cdist({a}, {a})", f"torch.where({a} > 1, {v}[:1], {self.some('float', 0)})", f"{a}.sum(1, keepdim=True) * {v}[:{i}]",
        )  # fmt: skip

    @rule("ten", 4)
    def ten_changed(self, d: int) -> str:
        v, i = self.some("ten", d), self.some("int", 0)
        return self.one(
            f"{v}.relu()", f"({v} * 2)", f"{v}.sum(0)", f"{v}.sum(-1, keepdim=True)", f"{v}.mT", f"{v}.unsqueeze(0)", f"{v}.flatten()", f"{v}.reshape({i}, -1)", f"torch.cat([{v}, {v}], -1)", f"torch.stack([{v}, {v}])", f"{v}[:{i}]", f"{v}[-1]", f"{v}.amax(0)", f"{v}.prod(0)",
            f"{v}.squeeze()", f"{v}.cumsum(0)", f"{v}.transpose(0, -1).contiguous()", f"{v}[..., :{i}]", f"({v} + {self.var('vec')})", f"({v} * {v}.numel())", f"({v} + {v}.shape[-1])", f"{v}[{v} > 1]", f"{v}.masked_fill({v} > 1, 7.0)", f"{v}.flip(0)", f"{v}.permute(*range({v}.dim())[::-1])",
            f"({v}.unsqueeze(-1) * {v}.unsqueeze(-2))", f"{v}.expand(2, *{v}.shape)", f"{v}.tanh().std(0)", f"{v}.tanh().var(-1)", f"{v}.logsumexp(0)", f"{v}.argmax(-1)", f"{v}.sort(0)[0]", f"{v}.roll(1, 0)", f"({v} + {i})", f"{v}.any(0)", f"{v}.max(0)[0]", f"{v}.clone()", f"{v}.argmin()", f"({v} == {v})",
        )  # fmt: skip

    @rule("scalar", 4)
    def leaf_scalar(self, d: int) -> str:
        v = self.var(self.one("vec", "vec", "mat", "ten"))
        return self.one(
            f"{v}.sum()", f"{v}.mean()", f"{v}.prod()", f"{v}.max()", f"{v}.amax()", f"{v}.min()", f"{v}.norm()", f"{v}.tanh().std()", f"{v}.var()", f"{v}.logsumexp(0)", f"{v}.argmax()", f"{v}.any()", f"{v}.all()", f"{v}.median()", f"{v}.nansum()", f"{v}.count_nonzero()",
            f"F.mse_loss({v}, {v} * 2)", f"torch.linalg.vector_norm({v}, float('inf'))", f"{v}.aminmax()[1]", f"F.smooth_l1_loss({v}, {v} * 3)", f"{v}.nanmean()", f"F.l1_loss({v}, {v} * 2, reduction='sum')", f"({v} > 1).sum()", f"torch.dot({v}, {v})", f"{v}.softmax(0).amax()",
        )  # fmt: skip

    @rule("scalar", 3)
    def scalar_of_number(self, d: int) -> str:
        f, i, b, v = self.some("float", d), self.some("int", d), self.some("bool", d), self.var("vec")
        return self.one(
            f"torch.full((), {f})", f"torch.tensor({f})", f"torch.tensor({i})", f"torch.full((), {i})", f"torch.tensor({b})", f"torch.full((), {b})", f"torch.scalar_tensor({f})", f"torch.as_tensor({i})", f"({v}.sum() * {f})", f"{v}[{i}]", f"{v}.select(0, {i})", f"torch.tensor({f}, dtype=torch.float64)",
            f"torch.tensor({f}, dtype=torch.int32)" if self.random.random() < 0.3 else f"torch.tensor({i}, dtype=torch.int32)", f"torch.full((), {f}, dtype=torch.float64)", f"torch.tensor([{i}, {f}])[1]", f"(torch.tensor({i}) * {f})", f"torch.tensor({i}) * {i}", f"torch.tensor({b}) + {i}",
        )  # fmt: skip

    @rule("mask", 1)
    def leaf_mask(self, d: int) -> str:
        n = self.some(self.one("float", "int"), 1)
        return self.one(
            f"(x > {n})",
            f"(x <= {n})",
            f"(x == {n})",
            "(x != x)",
            f"torch.isin(x, torch.arange({self.some('int', 0)}))",
            f"(x > 0) & {self.some('bool', 0)}",
            f"torch.isclose(x, torch.full((), {self.some('float', 0)}, dtype=x.dtype))",
            f"torch.full((5,), {self.some('bool', 0)})",
        )

    @rule("places", 1)
    def leaf_places(self, d: int) -> str:
        i, v = self.some("int", 1), self.var("vec")
        return self.one(
            f"torch.arange({i})",
            f"torch.full((2,), {i})",
            f"(m * {i})",
            f"(m // {i})",
            f"(m % {i})",
            "torch.bincount(m.clamp(0))",
            f"({v} > {i}).nonzero()",
            f"m.clamp(max={i})",
            f"torch.tensor([{i}, 2])",
            f"({v} > 0).cumsum(0)",
            f"m + {self.some('bool', 0)}",
            f"m[:{i}]",
            f"(m << {i})",
            f"(m & {i})",
            f"m * {self.some('float', 0)}",
            f"torch.where(m > 1, m, {i})",
            f"{v}.argsort()",
        )

    @rule("shape", 1)
    def leaf_shape(self, d: int) -> str:
        v, i, f, b = (
            self.var(self.one("vec", "mat", "ten")),
            self.some("int", 1),
            self.some("float", 0),
            self.some("bool", 0),
        )
        return self.one(
            f"{v}.shape",
            f"tuple({v}.shape)",
            f"{v}.size()",
            f"({i}, {f}, {b})",
            f"[{i}, 2 * {i}]",
            f"{{'n': {i}}}",
            f"torch.broadcast_shapes(({i}, 1), (5,))",
            "m.tolist()",
            "t.tolist()",
            "(m > 1).tolist()",
            f"divmod({i}, 2)",
            "[q * 2 for q in m.tolist()]",
            "sorted(m.tolist())",
            f"{v}.tolist()",
            f"str({i})",
            f"f'{{{f}:.2f}}'",
            f"range({i})",
            f"slice({i})",
            f"torch.Size([{i}])",
            f"({b}, not {b})",
            "dict(zip('abc', t.tolist()))",
        )

    # Statements.

    def statement(self) -> None:
        way = self.random.random()
        if way < 0.12 and "checks" in self.features:
            i = self.var("int")
            self.line(
                self.one(
                    f"torch._check({i} >= 0)",
                    f"torch._check({i} <= 5)",
                    f"torch._check_is_size({i})",
                    f"torch._check({i} != 1)",
                    f"torch._check({i} > 0, lambda: 'too small')",
                    f"torch._check({self.var('float')} < 9)",
                )
            )
        elif way < 0.2 and "writes" in self.features:
            self.write()
        elif way < 0.28 and "loops" in self.features:
            self.loop()
        elif way < 0.34 and "branches" in self.features:
            self.branch()
        else:
            kind = self.random.choices(_RESULTS, (4, 4, 2, 7, 4, 3, 1, 1, 3, 1))[0]
            self.bind(kind, self.some(kind, 3))

    def write(self) -> None:
        v = self.one("x", "w", self.var("vec") if self.kinds["vec"][1:] else "x")
        i, n = self.some("int", 1), self.some(self.one("float", "int", "bool"), 1)
        self.line(self.one(f"{v}[:{i}] = {n}", f"{v}[{i}] = {n}", f"{v}.mul_({n})", f"{v}[{i}:].add_({n})", f"{v}.add_({n})", f"{v}.narrow(0, 0, {i}).zero_()", f"{v}.fill_({n})", f"{v}[{v} > {n}] = 2.0", f"m[0] = {i}", f"t.mul_({n})", f"{v}.clamp_(max={n})"))  # fmt: skip

    def loop(self) -> None:
        n, v = self.some(self.one("float", "int"), 1), self.var(self.one("vec", "mat"))
        kind = "mat" if v in self.kinds["mat"] else "vec"
        self.bind(kind, v)
        made = self.kinds[kind][-1]
        i = self.some("int", 0)
        self.line(f"for k in {self.one('range(3)', 'range(2)', 'm.tolist()', 't.tolist()', f'range({i})')}:")
        step = self.one(
            f"{made} * {n} + k",
            f"{made} + k",
            f"{made} * k",
            f"{made}[:k]",
            f"torch.cat([{made}, {made}])[:{i}]",
            f"{made} + {made}.shape[0]",
        )
        self.line(f"    {made} = {step}")

    def branch(self) -> None:
        b, i, v = self.some("bool", 1), self.some("int", 1), self.var("vec")
        self.bind(
            "vec",
            self.one(
                f"torch.cond({b}, longer, kept, ({v},))", f"torch.cond({i} > 1, longer, kept, ({v},))", f"torch.cond({i} > {v}.shape[0], kept, longer, ({v},))", f"torch.cond(x.sum() > 0, longer, kept, ({v},))",
                f"({v} if {b} else {v} * 2)", f"torch.where(torch.tensor({b}), {v}, {v} * {i})", f"torch.cond(torch.tensor({b}), longer, kept, ({v},))",
            ),
        )  # fmt: skip

    def program(self) -> str:
        """The module's text.  ``entry`` in it is called."""
        self.line("x, w, m, t = x, w, m, t")
        for kind in ("int", "float", "int"):
            self.bind(kind, self.some(kind, 1))
        for _ in range(self.random.randint(2, 7)):
            self.statement()
        names = [n for kind, held in self.kinds.items() for n in held if n not in "xwm"]
        chosen = self.random.sample(names, min(len(names), self.random.randint(1, 5)))
        if names[-1] not in chosen and self.random.random() < 0.7:
            chosen.append(max(names, key=lambda n: int(n[1:])))
        self.line(f"return ({', '.join(chosen)},)")
        settings = []
        if self.random.random() < 0.4:
            settings.append(f"DYNAMIC = {self.one('True', 'True', 'False')}")
        if self.random.random() < 0.35:
            settings.append("GRADIENTS = True")
        if self.random.random() < 0.25:
            settings.append("MARKED = True")
        body = "\n".join(["def program(x, w, m, t):", *self.lines[1:], *settings, "entry = program"])
        return f"{DATA_PRELUDE}{MARK}{body}\n"


DataWriter.RULES = rules_of(DataWriter)


def data_program_of(seed: int) -> str:
    """The text of the program of a seed."""
    return DataWriter(seed).program()


_SIMPLEST = {
    "i": "2",
    "f": "1.5",
    "b": "True",
    "v": "x * 1",
    "m": "w * 1",
    "t": "x * 1",
    "k": "x > 1",
    "p": "m * 1",
    "s": "x.sum()",
}
"""What stands in for an expression, by the first letter of the variable that it is bound to."""


def without_line(text: str, reason: str) -> str | None:
    """The program without what a line did for which it is refused; None where the reason names none that can go."""
    found = re.search(r"program\d+\.py:(\d+) in program", reason)
    if found is None:
        return None
    lines, number = text.split("\n"), int(found[1]) - 1
    line = lines[number]
    if not line.startswith("    ") or line.startswith("    return"):
        return None
    name, sign, given = line.strip().partition(" = ")
    simplest = _SIMPLEST[name[0]] if sign and name.isidentifier() else "pass"
    if given == simplest or line.endswith(":"):
        return None
    indent = line[: len(line) - len(line.lstrip())]
    lines[number] = f"{indent}{name} = {simplest}" if simplest != "pass" else f"{indent}pass"
    return "\n".join(lines)
