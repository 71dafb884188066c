"""Builtins that functions of Python stand in for, which are followed."""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import inspect
import math
import operator
from typing import Any

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.python.signatures import takes
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value


def polyfilled(original: Any, replacement: Any) -> None:
    """Register a function of Python to be followed in place of a builtin."""
    try:
        inspect.signature(original)
    except ValueError:  # it has none
        model = replacement
    else:
        model = original

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if not takes(model, len(args), kwargs):
            raise Unsupported(f"the arguments of {original.__name__}()")
        return t.call(t.wrap_known(replacement), list(args), kwargs)

    (registry.classes if isinstance(original, type) else registry.functions)[original] = handler


for _original, _replacement in (
    (any, polyfills.any_), (all, polyfills.all_), (sum, polyfills.sum_), (functools.reduce, polyfills.reduce),
    (operator.attrgetter, polyfills.attrgetter), (operator.itemgetter, polyfills.itemgetter),
    (operator.methodcaller, polyfills.methodcaller), (collections._count_elements, polyfills.count_elements),  # type: ignore[attr-defined]
    (operator.delitem, polyfills.delitem), (operator.call, polyfills.call),
    (operator.countOf, polyfills.count_of), (operator.indexOf, polyfills.index_of),
    (functools.cmp_to_key, polyfills.cmp_to_key), (math.prod, polyfills.prod),
    (bisect.bisect_left, polyfills.bisect_left), (bisect.bisect_right, polyfills.bisect_right),
    (bisect.insort_left, polyfills.insort_left), (bisect.insort_right, polyfills.insort_right),
    (heapq.heapify, polyfills.heapify), (heapq.heappush, polyfills.heappush), (heapq.heappop, polyfills.heappop),
    (heapq.heappushpop, polyfills.heappushpop), (heapq.heapreplace, polyfills.heapreplace),
    (heapq._heapify_max, polyfills.heapify_max), (heapq._heappop_max, polyfills.heappop_max),  # type: ignore[attr-defined]
    (heapq._heapreplace_max, polyfills.heapreplace_max),  # type: ignore[attr-defined]
):  # fmt: skip
    polyfilled(_original, _replacement)
