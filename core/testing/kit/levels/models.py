"""Level ``models``: training steps of whole models, own small ones and those of libraries, against eager."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from turret.testing.comparison.checker import assert_same
from turret.testing.comparison.observe import observe
from turret.testing.corpus.models import MODELS, Model
from turret.testing.corpus.program import Inputs
from turret.testing.kit.levels.level import Level, Settings
from turret.testing.kit.subject import Compiler, Subject

SIZES = {"small": 4, "medium": 6, "large": 100}


@attrs.frozen
class Training:
    """``steps`` steps of a model (0: one call without gradients), or of the submodule at ``path`` alone."""

    model: Model
    steps: int
    device: str
    path: str = ""


class Models(Level):
    """Items are names of ``turret.testing.corpus.models.MODELS``."""

    name = "models"

    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        return list(MODELS)[: settings.count(self.name, SIZES)]

    def why_skipped(self, item: str, subject: Subject) -> str:
        library = MODELS[item].library
        if library and importlib.util.find_spec(library) is None:
            return f"{library} is not installed"
        return ""

    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[Training]:
        yield Training(MODELS[item], 2, subject.device)

    def eager_error(self, candidate: Training, subject: Subject) -> BaseException | None:
        return observe(_trained(candidate), _numbered(candidate)(0), "none").error

    def try_out(self, candidate: Training, compiler: Compiler, subject: Subject) -> None:
        check_training(candidate, compiler)

    def shrink(self, candidate: Training, fails: Callable[[Any], bool], attempts: int) -> Training:
        """Fewer steps, then the innermost submodule that fails by itself."""
        for steps in range(candidate.steps):
            smaller = attrs.evolve(candidate, steps=steps)
            if fails(smaller):
                candidate = smaller
                break
        progress = True
        while progress and attempts > 0:
            progress = False
            for path in _children(candidate):
                attempts -= 1
                smaller = attrs.evolve(candidate, path=path)
                if attempts > 0 and fails(smaller):
                    candidate, progress = smaller, True
                    break
        return candidate

    def source(self, candidate: Training) -> str:
        path = f", {candidate.path!r}" if candidate.path else ""
        return (
            "from turret.testing.kit.levels.models import Training, check_training\n"
            "from turret.testing.corpus.models import MODELS\n\n\n"
            f"def main():\n    model = MODELS[{candidate.model.name!r}]\n"
            f"    check_training(Training(model, {candidate.steps}, {candidate.device!r}{path}), subject.compile)\n"
        )


def check_training(training: Training, compiler: Compiler) -> None:
    """Train a model of the same first weights eagerly and compiled: losses, weights and buffers must be the same."""
    if training.path and not _inputs_of(training):
        return

    assert_same(_trained(training), _trained(training, compiler), _numbered(training), backward="none", calls=1)


def _trained(training: Training, compiler: Compiler = lambda model: model) -> Callable[..., Any]:
    return lambda *args: _steps(training, compiler, args)


def _numbered(training: Training) -> Callable[[int], Inputs]:
    return lambda call: Inputs(_inputs_of(training), ())


def _made(training: Training) -> nn.Module:
    """The model, or its submodule, with the same weights each time."""
    torch.manual_seed(0)
    return training.model.make().to(training.device).get_submodule(training.path)


def _inputs_of(training: Training) -> tuple[Any, ...]:
    """Inputs of a call; those of a submodule are what the whole gives it in eager, if it calls it with tensors."""
    inputs = tuple(value.to(training.device) for value in training.model.inputs())
    if not training.path:
        return inputs
    whole, given = _made(attrs.evolve(training, path="")), []
    hook = whole.get_submodule(training.path).register_forward_pre_hook(
        lambda module, args, kwargs: given.append((args, kwargs)), with_kwargs=True
    )
    whole(*inputs)
    hook.remove()
    if not given or given[0][1] or not all(isinstance(value, Tensor) for value in given[0][0]):
        return ()
    return tuple(value.detach().clone() for value in given[0][0])


def _steps(training: Training, compile: Compiler, inputs: tuple[Any, ...]) -> Any:
    """Losses of the steps, and weights and buffers after them; of no steps, the results of a call."""
    model = _made(training)
    compiled = compile(model)
    if not training.steps:
        with torch.no_grad():
            return _tensors(compiled(*inputs))
    losses = []
    for _ in range(training.steps):
        loss = torch.stack([value.float().square().mean() for value in _tensors(compiled(*inputs))]).sum()
        model.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.05)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return losses, weights


def _tensors(result: Any) -> list[Tensor]:
    """Floating-point tensors of a result."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    values = result.values() if hasattr(result, "values") else result if isinstance(result, (tuple, list)) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _children(training: Training) -> list[str]:
    """Paths of the submodules right under what is trained."""
    prefix = f"{training.path}." if training.path else ""
    return [f"{prefix}{name}" for name, _ in _made(training).named_children()]
