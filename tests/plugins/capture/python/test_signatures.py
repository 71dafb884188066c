"""Arguments are told from those that a function does not take, as Python tells them."""

from __future__ import annotations

import functools
import itertools

import pytest

from turret.plugins.capture.python.signatures import takes


class Kind:
    def method(self, a, b=1):
        pass


FUNCTIONS = {
    "nothing": lambda: None,
    "positional": lambda a, b: None,
    "defaults": lambda a, b=1, c=2: None,
    "by position alone": lambda a, b=1, /, c=2: None,
    "by position alone, without a default": lambda a, b, /: None,
    "by name alone": lambda a, *, b, c=1: None,
    "more": lambda *args: None,
    "more behind one": lambda a, *args, b=1: None,
    "others": lambda a, b=1, **kwargs: None,
    "others beside one by position alone": lambda a, /, b=1, **kwargs: None,
    "all": lambda a, /, b, *args, c, **kwargs: None,
    "of a class": Kind.method,
    "in C": divmod,
    "partial": functools.partial(lambda a, b, c=1: None, b=2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_a_call_of_it_takes(name):
    function = FUNCTIONS[name]
    names = ("a", "b", "c", "x", "y")
    subsets = [s for n in range(4) for s in itertools.combinations(names, n)]
    answers = set()
    for count in range(5):
        for given in subsets:
            try:
                function(*range(count), **dict.fromkeys(given))
                expected = True
            except TypeError:
                expected = False
            assert takes(function, count, given) is expected, (count, given)
            answers.add(expected)
    assert answers == {True, False}


def test_a_function_in_c_without_a_signature_is_refused():
    with pytest.raises(ValueError):
        takes(dict.fromkeys.__self__, 1)
