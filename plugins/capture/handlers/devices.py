"""Questions about the machine's devices, answered once for a process, and the default device and dtype."""

from __future__ import annotations

import operator
from typing import Any

import torch

from turret.frames.trace_modes import modes_in_use
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.torch_compat.modes import DeviceContext, default_device
from turret.torch_compat.operators.native_functions import device_constructors


def _answered_once(question: Any) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        answer = t.fold(question, list(args), kwargs)
        if not answer.is_constant() or kwargs or not all(v.is_constant() for v in args):
            t.provenance.bound_to_process(f"what {question.__module__}.{question.__name__} answered")
        else:
            t.provenance.call(question, tuple(v.constant() for v in args), answer.constant())
        return answer

    return handler


_QUESTIONS = """
cuda.is_available cuda.device_count cuda.is_bf16_supported cuda.get_device_capability cuda.get_device_name
cuda.get_arch_list xpu.is_available xpu.device_count mps.is_available mps.device_count mtia.is_available
accelerator.is_available accelerator.device_count accelerator.current_accelerator backends.cuda.is_built
backends.cudnn.is_available backends.cudnn.version backends.mps.is_available backends.mps.is_built
backends.mkl.is_available backends.mkldnn.is_available backends.openmp.is_available
"""
"""Names in torch; not each version has all of them."""

for _name in _QUESTIONS.split():
    _module, _, _last = _name.rpartition(".")
    _question = getattr(operator.attrgetter(_module)(torch), _last, None)
    if _question is not None:
        registry.functions[_question] = _answered_once(_question)


@registry.function(torch.set_default_device)
def set_default_device(t: Tracer, device: Value) -> Value:
    """The device of the program from here on; after the graph it is that of the process."""
    wanted = device if t.is_none(device) else t.fold(torch.device, [device], {})
    outermost = next(iter(modes_in_use()), None)
    if t.recorder.devices or (type(outermost) is DeviceContext and default_device() is None):
        raise Unsupported("torch.set_default_device in a block with a device")
    if t.overrides.modes:
        t.overrides.set_default_device(wanted)
        return Constant(None)
    return t.state.set(torch.set_default_device, [wanted], {})


@registry.function(torch.set_default_dtype)
def set_default_dtype(t: Tracer, d: Value) -> Value:
    """The dtype of the program from here on; after the graph it is that of the process."""
    try:
        return t.state.set(torch.set_default_dtype, [d], {})
    except TypeError as error:
        raise t.raised_from(error) from None


@registry.function(torch.get_default_device)
def get_default_device(t: Tracer) -> Value:
    """What torch says now, where no block and no mode has a say; modes of the call's start are guarded."""
    found = torch.get_default_device()
    if t.overrides.modes or t.recorder.devices or found.index is not None:
        raise Unsupported("torch.get_default_device where modes or blocks have a say, or of the current device")
    t.provenance.bound_to_process("the default device")
    return t.wrap_known(found)


@registry.function(device_constructors)
def constructors(t: Tracer) -> Value:
    """The functions that a default device is an argument of."""
    return t.wrap_known(device_constructors())
