"""Random functions, captured, do what they do plainly (``random_functions.py`` runs many more of them)."""

from __future__ import annotations

import warnings

from hypothesis import given, settings
from hypothesis import strategies as st
from random_functions import run_one


@settings(max_examples=40)
@given(st.integers(min_value=0, max_value=10**6))
def test_a_random_function_does_what_it_does_plainly(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        message = run_one(seed)
    assert message is None, message
