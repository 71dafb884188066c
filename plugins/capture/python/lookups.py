"""Functions that guards call, or that make again what capture made; light, for processes that trace nothing."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import gc
import inspect
import itertools
import logging
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy
import torch

from turret.frames.class_members import class_member
from turret.frames.trace_modes import ModeChanges, is_hop_skipped, torch_function_state
from turret.plugins.capture.python.by_identity import ByIdentity
from turret.torch_compat.function_overrides import DisableTorchFunction
from turret.torch_compat.operators.ops import neg_view

if TYPE_CHECKING:
    from turret.graph.wrapper_tensors import WrapperForm


def signature_of_method(function: types.FunctionType) -> inspect.Signature:
    """The signature of a function that is bound to something."""
    return inspect.signature(types.MethodType(function, object()))


def result(function: Callable[[], Any]) -> Any:
    """What a function without arguments gives."""
    return function()


def size_of_storage(tensor: torch.Tensor) -> int:
    """Bytes in the memory of a tensor."""
    return tensor.untyped_storage().nbytes()


def counts_of_cache(function: Any) -> Any:
    """``cache_info()`` of a function under ``functools.lru_cache``."""
    return function.cache_info()


def clear_cache(function: Any) -> None:
    """Have a function under ``functools.lru_cache`` forget its results."""
    function.cache_clear()


def device_of_generator(generator: torch.Generator) -> torch.device:
    """The device that a generator draws for."""
    return generator.device


def is_default_generator(generator: torch.Generator) -> bool:
    """Whether a generator is the default one of the CPU."""
    return generator is torch.default_generator


def generator_of(state: torch.Tensor) -> torch.Generator:
    """A new generator of the CPU in a state."""
    return torch.Generator().set_state(state)


def pybind_getter(kind: type, name: str) -> Callable[[Any], Any] | None:
    """What reads an attribute of the instances of a class written in C++ with pybind11, where it is one's property."""
    found = class_member(kind, name)
    if type(kind).__name__ != "pybind11_type" or type(found) is not property:
        return None
    if class_member(kind, "__getattribute__") is not object.__getattribute__:
        return None
    return found.fget if type(found.fget).__name__ == "instancemethod" else None


def name_of_method(function: Any) -> str | None:
    """The name of a bound method written in C; None of one that its object has not under that name: ``super`` gave it.

    Runs none of the program's code.
    """
    owner, name = getattr(function, "__self__", None), function.__name__
    if isinstance(owner, (type, types.ModuleType, types.NoneType)):
        return None
    found = class_member(type(owner), name)
    is_own = isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType))
    return name if is_own and found.__get__(owner) == function else None


def made_in_inference_mode(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the memory of this one, as if it had been made in inference mode; itself, if it was."""
    if tensor.is_inference():
        return tensor
    with torch.inference_mode():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        made = made.conj() if tensor.is_conj() else made
        return neg_view(made) if tensor.is_neg() else made


def text_of_type(value: Any) -> tuple[type, str]:
    """What tells immutable objects of the standard library apart: those that are equal may be written differently."""
    return type(value), repr(value)


def decimal_settings(module: Any) -> tuple:
    """What decides how this thread computes with decimal numbers."""
    held = module.getcontext()
    traps = tuple(kind.__name__ for kind, traps in held.traps.items() if traps)
    return held.prec, held.rounding, held.Emin, held.Emax, held.capitals, held.clamp, traps


_NOTHING = object()


def is_set_in_context(variable: contextvars.ContextVar) -> bool:
    """Whether a variable holds something in the context of the caller: its default does not count."""
    return variable.get(_NOTHING) is not _NOTHING


def has_default(variable: contextvars.ContextVar) -> bool:
    """Whether a variable has a default, or holds something."""
    try:
        variable.get()
    except LookupError:
        return False
    return True


def content_of_context_variable(variable: contextvars.ContextVar) -> Any:
    """What a variable holds in the context of the caller, or its default."""
    return variable.get()


def variable_to_reset(token: contextvars.Token) -> contextvars.ContextVar | None:
    """The variable of a token that was not used yet; None for one that was."""
    return None if repr(token).startswith("<Token used") else token.var


def is_flattened(called: functools.partial) -> bool:
    """Whether a partial of this one is one of what it calls; asking for its ``__dict__`` would make it another."""
    return functools.partial(called).func is called.func


def warn_at(text: str, category: type[Warning], filename: str, line: int, scope: dict[str, Any]) -> None:
    """A warning of a line of the program, in whose globals it is noted as given."""
    registry = scope.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, filename, line, scope.get("__name__", "<string>"), registry)


def has_handlers(logger: logging.Logger) -> bool:
    """Whether a logger has handlers of its own."""
    return bool(logger.handlers)


def effective_level(logger: logging.Logger) -> int:
    """The level of a logger, or of the nearest one around it that has one."""
    return logger.getEffectiveLevel()


def is_logged(level: int, logger: logging.Logger) -> bool:
    """Whether a logger takes messages of a level."""
    return logger.isEnabledFor(level)


_slices: ByIdentity[dict[tuple, Any]] = ByIdentity()
"""Slices of containers of modules, kept as long as the container is: a compile unit keeps no module alive."""


def slice_of(modules: Any, bounds: slice) -> Any:
    """A slice of a container of modules: another container of the same modules, one as long as they are the same."""
    made = modules[bounds]
    kept = _slices.get(modules, dict)
    known = kept.setdefault((bounds.start, bounds.stop, bounds.step), made)
    held, here = [[(name, id(part)) for name, part in each._modules.items()] for each in (known, made)]
    if type(known) is type(made) and held == here:
        return known
    kept[bounds.start, bounds.stop, bounds.step] = made
    return made


def array_numbers(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """An array of numpy as something that compares equal for equal numbers, nan included."""
    return array.dtype.str, array.shape, array.tobytes()


def as_list(array: Any) -> Any:
    """The numbers of an array of numpy, or of a scalar, as Python's."""
    return array.tolist()


def is_empty(cell: types.CellType) -> bool:
    """Whether a closure variable has no value (yet)."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def is_unset(name: str, value: Any) -> bool:
    """Whether a slot of an object has no value (yet)."""
    try:
        class_member(type(value), name).__get__(value)
    except AttributeError:
        return True
    return False


def variable(name: str, environment: Any) -> str | None:
    """A variable of the environment."""
    return environment.get(name)


def process_group(distributed: Any) -> bool:
    """Whether there is a process group."""
    return distributed.is_available() and distributed.is_initialized()


def subclasses(cls: type) -> tuple[type, ...]:
    """The direct subclasses of a class."""
    return tuple(cls.__subclasses__())


def implementation_for(kind: type, dispatch: Callable[[type], Any]) -> Any:
    """Which of the functions that ``functools.singledispatch`` knows answers for a class."""
    return dispatch(kind)


def elements(values: Any) -> tuple[Any, ...]:
    """The elements of a set, frozenset or deque in order, whatever a class makes of them."""
    base = next(kind for kind in (frozenset, set, collections.deque) if isinstance(values, kind))
    return tuple(base.__iter__(values))


def maxlen_of(queue: collections.deque) -> int | None:
    """How many items a deque takes, whatever a class makes of the name."""
    return collections.deque.maxlen.__get__(queue)


def factory_of(mapping: Any) -> Any:
    """What a defaultdict calls for an item that is not there, whatever a class makes of the name."""
    return collections.defaultdict.__dict__["default_factory"].__get__(mapping)


_limits_of_programs: list[int] = []


@contextlib.contextmanager
def at_recursion_limit(least: int) -> Iterator[None]:
    """Calls within it may be at least so deep."""
    _limits_of_programs.append(sys.getrecursionlimit())
    sys.setrecursionlimit(max(_limits_of_programs[-1], least))
    try:
        yield
    finally:
        sys.setrecursionlimit(_limits_of_programs.pop())


def recursion_limit(system: Any) -> int:
    """How deep calls of the program may be; while capturing, when that is deeper, too."""
    return _limits_of_programs[0] if _limits_of_programs else system.getrecursionlimit()


def is_unstarted(generator: types.GeneratorType) -> bool:
    """Whether a generator was not asked for anything yet, and was not closed either."""
    return not (generator.gi_running or generator.gi_suspended or generator.gi_frame is None)


def function_of_generator(generator: types.GeneratorType) -> Any:
    """The function that made a generator; None for one that is at its end."""
    code = generator.gi_code
    found = (v for v in gc.get_referents(generator) if type(v) is types.FunctionType and v.__code__ is code)
    return next(found, None)  # a frame's function is visited ahead of its variables


def arguments_of_generator(generator: types.GeneratorType) -> dict[str, Any]:
    """What a generator that was not asked for anything yet was made with, by the names of its function's variables."""
    return {} if generator.gi_frame is None else dict(generator.gi_frame.f_locals)


def parts_of_iterator(iterator: Any) -> tuple[Any, ...]:
    """What a ``zip``, ``map`` or ``filter`` is over, or the iterables that a ``chain`` is at the beginning of."""
    if type(iterator) is itertools.chain:
        parts = tuple(v for v in gc.get_referents(iterator) if not isinstance(v, type))
        return parts if len(parts) == 1 else ()  # one more where it is inside an iterable, none at its end
    return iterator.__reduce__()[1]


def parts_of_getter(getter: Any) -> tuple[tuple[type, Any], ...]:
    """What a getter of the module ``operator`` was made of, with types: ``1`` and ``True`` get different things."""
    return tuple((type(part), part) for part in getter.__reduce__()[1])


def is_strict(iterator: Any) -> bool:
    """Whether a ``zip`` or ``map`` raises where the iterators that it is over are not equally long."""
    return bool(iterator.__reduce__()[2:])


def items_left(iterator: Any) -> Any:
    """What an iterator over a range, text, bytes, a list or tuple still gives."""
    whole, position = _sequence_and_position(iterator)
    return whole[position:]


def sequence_under(iterator: Any) -> Any:
    """What an iterator goes over; an empty tuple at its end."""
    return _sequence_and_position(iterator)[0]


def _sequence_and_position(iterator: Any) -> tuple[Any, int]:
    _, (whole, *_), *position = iterator.__reduce__()
    return whole, (position[0] or 0) if position else 0


def _counter_state(counter: itertools.count) -> tuple[Any, Any]:
    """The next number of an ``itertools.count``, and its step; None twice where these are no plain ints and floats."""
    numbers = [v for v in gc.get_referents(counter) if not isinstance(v, type)]
    if len(numbers) == 1:
        return int(repr(counter)[len("count(") : -1]), 1  # a C number, which counts in steps of one
    value, step = numbers
    return (value, step) if {int, float}.issuperset(map(type, numbers)) else (None, None)


@functools.cache
def has_ahead(number: int) -> Callable[[Any], bool]:
    """Asks an iterator whether it gives another item after that many."""

    def ahead(iterator: Any) -> bool:
        if type(iterator) is itertools.count:
            return _counter_state(iterator)[0] is not None
        whole, position = _sequence_and_position(iterator)
        return number < len(whole) - position

    return ahead


@functools.cache
def item_ahead(number: int) -> Callable[[Any], Any]:
    """A lookup of the item that an iterator gives after that many, None at its end; the iterator stays where it is."""

    def ahead(iterator: Any) -> Any:
        if type(iterator) is itertools.count:
            value, step = _counter_state(iterator)
            return value if value is None else functools.reduce(lambda v, _: v + step, range(number), value)
        whole, position = _sequence_and_position(iterator)
        return whole[position + number] if position + number < len(whole) else None

    ahead.__name__ = f"item_{number}_ahead"
    return ahead


@functools.cache
def items_ahead(number: int) -> Callable[[Any], Any]:
    """A lookup of all that an iterator gives after that many items."""

    def ahead(iterator: Any) -> Any:
        return items_left(iterator)[number:]

    return ahead


def advance(iterator: Iterator[Any], steps: int) -> None:
    """Take items off an iterator, as many as there are."""
    for _ in itertools.islice(iterator, steps):
        pass


def weak_set_items(items: Any) -> tuple[Any, ...]:
    """What is left in a ``weakref.WeakSet``, whatever a class makes of it."""
    return tuple(weakref.WeakSet.__iter__(items))


def weak_keys(mapping: Any) -> tuple[Any, ...]:
    """Keys of what is left in a dictionary with weak keys or values, whatever a class makes of it."""
    return tuple(_weak_kind(mapping).keys(mapping))


def weak_values(mapping: Any) -> tuple[Any, ...]:
    """Values of what is left in a dictionary with weak keys or values, whatever a class makes of it."""
    return tuple(_weak_kind(mapping).values(mapping))


def _weak_kind(mapping: Any) -> Any:
    kinds = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
    return next(kind for kind in kinds if isinstance(mapping, kind))


def referent(proxy: Any) -> Any:
    """The object that a weak proxy stands for; its methods are bound to the object itself."""
    return proxy.__init__.__self__


def dict_of_view(view: Any) -> Any:
    """The dict that a view shows."""
    (mapping,) = gc.get_referents(view)
    return mapping


def has_saved_tensor_hooks(autograd: Any) -> bool:
    """Whether hooks on saved tensors are set."""
    return autograd._top_saved_tensors_default_hooks(False) is not None


def never(value: Any) -> bool:
    """A condition that nothing fulfils."""
    return False


def plain_tensor(value: torch.Tensor) -> torch.Tensor:
    """A tensor of a class of the program's as a plain one in its memory, through which gradients reach it."""
    with DisableTorchFunction(), torch.enable_grad():
        return torch.Tensor.as_subclass(value, torch.Tensor)


def as_class(value: torch.Tensor, kind: type) -> torch.Tensor:
    """A plain tensor as one of a class."""
    with DisableTorchFunction(), torch.enable_grad():
        return torch.Tensor.as_subclass(value, kind)


def gradient(value: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a tensor, whatever its class makes of attributes."""
    with DisableTorchFunction():
        getter: Any = torch.Tensor.grad
        return getter.__get__(value)


def is_leaf(value: torch.Tensor) -> bool:
    """Whether a tensor is a leaf of autograd, whatever its class makes of attributes."""
    with DisableTorchFunction():
        return torch.Tensor.is_leaf.__get__(value)  # type: ignore[attr-defined]


def array_in_memory_of(value: torch.Tensor) -> numpy.ndarray:
    """A tensor's numbers as an array in its memory, with no mode of the program asked."""
    with DisableTorchFunction():
        return value.numpy()


def tensor_in_memory_of(array: numpy.ndarray) -> torch.Tensor:
    """An array's numbers as a tensor in its memory, with no mode of the program asked."""
    with DisableTorchFunction():
        return torch.from_numpy(array)


def view_in_memory_of(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """A view of ``base``, which begins where ``view`` does in memory that both show, and has its layout."""
    with DisableTorchFunction():
        start = (view.data_ptr() - base.data_ptr()) // view.element_size()
        return base.as_strided(view.shape, view.stride(), base.storage_offset() + start)


def asked_for_answers(core: Any) -> int:
    """Who is asked for answers to torch's functions."""
    return -1 if is_hop_skipped() else int(torch_function_state())


@functools.cache
def function_mode(number: int) -> Callable[[Any], Any]:
    """A lookup of one of the modes for torch's functions in use, from the outermost."""

    def mode(core: Any) -> Any:
        return core._get_function_stack_at(number)

    return mode


def float_errors(module: Any) -> tuple[str, ...]:
    """What numpy does about errors of floats."""
    return tuple(module.geterr().values())


def is_writeable(array: Any) -> bool:
    """Whether an array of numpy may be changed."""
    return bool(array.flags.writeable)


@attrs.frozen
class IsOfForm:
    """Whether a wrapper has a form; False where what it says of itself cannot be compared."""

    form: WrapperForm

    def __call__(self, value: Any) -> bool:
        try:
            return bool(self.form.fits(value))
        except Exception:  # code of the program
            return False


@attrs.frozen(eq=False)
class Recall:
    """A call of a function that remembers its results, of objects in some places and of constants in the others."""

    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    places: dict[int | str, int]
    """Which of the objects goes where in ``args`` and ``kwargs``."""
    modes: ModeChanges | None
    """In which modes, where they are not those of the frame: what is remembered no longer is computed again."""
    __name__: str = "recall"

    def __call__(self, *held: Any) -> Any:
        args = [held[self.places[n]] if n in self.places else v for n, v in enumerate(self.args)]
        kwargs = {n: held[self.places[n]] if n in self.places else v for n, v in self.kwargs.items()}
        with contextlib.nullcontext() if self.modes is None else self.modes.made():
            return self.function(*args, **kwargs)


@attrs.frozen
class PartsOf:
    """The plain tensors in a wrapper of a form, through which gradients reach it."""

    form: WrapperForm
    __name__: str = "parts_of_wrapper"

    def __call__(self, value: Any) -> tuple[torch.Tensor, ...]:
        from turret.graph.wrapper_tensors import Unwrap  # few programs have wrappers

        return Unwrap(self.form)(value) if value.requires_grad else tuple(self.form.parts(value))


def bucket_sizes(wrappers: Any) -> tuple[int, int] | None:
    """Sizes of the buckets of the ``DistributedDataParallel`` whose forward is under way; None outside of one."""
    from turret.torch_compat import distributed

    wrapper = distributed.active_replica()
    return None if wrapper is None else distributed.bucket_sizes(wrapper)
