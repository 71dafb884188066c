"""Drawn programs for relations: statements over tensors of one shape, outputs that are exact, claims, a gradient.

A program is data.  ``source`` is what runs; ``Program.make`` gives arguments for it.  All float values have the
dtype and the shape of the program but for inputs that are broadcast.
"""

from __future__ import annotations

import linecache
import random
import re
from typing import Any

import attrs
import torch
from torch import Tensor

from tests.fuzz.relation_claims import KINDS, Claim

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 37, 63, 64, 65, 100, 127, 129, 255, 257, 1000, 1025)
"""Sizes around the widths of vectors, blocks and unrolled loops."""
LARGE = (4097, 16400, 40000)
"""Rows that are summed in several parts, or by several threads."""

UNARY = (
    "torch.sin({0})", "torch.cos({0})", "torch.tan({0} / 4)", "torch.tanh({0})", "torch.sigmoid({0})",
    "torch.exp({0}.clamp(-9, 9))", "torch.exp2({0}.clamp(-9, 9))", "torch.expm1({0}.clamp(-9, 9))",
    "torch.log({0}.abs() + 1)", "torch.log1p({0}.abs())", "torch.log2({0}.abs() + 0.5)", "torch.log10({0}.abs() + 0.5)",
    "torch.sqrt({0}.abs())", "torch.rsqrt({0}.abs() + 0.5)", "torch.erf({0})", "torch.erfc({0})", "torch.atan({0})",
    "torch.asin({0}.clamp(-1, 1))", "torch.acos({0}.clamp(-1, 1))", "torch.asinh({0})", "torch.acosh({0}.abs() + 1)",
    "torch.atanh({0}.clamp(-0.9, 0.9))", "torch.sinh({0}.clamp(-9, 9))", "torch.cosh({0}.clamp(-9, 9))",
    "torch.reciprocal({0}.abs() + 0.5)", "torch.lgamma({0}.abs() + 1)", "torch.square({0})", "F.gelu({0})",
    "F.gelu({0}, approximate='tanh')", "F.silu({0})", "F.mish({0})", "F.softplus({0})", "F.elu({0})", "F.selu({0})",
    "F.leaky_relu({0}, 0.2)", "F.hardswish({0})", "F.hardsigmoid({0})", "F.logsigmoid({0})", "F.softsign({0})",
    "F.relu({0})", "torch.frac({0})", "{0} ** 3", "{0}.abs() ** 2.5", "torch.logit(torch.sigmoid({0}), eps=1e-3)",
    "{0} * 0.1", "{0} / 3", "1 - {0}", "torch.sinc({0})", "torch.special.ndtr({0})", "torch.digamma({0}.abs() + 1)",
    "({0} * {0} + 1).sqrt() - 1", "{0} * torch.sigmoid(1.7 * {0})", "{0}.nan_to_num()", "torch.special.i0({0})",
    "torch.erfinv({0}.clamp(-0.9, 0.9))", "torch.special.log_ndtr({0})", "torch.special.entr({0}.abs())", "{0} ** 4",
    "{0} ** 5", "{0}.abs() ** 0.3", "{0} * 1e-3 + 1", "torch.round({0}, decimals=1)", "torch.special.i1({0})",
    "torch.where({0} > 0, {0}, torch.expm1({0}))", "torch.special.xlog1py({0}, {0}.abs())", "F.softplus({0}, beta=3)",
)  # fmt: skip
ONE_STEP = tuple(f for f in UNARY if re.fullmatch(r"(torch|F)(\.special)?\.\w+\(\{0\}\)", f))
"""Those of one operation: between several, a value of a half type is rounded or not, as kernels are cut."""
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / ({1}.abs() + 0.5)", "torch.maximum({0}, {1})", "{0} * {1} + {0}",
    "torch.minimum({0}, {1})", "torch.atan2({0}, {1})", "torch.hypot({0}, {1})", "torch.where({0} > {1}, {0}, {1} * 2)",
    "torch.fmod({0}, {1}.abs() + 0.5)", "torch.remainder({0}, {1}.abs() + 0.5)", "torch.lerp({0}, {1}, 0.3)",
    "torch.pow({0}.abs() + 0.5, torch.tanh({1}))", "torch.logaddexp({0}, {1})", "torch.xlogy({0}, {1}.abs() + 0.5)",
    "torch.addcmul({0}, {1}, {1}, value=0.5)", "torch.copysign({0}, {1})", "({0} - {1}) ** 2", "{0} * {1} - {1} * {0}",
)  # fmt: skip
ROWS = (
    "torch.softmax({0}, D)", "torch.log_softmax({0}, D)", "{0} - {0}.mean(D, keepdim=True)",
    "{0} / ({0}.std(D, keepdim=True, correction=0) + 0.1)", "{0} - {0}.amax(D, keepdim=True)", "{0}.cumsum(D)",
    "{0} * torch.rsqrt({0}.square().mean(D, keepdim=True) + 1e-5)", "F.normalize({0}, dim=D)", "{0}.cummax(D).values",
    "({0} - {0}.mean(D, keepdim=True)) / ({0}.var(D, keepdim=True, correction=0) + 1e-5).sqrt()",
    "{0} / ({0}.abs().sum(D, keepdim=True) + 1)", "{0} - {0}.logsumexp(D, keepdim=True)", "{0}.logcumsumexp(D)",
    "{0}.sort(D).values", "{0}.flip(D)", "{0}.roll(1, D)", "{0} * torch.softmax({0}, D).sum(D, keepdim=True)",
    "{0}.tanh().cumprod(D)", "torch.where({0} == {0}.amax(D, keepdim=True), {0}, {0} * 0.5)",
)  # fmt: skip
"""Functions of each row along the axis ``D``."""
WHOLE = (
    "{0} - {0}.mean()", "{0} / ({0}.norm() + 1)", "torch.zeros_like({0}).index_add(O, at, {0})", "{0} * {0}.sum()",
    "torch.zeros_like({0}).scatter_add(D, {0}.argsort(D), {0})", "{0} - {0}.mean((D, O), keepdim=True)",
    "{0}[at % len({0})]", "{0} / ({0}.std() + 1)", "{0}.index_select(O, at)", "torch.softmax({0}, O)",
    "{0} - {0}.mean(O, keepdim=True)", "{0}.flatten().cumsum(0).view({0}.shape)",
    "{0}.reshape(-1).softmax(0).view({0}.shape)", "{0} + {0}.square().sum(O, True)",
    "F.batch_norm({0}, None, None, training=True)", "{0}.cumsum(O)", "{0}.transpose(0, -1).reshape({0}.shape)",
)  # fmt: skip
"""Functions of several rows: their sums must come out alike in each call and for each number of threads."""
MOVES = (
    "{0} - {0}.amax(D, keepdim=True)", "{0}.cummax(D).values", "{0}.sort(D).values", "{0}.flip(D)", "{0}.roll(1, D)",
    "torch.where({0} == {0}.amax(D, keepdim=True), {0}, -{0})", "{0}.amin(D, keepdim=True).expand_as({0})",
)  # fmt: skip
"""Functions of rows without sums: the order of those is a kernel's own, so that other kernels round otherwise."""
LAST = ("F.layer_norm({0}, ({0}.shape[-1],))", "F.rms_norm({0}, ({0}.shape[-1],))")

ROUNDED_ONCE = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / ({1}.abs() + 0.5)", "1 - {0}", "{0} * 3")
"""Operations whose results IEEE 754 fixes: in float32 and float64 any chain of them is eager's to the bit.  Square
roots are not among them: eager's of many doubles (VML) are one unit off now and then, ours are not."""
NOT_ROUNDED = (
    "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "torch.where({0} > {1}, {0}, {1})", "{0}.abs()", "-{0}",
    "F.relu({0})", "{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.clamp(-0.5, 1)", "{0}.flip(D)",
    "{0}.sign()", "torch.copysign({0}, {1})", "torch.sort({0}, dim=D, stable=True).values", "{0}.cummax(D).values",
    "{0}.roll(2, D)",
    "{0} * ({0} == {0}.amax(D, keepdim=True))",
)  # fmt: skip
INTEGER = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // ({1}.abs() + 1)", "{0} % ({1}.abs() + 1)", "{0} & {1}", "{0} ^ {1}",
    "{0} | {1}", "torch.maximum({0}, {1})", "torch.where({0} > {1}, {0}, {1})", "{0}.cumsum(D)", "{0} >> 1", "-{0}",
    "{0} << 2", "torch.fmod({0}, {1}.abs() + 1)", "{0}.abs()", "{0}.clamp(-4, 7)", "{0}.sort(D).values", "{0} ** 2",
    "torch.div({0}, {1}.abs() + 1, rounding_mode='trunc')", "{0}.sum(D, keepdim=True) + {1}", "{0}.sign() * {1}",
    "({0} == {1}).long() + {0}", "{0}.cummax(D).indices", "torch.argsort({0}, dim=D, stable=True)",
    "{0}.prod(D, keepdim=True) - {1}",
)  # fmt: skip
DISCRETE = (
    "{0}.argmax(D)", "{0}.argmin(D)", "torch.argsort({0}, dim=D, stable=True)", "{0} > {1}", "({0} >= {1}).sum(D)",
    "{0}.isnan()",
    "({0} < {1}).any(D)", "({0} != {1}).all(D)", "{0}.amax(D)", "{0}.amin(D)", "{0}.signbit()", "{0}.count_nonzero(D)",
    "({0} > {1}).cumsum(D)", "{0}.clamp(-99, 99).long()", "{0}.median(D).values", "{0}.topk(1, D).values", "{0}.amax()",
    "torch.isclose({0}, {0})", "torch.bucketize({0}, {0}.new_tensor([-1.0, 0.0, 0.5, 2.0]))", "{0}.max(D).indices",
)  # fmt: skip

GRADIENTS = (
    ("(w * {a}).sum()", "{a}", "{0} == {1}"),
    ("(w * ({a} == {a}.amax(D, keepdim=True))).sum()", "{a} == {a}.amax(D, keepdim=True)", "({0} == 1) == {1}"),
    ("torch.where({a} > {b}, w, -w).sum()", "{a} > {b}", "({0} == 1) == {1}"),
    ("F.relu(w * {a}).sum()", "F.relu({a})", "{0} == {1}"),
    ("(w * {a}).abs().sum()", "{a}.abs()", "{0} == {1}"),
    ("(w * {a}).clamp(-0.5, 0.5).sum()", "{a}", "{0} == {1} * ({1}.abs() <= 0.5)"),
    ("(w * fn({a})).sum()", "fn({a})", "{0} == {1}"),
    ("(w * rows({a})).sum()", "rows({a})", "{0} == {1}"),
    ("torch.maximum(w * {a}, {b}).sum()", "{a} > {b}", "({0} != 0) | ~{1}"),
    ("(w * {a}).sort(D).values.narrow(D, 0, 1).sum()", "{a}", "({0} == 0) | ({0} == {1})"),
    ("(w * {a}).amax(D).sum()", "{a}", "({0} != 0).any(D)"),
    ("(w * fn({a})).amax(D).sum()", "fn({a})", "({0} != 0).any(D)"),
    ("w.cumsum(D).sum()", "torch.ones_like({a}).cumsum(D).flip(D)", "{0} == {1}"),
    ("(w.index_select(O, at) * 1.0).sum()", "{a}", "{0}.double().sum() == {1}.numel()"),
    ("w.sum(D, keepdim=True).expand_as({a}).sum()", "{a}", "{0} == {1}.shape[D]"),
    ("(w.flip(D).roll(1, O) * {a}).sum()", "{a}.roll(-1, O).flip(D)", "{0} == {1}"),
    ("(w * (fn({a}) > fn({b}))).sum()", "fn({a}) > fn({b})", "({0} == 1) == {1}"),
    ("(w * (rows({a}) > {b})).sum()", "rows({a}) > {b}", "({0} == 1) == {1}"),
    ("(w * (rows({a}) == rows({a}).amax(D, keepdim=True))).sum()", "{a}", "({0} != 0).any(D)"),
    ("(w * rows({a}).floor()).sum()", "rows({a}).floor()", "{0} == {1}"),
    ("(w * F.one_hot(rows({a}).argmax(D), {a}.shape[D]).movedim(-1, D)).sum()", "{a}", "({0} == 1).sum(D) == 1"),
    ("F.dropout(w * {a}, 0.0).sum()", "{a}", "{0} == {1}"),
    ("(w * torch.where({a} > 0, {a}, fn({a}))).sum()", "torch.where({a} > 0, {a}, fn({a}))", "{0} == {1}"),
)
"""A loss over a leaf ``w`` of ones, a value, and what holds of the gradient ``{0}`` and the value ``{1}``."""


@attrs.frozen
class Input:
    """How an argument is made: ``shape`` is the program's, or has sizes of 1 where it is broadcast."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    values: str

    def make(self, generator: torch.Generator) -> Tensor:
        return laid_out(_values(self, generator), self.layout)


def _values(spec: Input, generator: torch.Generator) -> Tensor:
    if not spec.dtype.is_floating_point:
        low, high = torch.iinfo(spec.dtype).min, torch.iinfo(spec.dtype).max
        low, high = (low, high) if spec.values == "any" else (max(low, -9), 9)
        return torch.randint(low, high, spec.shape, generator=generator, dtype=spec.dtype)
    normal = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
    if spec.values == "few":
        pool = torch.cat([torch.randn(6, generator=generator), torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, 12.0])])
        normal = pool.double()[torch.randint(13, spec.shape, generator=generator)]
    elif spec.values == "special":
        special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0])
        chosen = torch.randint(60, spec.shape, generator=generator)
        normal = torch.where(chosen < 5, special.double()[chosen.clamp(max=4)], normal)
    elif spec.values == "equal rows":
        normal = normal[torch.randint(min(2, len(normal)), (len(normal),), generator=generator)]
    elif spec.values != "normal":
        normal = normal * float(spec.values)
    return normal.to(spec.dtype)


def laid_out(plain: Tensor, layout: str) -> Tensor:
    """The same elements with other strides."""
    if layout == "transposed":
        return plain.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided":
        return torch.stack([plain, plain + 1], -1)[..., 0]
    if layout == "shifted":
        return torch.cat([plain.new_zeros(1), plain.reshape(-1)])[1:].view(plain.shape)
    return plain.contiguous()


VALUES = {"normal": 12, "few": 8, "4": 6, "30": 2, "special": 2, "equal rows": 4, "0.01": 2, "1e-39": 1, "1e30": 1}
"""Kinds of values with their weights; a number is a factor of normal ones."""
LAYOUTS = ("contiguous", "transposed", "strided", "shifted")


@attrs.frozen
class Line:
    """``name = template`` over ``args``."""

    name: str
    template: str
    args: tuple[str, ...]


@attrs.frozen
class Drawn:
    """A claim on values of a program; ``kept``: its values are outputs, too."""

    claim: Claim
    operands: tuple[str, str]
    kept: bool


@attrs.frozen
class Program:
    """``floats``, ``integers`` and ``exact`` are statements; ``outputs`` names which of the first are returned.

    ``exact`` are functions of inputs that eager and compiled code must agree on to the bit, as must ``integers``.
    ``rows`` is the axis of rows, ``across`` another one; ``function``, ``of_rows`` and ``moves`` are those of claims.
    """

    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: int
    across: int
    inputs: tuple[Input, ...]
    floats: tuple[Line, ...]
    outputs: tuple[str, ...]
    exact: tuple[Line, ...]
    function: str
    of_rows: str
    moves: str
    claims: tuple[Drawn, ...]
    gradient: tuple[str, str, str, str, str] | None
    dynamic: bool
    cut: int | None = None

    def pointwise(self) -> set[str]:
        """Names of float values that depend on elements at their own place alone."""
        return self._made_by({*UNARY, *BINARY})

    def by_row(self) -> set[str]:
        """Names of float values that depend on their own row alone."""
        return self._made_by({*UNARY, *BINARY, *ROWS, *LAST})

    def _made_by(self, templates: set[str]) -> set[str]:
        known = {i.name for i in self.inputs}
        for line in self.floats:
            if line.template in templates and known.issuperset(line.args):
                known.add(line.name)
        return known

    def text(self, template: str, *args: str, **names: str) -> str:
        template = re.sub(r"\bD\b", str(self.rows), re.sub(r"\bO\b", str(self.across), template))
        return template.format(*args, **names)

    def source(self) -> str:
        """The functions ``program`` (which returns a dict), ``claim0``, ``claim1``, ..., and ``gradient``."""
        text = [f"def fn(v):\n    return {self.text(self.function, 'v')}\n"]
        text.append(f"def rows(v):\n    return {self.text(self.of_rows, 'v')}\n")
        text.append(f"def moves(v):\n    return {self.text(self.moves, 'v')}\n")
        for k, drawn in enumerate(self.claims):
            values = [f"v{j}" for j in range(len(drawn.claim.values))]
            text.append(f"def claim{k}({', '.join(values)}):\n    return {self.text(drawn.claim.holds, *values)}\n")
        if self.gradient is not None:
            text.append(f"def gradient(v0, v1):\n    return {self.text(self.gradient[2], 'v0', 'v1')}\n")
        return "\n".join([*text, self._body()])

    def _body(self) -> str:
        names = [i.name for i in self.inputs] + ["w"] * (self.gradient is not None)
        body = [f"{line.name} = {self.text(line.template, *line.args)}" for line in (*self.exact, *self.floats)]
        if self.cut is not None:
            body.insert(self.cut % (len(body) + 1), "turret.graph_break()")
        returned = [*self.outputs, *(line.name for line in self.exact)]
        for k, drawn in enumerate(self.claims):
            a, b = drawn.operands
            mine = [f"v{k}_{j}" for j in range(len(drawn.claim.values))]
            body += [f"{v} = {self.text(t, a=a, b=b)}" for v, t in zip(mine, drawn.claim.values, strict=True)]
            body.append(f"claim{k}_holds = claim{k}({', '.join(mine)})")
            returned += [*(mine if drawn.kept else ()), f"claim{k}_holds"]
        if self.gradient is not None:
            loss, wanted, _, a, b = self.gradient
            body += [f"loss = {self.text(loss, a=a, b=b)}", f"wanted = {self.text(wanted, a=a, b=b)}"]
            returned += ["loss", "wanted"]
        body.append(f"return {{{', '.join(f'{n!r}: {n}' for n in dict.fromkeys(returned))}}}")
        return f"def program({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body)

    def functions(self) -> dict[str, Any]:
        """What ``source`` defines."""
        source, name = self.source(), f"<relations {self.seed}>"
        import turret

        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "turret": turret}
        exec(compile(source, name, "exec"), scope)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        return scope

    def make(self, draw: int) -> list[Tensor]:
        """Arguments: those of the inputs, and ``w``, a leaf, where there is a gradient."""
        generator = torch.Generator().manual_seed(self.seed * 1000 + draw)
        made = [i.make(generator) for i in self.inputs if i.name != "at"]
        size = self.shape[self.across]
        made.append(torch.randint(size, (size,), generator=generator))
        if self.gradient is not None:
            made.append(torch.ones(self.shape, dtype=self.dtype, requires_grad=True))
        return made

    def describe(self) -> str:
        """The source with what is known of the inputs."""
        inputs = "".join(f"# {i.name}: {i.shape} {i.dtype} {i.layout}, values: {i.values}\n" for i in self.inputs)
        return f"# seed {self.seed}, rows along {self.rows}, dynamic={self.dynamic}\n{inputs}{self.source()}"


def _shape(rng: random.Random, small: bool) -> tuple[tuple[int, ...], int, int]:
    """A shape, its axis of rows and another axis."""
    row = rng.choice(SIZES if small or rng.random() < 0.93 else LARGE)
    others = [rng.choice([n for n in SIZES if n * row <= (2000 if small else 70000)] or [1])]
    if rng.random() < 0.3:
        others.append(rng.choice([1, 2, 3, 5, 8]))
        others[0] = min(others[0], 17)
    rows = rng.choice([len(others)] * 2 + list(range(len(others) + 1)))
    across = rng.choice([d for d in range(len(others) + 1) if d != rows])
    shape = [*others[:rows], row, *others[rows:]]
    return tuple(shape), rows, across


def _inputs(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> list[Input]:
    made = []
    for name in ("x", "y", "z")[: rng.randint(1, 3)]:
        here = shape
        if name != "x" and rng.random() < 0.3:
            here = tuple(1 if rng.random() < 0.5 else n for n in shape)
        layout = rng.choice(LAYOUTS) if rng.random() < 0.5 else "contiguous"
        values = rng.choices(list(VALUES), list(VALUES.values()))[0]
        made.append(Input(name, here, dtype, layout, values))
    kinds = (torch.int64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.int16)
    made += [Input(name, shape, rng.choice(kinds), rng.choice(LAYOUTS), rng.choice(("small", "any"))) for name in "nm"]
    return made


def draw(seed: int, small: bool = False) -> Program:
    """The program of a seed; ``small``: of few elements, for kernels that are interpreted."""
    rng = random.Random(seed)
    shape, rows, across = _shape(rng, small)
    dtype = rng.choices((torch.float32, torch.float64, torch.bfloat16, torch.float16), (5, 2, 2, 2))[0]
    inputs = _inputs(rng, shape, dtype)
    of_rows = ROWS + (LAST if rows == len(shape) - 1 else ())
    full = {i.name for i in inputs if i.shape == shape and i.name in "xyz"}
    known, floats = [i.name for i in inputs if i.name in "xyz"], []
    for k in range(rng.randint(0, 4)):
        table = rng.choices((UNARY, BINARY, of_rows, WHOLE), (8, 6, 4, 1))[0]
        args = (rng.choice(sorted(full)), rng.choice(known))
        template = rng.choice(table)
        floats.append(Line(f"e{k}", template, args if "{1}" in template else args[:1]))
        known.append(f"e{k}")
        full.add(f"e{k}")
    values = sorted(full, key=lambda name: (name[0] == "e", name))
    latest = rng.choices(values, range(1, len(values) + 1), k=8)
    claims = []
    for _ in range(rng.randint(2, 12)):
        claim = rng.choice(rng.choice(KINDS))
        whole = [name for name in values if name[0] != "e"]
        operands = (rng.choice(latest), rng.choice(values))
        if dtype.itemsize == 2 and claim.of_roundings:
            operands = (rng.choice(whole), rng.choice(whole))
        claims.append(Drawn(claim, operands, rng.random() < 0.5))
    gradient = None
    if rng.random() < 0.3:
        gradient = (*rng.choice(GRADIENTS), latest[6], rng.choice(values))
    return Program(
        seed, shape, dtype, rows, across, (*inputs, Input("at", (shape[across],), torch.int64, "contiguous", "")),
        tuple(floats), tuple(v for v in values if v[0] == "e" and rng.random() < 0.6), tuple(_exact(rng, inputs, full)),
        rng.choice([f for f in UNARY if dtype.itemsize > 2 or f in ONE_STEP]), rng.choice(of_rows), rng.choice(MOVES),
        tuple(claims), gradient, rng.random() < 0.35,
    )  # fmt: skip


def _exact(rng: random.Random, inputs: list[Input], full: set[str]) -> list[Line]:
    """Statements that compiled code must agree on with eager to the bit."""
    lines, shape = [], inputs[0].shape
    values = [i.name for i in inputs if i.name in "xyz"]
    whole = [i.name for i in inputs if i.name in "xyz" and i.shape == shape]
    numbers = ["n", "m"]
    wide = inputs[0].dtype in (torch.float32, torch.float64)
    for k in range(rng.choice((0, 0, 1, 2, 3))):
        kind = rng.choice(("float", "integer", "discrete"))
        if kind == "integer":
            template = rng.choice(INTEGER)
            args, name = (rng.choice(numbers), rng.choice(numbers)), f"i{k}"
            numbers.append(name)
        else:
            table = DISCRETE if kind == "discrete" else NOT_ROUNDED + (ROUNDED_ONCE if wide else ())
            template = rng.choice(table)
            args, name = (rng.choice(whole), rng.choice(values)), f"{kind[0]}{k}"
            if kind == "float":
                values.append(name)
                whole.append(name)
        lines.append(Line(name, template, args if "{1}" in template else args[:1]))
    return lines
