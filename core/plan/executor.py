"""From a plan to a boxed callable: the plan's steps become one straight-line Python function.

Interpreting steps would cost a dispatch each; a generated function costs what its statements cost.  Arena
tensors are made once a workspace, so that a call makes Python tensors only for inputs' views and for results.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import torch

from turret.errors import CacheError, CodegenError, FakeImplementationError
from turret.graph.externs import fast_callable, is_trusted, resolve_op
from turret.graph.op_traits import is_collective
from turret.hooks.devices import PlanLibrary, Segment, allocator, device_for
from turret.hooks.graph_capture import CallObserver
from turret.hooks.size_source import Binding
from turret.plan import Allocate, Call, Compute, Copy, Free, Launch, Plan, SizeRef, SizeText, Slot, SlotRef, View
from turret.plan.bounds import extent_position, note_extent
from turret.plan.linear_calls import arguments as linear_arguments
from turret.plan.linear_calls import is_transpose, linear_calls
from turret.plan.modes import below_autograd
from turret.plan.plan import Step
from turret.plan.sizes import static_sizes
from turret.plan.workspaces import WorkspacePool
from turret.storage.artifact_cache import Store
from turret.storage.source_lines import show_lines
from turret.torch_compat.operators.ops import linear


def _nothing() -> None:
    """There is nothing to prepare."""


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


def _recovery(segment: Segment, failed: Callable[[Any], None]) -> Callable[..., None]:
    """``recover(workspace, status, stream, tensors)`` of a launch; what a failed call worked in goes to ``failed``."""

    def recover(workspace: Any, status: int, stream: int, tensors: Mapping[int, torch.Tensor]) -> None:
        try:
            segment.recover(status, workspace.slots, workspace.sizes, stream, tensors)
        except BaseException:
            failed(workspace)
            raise

    return recover


def fits_device(device: str, arch: str) -> bool:
    """Whether what was compiled for an ``arch`` of a device (empty: for all of them) runs on the one that is here.

    It may come from a cache that machines share.
    """
    here = torch.device(device)
    return not arch or device_for(here.type).properties(here.index or 0).arch == arch


class LoadedPlan(Protocol):
    """A plan that can be called: with the list of the graph's inputs, which it empties, for the list of outputs.

    ``source`` is the generated Python; ``pool`` holds its idle memory; ``library`` has its kernels; ``prepare()`` loads
    what is otherwise loaded by the first call (before a graph capture, which must not).  ``divert(other)``, of a plan
    with library calls on a device that queues its work: each call goes to ``other`` first, and ends with what that
    gives unless it is None, and then leaves the inputs as they were.
    """

    source: str
    plan: Plan
    pool: WorkspacePool
    library: PlanLibrary | None
    prepare: Callable[[], None]
    divert: Callable[[Callable[[list[Any]], list[Any] | None] | None], None]

    def __call__(self, args: list[Any], /) -> list[Any]: ...


def load(plan: Plan, store: Store | None = None, observer: CallObserver | None = None) -> LoadedPlan:
    """The executable of a plan; its native library is that of this process, or of ``store`` (None: the default cache).

    ``observer`` is told of each library call and copy.

    Raises ``CacheError`` where the library is not there, ``OSError`` where it is none.

    The result may run in several threads at once.
    """
    return PlanWriter(plan, store, observer).build()


PLAN_FILE = "<turret plan"
"""How the file names of generated functions begin, for ``left_inputs_as_they_were``."""


def argument_names(plan: Plan) -> list[str]:
    """What a generated function calls the inputs of a plan."""
    return [f"a{i}" if slot is None else f"t{slot}" for i, slot in enumerate(plan.inputs)]


def symbol_values(plan: Plan, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Symbols that a plan's inputs tell, each with Python source of its value."""
    for symbol in plan.size_symbols:
        source = plan.size_sources.get(symbol)
        if source is None:
            continue
        name = names[source.input]
        if source.dimension is None and source.kind in ("size", "float"):
            yield symbol, name
        elif source.kind == "offset":
            yield symbol, f"{name}.storage_offset()"
        else:
            yield symbol, f"{name}.{source.kind}({source.dimension})"


def left_inputs_as_they_were(error: BaseException) -> bool:
    """Whether an exception came out of a plan, of a graph's forward, that writes to none of its inputs.

    The epilogue, which does, comes after it.
    """
    frames = [traceback.tb_frame for traceback in _within_plans(error)]
    return bool(frames) and not any(f.f_globals["writes_inputs"] or f.f_locals.get("overwrites") for f in frames)


def failed_op(error: BaseException) -> str:
    """The op, as ``namespace::name.overload``, whose call in a plan raised an exception; empty where none did."""
    found = ""
    for traceback in _within_plans(error):
        found = traceback.tb_frame.f_globals["ops"].get(traceback.tb_lineno, "")
    return found


def _within_plans(error: BaseException) -> Iterator[TracebackType]:
    """Where an exception went through plans, outermost first: more than one under a profiler, or of branches."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(PLAN_FILE):
            yield traceback
        traceback = traceback.tb_next


class PlanWriter:
    """Writes the function of a plan; ``is_entry``: the one that others call, which may hand a call to another one."""

    is_entry = True
    further_entries = 0
    """Of the table of slots, behind those of the plan."""

    def __init__(self, plan: Plan, store: Store | None, observer: CallObserver | None) -> None:
        self.plan, self.store, self.observer = plan, store, observer
        device = torch.device(plan.device)
        self.device, self.index = device_for(device.type), device.index or 0
        self.native = self._library()
        self.pool: WorkspacePool
        self.events = False
        """Whether what runs is shown to torch.profiler."""
        self.profiled: Callable[[list[Any]], list[Any]] | None = None
        self.names: dict[str, Any] = {
            "view": torch.as_strided,
            "below_autograd": below_autograd,
            "relayout": _relayout,
            "math": math,
            "torch": torch,
        }
        self.lines: list[str] = []
        self.ops: dict[int, str] = {}
        """What is called in lines, by their numbers."""
        dispatched = self.dispatched()
        tensors_used = {s for step in dispatched for s in slots_as_tensors(step)}
        self.arena_tensors = tuple(sorted(n for n in tensors_used if plan.slots[n].storage == "arena"))
        self.dispatches = bool(dispatched)
        # Observers are told of the view's tensor, too.
        self.linear = linear_calls(plan, _uses(plan)) if observer is None else {}
        self.launched = self.addressed()
        framed = bool(self.launched or self.arena_tensors)
        if self.device.keeps_arena and plan.scratch_bytes:
            raise CodegenError(
                f"{plan.name} has scratch memory, and {plan.device} keeps arenas: give it arenas by the call"
            )
        self.has_arena = framed and not self.device.keeps_arena and bool(plan.arena_bytes or plan.scratch_bytes)

    def dispatched(self) -> list[Step]:
        """The steps that torch runs, on tensors."""
        return [step for step in self.plan.steps if isinstance(step, (View, Copy, Call))]

    def addressed(self) -> frozenset[int]:
        """The slots of which native code is told where they lie."""
        return frozenset(s for step in self.plan.steps if isinstance(step, Launch) for s in step.slots)

    def _library(self) -> PlanLibrary | None:
        plan = self.plan
        if plan.library is None:
            return None  # no kernels: it runs anywhere
        if not fits_device(plan.device, plan.arch):
            raise CacheError(f"{plan.name} was compiled for {plan.arch}, which {plan.device} is not")
        return self.device.load(plan, self.store)

    def constant(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def build(self) -> LoadedPlan:
        plan = self.plan
        self.pool = pool = WorkspacePool(plan, self.arena_tensors, self.device.keeps_arena, self.further_entries)
        if self.observer is None and self.is_entry:
            self.names |= {"profiler": torch.autograd.profiler, "profiled": self._profiled}
            if self.device.asynchronous and any(isinstance(step, Call) for step in plan.steps):
                self.names["diverted"] = None
        function: Any = self.function()
        function.divert = functools.partial(operator.setitem, self.names, "diverted")
        function.plan, function.pool, function.library = plan, pool, self.native
        function.prepare = _nothing if self.native is None else self.native.prepare
        loaded: LoadedPlan = function
        return loaded

    def _profiled(self, args: list[Any]) -> list[Any]:
        """The same function with events for torch.profiler in it, which is made when one runs for the first time."""
        if self.profiled is None:
            writer = PlanWriter(self.plan, self.store, None)
            writer.pool, writer.events = self.pool, True
            self.profiled = writer.function()
        found: list[Any] = self.profiled(args)
        return found

    def function(self) -> Callable[[list[Any]], list[Any]]:
        """The steps as a function; ``source`` of it is its text."""
        plan = self.plan
        self.names["take"], self.names["give"] = self.pool.take, self.pool.give
        self._prologue()
        spans = self._arena_spans()
        opened, closed = {first for first, _ in spans}, {last for _, last in spans}
        for number, step in enumerate(plan.steps):
            if number in opened:
                self.open_workspace()
            self.write(number, step)
            if number in closed:
                self.close_workspace()
        self.finish()
        self.lines.append(f"result = [{', '.join(self._value(o) for o in plan.outputs)}]")
        source = self._source()
        self.names["writes_inputs"] = any(isinstance(step, Copy) for step in plan.steps)
        filename = f"{PLAN_FILE} {plan.name} {id(plan):x}>"
        exec(compile(source, filename, "exec"), self.names)
        function: Any = self.names["run"]
        show_lines(function, source)
        function.source = source
        run: Callable[[list[Any]], list[Any]] = function
        return run

    def write(self, number: int, step: Step) -> None:
        """The statements of a step."""
        if number in self.linear:
            self._linear(step, self.plan.steps[self.linear[number]])
        elif number not in self.linear.values():
            self._step(step)

    def finish(self) -> None:
        """The statements behind all steps."""

    def _source(self) -> str:
        # Entering the modes costs a microsecond, and allocations and launches alone see nothing of them.
        modes = ["below_autograd()"] if self.dispatches else []
        if self.events:
            modes.insert(0, self._event(self.plan.name, self._places()))
        head = ["def run(args):"]
        if "profiled" in self.names:
            head.append("    if profiler._is_profiler_enabled: return profiled(args)")
        if "diverted" in self.names:
            head.append("    if diverted and (result := diverted(args)) is not None: return result")
        has_workspace = bool(self.launched or self.arena_tensors)
        if has_workspace:
            head += ["    workspace = take()", "    slots, sizes = workspace.slots, workspace.sizes"]
        if modes:
            head.append(f"    with {', '.join(modes)}:")
        self.names["ops"] = {len(head) + 1 + number: op for number, op in self.ops.items()}
        indent = "        " if modes else "    "
        body = [f"{indent}{line}" for line in self.lines]
        end = ["    give(workspace)", "    return result"] if has_workspace else ["    return result"]
        return "\n".join([*head, *body, *end, ""])

    def _places(self) -> list[str]:
        """Lines of the user's that the kernels came from, as the plan's launches have them."""
        return [text for step in self.plan.steps if isinstance(step, Launch) for text in step.sources]

    def _event(self, name: str, places: Sequence[str]) -> str:
        """A block that torch.profiler shows by a name, with the first line of the user's that it came from."""
        self.names["event"] = torch.profiler.record_function
        line = next((text.splitlines()[0] for text in places if text), "")
        shown = f"{name}: {line}" if line else name
        return f"event({shown!r})"

    def _prologue(self) -> None:
        plan, lines = self.plan, self.lines
        names = argument_names(plan)
        if names:
            lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = args")
        lines.append("args.clear()")
        for symbol, value in symbol_values(plan, names):
            self._number(symbol, value)
        if self.has_arena:
            self.names |= {"cdiv": _divide_up, "floor_div": int.__floordiv__, "floor_mod": int.__mod__}
            later = self._scratch_symbols()
            if later:
                lines.append(f"{' = '.join(later)} = 0")
        if self.arena_tensors:
            targets = ", ".join(f"t{s}" for s in self.arena_tensors)
            lines.append(f"{targets}{',' if len(self.arena_tensors) == 1 else ''} = workspace.tensors")
        for number, slot in enumerate(plan.slots):
            if slot.storage == "constant":
                self.names[f"t{number}"] = plan.constants[slot.name]
        if self.launched:
            self.prepare_launches()
            for number, slot in enumerate(plan.slots):
                if slot.storage in ("input", "constant"):
                    self._address(number)

    def _number(self, symbol: str, value: str) -> None:
        """A number of this call, for Python and for kernels."""
        self.lines.append(f"{symbol} = {value}")
        if not self.launched:
            return
        if symbol in self._scratch_symbols():
            self.open_workspace()
        number, plan = self.plan.size_symbols.index(symbol), self.plan
        if symbol in plan.float_symbols:
            self.names["bits"] = _bits
            self.lines.append(f"sizes[{number}] = bits({symbol})")
        else:
            self.lines.append(f"sizes[{number}] = {symbol}")

    def _arena_spans(self) -> tuple[tuple[int, int], ...]:
        """From which step to which the arena is there: all of the call where it grows in the middle."""
        if not self.has_arena:
            return ()
        whole = ((0, len(self.plan.steps) - 1),)
        return whole if self._scratch_symbols() else self.plan.arena_spans or whole

    def _scratch_symbols(self) -> list[str]:
        """Numbers that decide how much memory kernels work in, and that are known in the middle of a call."""
        if not self.has_arena or not isinstance(self.plan.scratch_bytes, str):
            return []
        words = set(re.findall(r"[A-Za-z_]\w*", self.plan.scratch_bytes))
        return [symbol for symbol in self.plan.bound_symbols if symbol in words]

    def open_workspace(self) -> None:
        """Take the arena and scratch memory, or more scratch memory; what is in the arena stays."""
        self.lines.append(f"workspace.open({self.plan.scratch_offset} + ({self.plan.scratch_bytes}))")

    def close_workspace(self) -> None:
        """Give the arena and scratch memory back."""
        self.lines.append("workspace.close()")

    def prepare_launches(self) -> None:
        """What every launch of a call is handed: where the tables are, and a stream."""
        self.names["current_stream"] = self.device.stream_getter(self.index)
        self.lines.append("stream = current_stream()")
        self.lines.append("slots_at, sizes_at = workspace.tables")

    def _launch(self, step: Launch) -> None:
        assert self.native is not None  # the library of a plan with launches is loaded
        if step.overwrites:
            self.lines.append("overwrites = True")
        event = f"with {self._event(', '.join(step.origins), step.sources)}: " if self.events else ""
        self.run_segment(self.native.segment(step), step.slots, event)

    def run_segment(self, segment: Segment, slots: Iterable[int], event: str = "") -> None:
        """The statements that launch a segment, which works on ``slots``."""
        run = self.constant("run", segment.run)
        recover = self.constant("recover", _recovery(segment, self.pool.give_failed))
        movable = [s for s in slots if self.plan.slots[s].storage in ("input", "call", "view", "constant")]
        tensors = f"{{{', '.join(f'{s}: t{s}' for s in movable)}}}"
        leading = "".join(f"{word}, " for word in segment.leading)
        self.lines.append(f"{event}status = {run}({leading}slots_at, sizes_at, stream)")
        self.lines.append(f"if status: {recover}(workspace, status, stream, {tensors})")

    def _allocator(self, device: torch.device) -> str:
        """The name of ``empty(shape, stride, dtype)`` on a device."""
        name = f"empty_{device.type}"
        if device.index:
            name += f"_{device.index}"
        if name not in self.names:
            self.names[name] = allocator(device)
        return name

    def _address(self, slot: int) -> None:
        """Tell kernels where a tensor lies, if any kernel wants to know."""
        if slot in self.launched:
            self.lines.append(f"slots[{slot}] = t{slot}.data_ptr()")
            if self.plan.check_bounds:
                self.names["note_extent"] = note_extent
                self.lines.append(f"note_extent(sizes, {extent_position(self.plan, slot)}, t{slot})")

    def _step(self, step: Any) -> None:
        if self.observer is None or not isinstance(step, Call | Copy):
            self._run_step(step)
            return
        self.names["observer"] = self.observer
        tensors = "".join(f"t{slot}, " for slot in slots_as_tensors(step))
        stays = isinstance(step, Call) and is_collective(resolve_op(step.op))
        self.lines.append(f"observer.begin(({tensors}), {stays})")
        self._run_step(step)
        outputs = [slot for slot in step.outputs if slot is not None] if isinstance(step, Call) else []
        self.lines.append(f"observer.end(({''.join(f't{slot}, ' for slot in outputs)}))")

    def _run_step(self, step: Any) -> None:
        slots = self.plan.slots
        match step:
            case Allocate(slot=number):
                slot = slots[number]
                dtype = self.constant("dtype", slot.torch_dtype)
                empty = self._allocator(torch.device(slot.device))
                self.lines.append(f"t{number} = {empty}({_tuple(slot.shape)}, {_tuple(slot.stride)}, {dtype})")
                self._address(number)
            case Launch():
                self._launch(step)
            case View(slot=number):
                if is_transpose(step, self.plan):
                    self.lines.append(f"t{number} = t{step.base}.t()")  # half the cost of as_strided
                else:
                    layout = f"{_tuple(slots[number].shape)}, {_tuple(slots[number].stride)}"
                    self.lines.append(f"t{number} = view(t{step.base}, {layout}{self._view_offset(step)})")
                self._address(number)
            case Copy():
                self.lines.append(f"t{step.target}.copy_(t{step.source})")
            case Free():
                self.lines.append(" = ".join(f"t{s}" for s in step.slots) + " = None")
            case Compute():
                self._number(step.symbol, step.text)
            case Call():
                self._call(step)

    def _view_offset(self, view: View) -> str:
        """The last argument of a view; without one it begins where its base does, which costs a third less."""
        if view.offset == 0:
            return ""
        within = "" if self.plan.slots[view.base].storage == "own" else f"t{view.base}.storage_offset() + "
        return f", {within}{view.offset}"

    def _linear(self, step: Step, view: Step) -> None:
        """A product by the transpose of a matrix, whose view is made in the call."""
        assert isinstance(step, Call) and isinstance(view, View)
        self.names["linear"] = linear
        self.ops[len(self.lines)] = step.op
        rows, bias = linear_arguments(step)
        given = [self._value(rows), f"t{view.base}", *([] if bias is None else [self._value(bias)])]
        self.lines.append(f"linear({', '.join(given)}, out=t{step.into})")

    def _call(self, step: Call) -> None:
        self.ops[len(self.lines)] = step.op
        function = self.constant("op", fast_callable(step.op))
        arguments = [self._value(a) for a in step.args] + [f"{k}={self._value(v)}" for k, v in step.kwargs.items()]
        if step.into is not None:
            self.lines.append(f"{function}({', '.join(arguments)}, out=t{step.into})")
            return
        results = _result_names(step)
        target = ""
        if step.sequence and results:
            target = f"{', '.join(results)}, = "
        elif any(name != "_" for name in results):
            target = f"{results[0]} = "
        self.lines.append(f"{target}{function}({', '.join(arguments)})")
        for binding in step.symbol_bindings:
            self._number(binding.symbol, _bound(binding, results[binding.output]))
        for number in step.outputs:
            if number is not None:
                self._check_result(number, step.op, is_trusted(step.op) and not step.symbol_bindings)
                self._address(number)

    def _check_result(self, number: int, op: str, trusted: bool) -> None:
        """A result that has another layout than its slot is copied; of one that is not ``trusted`` the dtype counts."""
        slot = self.plan.slots[number]
        shape, stride = _tuple(slot.shape), _tuple(slot.stride)
        unlike = f"t{number}.stride() != {stride} or t{number}.shape != {shape}"
        dtype = self.constant("dtype", slot.torch_dtype)
        if not trusted:
            unlike += f" or t{number}.dtype is not {dtype}"
        self.lines.append(f"if {unlike}:")
        self.lines.append(f"    t{number} = relayout(t{number}, {shape}, {stride}, {dtype}, {op!r})")

    def _value(self, value: Any) -> str:
        if isinstance(value, SlotRef):
            return f"t{value.slot}"
        if isinstance(value, SizeRef):
            return f"({value.text})"
        if isinstance(value, (list, tuple)):
            inner = ", ".join(self._value(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if isinstance(value, Plan):
            return self.constant("branch", _branch(value, self.store))
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self.constant("value", value)


def _branch(plan: Plan, store: Store | None) -> Callable[..., list[Any]]:
    """A plan of static sizes as a function of its inputs, of any strides, for an op of control flow to call."""
    run = load(plan, store)
    layouts = [None if n is None else _static_layout(plan.slots[n]) for n in plan.inputs]

    def branch(*operands: Any) -> list[Any]:
        given = list(operands)
        for number, layout in enumerate(layouts):
            if layout is not None and given[number].stride() != layout[1]:
                tensor = given[number]
                given[number] = _relayout(tensor, *layout, tensor.dtype, plan.name)
        return run(given)

    return branch


def _static_layout(slot: Slot) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return static_sizes(slot.shape), static_sizes(slot.stride)


def _result_names(step: Call) -> list[str]:
    """A variable for each result: of a slot's tensor, or of what a number is read from; ``_`` where nobody wants it."""
    given = {binding.output for binding in step.symbol_bindings}
    unnamed = (f"n{k}" if k in given else "_" for k in range(len(step.outputs)))
    return [name if slot is None else f"t{slot}" for slot, name in zip(step.outputs, unnamed, strict=True)]


def _bound(binding: Binding, result: str) -> str:
    """Python source of a number that a call gives."""
    return result if binding.dimension is None else f"{result}.size({binding.dimension})"


def _bits(value: float) -> int:
    """A float as the table of sizes holds it."""
    (bits,) = _INTEGER.unpack(_FLOAT.pack(value))
    return int(bits)


_INTEGER, _FLOAT = struct.Struct("=q"), struct.Struct("=d")


def slots_as_tensors(step: Any) -> list[int]:
    """Slots whose tensors (not just addresses) a step uses."""
    match step:
        case View():
            return [step.base]
        case Copy():
            return [step.target, step.source]
        case Call():
            into = [] if step.into is None else [step.into]
            return into + [ref.slot for ref in refs((step.args, list(step.kwargs.values())))]
    return []


def _uses(plan: Plan) -> Counter[int]:
    """How many steps use each slot."""
    found: Counter[int] = Counter()
    for step in plan.steps:
        found.update(slots_as_tensors(step))
        found.update(step.slots if isinstance(step, Launch) else ())
    return found


def refs(value: Any) -> list[SlotRef]:
    """The slots among the arguments of a call."""
    if isinstance(value, SlotRef):
        return [value]
    if isinstance(value, (list, tuple)):
        return [ref for item in value for ref in refs(item)]
    return []


def _tuple(values: tuple[SizeText, ...]) -> str:
    return f"({''.join(f'{v}, ' for v in values)})"


def _relayout(
    tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, op: str
) -> torch.Tensor:
    """A call's result in the layout that the plan was made for.

    An op's fake implementation foretold shape, strides and dtype; where a real result's strides differ it is copied
    (strides of dimensions of size 1 do not matter), and a different shape or dtype is an error of that implementation;
    a shape that data decide is one of the data, of which calls behind this one were taken to ask for another.
    """
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        if tensor.dtype == dtype and torch.Tag.dynamic_output_shape in resolve_op(op).tags:
            raise RuntimeError(f"{op} found {tuple(tensor.shape)} where the graph needs the shape {shape}")
        raise FakeImplementationError(
            f"{op} returned {tensor.dtype} of shape {tuple(tensor.shape)}, its fake implementation said {dtype} of "
            f"shape {shape}; correct the fake implementation"
        )
    if all(s == 1 or a == b for s, a, b in zip(shape, tensor.stride(), stride, strict=True)) or not tensor.numel():
        return tensor
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
