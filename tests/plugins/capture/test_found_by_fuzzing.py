"""Programs that once were captured wrongly, found by ``tests/fuzz/functions.py`` and made small."""

from __future__ import annotations

import collections.abc
import contextlib
import enum
import functools
import io
import math
import operator
import sys

import pytest
import torch
from capture_lab import Observed, assert_same, check, outcome

import turret


def numbers(count, log):
    try:
        for number in range(count):
            yield number
    except ValueError as error:
        log.append(str(error))
        yield -1
    finally:
        log.append("closed")


def delegating(count, log):
    yield from numbers(count, log)
    yield "end"


def fail(kind=KeyError):
    raise kind


fail._torchdynamo_disable = True


class Box:
    made = 0

    def __init__(self):
        self.count = 0

    @property
    def level(self):
        return self.count

    @level.deleter
    def level(self):
        self.count = -1

    @classmethod
    def make(cls):
        cls.made += 1
        return cls.made


class Small(Box):
    pass


class Defaults(dict):
    def __missing__(self, key):
        return -1


X = torch.arange(6.0).reshape(2, 3)


def same(function, *args):
    """Plain and captured; for programs that may break anywhere, or run as Python."""
    mine, theirs = Observed(function), [[] if a is None else a for a in args]
    for _ in range(2):
        ours, plain = [list(a) if isinstance(a, list) else a for a in theirs], list(theirs)
        expected, found = outcome(function, plain, {}), outcome(mine, ours, {})
        assert found[0] == expected[0], (found, expected)
        assert_same(found[1], expected[1])
        assert_same(ours, [list(a) if isinstance(a, list) else a for a in plain])
        theirs = [[] if a is None else a for a in args]


def test_a_generator_left_in_a_try_block_is_closed_when_its_variable_ends():
    def left(x, log):
        for _ in range(2):
            generator = numbers(2, log)
            log.append(next(generator))
        return x + 1

    def in_a_loop(x, log):
        for number in numbers(3, log):
            if number:
                break
        log.append("behind")
        return x + 1

    def with_an_exception(x, log):
        try:
            for _ in numbers(2, log):
                fail()
        except KeyError:
            log.append("caught")
        return x * 2

    for function in (left, in_a_loop, with_an_exception):
        same(function, X, None)


def test_exceptions_are_thrown_into_the_generator_that_another_delegates_to():
    def program(x, log):
        generator = delegating(2, log)
        next(generator)
        log.append(generator.throw(ValueError("t")))
        generator.close()
        log.append(next(generator, "over"))
        return x + 1

    same(program, X, None)


def test_a_generator_that_was_not_started_takes_none_only():
    def program(x):
        try:
            numbers(2, []).send(3)
        except TypeError as error:
            return x + 1, str(error)

    check(program, X, breaks=None)


def test_a_list_grows_while_it_is_extended():
    def program(x, log):
        log.extend(numbers(2, log))
        return x + 1

    check(program, X, [], breaks=0)


def test_an_iterator_over_a_list_that_grew_goes_on_where_it_was():
    def program(x, items):
        seen = []
        items.extend([1, 2])
        for item in items:
            seen.append((item, float(x.sum())))
        return x + 1, seen

    same(program, X, None)


def test_a_deleter_of_a_property_is_called():
    def program(x):
        box = Box()
        del box.level
        return x + box.count

    check(program, X)


def test_an_attribute_that_was_only_there_for_a_while_leaves_nothing():
    def program(x, box):
        box.extra = 1
        del box.extra
        return x + 1

    check(program, X, Box())


def test_a_class_attribute_may_be_set_on_a_subclass_between_calls():
    Small.__dict__.get("made") is not None and delattr(Small, "made")
    plain = [outcome(lambda x: (x + 1, Small.make()), (X,), {})[1][1] for _ in range(3)]
    del Small.made
    mine = Observed(lambda x: (x + 1, Small.make()))
    assert [mine(X)[1] for _ in range(3)] == plain == [1, 2, 3]
    del Small.made


def test_missing_keys_are_asked_for():
    check(lambda x: x + Defaults(a=1)["b"], X)


def test_identity_of_lists_is_guarded():
    mine = Observed(lambda x, a, b: (x + 1, a is b))
    one = [1]
    assert mine(X, one, [1])[1] is False
    assert mine(X, one, one)[1] is True


def test_numbers_that_are_symbols_compare_and_round_as_they_should():
    mine = Observed(lambda x, n: (x + 1, (n == n) is True, math.floor(n * 0.5), (n | 2) > (n | 2), n is None))
    for n in (5, 3, 8, 9):
        assert mine(X, n)[1:] == (True, n // 2, False, False)


def test_words_of_exceptions_are_the_interpreters():
    def required(a, b, *, c):
        pass

    def program(x, case):
        try:
            if case == 0:
                required(1, 2, 3)
            elif case == 1:
                required(c=1)
            elif case == 2:
                [1].remove(2)
            else:
                [1].index(2)
        except (TypeError, ValueError) as error:
            return x + 1, str(error)

    for case in range(4):
        check(program, X, case)


def test_raise_from_none_hides_the_context():
    def program(x):
        try:
            try:
                raise KeyError("a")
            except KeyError:
                raise ValueError("b") from None
        except ValueError as error:
            return x + 1, error

    result = Observed(program)(X)[1]
    assert result.__suppress_context__ and result.__cause__ is None and isinstance(result.__context__, KeyError)


def test_a_bound_method_of_a_list_is_no_reason_to_compile_again():
    def program(x, items):
        append = items.append
        fail_quietly = contextlib.suppress(KeyError)
        with fail_quietly:
            fail()
        append(1)
        return x + 1

    mine = Observed(program)
    for _ in range(4):
        assert mine(X, items := [])[0, 0] == 1
        assert items == [1]
    assert len(mine.recompiles) == 0


def test_a_view_that_autograd_forbids_to_change_raises_after_what_came_before():
    def program(x, items):
        with torch.no_grad():
            view = x[:]
            view.add_(1)
        print(end="")
        items.insert(0, 1)
        view[0] = 1

    for function in (program, Observed(program)):
        items: list = []
        assert outcome(function, (torch.ones(2, 3, requires_grad=True), items), {})[0] == "raised"
        assert items == [1]


class Rows(collections.abc.Sequence):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def guarded(rows):
    try:
        for row in rows:
            try:
                yield row
            except ValueError:
                yield None
    except IndexError:
        return


def test_a_generator_left_waiting_under_handlers_of_other_exceptions_is_no_obstacle():
    def program(x):
        rows = Rows([x, x + 1, x + 2])
        return next(iter(rows)) + next(guarded(rows))

    x = torch.ones(3)
    compiled = turret.compile(program, fullgraph=True, options={"capture": "turret", "on_error": "raise"})
    torch.testing.assert_close(compiled(x), program(x))


def test_after_a_break_an_unbound_variable_of_a_closure_is_still_a_local_one():
    def program(x, rows):
        print(end="")
        for row in rows:

            def later():
                return row

        return row

    for function in (program, Observed(program)):
        kind, error = outcome(function, (torch.ones(2), []), {})[:2]
        assert kind == "raised" and type(error) is UnboundLocalError


def test_a_kept_exception_keeps_the_generators_of_its_frame_waiting():
    def program(x, errors, log):
        try:
            waiting = numbers(2, log)
            log.append(next(waiting))
            int("x")
        except ValueError as error:
            errors.append(error)
        return x + 1

    for function in (program, Observed(program)):
        errors: list = []
        log: list = []
        function(torch.ones(2), errors, log)
        assert log == [0] and len(errors) == 1


def test_a_generator_bound_anew_in_a_loop_is_closed_when_the_next_one_takes_its_place():
    def program(x, log):
        for _ in range(3):
            waiting = numbers(2, log)
            log.append(next(waiting))
            print(end="")
        return x + 1

    same(program, X, None)


def test_a_kept_exception_of_a_break_does_not_keep_a_generator_from_its_end_when_its_variable_is_bound_anew():
    def program(x, errors, log):
        for _ in (1, 2):
            try:
                waiting = numbers(2, log)
                log.append(next(waiting))
                fail()
            except KeyError as error:
                errors.append(error)
        return x + 1

    for function in (program, Observed(program)):
        errors: list = []
        log: list = []
        function(X, errors, log)
        assert log == [0, "closed", 0] and len(errors) == 2


def test_an_exception_s_context_is_what_the_caller_handles():
    def helper(x, errors):
        try:
            raise IndexError from None
        except IndexError as error:
            errors.append(error)
        try:
            raise
        except Exception as error:
            errors.append(error)
        errors.append(sys.exc_info()[1])
        return x + 1

    def program(x, errors):
        try:
            raise KeyError(1)
        except KeyError:
            print(end="")
            return helper(x, errors)

    for function in (program, Observed(program), lambda *args: Observed(helper)(*args)):
        errors: list = []
        outer = KeyError(1)
        try:
            raise outer
        except KeyError:
            function(torch.ones(2), errors)
        assert isinstance(errors[0].__context__, KeyError) and errors[0].__suppress_context__
        assert errors[0].__context__ is errors[1] is errors[2]


@contextlib.contextmanager
def entered(log):
    try:
        yield
    except LookupError as error:
        log.append(error)
        raise
    finally:
        log.append("end")


def test_a_context_manager_hands_its_generator_the_exception_itself():
    def inner(log):
        with entered(log):
            [][1]

    def program(x):
        log = []
        try:
            inner(log)
        except IndexError as error:
            log.append(error.args)
            log.append(error is log[0])
        return x + 1, log[1:]

    assert_same(Observed(program, fullgraph=True)(torch.ones(2)), program(torch.ones(2)))


@functools.cache
def halves(text):
    return [text[:1], text[1:]]


@functools.cache
def table_of(text):
    return {"text": text, "made": []}


def test_what_a_function_remembers_is_one_object():
    def program(x, log):
        log.append(halves("ab"))
        log.append(table_of("t"))
        table_of("t")["made"].append(1)
        return x + len(halves("ab"))

    observed, log = Observed(program), []
    for _ in range(2):
        assert_same(observed(torch.ones(2), log), torch.full((2,), 4.0) - 1)
    assert log[0] is log[2] is halves("ab") and log[1] is log[3] is table_of("t")
    assert table_of("t")["made"] == [1, 1]


def test_what_is_thrown_into_a_generator_has_no_context_of_who_throws():
    def waiting(errors):
        try:
            yield 1
        except KeyError as error:
            errors.append(error)
            yield 2
            raise error from None

    def program(x, errors):
        try:
            raise ValueError("handled")
        except ValueError:
            try:
                waiting(errors).throw(KeyError(0))
            except KeyError as error:
                errors.append(error)
            started = waiting(errors)
            next(started)
            started.throw(KeyError(1))
            try:
                started.throw(IndexError(2))
            except IndexError as error:
                errors.append(error)
            again = waiting(errors)
            next(again)
            again.throw(KeyError(3))
            try:
                next(again)
            except KeyError as error:
                errors.append(error)
        return x + 1

    def contexts(function):
        errors: list = []
        function(torch.ones(2), errors)
        return [(type(e), e.args, type(e.__context__), e.__suppress_context__) for e in errors]

    assert contexts(Observed(program)) == contexts(program)


def test_a_generator_ends_when_the_exception_is_let_go_that_holds_its_frame():
    def leaving(log):
        open_one = delegating(3, log)
        log.append(next(open_one))
        [].remove(2)

    def program(x, log):
        for turn in range(2):
            try:
                leaving(log)
            except ValueError as error:
                log.append(type(error).__name__)
            log.append((turn, "left"))
        return x + 1

    def seen(function):
        log: list = []
        assert_same(function(torch.ones(2), log), torch.full((2,), 2.0))
        return log

    assert seen(program) == [0, "ValueError", "closed", (0, "left"), 0, "ValueError", "closed", (1, "left")]
    assert seen(Observed(program)) == seen(program)


def test_a_kept_exception_keeps_the_frame_and_its_generator_waiting():
    def program(x, log, errors):
        try:
            raise KeyError(1)
        except KeyError as error:
            errors.append(error)
            open_one = numbers(2, log)
            log.append(next(open_one))
        return x + 1

    log: list = []
    errors: list = []
    assert_same(Observed(program)(torch.ones(2), log, errors), torch.full((2,), 2.0))
    assert log == [0]
    assert errors[0].__traceback__.tb_frame.f_code.co_name == "program"
    errors.clear()
    assert log == [0, "closed"]


def test_a_break_while_a_handler_has_an_exception_keeps_what_is_around_it_compiled():
    def program(x, log):
        y = x * 2
        try:
            raise KeyError(1)
        except KeyError as error:
            fail_quietly(log, error)
        return y + 1

    def fail_quietly(log, error):
        log.append(str(error))

    fail_quietly._torchdynamo_disable = True
    observed, log = Observed(program), []
    assert_same(observed(torch.ones(2), log), torch.full((2,), 3.0))
    assert log == ["1"]
    assert len(observed.graphs) == 2


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


@pytest.mark.parametrize(
    "call",
    [
        lambda x: next(), lambda x: len(1, 2), lambda x: iter(1, 2, 3), lambda x: isinstance(1), lambda x: sorted(),
        lambda x: sum(), lambda x: any(items=[1]), lambda x: zip([1], by=2), lambda x: tuple(1, 2),
        lambda x: [1].sort(1), lambda x: [].append(), lambda x: x.size(0, 1), lambda x: divmod(1),
    ],
)  # fmt: skip
def test_arguments_that_a_builtin_does_not_take_raise_what_python_raises(call):
    def program(x):
        try:
            call(x)
        except TypeError as error:
            return x + 1, str(error)

    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))


def test_vars_of_the_frame_are_its_variables():
    def program(x):
        y = x + 1
        return y, sorted(vars())

    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))


@turret.disable
def failing_twice():
    try:
        {}["key"]
    except KeyError:
        raise ValueError("of a key")


def chain(error):
    found = []
    while error is not None:
        found.append(type(error).__name__)
        error = error.__context__
    return found


def breaking_in_a_handler(x):
    try:
        raise IndexError
    except IndexError:
        failing_twice()


def breaking_while_one_with_a_context_passes(x):
    try:
        int("x")
    except ValueError:
        try:
            try:
                raise IndexError(1)
            except IndexError:
                later = KeyError("later")
                later.__context__ = None
                raise later
        finally:
            turret.graph_break()


def breaking_while_one_without_passes(x):
    try:
        int("x")
    finally:
        try:
            started = numbers(2, [])
            started.throw(RuntimeError("thrown"))
        finally:
            turret.graph_break()


def raising_what_was_handled_before(x):
    try:
        raise KeyError
    except KeyError as error:
        first = error
    try:
        raise IndexError
    except IndexError:
        raise first


@pytest.mark.parametrize(
    "program",
    [
        breaking_in_a_handler,
        breaking_while_one_with_a_context_passes,
        breaking_while_one_without_passes,
        raising_what_was_handled_before,
    ],
)
def test_exceptions_that_pass_a_break_keep_their_context(program):
    def ended(function):
        with pytest.raises(Exception) as caught:
            function(torch.ones(2))
        return chain(caught.value)

    assert ended(Observed(program)) == ended(program)


def test_a_context_is_what_was_handled_when_it_was_raised_last():
    def program(x, log):
        try:
            raising_what_was_handled_before(x)
        except KeyError as error:
            log.append(error)
        return x + 1

    def seen(function):
        log: list = []
        assert_same(function(torch.ones(2), log), torch.full((2,), 2.0))
        return chain(log[0])

    assert seen(Observed(program)) == seen(program) == ["KeyError", "IndexError"]


class Remembering:
    def __init__(self, value):
        self.value, self.asked = value, []

    @functools.cached_property
    def cached(self):
        self.asked.append("cached")
        return self.value * 2

    def __getattr__(self, name):
        self.asked.append(name)
        return 3


def test_guards_run_no_code_of_the_program_for_attributes_that_are_missing():
    def program(x, box):
        return x + box.cached.sum() + box.level

    observed = Observed(program)
    first = Remembering(torch.ones(2))
    for _ in range(2):
        first.level = 5
        assert_same(observed(torch.ones(2), first), torch.full((2,), 10.0))
    assert first.asked == ["cached"]
    second = Remembering(torch.ones(2))
    assert_same(observed(torch.ones(2), second), torch.full((2,), 8.0))
    assert second.asked == ["cached", "level"]


def test_a_generator_that_another_holds_is_closed_where_the_other_is_let_go():
    def program(y, log):
        for _turn in range(3):

            def outer(count):
                for _ in range(count):
                    yield 3
                    inner = numbers(4, log)
                    log.append(next(inner))

            made = outer(2)
            next(made)
            next(made)
            log.append("turn")
        return y + 1

    def logged(function):
        log: list = []
        function(torch.ones(3), log)
        return log

    assert logged(Observed(program)) == logged(program)


class Plain:
    pass


def test_an_attribute_that_is_deleted_where_it_was_missing_before_is_deleted():
    def program(x, box):
        box.extra = 2.0
        for _ in range(2):
            with torch.inference_mode():
                del box.extra

    observed = Observed(program)
    for present in (False, True, False, True):
        box = Plain()
        if present:
            box.extra = 7
        with pytest.raises(AttributeError, match="extra"):
            observed(torch.ones(2), box)
        assert not vars(box)


def test_a_generator_in_a_cell_is_closed_where_the_cell_takes_another_value():
    def program(x, log):
        held = numbers(4, log)
        log.append(next(held))
        for _ in [x, x + 1]:

            def later():
                yield list(held)

            held = later()
            with contextlib.ExitStack() as stack:
                stack.callback(log.append, "left")
                if len(log) > 5:
                    (lambda a: a)()
        return x + 1

    def logged(function):
        log: list = []
        function(torch.ones(3), log)
        return log

    assert logged(Observed(program)) == logged(program)


class Summand:
    def __add__(self, other):
        return other + 1


def test_a_global_that_is_gone_and_was_only_handed_on_raises_the_name_error():
    scope = {"torch": torch, "summand": Summand(), "print_to": io.StringIO()}
    exec("def program(y):\n    print(1, file=print_to)\n    return summand + y", scope)
    observed = Observed(scope["program"])
    for present in (True, False, True, False):
        held = scope["summand"] if present else scope.pop("summand")
        assert outcome(observed, (torch.ones(2),), {})[0] == outcome(scope["program"], (torch.ones(2),), {})[0]
        scope["summand"] = held
    del scope["print_to"]
    with pytest.raises(NameError, match="print_to"):
        observed(torch.ones(2))


def test_generators_that_wait_when_their_frame_ends_are_closed_first_to_last():
    def logged_at_the_end(name, log):
        try:
            yield name
        finally:
            log.append(name)

    def program(x, log):
        first = logged_at_the_end("first", log)
        next(first)
        second = logged_at_the_end("second", log)
        next(second)
        third = logged_at_the_end("third", log)
        next(third)
        log.append(x.shape[0])
        return x + 1

    compiled = turret.compile(program)
    for _ in range(3):
        mine, theirs = [], []
        compiled(torch.ones(2), mine)
        program(torch.ones(2), theirs)
        assert mine == theirs == [2, "first", "second", "third"]


class Grade(enum.IntEnum):
    LOW = 1
    HIGH = 2


SETS = [
    ({Grade.LOW, 9}, {1}),
    ({1}, {Grade.LOW, 9}),
    ({Grade.LOW}, {1}),
    ({True, 2}, {1.0, Grade.HIGH, 7}),
    (frozenset({Grade.LOW}), {1, 5}),
]
SET_OPERATIONS = [
    *(operator.or_, operator.and_, operator.sub, operator.xor, operator.ior, operator.iand),
    lambda one, other: one.union([*other]),
    lambda one, other: one.intersection([*other]),
    lambda one, other: set(one).update(other) or one,
    lambda one, other: [kept := set(one), kept.intersection_update([*other])][0],
]


@pytest.mark.parametrize("sets", SETS, ids=str)
def test_of_equal_elements_of_two_sets_the_one_stays_that_python_keeps(sets):
    def program(x):
        return x + 1, [operation(type(sets[0])(sets[0]), set(sets[1])) for operation in SET_OPERATIONS]

    expected, found = program(torch.ones(1))[1], turret.compile(program)(torch.ones(1))[1]
    assert [sorted(map(repr, s)) for s in found] == [sorted(map(repr, s)) for s in expected]
