"""Relations between values of one program that must hold exactly, each as two expressions and what holds of them.

Texts name values of the program as ``{a}`` and ``{b}`` (float tensors of the program's shape), a drawn pointwise
function as ``fn(...)``, a drawn function of rows as ``rows(...)``, one that sums nothing up as ``moves(...)``, the axis
of rows as ``D``, another axis as ``O`` and an index of positions along it as ``at``.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Claim:
    """``holds`` is an expression of booleans over ``{0}``, ``{1}``, ... which are the results of ``values``."""

    name: str
    values: tuple[str, ...]
    holds: str

    @property
    def of_roundings(self) -> bool:
        """Whether it computes one function in two places, which in half types may round between steps or not."""
        return self in EQUAL_IN_EQUAL_OUT


def _claims(name: str, *lines: str) -> list[Claim]:
    """Claims of lines ``value; value: what holds``."""
    made = []
    for line in lines:
        values, _, holds = line.rpartition(": ")
        made.append(Claim(f"{name}: {line}", tuple(values.split("; ")), holds))
    return made


EQUAL_IN_EQUAL_OUT = _claims(
    "equal in, equal out",
    "fn({a}.index_select(O, at)); fn({a}).index_select(O, at): {0} == {1}",
    "moves({a}.index_select(O, at)); moves({a}).index_select(O, at): {0} == {1}",
    "fn({a}.flip(D)); fn({a}).flip(D): {0} == {1}",
    "fn({a}.transpose(0, -1).contiguous()); fn({a}): {0} == {1}.transpose(0, -1)",
    "fn(torch.cat([{a}, {b}], D)); fn({a}): {0}.narrow(D, 0, {1}.shape[D]) == {1}",
    "fn(torch.cat([{b}, {a}], D)); fn({a}): {0}.narrow(D, {1}.shape[D], {1}.shape[D]) == {1}",
    "moves(torch.cat([{b}, {a}], O)); moves({a}): {0}.narrow(O, {1}.shape[O], {1}.shape[O]) == {1}",
    "fn({a}.select(D, -1)); fn({a}): {0} == {1}.select(D, -1)",
    "moves({a}.narrow(O, 0, 1)); moves({a}): {0} == {1}.narrow(O, 0, 1)",
    "fn({a}.narrow(D, 0, 1).expand_as({a})): {0} == {0}.flip(D)",
    "{a}.narrow(D, 0, 1).expand_as({a}).softmax(D): {0} == {0}.flip(D)",
    "{a}.narrow(D, 0, 1).expand_as({a}).var(D, correction=0): {0} == 0",
    "{a}.narrow(D, 0, 1).expand_as({a}).std(D, correction=0): {0} == 0",
    "{a}.narrow(D, 0, 1).expand_as({a}).mean(D); {a}.select(D, 0): {0} == {1}",
    "({a} * 0 + 0.1).var(): {0} == 0",
    "torch.var_mean({a} * 0 + 0.1)[1]; {a}.new_tensor(0.1): {0} == {1}",
    "{a}.new_full({a}.shape, 0.3).var((D, O)): {0} == 0",
    "F.layer_norm({a} * 0 + 0.7, {a}.shape[-1:]): {0} == 0",
    "F.instance_norm(({a} * 0 + 0.7).reshape(1, 1, -1)): {0} == 0",
    "{a}[at.flip(0)] if O == 0 else {a}; {a}[at.flip(0)] + 0 if O == 0 else {a}: {0} == {1}",
    "{a}.narrow(O, 0, 1).expand_as({a}).sum(D); {a}: {0} == {0}.flip(0)",
    "rows({a}.narrow(O, 0, 1).expand_as({a})): {0} == {0}.flip(O)",
)

SAME_VALUE = _claims(
    "used twice",
    "{a}; {a}.amax(D, keepdim=True): ({0} == {1}).any(D)",
    "{a}; {a}.amin(D, keepdim=True): ({0} == {1}).any(D)",
    "{a}; {a}.amax(): ({0} == {1}).any()",
    "{a}; {a}.amax(): {0} <= {1}",
    "{a}; {a}.amin(D, keepdim=True): {0} >= {1}",
    "{a}; {a}.clone(): {0} - {1} == 0",
    "{a}.max(D).values; {a}.gather(D, {a}.argmax(D, keepdim=True)).squeeze(D): {0} == {1}",
    "{a}.min(D).values; {a}.gather(D, {a}.argmin(D, keepdim=True)).squeeze(D): {0} == {1}",
    "{a}.max(D).indices; {a}.argmax(D): {0} == {1}",
    "{a}.sort(D).values; {a}.gather(D, {a}.argsort(D)): {0} == {1}",
    "{a}.topk(1, D).values; {a}.amax(D, keepdim=True): {0} == {1}",
    "{a}.sort(D, descending=True).values; {a}.amax(D): {0}.select(D, 0) == {1}",
    "{a}.cummax(D).values; {a}.amax(D): {0}.select(D, -1) == {1}",
    "{a}.cummax(D).values; {a}: {0} >= {1}",
    "{a}.cumsum(D); {a}: {0}.select(D, 0) == {1}.select(D, 0)",
    "{a}; {a}.median(D, keepdim=True).values: ({0} == {1}).any(D)",
    "{a}; {a}.transpose(0, -1).contiguous(): {0} == {1}.transpose(0, -1)",
    "{a}; {a}.flip(D): {0} == {1}.flip(D)",
    "{a}; torch.cat([{a}, {b}], D): {1}.narrow(D, 0, {0}.shape[D]) == {0}",
    "{a}; torch.where({b} > 0, {a}, {b}); {b}: ({1} == {0}) | ({1} == {2})",
    "{a}.float(); {a}: {0} == {1}",
    "{a}.double(); {a}: {0} == {1}",
    "{a}.to(torch.float16).float(); {a}.to(torch.float16): {0} == {1}",
    "{a}.to(torch.bfloat16).float(); {a}.to(torch.bfloat16): {0} == {1}",
    "({a} > {b}).sum(D); ({b} < {a}).sum(D): {0} == {1}",
    "{a} > {b}; {a} <= {b}: {0} != {1}",
    "({a} == {a}.amax(D, keepdim=True)).sum(D): {0} >= 1",
    "({a} - {a}.amax(D, keepdim=True)).amax(D): {0} == 0",
    "({a} - {a}.amax(D, keepdim=True)).exp().amax(D): {0} == 1",
    "({a} / {a}.abs().amax(D, keepdim=True)).abs().amax(D): {0} == 1",
    "fn({a}); fn({a}).amax(D, keepdim=True): ({0} == {1}).any(D)",
    "rows({a}); rows({a}).amax(D, keepdim=True): ({0} == {1}).any(D)",
    "fn({a}) - fn({a}.clone()): {0} == 0",
    "fn({a}); fn({a}).cumsum(D): {0}.select(D, 0) == {1}.select(D, 0)",
    "fn({a}); (fn({a}) > {b}).sum(D); {b}: ({0} > {2}).sum(D) == {1}",
    "rows({a}); (rows({a}) > {b}).sum(D); {b}: ({0} > {2}).sum(D) == {1}",
    "{a}.floor(); {a}: {0} == {1}.floor()",
    "{a}.long(); {a}: {0} == {1}.trunc()",
    "{a}.round().long().sum(D); {a}.round().double().sum(D): {0} == {1}",
    "{a}.sort(D).values; {a}.flip(D).sort(D).values: {0} == {1}",
    "{a}.amax(D); {a}.flip(D).amax(D): {0} == {1}",
    "{a}.amax(D).amax(); {a}.amax(): {0} == {1}",
    "torch.frexp({a}.float())[0] * torch.exp2(torch.frexp({a}.float())[1].float()); {a}.float(): {0} == {1}",
    "torch.nextafter({a}.float(), {a}.float() + 1); {a}.float(): {0} > {1}",
    "torch.bucketize({a}, {a}.new_tensor([-1.0, 0.0, 0.5])); {a}: {0} == ({1} > -1).long() + ({1} > 0) + ({1} > 0.5)",
    "{a}.kthvalue(1, D).values; {a}.amin(D): {0} == {1}",
    "torch.linalg.vector_norm({a}, ord=float('inf'), dim=D); {a}.abs().amax(D): {0} == {1}",
    "{a}.aminmax(dim=D).min; {a}.amin(D): {0} == {1}",
    "{a}.sign().prod(D); ({a} < 0).sum(D): ({0} == 0) | ({0} == 1 - 2 * ({1} % 2))",
    "{a}.round().clamp(-3, 3).double().cumsum(D); {a}.round().clamp(-3, 3).long().cumsum(D): {0} == {1}",
    "{a}.round().clamp(-3, 3).float().cumsum(D); {a}.round().clamp(-3, 3).long().cumsum(D): {0} == {1}",
    "{a}.round().clamp(-3, 3).float().sum(); {a}.round().clamp(-3, 3).long().sum(): {0} == {1}",
    "{a}.round().clamp(-3, 3).float().sum((D, O)); {a}.round().clamp(-3, 3).long().sum((D, O)): {0} == {1}",
    "{a}.round().clamp(-3, 3).float().mean(D) * {a}.shape[D]; {a}.round().clamp(-3, 3).long().sum(D): "
    "({0} - {1}).abs() < 0.01",
    "torch.zeros_like({a}).scatter(D, {a}.argsort(D), {a}.sort(D).values); {a}: {0} == {1}",
    "torch.zeros_like({a}).index_add(O, at, torch.ones_like({a})).sum(); {a}.numel() + {a}.sum() * 0: {0} == {1}",
    "{a}.tril() + {a}.triu(1); {a}: {0} == {1}",
    "torch.round({a}.clamp(-99, 99), decimals=1).double() * 10; {a}: ({0} - {0}.round()).abs() < 1",
    "F.pad({a}.transpose(D, -1), (1, 2)).transpose(D, -1).narrow(D, 1, {a}.shape[D]); {a}: {0} == {1}",
    "{a}.unfold(D, 1, 1).squeeze(-1); {a}: {0} == {1}",
    "F.max_pool1d({a}.reshape(1, 1, -1), 1).flatten(); {a}.flatten(): {0} == {1}",
    "torch.maximum({a}, {b}); {a}; {b}: {0} == torch.where({1} > {2}, {1}, {2})",
    "torch.maximum({a}, {b}); torch.minimum({a}, {b}); {a}; {b}: ({0} == {2}) == ({1} == {3})",
)

BOUNDS = _claims(
    "bounds",
    "torch.sin({a}): {0}.abs() <= 1",
    "torch.cos({a}): {0}.abs() <= 1",
    "torch.sin({a} * 1000): {0}.abs() <= 1",
    "1 - torch.cos({a}) ** 2: {0} >= 0",
    "1 - torch.sin({a}).square(): {0} >= 0",
    "(1 - torch.tanh({a}) ** 2).sqrt(): {0} >= 0",
    "1 - torch.sigmoid({a}): {0} >= 0",
    "torch.tanh({a}): {0}.abs() <= 1",
    "torch.erf({a}): {0}.abs() <= 1",
    "torch.erfc({a}): ({0} >= 0) & ({0} <= 2)",
    "torch.special.ndtr({a}): ({0} >= 0) & ({0} <= 1)",
    "torch.sigmoid({a}): ({0} >= 0) & ({0} <= 1)",
    "torch.softmax({a}, D): ({0} >= 0) & ({0} <= 1)",
    "torch.log_softmax({a}, D): {0} <= 0",
    "F.logsigmoid({a}): {0} <= 0",
    "F.relu({a}): {0} >= 0",
    "F.softplus({a}): {0} >= 0",
    "torch.exp({a}): {0} >= 0",
    "torch.expm1({a}): {0} >= -1",
    "torch.log1p({a}.abs()): {0} >= 0",
    "torch.cosh({a}): {0} >= 1",
    "{a}.var(D, correction=0): {0} >= 0",
    "{a}.std(D, correction=0): {0} >= 0",
    "{a}.norm(dim=D): {0} >= 0",
    "{a}.norm(dim=D); {a}: {0} >= {1}.abs().amax(D)",
    "{a}.abs().sum(D); {a}: {0} >= {1}.abs().amax(D)",
    "{a}.clamp(-0.5, 0.75): ({0} >= -0.5) & ({0} <= 0.75)",
    "torch.clamp({a}, {b}.abs() * -1, {b}.abs()); {b}: {0}.abs() <= {1}.abs()",
    "{a}.floor(); {a}: {0} <= {1}",
    "{a}.ceil(); {a}: {0} >= {1}",
    "torch.frac({a}): {0}.abs() < 1",
    "torch.remainder({a}, {b}.abs() + 0.5); {b}.abs() + 0.5: ({0} >= 0) & ({0} <= {1})",
    "torch.fmod({a}, {b}.abs() + 0.5); {b}.abs() + 0.5: {0}.abs() < {1}",
    "torch.logsumexp({a}, D); {a}: {0} >= {1}.amax(D)",
    "torch.logaddexp({a}, {b}); {a}; {b}: {0} >= torch.maximum({1}, {2})",
    "{a}.logcumsumexp(D); {a}: {0} >= {1}.cummax(D).values",
    "torch.hypot({a}, {b}); {a}: {0} >= {1}.abs()",
    "torch.atan({a}): {0}.abs() <= 1.5707964",
    "torch.atan2({a}, {b}): {0}.abs() <= 3.1415928",
    "torch.acos({a}.clamp(-1, 1)): ({0} >= 0) & ({0} <= 3.1415928)",
    "torch.asin({a}.clamp(-1, 1)): {0}.abs() <= 1.5707964",
    "F.softsign({a}): {0}.abs() <= 1",
    "F.hardsigmoid({a}): ({0} >= 0) & ({0} <= 1)",
    "F.silu({a}): {0} >= -0.27847",
    "F.gelu({a}): {0} >= -0.16998",
    "{a}.mean(D); {a}: ({0} >= {1}.amin(D)) & ({0} <= {1}.amax(D))",
    "F.normalize({a}, dim=D): {0}.abs() <= 1",
    "-(torch.softmax({a}, D) * torch.log_softmax({a}, D)): {0} >= 0",
    "F.binary_cross_entropy_with_logits({a}, torch.sigmoid({b}).round(), reduction='none'): {0} >= 0",
    "torch.log({a}.abs() + 1): {0} >= 0",
    "torch.exp(-{a}.abs()): {0} <= 1",
    "torch.exp2({a}.clamp(-9, 0)): {0} <= 1",
    "torch.pow({a}.abs().clamp(0, 1), 2.5): {0} <= 1",
    "torch.rsqrt({a}.abs() + 1): {0} <= 1",
    "{a}.square().cumsum(D): {0}.narrow(D, 1, {0}.shape[D] - 1) >= {0}.narrow(D, 0, {0}.shape[D] - 1)",
    "torch.lerp({a}, {a}, 0.3); {a}: {0} == {1}",
    "F.cross_entropy({a}.transpose(D, -1).reshape(-1, {a}.shape[D]), "
    "{a}.transpose(D, -1).reshape(-1, {a}.shape[D]).argmin(-1), reduction='none'): {0} >= 0",
    "torch.special.entr({a}.abs().clamp(0, 1)): {0} >= 0",
    "F.cosine_similarity({a}, {b}, dim=D): {0}.abs() <= 1.0001",
    "torch.special.i0({a}): {0} >= 1",
    "F.mish({a}): {0} >= -0.309",
    "torch.sqrt({a}.square() + {b}.square()); {a}: {0} >= {1}.abs()",
    "{a}.square().mean(D) - {a}.mean(D).square() * 0; {a}: {0} >= 0",
    "({a} - {a}.amin(D, keepdim=True)) / ({a}.amax(D, keepdim=True) - {a}.amin(D, keepdim=True) + 1e-3): "
    "({0} >= 0) & ({0} <= 1)",
)

CANCELLING = _claims(
    "cancelling",
    "{a} * {b} - {b} * {a}: {0} == 0",
    "({a} + {b}) - ({b} + {a}): {0} == 0",
    "{a} * {b}; {a} * {b} - {a} * {b}: ({1} == 0) | ({0} != {0})",
    "fn({a}) * {b} - {b} * fn({a}): {0} == 0",
    "fn({a}) * fn({b}) - fn({b}) * fn({a}): {0} == 0",
    "{a} * {a} - {a}.square(): {0} == 0",
    "{a} * {a}; {a} ** 2: {0} == {1}",
    "{a} / {a}; {a}: ({0} == 1) | ({1} == 0)",
    "{a} - {a}: {0} == 0",
    "{a} * 0: {0} == 0",
    "-(-{a}); {a}: {0} == {1}",
    "({a} * 2) / 2; {a}: {0} == {1}",
    "{a} * 0.5 + {a} * 0.5; {a}: {0} == {1}",
    "{a} - {b}; {b} - {a}: {0} == -{1}",
    "{a} + {a}; {a} * 2: {0} == {1}",
    "({a} - {b}).abs(); ({b} - {a}).abs(): {0} == {1}",
    "{a}.abs() * {b}.abs(); {a} * {b}: {0} == {1}.abs()",
    "{a}.frac() + {a}.trunc(); {a}: {0} == {1}",
    "torch.addcmul({b} * 0, {a}, {b}) - {a} * {b}: {0} == 0",
    "torch.expm1({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "torch.sin({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "torch.tanh({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "torch.log1p({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "torch.atan({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "torch.asinh({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "torch.sinh({a} * 1e-12); {a}: {0} == {1} * 1e-12",
    "{a} * 1; {a}: {0} == {1}",
    "{a}.sign() * {a}.abs(); {a}: {0} == {1}",
    "torch.fmod({a}, {b}.abs() + 0.5) + 0; {a}: ({0} == {1}) | ({1}.abs() >= {0}.abs())",
    "torch.maximum({a}, {b}) + torch.minimum({a}, {b}); {a} + {b}: {0} == {1}",
    "{a}.square().sqrt(); {a}: {0} == {1}.abs()",
    "torch.pow({a}.abs(), 0.5); {a}.abs().sqrt(): {0} == {1}",
    "torch.pow({a}, 1); {a}: {0} == {1}",
    "torch.pow({a}, 0): {0} == 1",
    "torch.pow({a}, -1); 1 / {a}: {0} == {1}",
    "torch.pow({a}, 3); {a} * {a} * {a}: {0} == {1}",
    "torch.reciprocal({a}.abs() + 1); 1 / ({a}.abs() + 1): {0} == {1}",
    "{a} / 4; {a} * 0.25: {0} == {1}",
    "torch.copysign({a}, {b}).abs(); {a}: {0} == {1}.abs()",
    "torch.exp({a} * 0): {0} == 1",
    "torch.log({a} * 0 + 1): {0} == 0",
    "torch.cos({a} * 0): {0} == 1",
    "torch.sigmoid({a} * 0): {0} == 0.5",
    "torch.cosh({a} * 0): {0} == 1",
    "torch.erfc({a} * 0): {0} == 1",
    "F.gelu({a} * 0): {0} == 0",
    "torch.sinh({a} * 0): {0} == 0",
    "torch.exp2({a}.round().clamp(-9, 9)).log2(); {a}.round().clamp(-9, 9): {0} == {1}",
    "torch.exp2({a}.round().clamp(-9, 9)) * torch.exp2(-{a}.round().clamp(-9, 9)): {0} == 1",
    "torch.pow(2, {a}.round().clamp(-9, 9)); torch.exp2({a}.round().clamp(-9, 9)): {0} == {1}",
    "torch.pow({a}.round().clamp(-9, 9), 3).frac(): {0} == 0",
    "({a}.round().clamp(-9, 9) ** 2).sqrt().frac(): {0} == 0",
    "({a}.round().clamp(-9, 9) / 3) * 3; {a}.round().clamp(-9, 9): {0} == {1}",
    "torch.log10(torch.pow(10.0, {a}.round().clamp(0, 2))).frac(): {0} == 0",
    "torch.hypot({a} * 0 + 3, {a} * 0 + 4): {0} == 5",
    "torch.hypot({a}, {a} * 0); {a}: {0} == {1}.abs()",
    "torch.atan2({a} * 0, {a}.abs() + 1): {0} == 0",
    "torch.lgamma({a} * 0 + 1): {0} == 0",
    "torch.logaddexp({a}, {b}); torch.logaddexp({b}, {a}): {0} == {1}",
    "torch.softmax({a}, D); torch.softmax({a} * 1, D): {0} == {1}",
    "F.relu({a}) - F.relu(-{a}); {a}: {0} == {1}",
    "{a}.sum(D) - {a}.sum(D, keepdim=True).squeeze(D): {0} == 0",
    "{a}.sum(D); {a}.clone().sum(D): {0} == {1}",
    "{a}.var(D); {a}.clone().var(D): {0} == {1}",
    "{a} - {a}.mean(D, keepdim=True); {a}.mean(D, keepdim=True); {a}: {0} == {2} - {1}",
    "({a}.round().clamp(-9, 9)).double().sum(D); {a}.round().clamp(-9, 9).long().sum(D): {0} == {1}",
    "({a} * 0 + 1).mean(D): {0} == 1",
    "({a} > {b}).double().mean(D) * {a}.shape[D]; ({a} > {b}).sum(D): ({0} - {1}).abs() < 1e-6",
)


MONOTONE = [
    Claim(f"not decreasing: {name}", (text.format("{a}.sort(D).values"),), "{0}.diff(dim=D) >= 0")
    for text in (
        "torch.exp({})", "torch.exp2({}.clamp(-30, 30))", "torch.log({}.abs().cummax(D).values + 0.1)", "{} * 3",
        "torch.sqrt({}.abs().cummax(D).values)", "torch.sigmoid({})", "torch.atan({})", "torch.sinh({}.clamp(-9, 9))",
        "torch.asinh({})", "torch.log1p({}.abs().cummax(D).values)", "F.relu({})", "F.softplus({})", "F.leaky_relu({})",
        "torch.asin({}.clamp(-1, 1))", "F.softsign({})", "F.logsigmoid({})", "F.elu({})", "{} ** 3", "{} + 0.1",
        "torch.atanh({}.clamp(-0.9, 0.9))", "torch.log2({}.abs().cummax(D).values + 0.1)", "F.hardsigmoid({})",
        "{}.floor()", "{}.round()", "{}.clamp(-1, 1)", "{}.to(torch.float16)", "{}.abs().cumsum(D)", "{} / 3",
        "-1 / ({}.exp() + 1)",
        "torch.special.ndtr({})", "{}.cummax(D).values", "torch.log10({}.abs().cummax(D).values + 0.1)",
    )
    for name in [text.format("x")]
]  # fmt: skip
"""Functions that never decrease.  ``tanh``, ``erf`` and ``expm1`` are not among them: ours do, by a unit in the last
place, as vectors of the C library do."""

PARITY = [
    Claim(f"parity: {name}", (text.format("(-{a})"), text.format("({a})")), f"{{0}} == {sign}{{1}}")
    for sign, texts in {
        "-": (
            "torch.sin({})", "torch.tan({})", "torch.tanh({})", "torch.erf({})", "torch.asinh({})", "torch.atan({})",
            "torch.sinh({})", "torch.trunc({})", "torch.round({})", "torch.sign({})", "torch.asin({}.clamp(-1, 1))",
            "torch.atanh({}.clamp(-0.9, 0.9))", "F.softsign({})", "F.hardtanh({})", "{} * 3", "{} / 3", "{} ** 3",
            "torch.frac({})", "F.tanhshrink({})", "F.softshrink({})",
        ),
        "": (
            "torch.cos({})", "torch.cosh({})", "torch.abs({})", "{} ** 2", "torch.sinc({})", "torch.exp(-{}.square())",
            "torch.log1p({}.square())", "{} ** 4",
        ),
    }.items()
    for text in texts
    for name in [text.format("x")]
]  # fmt: skip
"""Odd and even functions."""

CLAIMS = (*EQUAL_IN_EQUAL_OUT, *SAME_VALUE, *BOUNDS, *CANCELLING, *MONOTONE, *PARITY)
KINDS = (EQUAL_IN_EQUAL_OUT, SAME_VALUE, BOUNDS, CANCELLING, MONOTONE, PARITY)
"""The claims by kind, which are drawn evenly."""
