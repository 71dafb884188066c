"""Dicts and their views, handed in and made: contents, order, kinds, and what others see of changes."""

from __future__ import annotations

import collections
import copy
import types
import typing

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, check

X = torch.arange(3.0)


class Options(typing.TypedDict):
    count: int
    weight: torch.Tensor


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_views_are_arguments_like_any_other(kind):
    def function(x, held, keys, values, items):
        for value in values:
            x = x + value
        held["z"] = 3
        return x, list(keys), "z" in keys, len(values), dict(items), keys | {"q"}, sorted(keys & {"a"}), x * len(items)

    def arguments():
        held = kind(a=1, b=torch.ones(3))
        return held, held.keys(), held.values(), held.items()

    observed = Observed(function, fullgraph=True)
    for _ in range(2):
        given, plain = arguments(), arguments()
        expected = function(X, *plain)
        found = observed(X, *given)
        assert torch.equal(found[0], expected[0])
        assert found[1:4] == expected[1:4]
        assert [*found[4]] == [*expected[4]]
        assert found[5:7] == expected[5:7]
        assert list(given[0]) == list(plain[0])
    assert len(observed.graphs) == 1


def test_a_view_of_other_contents_is_another_capture():
    observed = Observed(lambda x, keys: x * len(keys) if "a" in keys else x, fullgraph=True)
    for held in ({"a": 1}, {"a": 1, "b": 2}, {"b": 2}):
        expected = X * len(held) if "a" in held else X
        assert torch.equal(observed(X, held.keys()), expected)


def test_views_that_leave_show_the_programs_dict():
    def function(x, held):
        keys, items = held.keys(), held.items()
        held["new"] = 1
        return x + 1, keys, items

    held = collections.OrderedDict(a=1)
    _, keys, items = Observed(function)(X, held)
    held["later"] = 2
    assert list(keys) == ["a", "new", "later"]
    assert type(items) is type(held.items())
    assert dict(items)["later"] == 2


def test_a_key_that_is_there_later_is_found():
    one, two = torch.ones(3), torch.ones(3)
    observed = Observed(lambda x, key, held: x + held[key] if key in held else x)
    assert torch.equal(observed(X, one, {two: 2}), X)
    assert torch.equal(observed(X, two, {two: 2}), X + 2)
    observed = Observed(lambda x, key, held: key in held)
    assert observed(X, one, {two}) is False
    assert observed(X, two, {two}) is True


def test_kinds_of_dicts_are_kept():
    def function(x):
        made = collections.defaultdict(int, a=1)
        keys = collections.OrderedDict.fromkeys("ab", 1), {}.fromkeys([1]), dict.fromkeys("ab")
        return x + 1, repr(made), str(collections.OrderedDict(a=1)), keys, "%(k)s" % {"k": 1}

    check(function, X, graphs=1)


def test_typed_dicts_are_dicts():
    def function(x):
        made = Options(count=2, weight=x)
        return made["weight"] * made["count"], made, Options({"count": 1, "weight": x})

    check(function, X, graphs=1)


def test_a_read_only_view_refuses_changes():
    shown = types.MappingProxyType({"a": 1})

    def function(x):
        try:
            shown["a"] = 2
        except TypeError as error:
            return x + shown["a"], str(error)

    check(function, X, breaks=None)
    assert shown["a"] == 1


def test_counters_count():
    def function(x, held):
        made = collections.Counter("abca")
        made.update("ab")
        held.update(["a", "c"])
        return x * made["a"], made, made.most_common(1), held

    check(function, X, collections.Counter("aab"), graphs=1, calls=1)


class Defaults(dict):
    def __missing__(self, key):
        return -1


def test_missing_keys_are_asked_for():
    check(lambda x: x + Defaults(a=1)["b"], X)


class Named:
    def __init__(self, value):
        self.value = value

    @property
    def level(self):
        return self.value

    @level.setter
    def level(self, value):
        self.value = value


def test_keys_of_a_dict_of_attributes_need_not_be_attributes():
    def program(x, box):
        made = Named(1)
        held = vars(made)
        held[0] = x
        held["level"] = 5
        vars(box)["level"] = held.get("level", 0)
        vars(box).update({1: 2, "other": 3})
        return list(held.items()), made.level, box.value

    def run(function):
        box = Named(7)
        return function(torch.ones(2), box), vars(box)

    assert_same(run(Observed(program)), run(program))


LABELLED = collections.OrderedDict(a=1)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(3)
        self.last = torch.nn.Sequential(torch.nn.Linear(1, 1))


LAYERS = Layers()


def labels(x, n):
    made = collections.OrderedDict(a=x)
    made._metadata = collections.OrderedDict(v=n)
    shallow, deep = copy.copy(made), copy.deepcopy(made)
    return made, shallow, deep, shallow._metadata is made._metadata, hasattr(made.copy(), "_metadata")


def labels_of_before(x, n):
    first = hasattr(LABELLED, "tag")
    LABELLED.tag = n
    LABELLED._metadata["q"] = n
    try:
        LABELLED.missing
    except AttributeError as error:
        return x * LABELLED._metadata["v"] + LABELLED.tag, first, str(error)


def state(x, n):
    found = LAYERS.state_dict(prefix="p.")
    return x + found["p.linear.weight"].sum() * n, list(found), found._metadata, found


@pytest.mark.parametrize("program", [labels, labels_of_before, state])
def test_attributes_of_an_ordered_dict_are_kept_beside_its_items(program):
    x, seen = torch.ones(4), []
    for call in (program, Observed(program, fullgraph=True)):
        vars(LABELLED).clear()
        LABELLED._metadata = {"v": 1}
        seen.append([(call(x, n), dict(vars(LABELLED))) for n in (2, 3, 2)])
        seen[-1].append([vars(v) for v in seen[-1][0][0] if isinstance(v, collections.OrderedDict)])
    assert_same(*seen[::-1])


def shown(x):
    held = {"a": x}
    proxy = types.MappingProxyType(held)
    held["b"] = x + 1
    try:
        proxy["z"] = 3
    except TypeError as error:
        message = str(error)
    merged = proxy | {"z": 1}, {**proxy}, dict(proxy), proxy.copy()
    return list(proxy.items()), "b" in proxy, proxy.get("c"), len(proxy), merged, message, isinstance(proxy, dict)


def filled_by_its_dict(x):
    held = collections.defaultdict(list)
    types.MappingProxyType(held)["a"].append(x)
    return held, x + 1


def test_a_proxy_shows_its_dict():
    check(shown, X, graphs=1)
    check(filled_by_its_dict, X, graphs=1)


def test_a_proxy_shows_its_dict_on_both_sides_of_a_break():
    def program(x):
        held = {"a": x}
        proxy = types.MappingProxyType(held)
        print(end="")
        held["b"] = x + 1
        return proxy["b"] * 2, len(proxy), list(proxy)

    check(program, X, breaks=1)


def test_a_proxy_that_leaves_shows_its_dict():
    def program(x):
        held = {"a": x + 1}
        return types.MappingProxyType(held), held

    proxy, held = Observed(program, fullgraph=True)(X)
    held["b"] = 3
    assert type(proxy) is types.MappingProxyType and proxy["b"] == 3


def test_a_proxy_from_before_shows_changes_of_its_dict():
    def program(x, held, proxy):
        held["n"] += 1
        return x * proxy["n"]

    observed = Observed(program, fullgraph=True)
    held = {"n": 1}
    for n in (2, 3, 4):
        assert torch.equal(observed(X, held, types.MappingProxyType(held)), X * n)


def test_items_are_sorted_by_names_beside_which_tensors_stand():
    check(lambda x: [v + 1 for _, v in sorted({"b": x, "a": x * 2}.items())], X, graphs=1)


def test_keys_that_the_program_does_not_name_are_nothing_to_it():
    def function(batch):
        return batch["x"] * 2 + batch.get("y", 1) + ("z" in batch)

    observed = Observed(function, fullgraph=True)
    for more in ({}, {"id": "a"}, {"id": "b", "meta": {"path": "p"}}, {7: None}):
        for batch in ({"x": X, **more}, {**more, "x": X}):
            assert_same(observed(batch), function(batch))
    assert len(observed.graphs) == 1
    for batch in ({"x": X, "y": 3}, {"x": X, "z": 3}, {"x": X, "y": 3, "z": 1}):
        assert_same(observed(batch), function(batch))
    with pytest.raises(KeyError):
        observed({"y": X})


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_keys_that_are_set_by_name_lie_where_eager_puts_them(kind):
    def function(x, held):
        held["new"] = x * 2
        held["old"] = x + 1
        del held["gone"]
        held["back"] = held.pop("back") + 1
        held["never"] = 1
        held.pop("never")
        return x

    observed = Observed(function, fullgraph=True)
    for names in (("old", "gone", "back"), ("gone", "a", "old", "b", "back"), ("back", "c", "gone", "old")):
        mine, plain = (kind((name, number) for number, name in enumerate(names)) for _ in range(2))
        assert_same(observed(X, mine), function(X, plain))
        assert_same(mine, plain)
        assert list(mine) == list(plain)
    assert len(observed.graphs) <= 2


_LOOKS = {
    "length": lambda x, held: x * len(held),
    "order": lambda x, held: (x, list(held)),
    "values": lambda x, held: x + sum(held.values()),
    "last": lambda x, held: (x, held.popitem()),
    "copy": lambda x, held: (x, dict(held)),
    "both": lambda x, held: (x, held | {"q": 1}),
    "equal": lambda x, held: x if held == {"a": 1} else x + 1,
    "update": lambda x, held: (held.update(a=5, q=6), x)[1],
    "clear": lambda x, held: (held.clear(), x)[1],
    "named": lambda x, held: (x, held.get("a"), "b" in held),
    "words": lambda x, held: (lambda **words: (x, sorted(words)))(**held),
}


@pytest.mark.parametrize("look", _LOOKS)
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_all_keys_count_as_soon_as_the_program_looks_at_them(look, first):
    def function(x, held):
        if first:
            held["a"] = 2
            held.pop("c", None)
        result = _LOOKS[look](x, held)
        if not first:
            held["d"] = 2
            held.pop("b", None)
        return result

    observed = Observed(function, fullgraph=True)
    for names in ("a", "ab", "ba", "b", "abc", "cab", "", "d", "a"):
        if look == "last" and not names:
            continue
        mine, plain = ({name: number for number, name in enumerate(names)} for _ in range(2))
        assert_same(observed(X, mine), function(X, plain))
        assert_same(mine, plain)
        assert list(mine) == list(plain)


def test_a_key_that_equals_another_is_that_key():
    def function(x, held):
        held[1] = held.get(1, 0) + 1
        return x * held[1]

    observed = Observed(function, fullgraph=True)
    for held in ({1: 4}, {True: 4}, {1.0: 4}, {}, {2: 1}):
        mine, plain = dict(held), dict(held)
        assert_same(observed(X, mine), function(X, plain))
        assert_same(mine, plain)
        assert list(map(type, mine)) == list(map(type, plain))


def test_a_factory_makes_what_is_not_there():
    def function(x, held):
        held["a"].append(x.sum())
        return x

    observed = Observed(function, fullgraph=True)
    mine, plain = collections.defaultdict(list), collections.defaultdict(list)
    for number in range(5):
        mine[number], plain[number] = [], []
        assert_same(observed(X, mine), function(X, plain))
        assert_same(mine, plain)
    assert len(observed.graphs) == 2
