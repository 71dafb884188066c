"""Attention of few queries over many keys, each part of the keys by itself: what parts hand on, as one tensor.

The whole is made of parts as of any others: with ``m`` the largest maximum, each weighs ``exp(maximum - m)``.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("turret", "FRAGMENT")
_ARGUMENTS = "Tensor query, Tensor key, Tensor value, Tensor? bias, float scale, int parts"
_library.define(f"attention_parts({_ARGUMENTS}) -> Tensor")
_library.define(f"attention_parts.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)")

BESIDE = 2
"""Numbers of a part beside its sum: the largest score, and the sum of exponentials relative to it."""


def part_length(keys: int, parts: int) -> int:
    """Keys of each part but the last, which may have fewer."""
    return -(-keys // parts)


def _attention_parts(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scale: float, parts: int
) -> torch.Tensor:
    """Parts of the attention of few queries.

    ``query`` is (batch, heads, queries, width), ``key`` and ``value`` are (batch, heads, keys, width); ``bias`` (what
    can be expanded to batch, heads, queries, keys) is added to the scores.

    The result is (parts, batch, heads, queries, width + 2) of float32: sums of values weighed by exponentials of scores
    relative to the part's largest, that score, and the sum of those exponentials.  A part without a score above minus
    infinity is zeros beside that.
    """
    batch, heads, queries, width = query.shape
    length = part_length(key.shape[2], parts)
    found = query.new_zeros((parts, batch, heads, queries, width + BESIDE), dtype=torch.float32)
    found[..., width] = -torch.inf
    for part in range(parts):
        inside = slice(part * length, (part + 1) * length)
        keys, values = key[:, :, inside].float(), value[:, :, inside].float()
        if not keys.shape[2]:
            continue
        scores = query.float() @ keys.mT * scale
        if bias is not None:
            scores = scores + bias.expand(batch, heads, queries, key.shape[2])[..., inside].float()
        best = scores.amax(-1, keepdim=True)
        weights = (scores - best.masked_fill(best == -torch.inf, 0.0)).exp()
        found[part, ..., :width] = weights @ values
        found[part, ..., width], found[part, ..., width + 1] = best[..., 0], weights.sum(-1)
    return found


def _attention_parts_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    parts: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    return out.copy_(_attention_parts(query, key, value, bias, scale, parts))


_library.impl("attention_parts", _attention_parts, "CompositeExplicitAutograd")
_library.impl("attention_parts.out", _attention_parts_out, "CompositeExplicitAutograd")
