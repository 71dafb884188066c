"""Functions of the standard library that are pure, or that do nothing, break no graph."""

from __future__ import annotations

import base64
import inspect
import json
import logging
import operator
import os
import pathlib
import re
import string
import sys
import unicodedata
import zlib

import numpy
import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, check
from turret.errors import CaptureError

X = torch.ones(3)
LOGGER = logging.getLogger("turret.tests.of.capture")


def paths(x):
    y = x + 1
    path = os.path.join("a", "b", "c.txt")
    return y * 2, path, os.path.basename(path), os.path.dirname(path), os.path.splitext(path)


def json_both_ways(x):
    y = x + 1
    return y * 2, json.dumps({"a": [1, 2.5, None, x.shape[0]]}, indent=1), json.loads('{"a": [1]}')


def signature_of_a_new_function(x):
    def inner(a, b=3, *args: int, c: "str" = "s", **kwargs) -> float:
        return a

    y = x + 1
    parameters = inspect.signature(inner).parameters
    return y * 2, list(parameters), [p.default for p in parameters.values()], str(inspect.signature(inner))


def annotations(x):
    def inner(a: int, b: "text" = 3) -> float:  # noqa: F821
        return a

    def plain(a):
        return a

    plain.__annotations__["a"] = int
    return x + 1, dict(inner.__annotations__), dict(plain.__annotations__), inner.__dict__


@pytest.mark.parametrize("program", [paths, json_both_ways, signature_of_a_new_function, annotations])
def test_what_is_pure_is_computed_while_capturing(program):
    check(program, X, breaks=0, graphs=1)


def test_a_function_that_leaves_has_its_annotations():
    def program(x):
        def inner(a: int) -> float:
            return a

        return x + 1, inner

    assert Observed(program)(X)[1].__annotations__ == program(X)[1].__annotations__


def test_defaults_that_are_set_are_those_of_the_next_call():
    def held(x, factor=2):
        return x * factor

    def program(x, given):
        def inner(x, factor=2):
            return x * factor

        y = x + 1
        inner.__defaults__ = (3,)
        given.__defaults__ = (5,)
        return inner(y), given(y)

    check(program, X, held, breaks=None)


def logged(x):
    y = x + 1
    LOGGER.debug("of %s", y)
    logging.getLogger("turret.tests.of.capture").info("of %s", y)
    LOGGER.log(5, "of %s", y)
    if LOGGER.isEnabledFor(logging.DEBUG):
        y = y * 3
    return y * 2


def own_messages(log_records):
    return [r.getMessage() for r in log_records if r.name == LOGGER.name]


def test_a_message_below_the_level_of_its_logger_is_none(log_records):
    observed = Observed(logged)
    LOGGER.setLevel(logging.WARNING)
    for _ in range(2):
        assert torch.equal(observed(X), X * 4)
    assert len(observed.graphs) == 1 and not observed.breaks and not own_messages(log_records)

    LOGGER.setLevel(logging.DEBUG)  # from now on they are written
    for _ in range(2):
        assert torch.equal(observed(X), X * 12)
    assert own_messages(log_records) == [f"of {X + 1}"] * 4


ADAPTER = logging.LoggerAdapter(LOGGER, {"of": "tests"})


def logged_otherwise(x):
    y = x + 1
    ADAPTER.debug("of %s", y)
    logging.debug("of the root logger")
    try:
        raise ValueError
    except ValueError:
        ADAPTER.exception("of %s", y)
    if LOGGER.getEffectiveLevel() < logging.CRITICAL:
        y = y * 3
    return y * 2


def test_messages_by_adapters_and_the_root_logger_are_none_below_their_levels(log_records):
    observed = Observed(logged_otherwise)
    root, handler = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(handler)
    try:
        root.setLevel(logging.WARNING)
        LOGGER.setLevel(logging.CRITICAL)
        for _ in range(2):
            assert torch.equal(observed(X), X * 4)
        assert len(observed.graphs) == 1 and not observed.breaks and not own_messages(log_records)
        LOGGER.setLevel(logging.ERROR)
        assert torch.equal(observed(X), X * 12)
        assert own_messages(log_records) == [f"of {X + 1}"]
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def test_a_variable_of_the_environment_that_is_there_is_read_alone(monkeypatch):
    def program(x):
        os.environ.setdefault("TURRET_TEST_NUMBER", "3")
        return x * int(os.environ["TURRET_TEST_NUMBER"])

    observed = Observed(program)
    for text in ("2", "4"):
        monkeypatch.setenv("TURRET_TEST_NUMBER", text)
        assert torch.equal(observed(X), X * int(text))
    assert not observed.breaks
    monkeypatch.delenv("TURRET_TEST_NUMBER")
    assert torch.equal(observed(X), X * 3) and os.environ["TURRET_TEST_NUMBER"] == "3"


def replaced_by_a_function(x):
    starts = []

    def replacement(match):
        starts.append(match.start())
        return match.group().upper() + str(x.shape[0])

    found = re.sub("a", replacement, "banana"), re.compile("(?P<q>n)a").sub(lambda match: match["q"], "banana", 1)
    return x + 1, found, starts, re.sub("A", "b", "aA", flags=re.I), re.sub("a", lambda match: "b", "aaa", 2)


def template(x):
    return x + 1, string.Template("$a b ${c}").substitute(a=3, c=x.shape[0]), string.Template("$a").safe_substitute()


def each_match(x):
    return x * sum(int(m.group()) for m in re.finditer(r"\d", "a1b22")), [
        m.span() for m in re.compile("b").finditer("abab", 2)
    ]


def replaced_by_no_text(x):
    try:
        return re.sub("a", lambda match: 3, "a")
    except TypeError as error:
        return str(error), x + 1


def badly_written(x):
    try:
        return re.sub("(", "", "a")
    except re.error as error:
        return str(error), x + 1


def parameters_of_a_signature(x):
    bound = inspect.signature(replaced_by_a_function).bind(x)
    bound.apply_defaults()
    return x + len(bound.arguments), list(inspect.signature(template).parameters)


@pytest.mark.parametrize(
    "program",
    [replaced_by_a_function, template, each_match, replaced_by_no_text, badly_written, parameters_of_a_signature],
)
def test_texts_are_made_while_capturing(program):
    check(program, X, breaks=0, graphs=1)


def test_the_limit_of_recursion_is_the_program_s():
    observed = Observed(lambda x: x * sys.getrecursionlimit(), fullgraph=True)
    before = sys.getrecursionlimit()
    try:
        for limit in (before, before + 10, before):
            sys.setrecursionlimit(limit)
            assert torch.equal(observed(X), X * limit)
            assert sys.getrecursionlimit() == limit
    finally:
        sys.setrecursionlimit(before)


PATH = pathlib.Path("a/b.pt")


def joined_paths(x, path):
    made = path.parent / "c.txt"
    return x + len(made.parts), made, str(made), made.name, made.suffix, made.stem, f"{path}", repr(path)


def changed_paths(x, path):
    other = path.with_name("z.pt").with_suffix(".b").with_stem("y")
    return x + 1, other, path.match("*.pt"), path.relative_to("a"), path.joinpath("k", "l"), path.suffixes, path.drive


def compared_paths(x, path):
    other = pathlib.Path("a") / "c"
    return x + 1, path == other, path < other, sorted([other, path]), {path: 3}[pathlib.Path("a/b.pt")], path != PATH


def branches_on_paths(x, path):
    return x + 1 if path.suffix == ".pt" else x - 1


def paths_as_texts(x, path):
    return x + 1, os.path.join(path, "b", PATH), os.fspath(path), os.path.splitext(path), os.path.basename(path / "x")


def parts_in_common(x, path):
    return x + 1, os.path.commonpath(["/a/b", "/a/c"])


@pytest.mark.parametrize(
    "program", [joined_paths, changed_paths, compared_paths, branches_on_paths, paths_as_texts, parts_in_common]
)
def test_paths_are_computed_with_while_capturing(program):
    observed = Observed(program, fullgraph=True)
    for path in (pathlib.Path("a/b.pt"), pathlib.Path("a/b.pt"), pathlib.Path("a/c.txt")):
        if program is compared_paths and path != PATH:
            continue
        assert_same(observed(X, path), program(X, path))


def test_what_a_path_finds_on_the_disk_is_asked_each_time(tmp_path):
    def program(x, path):
        return x + 1 if path.exists() else x - 1

    observed, path = Observed(program), tmp_path / "a"
    assert_same(observed(X, path), program(X, path))
    path.write_text("")
    assert_same(observed(X, path), program(X, path))


BY_NAME, BY_PLACE, BY_CALL = (
    operator.attrgetter("shape", "dtype"),
    operator.itemgetter(1),
    operator.methodcaller("sum", 0),
)


def test_getters_from_before_are_called():
    def program(x):
        return BY_NAME(x), BY_PLACE([1, x * 2]), BY_CALL(x), sorted([(1, 2), (2, 1)], key=BY_PLACE)

    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert_same(observed(X), program(X))


def test_getters_are_guarded():
    def program(x, get):
        return get([x, x * 2])

    observed = Observed(program, fullgraph=True)
    for get in (operator.itemgetter(0), operator.itemgetter(1)):
        assert_same(observed(X, get), program(X, get))


def about_python(x):
    newer = sys.version_info >= (3, 8)
    return x + 1, newer, sys.version_info[:2] > (4,), sys.version_info.major, sys.float_info.epsilon, sys.flags.optimize


def bytes_and_texts(x):
    return x + 1, base64.b64encode(b"text"), zlib.crc32(b"text"), unicodedata.normalize("NFC", "e\u0301")


@pytest.mark.parametrize("program", [about_python, bytes_and_texts])
def test_answers_that_never_change_are_folded(program):
    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), program(X))


def test_a_quantized_tensor_breaks_the_graph():
    def program(x):
        found = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        return found.dequantize() * 2, found.dtype, found.is_quantized

    observed = Observed(program)
    assert_same(observed(X), program(X))
    with pytest.raises(CaptureError, match="makes a quantized tensor, which no graph holds"):
        Observed(program, fullgraph=True)(X)


def of_limits(x, limits):
    return x + float(limits.max) / 2, limits.bits


def of_a_getter(x, getter):
    return getter([x, x + 1, x * 2])


MADE_ANEW = {
    "torch.finfo": (of_limits, lambda: torch.finfo(torch.float16), lambda: torch.finfo(torch.bfloat16)),
    "torch.iinfo": (of_limits, lambda: torch.iinfo(torch.int16), lambda: torch.iinfo(torch.uint8)),
    "numpy.finfo": (of_limits, lambda: numpy.finfo(numpy.float16), lambda: numpy.finfo(numpy.float32)),
    "numpy.iinfo": (of_limits, lambda: numpy.iinfo(numpy.int16), lambda: numpy.iinfo(numpy.uint8)),
    "itemgetter": (of_a_getter, lambda: operator.itemgetter(1), lambda: operator.itemgetter(2, 0)),
    "its bool": (of_a_getter, lambda: operator.itemgetter(1), lambda: operator.itemgetter(True)),
    "methodcaller": (of_a_getter, lambda: operator.methodcaller("pop"), lambda: operator.methodcaller("pop", 0)),
}


@pytest.mark.parametrize("name", MADE_ANEW)
def test_what_is_made_anew_for_each_call_is_known_by_what_it_says(name):
    program, one, other = MADE_ANEW[name]
    observed = Observed(program, fullgraph=True)
    for make in (one, one, one, other, one, other, other):
        assert_same(observed(X, make()), program(X, make()))
    assert len(observed.units) == 2
