"""Which sizes and ints are symbols: the ``dynamic`` argument, marks on tensors, and what was seen to change."""

from __future__ import annotations

import hashlib
import math
import types
import weakref
import zlib
from typing import Any

import numpy
import torch

from turret.frames.guards import STATIC_MARK, dynamic_marks
from turret.frames.sources import AttrSource, BoundSource, ItemSource, LocalSource, SizeSource, Source
from turret.frames.torch_settings import dynamo_setting, is_named_dynamic
from turret.plugins.capture.facts.module_tensors import has_few_tensors


class History:
    """Sizes and ints (and digests of arrays) that earlier captures of one function saw, by source."""

    def __init__(self) -> None:
        self.shapes: dict[str, list[int | None]] = {}
        self.strides: dict[str, list[frozenset[tuple[str, int]]]] = {}
        """What has held so far of the stride of each dimension (``_facts_of_stride``): nothing of one of its own."""
        self.ints: dict[str, int | None] = {}
        self.floats: dict[str, float | None] = {}
        self.objects: dict[tuple[int, str], weakref.ref | None] = {}
        """Functions, modules and parameters by place; None at one that is seen to hold others, too.

        Not their addresses: what is made in each call often lies where the one before lay."""
        self.constants: set[str] = set()
        """Floats that change and that the function needs as constants, by source."""
        self.specializations: dict[str, int] = {}
        """How many captures took a number for a constant because an operation took no symbol for it, by source."""
        self.held_numbers: dict[Any, float | None] = {}
        """Numbers of objects that units hold, by the id of the object: texts of such sources need not differ."""
        self.reads_texts = False
        """Whether the function looks at texts of numbers that change."""

    def forget(self) -> None:
        """Forget all that was seen."""
        self.reads_texts = False
        for seen in (
            self.shapes,
            self.strides,
            self.ints,
            self.floats,
            self.objects,
            self.held_numbers,
            self.constants,
            self.specializations,
        ):
            seen.clear()

    def merge(
        self, shapes: dict[str, list[int | None]], ints: dict[str, int | None], floats: dict[str, float | None]
    ) -> None:
        """Learn what another process saw; sizes and numbers that are not the same here and there change."""
        for text, shape in shapes.items():
            known = self.shapes.setdefault(text, list(shape))
            if len(known) == len(shape):
                known[:] = [mine if mine == theirs else None for mine, theirs in zip(known, shape, strict=True)]
        both: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = ((self.ints, ints), (self.floats, floats))
        for mine, theirs in both:
            for text, value in theirs.items():
                if mine.setdefault(text, value) != value:
                    mine[text] = None

    def see_shape(self, source: Source, shape: tuple[int, ...]) -> frozenset[int]:
        """Note a shape; returns the dimensions that are not what they were before in one of as many dimensions."""
        key = str(source)
        known = self.shapes.get(key)
        if known is not None and len(known) != len(shape):
            key = f"{key}, of {len(shape)} dimensions"
            known = self.shapes.get(key)
        if known is None:
            self.shapes[key] = list(shape)
            return frozenset()
        for number, size in enumerate(shape):
            if known[number] != size:
                known[number] = None
        return frozenset(n for n, size in enumerate(known) if size is None)

    def see_strides(self, source: Source, value: torch.Tensor) -> frozenset[int]:
        """Note how a tensor is laid out; returns the dimensions whose strides follow from no size by now."""
        if value.layout is not torch.strided:
            return frozenset()
        shape, stride = tuple(value.shape), tuple(value.stride())
        found = [_facts_of_stride(shape, stride, n) for n in range(len(shape))]
        known = self.strides.setdefault(f"{source}, of {len(shape)} dimensions", found)
        known[:] = [before & now for before, now in zip(known, found, strict=True)]
        return frozenset(n for n, facts in enumerate(known) if not facts)

    def see_int(self, source: Source, value: int) -> bool:
        """Note an int; returns whether it was seen to change."""
        return _see_number(self.ints, self.held_numbers, source, value)

    def see_object(self, source: Source, found: Any) -> bool:
        """Note an object; returns whether there was another one before."""
        key = _place(source)
        known = self.objects.setdefault(key, weakref.ref(found))
        if known is not None and known() is not found:
            self.objects[key] = None
        return self.objects[key] is None

    def expect_others(self, source: Source) -> None:
        """Take what a place holds for one of several, which others will take turns with."""
        self.objects[_place(source)] = None

    def is_in_changing(self, source: Source) -> bool:
        """Whether a place is in an object of which another one was seen where it is."""
        missing = object()
        return any(self.objects.get(_place(step), missing) is None for step in source.steps()[:-1])

    def see_float(self, source: Source, value: float) -> bool:
        """Note a float; returns whether it was seen to change."""
        return _see_number(self.floats, self.held_numbers, source, value)

    def see_arguments(self, code: types.CodeType, arguments: tuple) -> None:
        """Note sizes and numbers among the arguments of a call that nothing is captured of, and in containers there."""
        for number, argument in enumerate(arguments):
            self._see(LocalSource(number, code.co_varnames[number]), argument, 3)

    def _see(self, source: Source, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self.see_shape(source, tuple(value.shape))
        elif type(value) is int:
            self.see_int(source, value)
        elif type(value) is float:
            self.see_float(source, value)
        elif type(value) in (list, tuple, dict) and depth:
            for key, item in value.items() if type(value) is dict else enumerate(value):
                self._see(ItemSource(source, key), item, depth - 1)


def _facts_of_stride(shape: tuple[int, ...], stride: tuple[int, ...], dimension: int) -> frozenset[tuple[str, int]]:
    """What a stride may be at other sizes: the number that it is, or what another dimension's size and stride give."""
    own = stride[dimension]
    behind = (n for n in range(len(shape)) if n != dimension and shape[n] * stride[n] == own)
    return frozenset([("is", own), *(("is behind", n) for n in behind)])


def _marked_static(value: torch.Tensor) -> frozenset[int]:
    return frozenset(getattr(value, STATIC_MARK, None) or ())


def _place(source: Source) -> tuple[int, str]:
    """The key of a place: texts of what units hold need not differ."""
    root = source.root()
    return (id(root.value) if isinstance(root, BoundSource) else 0, str(source))


def _see_number(numbers: dict[Any, Any], held: dict[Any, Any], source: Source, value: float) -> bool:
    """Note a number where it belongs; returns whether it was seen to change."""
    root, key = source.root(), str(source)
    seen, where = (held, (id(root.value), key)) if isinstance(root, BoundSource) else (numbers, key)
    known = seen.setdefault(where, value)
    if known is not None and known != value and known == known:
        seen[where] = None
    return seen[where] is None


_MOST_SPECIALIZATIONS = 4
"""Values of a number that captures are made for where an operation needs it as a constant."""


def _is_named(source: Source) -> bool:
    """Whether a number is an attribute or a variable, and not one of a table of numbers."""
    return isinstance(source, AttrSource) or (isinstance(source, ItemSource) and isinstance(source.key, str))


class Policy:
    """What one capture makes symbolic."""

    def __init__(
        self,
        dynamic: bool | None,
        history: History,
        data_dependent: bool = False,
        data_sizes: bool = False,
        reuse_blocks: bool = True,
        several_modules: bool = False,
        specialized: frozenset[str] = frozenset(),
        *,
        whole: bool = False,
        splits: int = 0,
        checks_decide: bool = False,
        stays: bool = False,
        is_bound: bool = False,
    ) -> None:
        """``data_dependent``: numbers that come from tensors' values become symbols, too; ``data_sizes``: and so do
        sizes of results.  ``reuse_blocks``: what following a layer recorded is recorded again for layers that are like
        it.  ``several_modules``: the unit is for other modules of the class, too.  ``specialized``: numbers that an
        attempt before this one found to be needed as constants, by source.  ``whole``: there is no graph break.
        ``splits``: objects that sides of a branch on data leave, and that are no one value, are told apart by a flag;
        of 2, numbers, too, which the program may need as constants.  ``checks_decide``: no check on data is left to the
        graph.  ``stays``: what is handed in is taken for the same at each call until it was another one;
        ``is_bound``: so is the first argument, to which the callable is bound.
        """
        self.dynamic, self.history = dynamic, history
        self.data_dependent, self.data_sizes = data_dependent, data_sizes
        self.reuse_blocks = reuse_blocks
        self.several_modules, self.whole, self.splits = several_modules, whole, splits
        self.checks_decide, self.stays, self.is_bound = checks_decide, stays, is_bound
        self.specialized: set[str] = set(specialized)
        self.changing: set[Source] = set()
        """Floats that this capture has made inputs."""
        self.big_ints: set[Source] = set()
        """Ints that it took for unknown, as no graph can be given them."""

    def read_texts(self) -> bool:
        """Have numbers in texts be constants from now on; whether they were none."""
        first, self.history.reads_texts = not self.history.reads_texts, True
        return first

    def take_for_constants(self) -> bool:
        """Have the floats that change be constants from now on, and ints that are too large; whether there are any."""
        self.history.constants |= {str(source) for source in self.changing | self.big_ints}
        return bool(self.changing or self.big_ints)

    def specialize(self, numbers: frozenset[Source]) -> bool:
        """Have floats, ints, sizes and strides be constants in this capture; whether some are to be that were none, as
        they had few values so far.

        A capture for each value is worth it for a few; of a number with many values, others are left to Python.
        """
        counts, names = self.history.specializations, set(map(str, numbers)) - self.specialized
        for name in names:
            counts[name] = counts.get(name, 0) + 1
        few = bool(names) and all(counts[name] <= _MOST_SPECIALIZATIONS for name in names)
        self.specialized |= names if few else set()
        return few

    def is_constant(self, source: Source) -> bool:
        """Whether a number that changes is a constant of this capture."""
        return str(source) in self.history.constants or str(source) in self.specialized

    def dynamic_dimensions(self, source: Source, value: torch.Tensor) -> frozenset[int]:
        """Dimensions of a tensor that become symbols; sizes 0 and 1 never do."""
        changed = self.history.see_shape(source, tuple(value.shape))
        if is_named_dynamic(source):
            changed = frozenset(range(value.dim()))
        elif self.dynamic is False:
            changed = frozenset()
        elif self.dynamic is True and not isinstance(value, torch.nn.Parameter):
            changed = frozenset(range(value.dim()))
        wanted = dynamic_marks(value) | self._without_constants(changed, source, "size")
        return frozenset(n for n in wanted - _marked_static(value) if value.shape[n] > 1)

    def dynamic_strides(self, source: Source, value: torch.Tensor) -> frozenset[int]:
        """Dimensions of a tensor whose strides become symbols of their own; strides 0 and 1 never do.

        Where there is one element along a dimension, as in a step of generation, any stride is as good as another, and
        it is what it happened to be in the tensor that this is a part of.
        """
        changed = self.history.see_strides(source, value)
        if self.dynamic is False:
            return frozenset()
        wanted = self._without_constants(changed, source, "stride")
        return frozenset(n for n in wanted - _marked_static(value) if value.stride(n) > 1)

    def _without_constants(self, dimensions: frozenset[int], source: Source, quantity: str) -> frozenset[int]:
        """The dimensions whose size or stride is no constant of this capture."""
        return frozenset(n for n in dimensions if not self.is_constant(SizeSource(source, n, quantity)))

    def dynamic_int(self, source: Source, value: int) -> bool:
        """Whether an int becomes a symbol: 0 and 1 do where another number was seen there before.

        Of what units hold, attributes and variables do that were seen to change.
        """
        held = isinstance(source.root(), BoundSource)
        if held and not _is_named(source):
            return False
        changed = self.history.see_int(source, value) and not self.is_constant(source)
        if is_named_dynamic(source):
            return value not in (0, 1) and abs(value) < 2**62
        if self.dynamic is False or dynamo_setting("specialize_int") or abs(value) >= 2**62:
            return False
        wanted = self.dynamic is True and not held and value not in (0, 1)
        return changed or (wanted and not self.is_constant(source))

    def is_unknown_int(self, source: Source, value: int) -> bool:
        """Whether an int changes from call to call and is too large for a symbol."""
        if self.dynamic is False or dynamo_setting("specialize_int") or abs(value) < 2**62:
            return False
        if isinstance(source.root(), BoundSource) and not _is_named(source):
            return False
        return str(source) not in self.history.constants and self.history.see_int(source, value)

    def moved_on(self, source: Source, left: Any) -> bool:
        """Whether an iterator goes on from call to call: it lies in an object, or had other items left before."""
        changed = self.history.see_int(source, zlib.crc32(repr(left).encode()))
        return changed or not isinstance(source, LocalSource)

    def is_number_of_call(self, source: Source, value: float) -> bool:
        """Whether a number that each call takes anew, off an iterator, is one that a graph can be given."""
        if type(value) is int:
            return self.dynamic is not False and not dynamo_setting("specialize_int") and abs(value) < 2**62
        specialized = self.is_constant(source) or dynamo_setting("specialize_float")
        return type(value) is float and not specialized and math.isfinite(value)

    def changing_array(self, source: Source, array: numpy.ndarray) -> bool:
        """Whether an array of numpy was seen to hold other numbers before."""
        digest = hashlib.sha256(array.tobytes()).digest()
        return self.history.see_int(source, int.from_bytes(digest[:8], "little"))

    def fresh_function(self, source: Source, function: types.FunctionType) -> bool:
        """Whether a function may be made anew for each call: it is local and handed in, or was another one before.

        One that hangs on an object which the unit does not keep alive (a hook of a module) is not kept alive either.
        """
        changed = self.history.see_object(source, function)
        name = function.__code__.co_qualname
        return changed or (type(source.root()) is not BoundSource and ("<locals>" in name or "<lambda>" in name))

    def fresh_module(self, source: Source, module: torch.nn.Module) -> bool:
        """Whether a module may be another one on each call: there was another one before, or in what it is in, or
        others are alike, or it is handed in and small."""
        if self._is_one_of_several(source) or self._is_another(source, module):
            return True
        handed_in = self._is_handed_in(source) and has_few_tensors(module)
        if handed_in:
            self.history.expect_others(source)
        return handed_in

    def fresh_parameter(self, source: Source, parameter: torch.nn.Parameter) -> bool:
        """Whether a parameter may be another one on each call, as a module may; of those handed in, each by itself."""
        if self._is_one_of_several(source) or self._is_another(source, parameter):
            return True
        return isinstance(source, LocalSource) and self._is_handed_in(source)

    def _is_handed_in(self, source: Source) -> bool:
        """Whether what is found in a place is the caller's choice at each call."""
        root = source.root()
        return not self.stays and isinstance(root, LocalSource) and not (self.is_bound and root.index == 0)

    def fresh_object(self, source: Source, found: object) -> bool:
        """Whether there was another object at its place before."""
        return self.history.see_object(source, found)

    def _is_another(self, source: Source, found: object) -> bool:
        return self.history.see_object(source, found) or self.history.is_in_changing(source)

    def _is_one_of_several(self, source: Source) -> bool:
        """Whether something is found in a module beside which there are others that are alike."""
        return self.several_modules and isinstance(source.root(), LocalSource)

    def changing_float(self, source: Source, value: float) -> bool:
        """Whether a float changes from call to call; NaN and infinity are taken for what they are.

        Of what units hold, this is asked of attributes and variables alone: a list of numbers is a table.
        """
        return (not isinstance(source.root(), BoundSource) or _is_named(source)) and self.changing_scalar(source, value)

    def changing_scalar(self, source: Source, value: float) -> bool:
        """``changing_float`` for a number of numpy's, which one in a table can be, too."""
        if self.is_constant(source) or dynamo_setting("specialize_float"):
            return False
        return self.history.see_float(source, value) and math.isfinite(value)
