"""What every drawn function finds in its module: classes, context managers, functions and globals to use and to change."""

from __future__ import annotations

PRELUDE = '''
import collections, contextlib, copy, dataclasses, enum, functools, heapq, itertools, math, operator, random, weakref
import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint


class Quiet(torch.Tensor):
    """Says nothing of torch's functions."""


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.sin else result


class Noting(torch.Tensor):
    seen = 2
    def noted(self, by):
        return self * self.seen + by


class Holding:
    """No tensor, but takes a part in torch's functions."""
    def __init__(self, held):
        self.held = held
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[a.held if isinstance(a, cls) else a for a in args], **(kwargs or {})))


class Halving(torch.overrides.TorchFunctionMode):
    def __init__(self, by):
        super().__init__()
        self.by, self.calls = by, 0
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        result = func(*args, **(kwargs or {}))
        return result / 2 + self.calls + self.by if func is torch.sin else result


def under(mode, function):
    with mode:
        return function()


def plain(value):
    """A tensor of a class as one of none."""
    return value.as_subclass(torch.Tensor)


@dataclasses.dataclass(order=True)
class Ranked:
    """What is sorted by its own order."""
    rank: int


def heap(items):
    """A heap of some items."""
    heapq.heapify(items)
    heapq.heappush(items, heapq.heappop(items) + 1)
    return items


def skipped(count, iterator):
    """An iterator behind its first items."""
    for _ in range(count):
        next(iterator, None)
    return iterator


class Scaled:
    """A data descriptor."""
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return instance.__dict__.get(self.name, 1) * 2
    def __set__(self, instance, value):
        instance.count += 1
        instance.__dict__[self.name] = value


class Twice:
    """A descriptor that gives way to the instance's own attributes."""
    def __get__(self, instance, owner=None):
        return 2 if instance is None else instance.count * 2


class Base:
    made = 0
    shared = []
    def __init__(self, value):
        self.value = value
        self.count = 0
    def bump(self, by=1):
        self.count += by
        return self.count
    def scaled(self, factor=2.0):
        return self.value * factor
    @classmethod
    def make(cls, value):
        cls.made += 1
        return cls(value)
    @staticmethod
    def half(value):
        return value * 0.5


class Box(Base):
    size = Scaled()
    twice = Twice()
    def __init__(self, value, *rest, **named):
        super().__init__(value)
        self.rest = rest
        self.items = []
        for key, content in named.items():
            setattr(self, key, content)
    @property
    def double(self):
        return self.value * 2
    @property
    def level(self):
        return self.count % 3
    @level.setter
    def level(self, to):
        self.count = to
    @level.deleter
    def level(self):
        self.count = -1
    @functools.cached_property
    def cached(self):
        self.count += 1
        return self.value + 1
    def scaled(self, factor=0.5):
        return super().scaled(factor) + self.count
    def __add__(self, other):
        return Box(self.value + (other.value if isinstance(other, Box) else other))
    __radd__ = __add__
    def __call__(self, value, *, by=1):
        self.count += by
        return value + self.value


class Vec:
    """Operators over a list of numbers."""
    def __init__(self, numbers):
        self.numbers = list(numbers)
    def __add__(self, other):
        if not isinstance(other, Vec):
            return NotImplemented
        return Vec([*self.numbers, *other.numbers])
    def __iadd__(self, other):
        self.numbers.append(other)
        return self
    def __mul__(self, by):
        return Vec([n * by for n in self.numbers])
    def __rmul__(self, by):
        return self * by
    def __neg__(self):
        return self * -1
    def __eq__(self, other):
        return isinstance(other, Vec) and self.numbers == other.numbers
    def __lt__(self, other):
        return len(self) < len(other)
    def __hash__(self):
        return len(self.numbers)
    def __len__(self):
        return len(self.numbers)
    def __getitem__(self, index):
        return self.numbers[index]
    def __setitem__(self, index, value):
        self.numbers[index] = value
    def __delitem__(self, index):
        del self.numbers[index]
    def __iter__(self):
        return iter(self.numbers)
    def __contains__(self, item):
        return item in self.numbers
    def __repr__(self):
        return f"Vec({self.numbers})"


class Dyn:
    """Attributes through ``__getattr__`` and ``__setattr__``."""
    def __init__(self):
        object.__setattr__(self, "names", [])
        object.__setattr__(self, "held", {})
    def __getattr__(self, name):
        if name.startswith("no_"):
            raise AttributeError(name)
        return self.held.get(name, 0)
    def __setattr__(self, name, value):
        self.names.append(name)
        self.held[name] = value
    def __delattr__(self, name):
        self.names.append("-" + name)
        self.held.pop(name, None)
    def __bool__(self):
        return len(self.names) % 2 == 0
    def __enter__(self):
        self.names.append("enter")
        return self
    def __exit__(self, kind, error, trace):
        self.names.append("leave" if kind is None else kind.__name__)
        return kind is ZeroDivisionError


class Slotted:
    __slots__ = ("left", "right")
    def __init__(self, left, right=0):
        self.left, self.right = left, right


class Countdown:
    def __init__(self, start):
        self.left = start
    def __iter__(self):
        return self
    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return self.left


class Registry(dict):
    def register(self, name, value):
        self[name] = value
        return self
    def __missing__(self, key):
        return -1


class Stack(list):
    def push(self, item):
        self.append(item)
        return len(self)


class Color(enum.Enum):
    RED = 1
    BLUE = 2
    @property
    def other(self):
        return Color.BLUE if self is Color.RED else Color.RED


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


Pair = collections.namedtuple("Pair", ["first", "second"], defaults=[0])


@dataclasses.dataclass
class Point:
    x: object
    y: int = 0
    tags: list = dataclasses.field(default_factory=list)
    def __post_init__(self):
        self.tags.append(self.y)


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    rank: int
    name: str = "f"


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class Keyed:
    left: object = None
    right: int = 1
    @functools.cached_property
    def total(self):
        NAMES.append("total")
        return (self.left or 0) + self.right


@dataclasses.dataclass(eq=False)
class Plain:
    rank: int = 0


class ProgramError(Exception):
    pass


class CodedError(ProgramError):
    def __init__(self, code, *more):
        super().__init__(code, *more)
        self.code = code
    def __str__(self):
        return f"code {self.code}"


class Guarded:
    def __init__(self, log, name="g", swallow=KeyError):
        self.log, self.name, self.swallow = log, name, swallow
    def __enter__(self):
        self.log.append("enter " + self.name)
        return self
    def __exit__(self, kind, error, trace):
        self.log.append(("exit " + self.name, None if kind is None else kind.__name__))
        return kind is not None and issubclass(kind, self.swallow)


@contextlib.contextmanager
def managed(log, swallow=False):
    log.append("begin")
    try:
        yield len(log)
    except LookupError:
        log.append("lookup")
        if not swallow:
            raise
    finally:
        log.append("end")


class Block(nn.Module):
    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(3, 3, generator=generator))
        self.scale = 0.5
    def forward(self, x, extra=0):
        return (x @ self.weight.to(x.dtype)).tanh() * self.scale + extra


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.blocks = nn.ModuleList([Block(seed), Block(seed + 1)])
        self.named = nn.ModuleDict({"only": Block(seed + 2)})
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.calls = 0
        self.seen = []
        self.last = None
    def forward(self, x, skip=False):
        self.calls += 1
        for number, block in enumerate(self.blocks):
            if skip and number:
                continue
            x = block(x)
        if self.calls % 2 == 0:
            self.last = x
        self.total += x.detach().sum(0).to(self.total.dtype)
        return x
    def reset(self):
        self.calls = 0
        self.total = torch.zeros(3)
        self.steps.zero_()


def opaque(value):
    return value
opaque._torchdynamo_disable = True

def change_outside(items, value):
    items.append(value)
    return len(items)
change_outside._torchdynamo_disable = True

def fail_outside(kind, *args):
    raise kind(*args)
fail_outside._torchdynamo_disable = True

def scaled_sum(x, scale=2, /, *rest, offset=0, **named):
    return x * scale + offset + len(rest) + len(named)

def breaks_inside(x, n, log):
    y = x + n
    log.append("before")
    y = opaque(y)
    log.append("after")
    return y - 1

def fails_after_a_break(x, log, kind=ValueError):
    log.append("tried")
    y = opaque(x) + 1
    if len(log) % 2:
        raise kind("inside", len(log))
    return y

def counting(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return function(*args, **kwargs)
    wrapper.calls = 0
    return wrapper

@counting
def decorated(x, n=1):
    return x * 0.5 + n

def numbers(count, log):
    try:
        for number in range(count):
            got = yield number
            if got is not None:
                log.append(got)
    except ValueError as error:
        log.append(str(error))
        yield -1
    finally:
        log.append("closed")
    return count

class Ending:
    """An object whose end is noted."""
    def __init__(self, log, name):
        self.log, self.name = log, name
    def __del__(self):
        self.log.append((self.name, "ended"))

def ended_before(log, value):
    held = Ending(log, "inner")
    log.append(held.name)
    return value

def delegating(count, log):
    result = yield from numbers(count, log)
    yield result

def tensors(x, count):
    for number in range(count):
        yield x + number

def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)

def default_list(item, into=[]):
    into.append(item)
    return len(into)

@torch.inference_mode()
def without_history(x):
    return x * 0.5

@functools.lru_cache(maxsize=2)
def remembered(n, k=0):
    return n * 2 + k

@functools.cache
def halves(text):
    return [text[: len(text) // 2], text[len(text) // 2 :]]

@functools.lru_cache(maxsize=4)
def table(count):
    return torch.arange(count) * 0.5

class Remembering:
    def __init__(self, start=1):
        self.start = start
    @functools.lru_cache(maxsize=2)
    def by(self, x, n=2):
        return x * n
    @functools.lru_cache(maxsize=2)
    def shown(self, n):
        return torch.ones(n) * n
    @functools.lru_cache(maxsize=2)
    def counted(self, n):
        TABLE["counted"] = TABLE.get("counted", 0) + 1
        return n + 1

@dataclasses.dataclass(frozen=True)
class Nested:
    held: object
    more: object = None

class Twin(torch.Tensor):
    """Two tensors, with each of which everything is computed."""
    __torch_function__ = torch._C._disabled_torch_function_impl
    @staticmethod
    def __new__(cls, first, second, tag=0):
        return torch.Tensor._make_wrapper_subclass(cls, first.shape, strides=first.stride(), dtype=first.dtype)
    def __init__(self, first, second, tag=0):
        self.first, self.second, self.tag = first, second, tag
    def __tensor_flatten__(self):
        return ["first", "second"], self.tag
    @staticmethod
    def __tensor_unflatten__(inner, tag, size, stride):
        return Twin(inner["first"], inner["second"], tag)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        made = []
        for name in ("first", "second"):
            taken = pytree.tree_map_only(Twin, lambda v: getattr(v, name), args)
            made.append(func(*taken, **(kwargs or {})))
        if func._schema.is_mutable:
            return args[0]
        tag = max([v.tag for v in args if isinstance(v, Twin)], default=0)
        return Twin(*made, tag) if isinstance(made[0], torch.Tensor) else made[0]

def twins(x):
    return Twin(x, x + 1)

def pushed(function, x, by):
    """The tangent of a function of a tensor."""
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x.detach().clone(), torch.ones_like(x) * by)
        found = forward_ad.unpack_dual(function(made) + made * 0)
    return found.tangent

class Both(torch.autograd.Function):
    """Two results, and gradients that are not theirs."""
    @staticmethod
    def forward(ctx, x, y, n):
        ctx.save_for_backward(x, y)
        ctx.n = n
        return x * y * n, x + y
    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        return first * y * ctx.n + second * 10, (first * x).sum_to_size(y.shape) + second * 10, None

class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        ctx.save_for_backward(positive)
        return x.abs(), positive
    @staticmethod
    def backward(ctx, grad, _):
        return grad * 3 * ctx.saved_tensors[0]

class Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        return grad * 5

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    def backward(ctx, grad):
        return grad * 7

def spaced(x):
    """The same numbers, apart from each other in memory; a dimension of size 1 has an odd stride."""
    shape, strides, step = x.shape, [], 2
    for size in reversed(shape):
        strides.insert(0, 7 if size == 1 else step)
        step *= size + 1
    made = torch.zeros(40 + step, dtype=x.dtype).as_strided(shape, strides)
    return made + x * 0 if x.requires_grad else made.copy_(x.detach())

def counter(start=0):
    def step(by=1):
        nonlocal start
        start += by
        return start
    return step

DRAWS = random.Random(7)
TOTAL = 0
NAMES = ["a"]
TABLE = {"g": 1}
STEP = counter(1)
KEPT = Box(torch.ones(2, 3))
KEEPER = Remembering(2)
WAVE = torch.complex(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)).conj()
net = Net(5)
'''
"""Source of the module that a drawn function is written into."""

MARK = "# The program.\n"
"""Where the drawn part of a module begins."""
