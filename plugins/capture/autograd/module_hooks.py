"""Full backward hooks of modules: gradient hooks in the graph, or eager's own behind a break."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.hooks import BackwardHook

from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import backward_hooks
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.sequences import Tuple
from turret.plugins.capture.values.tensors import Tensor

_HINT = "hooks that change nothing but tensors, of modules with one input and one result, are part of the graph"


class ModuleHook(Value):
    """What a module's call makes for its hooks; a break at a later place is one where it is made."""

    def __init__(self, module: Value, hooks: Value, pre_hooks: Value, step: int) -> None:
        self.given, self.step = [module, hooks, pre_hooks], step
        self.inputs: Value | None = None
        """The tensor that the input's hooks are registered on, its place and the count of inputs."""

    def type(self) -> type:
        return BackwardHook

    def truth(self, t: Tracer) -> bool:
        return True

    @contextmanager
    def _or_eager(self, what: str) -> Iterator[None]:
        """What cannot be done here is done by eager, from the making of the hook on."""
        try:
            yield
        except (Unsupported, Raised) as error:
            reason = f": {error.reason}" if isinstance(error, Unsupported) else ""
            raise Unsupported(f"{what} of a module with full backward hooks{reason}", _HINT, step=self.step) from None

    def m_setup_input_hook(self, t: Tracer, args: Value) -> Value:
        with self._or_eager("inputs"):
            passed, *hooked = t.call(t.wrap_known(backward_hooks.pass_on), [args], {}).unpack(t)
            if not t.is_none(hooked[0]):
                self.inputs = Tuple([*hooked, Constant(len(args.unpack(t)))])
        return passed

    def m_setup_output_hook(self, t: Tracer, args: Value) -> Value:
        several = issubclass(args.realize().type(), tuple)
        results = args if several else Tuple([args])
        with self._or_eager("results"):
            passed, *hooked = t.call(t.wrap_known(backward_hooks.pass_on), [results], {}).unpack(t)
            if not t.is_none(hooked[0]):
                if self.inputs is None:
                    raise Unsupported("no input takes a gradient")
                found = Tuple([*hooked, Constant(len(results.unpack(t)))])
                t.call(t.wrap_known(backward_hooks.register), [*self.given, self.inputs, found], {})
                before, after = self.inputs.unpack(t)[0].realize(), hooked[0].realize()
                assert isinstance(before, Tensor)
                assert isinstance(after, Tensor)
                t.recorder.hooked.note(before.fake, after.fake, self.step)
        return passed if several else passed.unpack(t)[0]

    def rebuild(self, r: Rebuilder) -> str:
        raise Unsupported("a graph break in a module with full backward hooks", _HINT, step=self.step)


@registry.kind(BackwardHook)
def module_hook(t: Tracer, module: Value, user_hooks: Value, user_pre_hooks: Value) -> Value:
    """The object that calls hooks of one call of a module."""
    return ModuleHook(module, user_hooks, user_pre_hooks, t.call_stack.step)


@registry.function(BackwardHook.setup_input_hook, BackwardHook.setup_output_hook)
def left_to_eager(t: Tracer, /, hook: Value, args: Value) -> Value:
    """Of an object that eager made."""
    raise Unsupported("full backward hooks of a module, which eager calls", _HINT)
