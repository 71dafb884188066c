"""Dates and decimal numbers are computed with while capturing; those that change, and the clock, are Python's."""

from __future__ import annotations

import datetime
import decimal
from datetime import timedelta
from decimal import Decimal

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

X = torch.ones(2)
START = datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC)


def times(x):
    step = timedelta(minutes=30) * 2 + timedelta(seconds=1)
    return x * step.total_seconds(), step // timedelta(minutes=7), START + step, (START + step).day, str(step)


def dates(x):
    day = datetime.date(2020, 1, 5)
    later = day.replace(year=2021)
    return x * day.weekday(), later > day, later - day, day.isoformat(), f"{START:%Y-%m}", START.timestamp()


def decimals(x):
    price = Decimal("2.675").quantize(Decimal("0.01"), rounding=decimal.ROUND_HALF_UP)
    return x * float(price), price, price + 1, price > 2, int(price), Decimal(1) / 3, str(Decimal("1.00"))


def raises(x):
    try:
        return x, Decimal("no number")
    except decimal.InvalidOperation as error:
        return x, type(error).__name__, datetime.date(2020, 2, 29).day


@pytest.mark.parametrize("program", [times, dates, decimals, raises], ids=lambda p: p.__name__)
def test_constants_are_one_graph(program):
    observed = Observed(program)
    for _ in range(2):
        found, expected = observed(X), program(X)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
        assert list(map(str, found[1:])) == list(map(str, expected[1:]))
    assert not observed.breaks and not observed.fallbacks


def test_what_changes_is_captured_once_more_and_then_left_to_python():
    observed = Observed(lambda x, moment: (x + (moment - START).total_seconds(), moment + timedelta(days=1)))
    for day in range(1, 12):
        moment = START.replace(day=day)
        found = observed(X, moment)
        assert found[0].tolist() == [1 + 86400.0 * (day - 2)] * 2 and found[1].day == day + 1
    assert len(observed.recompiles) < 6 and not observed.fallbacks


def test_equal_numbers_that_are_written_otherwise_are_told_apart():
    observed = Observed(lambda x, number: (x + 1, str(number)))
    assert [observed(X, Decimal(text))[1] for text in ("1.0", "1.00", "1.0")] == ["1.0", "1.00", "1.0"]


def test_the_context_of_decimal_numbers_is_guarded():
    def program(x):
        return x + 1, Decimal(1) / Decimal(3)

    observed = Observed(program)
    assert observed(X)[1] == program(X)[1]
    with decimal.localcontext() as context:
        context.prec = 4
        assert observed(X)[1] == Decimal("0.3333")
    assert observed(X)[1] == program(X)[1]


def test_the_clock_is_no_constant():
    observed = Observed(lambda x: (x + 1, datetime.datetime.now()))
    first, second = observed(X)[1], observed(X)[1]
    assert second > first
