"""Compile units and their dispatch: guards checked, frames captured on a miss, recompiles counted and explained."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import torch

from turret import plugins
from turret.errors import CaptureError, MarkError, RecompileError, StageError, warn
from turret.frames import frame_hook, guard_tree, stances, torch_reset
from turret.frames.class_members import class_member
from turret.frames.frame_hook import keep_torch_off, set_torchs_callback
from turret.frames.guards import GuardSet, global_state
from turret.frames.torch_settings import dynamo_setting
from turret.frames.trace_modes import autograd_by_itself, is_hop_skipped, program_asked_nothing
from turret.hooks import plugin_manager
from turret.hooks.registration.blame import blamed
from turret.plugins.capture.dispatching import recomputation
from turret.plugins.capture.errors import AskedFor, Postponed, Unsupported
from turret.plugins.capture.facts.fingerprints import HEAP_TYPE
from turret.plugins.capture.python import resume
from turret.plugins.capture.rebuilding import failures
from turret.plugins.capture.store import units
from turret.plugins.capture.store.settings import FrameCache, Settings
from turret.plugins.capture.store.unit import CompileUnit
from turret.storage.fork_safety import Lock, compiling
from turret.torch_compat.autograd import top_saved_tensor_hooks

_lock = Lock()


def enter(settings: Settings, target: Callable, root: types.CodeType, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call ``target`` with its frames (and those that it reaches through graph breaks) captured.

    The hook's own ``enter`` does the same where all is as usual, at a third of the cost.
    """
    asked = stances.stance()
    units = settings.root.units
    if asked is not stances.DEFAULT:
        if asked.name == "force_eager":
            return target(*args, **kwargs)
        if asked.name == "aot_eager_then_compile" and not units and not settings.root.delayed:
            settings.root.delayed = True
            settings = settings.call_by_call()
        units = settings.root.units_under(asked)
    native = _hook or _native()
    if native is None:
        _unavailable.report(settings)
        return target(*args, **kwargs)
    torchs_callback = set_torchs_callback(None)
    # Which unit runs in a checkpoint is not for the native hook to say; where it cannot see one, it is told.
    seen = _hook_sees_checkpoints or top_saved_tensor_hooks(False) is None or recomputation.position() is None
    try:
        return native.call(target, args, kwargs, root, units if seen else _ROOT, settings)
    finally:
        set_torchs_callback(torchs_callback)


_ROOT = "root"
"""Token of a root frame whose unit is not for the native hook to choose: a checkpoint may have a say in it."""

keep_torch_off(enter.__code__)


def quickest_enter() -> Callable[[Settings, Callable, types.CodeType, tuple, dict[str, Any]], Any]:
    """The quickest function that does what ``enter`` does."""
    return enter if _hook is None else _hook.enter


_hook: Any = None
_hook_sees_checkpoints = False


def _let_hook_see_checkpoints() -> None:
    global _hook_sees_checkpoints
    _hook.watch_hooks(guard_tree.load().hooks_question())
    _hook_sees_checkpoints = True


def _native() -> Any | None:
    """The hook, configured; None where it cannot be had."""
    global _hook
    with _lock:
        if _hook is None and _unavailable.error is None:
            try:
                module = frame_hook.load()
                module.configure(on_frame, classify)
                module.prepare_entry(enter, set_torchs_callback, vars(stances), stances.DEFAULT)
                _hook = module
                guard_tree.when_built(_let_hook_see_checkpoints)
            except Exception as error:
                _unavailable.error = error.with_traceback(None)
    return _hook


class _Unavailable:
    """Why there is no hook; tried again after ``turret.reset``."""

    def __init__(self) -> None:
        self.forget()
        frame_hook.captures.add(self)

    def forget(self) -> None:
        self.error: Exception | None = None
        self.is_said = False

    def report(self, settings: Settings) -> None:
        """Raise, or say once in a process, and once to the observers of each callable, that all runs as Python."""
        reason = f"{type(self.error).__name__}: {self.error}"
        error = StageError("capture", "turret.plugins.capture", reason)
        context = settings.context
        if context.config.on_error == "raise":
            raise error from self.error
        if not settings.root.given_up:
            settings.root.given_up = True
            context.emit("fallback", stage="capture", message=str(error))
        if not self.is_said:
            self.is_said = True
            warn(f"Turret compiles nothing in this process: {error}")


_unavailable = _Unavailable()


def cache_of(settings: Settings, code: types.CodeType, arguments: tuple) -> FrameCache:
    """Where the units of a frame behind a graph break are kept."""
    shared = settings.frames.get(code)
    if shared is None:
        shared = settings.frames[code] = FrameCache()
    if not arguments or not isinstance(arguments[0], torch.nn.Module):
        return shared
    kept = settings.modules.get(arguments[0], dict)
    found = kept.get(code)
    if found is None:
        found = kept[code] = FrameCache(shared=shared.units)
        found.history.objects = shared.history.objects  # where modules differ is seen by looking at several
    return found


def on_frame(function: Any, arguments: tuple, token: Any, settings: Settings | None) -> Callable | None:
    """What to run in place of a call of ``function``; None to run it as it is."""
    if settings is None:
        return None
    is_root = token is not None
    if _lock.is_held_here():
        return None  # called by what is captured now (an operator's code on fake tensors), and part of that
    if is_root:
        settings.asked = True
        cache = settings.root
    elif settings.fullgraph:
        return None  # the root is one graph, or raises and so runs as Python, with all that it calls
    else:
        cache = cache_of(settings, function.__code__, arguments)
        if cache.captures == 0 and not resume.is_resume(function.__code__) and not is_worth_it(function, arguments):
            return None
    position = recomputation.position()
    if position is None:
        unit = _unit(settings, cache, function, arguments, is_root)
    elif position.hook is None:
        unit = _unit(settings, cache, function, arguments, is_root)
        if unit is not None and not unit.steady:
            name = function.__qualname__
            message = f"{name} runs as Python in a checkpoint: it changes what its compiled code rests on"
            settings.context.emit("fallback", stage="capture", name=name, message=message)
            unit = None
        position.note(function, unit)
    else:
        unit = position.unit(function, arguments)
    return None if unit is None else unit.run


def _unit(settings: Settings, cache: FrameCache, function: Any, arguments: tuple, is_root: bool) -> CompileUnit | None:
    """The unit that stands for a call, captured now where there is none; None to run it as Python."""
    if is_hop_skipped():  # units were captured where somebody is asked, and checks of guards would be the next function
        _report_as_python(settings, function, "the next function of torch asks nobody")
        return None
    asked = stances.stance()
    units = cache.units_under(asked)
    for number, unit in enumerate(units):
        if unit.check(function, *arguments):
            if number:
                units.insert(0, units.pop(number))
            return unit
    if cache.given_up:
        return None
    for unit in cache.shared or ():
        if unit.check(function, *arguments):
            cache.units.insert(0, unit)
            settings.graphs += not unit.is_empty
            return unit
    if asked is not stances.DEFAULT and _is_held_back(asked, settings, cache, function, arguments):
        settings.waits = True
        return _this_time(arguments) if asked.name == "eager_then_compile" else None
    with _lock, compiling.here(), autograd_by_itself(), program_asked_nothing():
        return _miss(settings, cache, function, arguments, is_root)


def _is_held_back(
    asked: stances.Stance, settings: Settings, cache: FrameCache, function: Any, arguments: tuple
) -> bool:
    """Whether the stance lets a frame run as Python now; raises ``RecompileError`` where it lets it do neither."""
    if asked.name in ("force_eager", "eager_on_recompile"):
        return True
    skipped = asked.skips_guards and bool(cache.units)
    if asked.name == "fail_on_recompile" or skipped:
        if not is_worth_it(function, arguments):
            return True
        code = function.__code__
        message = f"{code.co_filename}:{code.co_firstlineno} in {code.co_name} needs a compilation"
        why = f"the stance is {asked.name!r}"
        if skipped:
            why = "the stance has skip_guard_eval_unsafe: call it first, in a warm-up without, with all that is to come"
        reasons = [u.checked_guards().explain(function, arguments) for u in cache.units]
        raise RecompileError("\n  ".join([f"{message}, and {why}", *filter(None, reasons)]))
    if asked.name != "eager_then_compile" or cache.delayed or cache.units:
        return False
    cache.delayed = True
    cache.history.see_arguments(function.__code__, arguments)
    return True


_MOST_SHARED = 16
"""Units that are tried for a module that has none of its own."""


def is_worth_it(function: types.FunctionType, arguments: tuple) -> bool:
    """Whether a frame behind a break may compute with tensors: some are among its arguments, or in its closure."""
    return holds_tensors(arguments) or holds_tensors(
        [held for cell in function.__closure__ or () for held in _held(cell)]
    )


def _held(cell: types.CellType) -> tuple[Any, ...]:
    """What a cell holds: one object, or none."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def holds_tensors(values: Any, depth: int = 2) -> bool:
    """Whether tensors, modules or optimizers are among some objects, or among the first that these hold.

    Runs none of the program's code: objects are asked for neither class, items nor attributes.
    """
    for value in values:
        if issubclass(type(value), (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
            return True
        if depth and (inner := _inside(value)) and holds_tensors(inner, depth - 1):
            return True
    return False


def _inside(value: Any) -> Any:
    """The first objects that a container or an instance of a program's class holds."""
    kind = type(value)
    if issubclass(kind, tuple):
        return tuple.__getitem__(value, slice(_FIRST))
    if issubclass(kind, list):
        return list.__getitem__(value, slice(_FIRST))
    if issubclass(kind, dict):
        return list(dict.values(value))[:_FIRST]
    if kind is functools.partial:
        return (value.func, *value.args, *value.keywords.values())
    if kind is types.MethodType:
        return (value.__self__,)
    own = class_member(kind, "__dict__") if kind.__flags__ & HEAP_TYPE else None
    return list(own.__get__(value).values())[:_FIRST] if type(own) is types.GetSetDescriptorType else ()


_FIRST = 8


def _miss(settings: Settings, cache: FrameCache, function: Any, arguments: tuple, is_root: bool) -> CompileUnit | None:
    name = function.__qualname__
    if reason := _modes_in_the_way():
        _report_as_python(settings, function, reason)
        return None
    cache.drop_dead()
    if cache.units and _is_given_up(settings, cache, function, arguments):
        return None
    torch_reset.watch()
    cache.captures += 1
    before = settings.graphs
    unit = units.find(settings, cache, function, arguments)
    if unit is not None:
        settings.graphs += 1
        _keep(settings, cache, unit, graphs=1)
        return unit
    try:
        from turret.plugins.capture.dispatching.compile_frame import compile_frame  # a warm start traces nothing

        unit = compile_frame(settings, cache.history, function, arguments)
    except Unsupported as error:
        _report_unsupported(settings, cache, name, error)
        return None
    except Postponed as postponed:
        _postpone(settings, cache, name, postponed)
        return _this_time(arguments)
    except Exception as error:
        _report_failure(settings, cache, name, error)
        return None
    if unit.is_empty and not is_root and cache.units and all(u.run is None for u in cache.units):
        cache.given_up = True  # nothing to compile, call after call, in a helper that is called between graphs
    if unit.is_empty and is_root:
        unit.run = _hook.suspend(_run_as_python)  # nor in what it calls
    _keep(settings, cache, unit, settings.graphs - before)
    return unit


def _is_given_up(settings: Settings, cache: FrameCache, function: Any, arguments: tuple) -> bool:
    """Report why no unit holds for a call; whether that makes one capture too many, so that the frame runs eagerly."""
    context, name, code = settings.context, function.__qualname__, function.__code__
    reasons = [u.checked_guards().explain(function, arguments) for u in cache.units]
    different = dict.fromkeys(filter(None, reasons))
    message = "\n  ".join([f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}", *different])
    context.emit("recompile", stage="capture", name=code.co_name, message=message)
    if dynamo_setting("error_on_recompile"):
        raise RecompileError(f"a recompile, where torch._dynamo.config.error_on_recompile forbids it: {message}")
    if cache.captures < settings.recompile_limit:
        return False
    message = f"{name} was compiled {cache.captures} times (recompile_limit)"
    if settings.fullgraph:
        raise CaptureError(f"{message}, and fullgraph lets it not run eagerly; last: {reasons[0]}")
    cache.given_up = True
    message += f" and now runs eagerly; last: {reasons[0]}"
    context.emit("fallback", stage="capture", name=name, message=message)
    warn(message)
    return True


def _report_unsupported(settings: Settings, cache: FrameCache, name: str, error: Unsupported) -> None:
    """A frame that can only run as Python does so from now on; ``CaptureError`` where it must not."""
    if settings.fullgraph or stances.breaks_are_errors():
        message = f"{name} cannot be captured as one graph: {error.reason}\n{error.stack}{error.hint}"
        raise CaptureError(message) from None
    cache.given_up = True
    if not isinstance(error, AskedFor):
        settings.obstacle = settings.obstacle or f"{error.reason} (at {error.location})"
    message = f"{name} runs as Python: {error.reason}\n{error.stack}"
    settings.context.emit("fallback", stage="capture", name=name, message=message)


def _postpone(settings: Settings, cache: FrameCache, name: str, reason: Postponed) -> None:
    """A frame that can be captured at a later call runs as Python this time, unless that was so too often."""
    settings.waits = True
    cache.captures -= 1
    cache.postponed += 1
    too_often = cache.postponed >= settings.recompile_limit
    message = f"{name} runs as Python{'' if too_often else ' this time'}: {reason}"
    if too_often and settings.fullgraph:
        raise CaptureError(message) from None
    cache.given_up = too_often
    settings.context.emit("fallback", stage="capture", name=name, message=message)


def _report_failure(settings: Settings, cache: FrameCache, name: str, error: Exception) -> None:
    """A frame at which capture itself failed runs as Python from now on, with a warning; or the error goes on."""
    context = settings.context
    promised = isinstance(error, MarkError) or (settings.fullgraph and isinstance(error, CaptureError))
    plugin = plugin_manager.plugin_at_fault(context.hooks, error) or "turret.plugins.capture"
    failed = StageError("capture", plugin, f"{type(error).__name__}: {error}")
    if context.config.on_error == "raise" or promised:
        if blamed(error) and not isinstance(error, StageError):  # a later stage's failure says its own name
            raise failed from error
        raise error
    cache.given_up = True
    message = f"{name} runs as Python: {failed}"
    context.emit("fallback", stage="capture", name=name, message=message)
    warn(message + '; set on_error="raise" in the options for the full traceback')


def _keep(settings: Settings, cache: FrameCache, unit: CompileUnit, graphs: int) -> None:
    """Keep a unit, for others that are alike, too; of the root one with graphs: who has none is told by itself."""
    cache.units.insert(0, unit)
    if cache.shared is not None and (graphs or cache is not settings.root):
        cache.shared.insert(0, unit)
        del cache.shared[_MOST_SHARED:]


def _this_time(arguments: tuple) -> CompileUnit:
    """A unit for one call: the frame, and all that it calls, runs as Python."""
    guards = GuardSet((), len(arguments))
    return CompileUnit(guards, guards.compile_python(), _hook.suspend(_run_as_python))


def _run_as_python(function: types.FunctionType, *values: Any) -> Any:
    return failures.call_frame(function, values)


def _report_as_python(settings: Settings, function: Any, reason: str) -> None:
    name = function.__qualname__
    message = f"{name} runs as Python this time: {reason}"
    settings.context.emit("fallback", stage="capture", name=name, message=message)


def _modes_in_the_way() -> str:
    """Why nothing is compiled now, or nothing: dispatch modes and transforms see every operation.

    Modes for torch's functions are followed; default devices are there again when the captured code runs.  Dual tensors
    of forward-mode AD carry tangents that compiled code does not know of.
    """
    scripted, forward, _, dispatch, level = global_state()[-5:]
    if dispatch:
        return "a torch dispatch mode is in use"
    if level is not None:
        return "a functional transform is under way"
    if scripted:
        return "torch.jit.trace is under way"
    return "forward-mode AD is under way" if forward else ""


@functools.cache
def _folders() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Folders of libraries, those whose callees are not captured either, and parts of these that are captured."""
    paths = sysconfig.get_paths()
    torch_folder = os.path.dirname(torch.__file__)
    own = [os.path.dirname(sys.modules["turret"].__file__ or ""), *plugins.__path__]
    closed = [*own, *(os.path.join(torch_folder, name) for name in ("_dynamo", "_inductor", "_functorch", "fx", "jit"))]
    skipped = (paths["stdlib"], paths["platstdlib"], torch_folder)
    captured = [os.path.join(torch_folder, *name.split("/")) for name in _TORCHS_MODELS]
    first, second = (tuple(f.rstrip(os.sep) + os.sep for f in folders) for folders in (skipped, closed))
    return first, second, tuple(captured)


@functools.cache
def _around_models() -> frozenset[str]:
    """Files of torch that call models and hooks, which are captured each by itself, and do nothing else."""
    return frozenset(str(m.__file__) for m in (torch.nn.modules.module, torch.nn.parallel.distributed))


_TORCHS_MODELS = (
    "nn/modules/", "nn/parallel/", "nn/utils/", "nn/attention/", "optim/", "distributions/", "ao/nn/",
    "export/unflatten.py",
)  # fmt: skip
"""Parts of torch whose code computes with tensors as programs do."""
_MADE_BY_LIBRARIES = ("<frozen", "<attrs", "<__array_function__", "<turret")
"""How the names of code begin that libraries make while they run; others are of a console or of a printed graph."""


_PACKAGES = frozenset(
    {"numpy", "sympy", "pluggy", "attr", "attrs", "rich", "pytest", "_pytest", "hypothesis", "triton", "setuptools"}
)


def classify(code: types.CodeType) -> int:
    """Whether frames of a code object are captured when they are reached through a graph break."""
    name = code.co_filename
    if name.startswith("<"):
        if "importlib" in name:
            return frame_hook.FrameKind.SKIP_CALLEES
        of_library = name.startswith(_MADE_BY_LIBRARIES) or (name == "<string>" and code.co_name.startswith("__"))
        return frame_hook.FrameKind.SKIP if of_library else frame_hook.FrameKind.CAPTURE
    skipped, closed, captured = _folders()
    if name.startswith(closed):
        return frame_hook.FrameKind.SKIP_CALLEES
    if name.startswith(captured) and name not in _around_models():
        return frame_hook.FrameKind.CAPTURE
    if "site-packages" in name:
        package = name.rpartition("site-packages" + os.sep)[2].partition(os.sep)[0]
        if package in _PACKAGES or package.startswith("__editable__"):
            return frame_hook.FrameKind.SKIP_CALLEES
        return frame_hook.FrameKind.SKIP if package == "torch" else frame_hook.FrameKind.CAPTURE
    return frame_hook.FrameKind.SKIP if name.startswith(skipped) else frame_hook.FrameKind.CAPTURE
