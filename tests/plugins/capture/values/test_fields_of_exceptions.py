"""What an exception says beside its arguments (of which attribute of what, which name, which file) is what Python says:
looked at in the graph, behind a graph break, and by the caller."""

from __future__ import annotations

import collections
import functools
import operator  # noqa: F401  # of the texts below
import os  # noqa: F401
import sys
import types

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

X = torch.ones(3)


class Slotted:
    __slots__ = ("unset",)


class Plain:
    given = 1
    unreadable = property(None)

    @property
    def readable(self):
        return 1

    @property
    def refusing(self):
        raise AttributeError("of the property")

    @property
    def naming(self):
        raise AttributeError("of the property", name="other", obj=3)

    @property
    def asking(self):
        return self.absent

    def method(self):
        return 1


class Falling(Plain):
    def __getattr__(self, name):
        raise AttributeError("of __getattr__: " + name)


class Giving(Plain):
    def __getattr__(self, name):
        return "given for " + name


class Asked(Plain):
    def __getattribute__(self, name):
        if name == "absent":
            raise AttributeError("of __getattribute__")
        return object.__getattribute__(self, name)


class OwnError(AttributeError):
    pass


class OwnInitError(AttributeError):
    def __init__(self, name):
        self.mine = name


class FallingOwn(Plain):
    def __getattr__(self, name):
        raise OwnError("own", name)


class FallingOwnInit(Plain):
    def __getattr__(self, name):
        raise OwnInitError(name)


class AskingSuper(Plain):
    def __getattr__(self, name):
        return super().__getattr__(name)


EXISTING = AttributeError("from before")


class FallingExisting(Plain):
    def __getattr__(self, name):
        raise EXISTING


class Meta(type):
    def __getattr__(cls, name):
        raise AttributeError("of the metaclass")


class OfMeta(metaclass=Meta):
    pass


class Descriptor:
    def __get__(self, instance, owner):
        raise AttributeError("of the descriptor")


class Described:
    descriptor = Descriptor()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    @property
    def refusing(self):
        raise AttributeError("of the property")


class OwnOSError(OSError):
    def __init__(self, text):
        super().__init__(text)


class OfTwo(OSError):
    def __init__(self, first, second):
        super().__init__(first, second)
        self.mine = second


class WithoutSuper(OSError):
    def __init__(self, first, second):
        self.mine = second


class OwnStop(StopIteration):
    def __init__(self, value):
        pass


class OwnImportError(ImportError):
    def __init__(self, text):
        super().__init__(text, name="of its own")


class OwnKeyError(KeyError):
    def __new__(cls, *args):
        return super().__new__(cls, *args)

    def __init__(self, one, other):
        pass


Pair = collections.namedtuple("Pair", "one other")
slotted, plain, falling, giving, asked = Slotted(), Plain(), Falling(), Giving(), Asked()
own, own_init, asking_super, existing = FallingOwn(), FallingOwnInit(), AskingSuper(), FallingExisting()
described, model, space = Described(), Model(), types.SimpleNamespace(given=1)
module = types.ModuleType("of_this_test")
module.nothing = None


def free():
    def inner():
        return later

    inner()
    later = 1


def unbound():
    print(later)  # noqa: F821
    later = 1  # noqa: F841


def unbound_cell():
    print(later)  # noqa: F821
    later = 1
    return lambda: later


def deletes():
    global never_there
    del never_there


def imports():
    from of_this_test import absent  # noqa: F401


def imports_nothing():
    from of_this_test import nothing

    raise ValueError(nothing)


def notes():
    error = ValueError("noted")
    error.add_note("one")
    error.add_note("two")
    raise error


def fail(error, *cause):
    if cause:
        raise error from cause[0]
    raise error


def changed(error, name, value):
    setattr(error, name, value)
    raise error


def ends():
    def generate():
        yield 1
        return (1, 2)

    made = generate()
    next(made)
    next(made)


def in_context(*cause):
    try:
        plain.absent
    except AttributeError as error:
        fail(KeyError("second"), *[error for _ in cause])


def twice():
    try:
        plain.absent
    except AttributeError as error:
        raise error


def grouped():
    found = []
    for act in (lambda: plain.absent, lambda: never_there, lambda: int("x"), lambda: fail(OSError(2, "no"))):
        try:
            act()
        except Exception as error:
            found.append(error)
    raise ExceptionGroup("found", found)


def member_of_a_group():
    try:
        grouped()
    except* AttributeError as group:
        raise KeyError from group.exceptions[0]


ACTS = """(1).absent|(1.5).absent|"text".absent|None.absent|[1].absent|(1, 2).absent|{}.absent|(1).absent()|plain.absent|plain.absent()
slotted.unset|slotted.absent|plain.refusing|plain.naming|plain.asking|plain.unreadable|falling.absent|falling.refusing|falling.asking
falling.naming|fail(ValueError(giving.refusing, giving.asking, giving.absent))|asked.absent|asked.refusing|own.absent|own_init.absent
asking_super.absent|existing.absent|getattr(plain, "absent")|getattr(1, "absent")|object.__getattribute__(plain, "absent")
object.__getattribute__(falling, "absent")|object.__getattribute__(plain, "refusing")|object.__getattribute__(slotted, "unset")|super(Plain, plain).absent|Plain.absent|int.absent|OfMeta.absent|sys.absent|module.absent
free.absent|(lambda: 1).absent|plain.method.absent|len.absent|x.absent|(x + 1).absent|x.absent()|model.absent|model.layer.absent
model.refusing|described.descriptor|Pair(1, 2).absent|space.absent|Plain().absent|range(3).absent|x.shape.absent|x.shape[0].absent
x.dtype.absent|(v for v in ()).absent|functools.partial(len).absent|{1}.absent|b"".absent|ValueError().absent|collections.deque().absent
operator.attrgetter("absent")(plain)|operator.attrgetter("given.absent")(plain)|operator.methodcaller("absent")(plain)
setattr(slotted, "absent", 1)|setattr(plain, "readable", 1)|setattr(1, "absent", 1)|delattr(plain, "readable")|delattr(plain, "absent")
delattr(slotted, "unset")|delattr(Plain, "absent")|delattr(free, "absent")|setattr(int, "absent", 1)|setattr([], "append", 1)
setattr(object(), "absent", 1)|object.__setattr__(slotted, "absent", 1)|free()|unbound()|unbound_cell()|never_there|deletes()|never_there(1)
imports()|imports_nothing()|notes()|fail(OwnOSError("text"))|fail(OfTwo(2, "b"))|fail(WithoutSuper(2, "b"))|fail(OwnStop(3))
fail(OwnImportError("text"))|fail(OwnKeyError("a", 2))|changed(OSError(2, "no"), "args", ("others", 1))|changed(StopIteration(3), "args", (7,))
changed(StopIteration(3), "value", 9)|changed(OSError(2, "no"), "filename", "file")|changed(ImportError("m"), "msg", "other")|ends()
next(iter(()))|in_context()|in_context(1)|twice()|grouped()|member_of_a_group()|int("x")|b"\\xff".decode()|"\\xff".encode("ascii")
open("/not/there")|os.stat("/not/there")|sys.exit(3)|sys.exit("text")|fail(SystemExit(1, 2))|fail(NameError("m", name="n"))
fail(UnboundLocalError("m", name="n"))|fail(AttributeError("m", name="n", obj=x))|fail(AttributeError("m", name=None))
fail(ModuleNotFoundError("m", name="n", path="p"))|fail(SyntaxError("m", ("f", 1, 2, "t")))|compile("a b", "f", "exec")|{}["key"]
fail(KeyError(1, 2))|fail(AttributeError("a"), NameError("b", name="c"))|fail(BlockingIOError(11, "w"))|fail(OSError("alone"))
fail(OSError())|fail(OSError("a", "b"))|fail(TimeoutError(110, "t"))""".replace("\n", "|").split("|")  # fmt: skip
FIELDS = """args errno strerror filename filename2 name path obj value code msg lineno offset text encoding start end reason
object name_from mine message __notes__ __suppress_context__""".split()


def in_the_graph(act, x):
    y = x + 1
    try:
        act(x)
    except BaseException as error:
        caught = error
    return y, caught, [getattr(caught, name, "none") for name in FIELDS]


def by_name(act, x):
    y = x + 1
    try:
        act(x)
    except AttributeError as error:
        return y, error, [error.name, error.obj, error.args]
    except ImportError as error:
        return y, error, [error.name, error.path, error.msg]
    except NameError as error:
        return y, error, [error.name, str(error)]
    except OSError as error:
        return y, error, [error.errno, error.strerror, str(error), repr(error)]
    except StopIteration as error:
        return y, error, [error.value]
    except SystemExit as error:
        return y, error, [error.code]
    except BaseException as error:
        return y, error, [error.args, str(error)]


def behind_a_break(act, x):
    y = x + 1
    try:
        act(x)
    except BaseException as error:
        print(end="")
        return y, error, [getattr(error, name, "none") for name in FIELDS]


def by_the_caller(act, x):
    y = x + 1
    try:
        act(x)
    except BaseException as error:
        return y, error, []


def told(value):
    """A value that compares by what it says; objects that outlive the call by what they are."""
    if isinstance(value, BaseException):
        seen = [told(getattr(value, name, "none")) for name in FIELDS]
        linked = [told(value.__cause__), told(value.__context__), told(getattr(value, "exceptions", ()))]
        return [type(value), str(value), seen, linked]
    if isinstance(value, (tuple, list)):
        return [told(v) for v in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    known = (
        slotted,
        plain,
        falling,
        giving,
        asked,
        own,
        own_init,
        existing,
        described,
        model,
        space,
        module,
        sys,
        free,
    )
    of_the_call = not isinstance(value, (str, int, float, type)) and not any(value is v for v in known)
    return type(value) if of_the_call else value


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("way", [in_the_graph, by_name, behind_a_break, by_the_caller], ids=lambda w: w.__name__)
@pytest.mark.parametrize("text", ACTS)
def test_an_exception_tells_what_it_is_about(text, way):
    def outcome(call):
        EXISTING.__init__("from before")
        EXISTING.__context__ = EXISTING.__traceback__ = None
        return told(call(X))

    # Code that never ran: the interpreter's specialized instructions for properties leave fields out.
    expected = outcome(functools.partial(way, eval(f"lambda x: {text}", globals())))
    observed = Observed(functools.partial(way, eval(f"lambda x: {text}", globals())))
    for _ in range(2):
        assert outcome(observed) == expected
