"""Reductions, normalisations over a dimension, scans and sorting."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from turret.testing.corpus.builder import Builder
from turret.testing.corpus.operations.registry import both, dim_of, has_dims, is_float, is_number, operation


def _nonempty(tensor: Tensor) -> bool:
    return tensor.numel() > 0


def _whole(name: str, template: str, accept: Callable[[Tensor], bool]) -> None:
    operation(name, "reduction")(lambda b: b.step(name, template, b.pick(accept)))


for _name, _template, _accept in (
    ("sum", "{0}.sum()", lambda t: True),
    ("mean", "{0}.mean()", both(is_float, _nonempty)),
    ("prod", "torch.tanh({0}).prod()", is_float),
    ("amax_all", "{0}.amax()", both(is_number, _nonempty)),
    ("max_all", "{0}.max()", both(is_number, _nonempty)),
    ("min_all", "{0}.min()", both(is_number, _nonempty)),
    ("argmax_all", "{0}.argmax()", both(is_number, _nonempty)),
    ("any_all", "{0}.any()", lambda t: True),
    ("all_all", "{0}.all()", lambda t: True),
    ("var_all", "{0}.var(correction=0)", both(is_float, _nonempty)),
    ("norm_all", "torch.linalg.vector_norm({0})", both(is_float, _nonempty)),
    ("count_nonzero", "torch.count_nonzero({0})", lambda t: True),
):
    _whole(_name, _template, _accept)


def _along(name: str, template: str, accept: Callable[[Tensor], bool], keep: bool = True) -> None:
    """A reduction along one dimension; ``DIM`` and ``KEEP`` are replaced by drawn ones."""

    def draw(b: Builder) -> object:
        operand = b.pick(accept)
        text = template.replace("DIM", str(dim_of(b, operand)))
        if keep:
            text = text.replace("KEEP", str(b.chance(40)))
        return b.step(name, text, operand)

    operation(name, "reduction")(draw)


_NUMBER = both(is_number, has_dims(1), _nonempty)
_FLOAT = both(is_float, has_dims(1), _nonempty)

for _name, _template, _accept in (
    ("sum_dim", "{0}.sum(DIM, keepdim=KEEP)", has_dims(1)),
    ("mean_dim", "{0}.mean(DIM, keepdim=KEEP)", _FLOAT),
    ("prod_dim", "torch.tanh({0}).prod(DIM, keepdim=KEEP)", both(is_float, has_dims(1))),
    ("integer_prod", "torch.sign({0}).prod(DIM, keepdim=KEEP)", both(is_number, has_dims(1))),
    ("amax", "{0}.amax(DIM, keepdim=KEEP)", _NUMBER),
    ("amin", "{0}.amin(DIM, keepdim=KEEP)", _NUMBER),
    ("argmax", "{0}.argmax(DIM, keepdim=KEEP)", _NUMBER),
    ("argmin", "{0}.argmin(DIM, keepdim=KEEP)", _NUMBER),
    ("any", "{0}.any(DIM, keepdim=KEEP)", has_dims(1)),
    ("all", "{0}.all(DIM, keepdim=KEEP)", has_dims(1)),
    ("var", "{0}.var(DIM, correction=0, keepdim=KEEP)", _FLOAT),
    ("std", "({0} * {0} + {0}).std(DIM, correction=0, keepdim=KEEP)", both(_FLOAT, lambda t: t.shape[-1] > 1)),
    ("logsumexp", "{0}.logsumexp(DIM, keepdim=KEEP)", _FLOAT),
    ("norm", "torch.linalg.vector_norm({0}, 2, DIM, KEEP)", _FLOAT),
    ("norm_one", "torch.linalg.vector_norm({0}, 1, DIM, KEEP)", _FLOAT),
    ("max_values", "{0}.max(DIM, KEEP).values", _NUMBER),
    ("min_values", "{0}.min(DIM, KEEP)[0]", _NUMBER),
    ("softmax", "F.softmax({0}, DIM)", both(is_float, has_dims(1))),
    ("log_softmax", "F.log_softmax({0}, DIM)", both(is_float, has_dims(1))),
    ("cumsum", "{0}.cumsum(DIM)", has_dims(1)),
    ("cumprod", "torch.tanh({0}).cumprod(DIM)", both(is_float, has_dims(1))),
    ("logcumsumexp", "torch.logcumsumexp({0}, DIM)", _FLOAT),
    ("cummax_values", "{0}.cummax(DIM)[0]", _NUMBER),
    ("sum_to_float", "{0}.sum(DIM, dtype=torch.float32)", has_dims(1)),
    ("softmax_to_float", "F.softmax({0}, DIM, dtype=torch.float32)", both(is_float, has_dims(1))),
    ("diff", "torch.diff({0}, dim=DIM)", both(is_number, has_dims(1))),
    ("normalize", "F.normalize({0}, dim=DIM)", _FLOAT),
    ("sort_values", "{0}.sort(dim=DIM, stable=True).values", both(is_number, has_dims(1))),
    ("argsort", "{0}.argsort(dim=DIM, stable=True)", both(is_number, has_dims(1))),
):
    _along(_name, _template, _accept)


@operation("sum_dims", "reduction")
def _sum_dims(b: Builder) -> object:
    operand = b.pick(has_dims(2))
    dims = b.choice(((0, 1), (0, -1), (-1, -2)))
    return b.step("sum_dims", f"{{0}}.sum({dims}, keepdim={b.chance(40)})", operand)


@operation("mean_dims", "reduction")
def _mean_dims(b: Builder) -> object:
    operand = b.pick(both(is_float, has_dims(2), _nonempty))
    return b.step("mean_dims", f"{{0}}.mean({b.choice(((0, 1), (0, -1)))})", operand)


@operation("max_with_indices", "reduction")
def _max_with_indices(b: Builder) -> object:
    operand = b.pick(_NUMBER)
    return b.step("max_with_indices", f"torch.max({{0}}, {dim_of(b, operand)})", operand, results=2)


@operation("var_mean", "reduction")
def _var_mean(b: Builder) -> object:
    operand = b.pick(_FLOAT)
    return b.step("var_mean", f"torch.var_mean({{0}}, {dim_of(b, operand)}, correction=0)", operand, results=2)


@operation("sort", "reduction")
def _sort(b: Builder) -> object:
    operand = b.pick(both(is_number, has_dims(1)))
    template = f"torch.sort({{0}}, dim={dim_of(b, operand)}, descending={b.chance(40)}, stable=True)"
    return b.step("sort", template, operand, results=2)


@operation("topk", "reduction")
def _topk(b: Builder) -> object:
    """Values only: the order of equal elements is not defined."""
    operand = b.pick(_NUMBER)
    count = b.integer(1, min(3, b[operand].shape[-1]))
    return b.step("topk", f"{{0}}.topk({count}).values", operand)


@operation("aminmax", "reduction")
def _aminmax(b: Builder) -> object:
    operand = b.pick(_NUMBER)
    return b.step("aminmax", f"torch.aminmax({{0}}, dim={dim_of(b, operand)})", operand, results=2)
