"""Iterators over what changes while they walk go on where they were."""

from __future__ import annotations

import torch

from tests.plugins.capture.capture_lab import check

X = torch.arange(6.0).reshape(2, 3)


def both_ways(items):
    for number in range(2):
        yield number
        items.append("taken")


def test_a_list_grows_while_it_is_extended():
    def program(x, log):
        log.extend(both_ways(log))
        return x + 1

    check(program, X, [], breaks=0)


def test_an_iterator_over_a_list_that_grew_goes_on_where_it_was():
    def program(x, items):
        seen = []
        items.extend([1, 2])
        for item in items:
            seen.append((item, float(x.sum())))
        return x + 1, seen

    check(program, X, [], breaks=None)
