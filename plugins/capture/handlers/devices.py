"""Questions about the machine's devices: answered once for a process."""

from __future__ import annotations

import operator
from typing import Any

import torch

from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Tracer, Value


def _answered_once(question: Any) -> Handler:
    def handler(t: Tracer, *args: Value, **kwargs: Value) -> Value:
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
accelerator.is_available accelerator.device_count backends.cuda.is_built backends.cudnn.is_available
backends.cudnn.version backends.mps.is_available backends.mps.is_built backends.mkl.is_available
backends.mkldnn.is_available backends.openmp.is_available
"""
"""Names in torch; not each version has all of them."""

for _name in _QUESTIONS.split():
    _module, _, _last = _name.rpartition(".")
    _question = getattr(operator.attrgetter(_module)(torch), _last, None)
    if _question is not None:
        registry.functions[_question] = _answered_once(_question)
