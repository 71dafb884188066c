"""Replayable random numbers: a pure function of a seed and an element's position.

Random ops of eager PyTorch advance a generator, so running one twice gives two different results and
a partitioner may not recompute it.  Turret draws one ``seed`` per graph and device from the default generator
and computes every number from it, so forward and recomputed backward see the same ones.

``turret::seed(device) -> Tensor``
    An int64 scalar on ``device``, drawn from that device's default generator.  Advances the generator.

``turret::random(seed, size, stream, kind, dtype) -> Tensor``
    Contiguous tensor of ``size`` on the seed's device.  Element ``i`` (row-major linear index) comes from one
    Philox4x32-10 block and from nothing else:

    * key: low and high 32 bits of the seed;
    * counter: low and high 32 bits of ``i``, then low and high 32 bits of ``stream``;
    * with the four 32-bit words ``w0..w3`` of the block,

      - ``"bits"``: ``w0`` as a number in [0, 2**32), for integer dtypes of at least 64 bits;
      - ``"uniform"``: in [0, 1).  float32: ``(w0 >> 8) * 2**-24``; float16: ``(w0 >> 21) * 2**-11``;
        bfloat16: ``(w0 >> 24) * 2**-8``; float64: ``((w0 << 32 | w1) >> 11) * 2**-53``.  Never rounds up to 1;
      - ``"normal"``: Box-Muller, ``sqrt(-2 ln u) * cos(2 pi v)`` with ``u = ((w0 >> 8) + 1) * 2**-24`` and
        ``v = (w1 >> 8) * 2**-24``, in float32 and then rounded to ``dtype``; float64 uses 53 bits of
        ``w0, w1`` for ``u`` and of ``w2, w3`` for ``v``.

    ``stream`` is a number of its own for each random op of a program.  A code generator must match
    ``"bits"`` and ``"uniform"`` bit for bit, and ``"normal"`` up to the last bits of its ``log`` and ``cos``.

The functions below are the reference, in torch ops on int64 tensors; they also run ``turret::random`` wherever
no generated kernel does.

``turret::rng_state() -> Tensor``, ``turret::set_rng_state(state)``, ``turret::manual_seed(seed)``
    ``torch.get_rng_state``, ``torch.set_rng_state`` and ``torch.manual_seed`` in their place among the draws.  What is
    drawn beside them is drawn as eager does (``names_generator_state``): a seed drawn once, ahead of all, would know
    nothing of a state that was set since.

``turret::seeded_state(seed) -> Tensor``
    The state of a generator of the CPU that was given a seed; a function of the seed.
``turret::fresh_seed() -> Tensor``
    What ``torch.Generator.seed`` takes, of which nothing is known before and which is no draw; of its 64 bits 63, so
    that it is an int64 that is never below zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

UNIFORM_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Random bits in one uniform number, by dtype: as many as its significand holds."""

_NORMAL_DTYPES = frozenset(UNIFORM_BITS)
_BITS_DTYPES = frozenset({torch.int64})

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.define(
    "random(Tensor seed, SymInt[] size, int stream, str kind, ScalarType dtype) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_OF_THE_STATE = (torch.Tag.nondeterministic_seeded, torch.Tag.cudagraph_unsafe)
"""Kept in order with all draws, and left out of CUDA graphs, which would run no code of the host's."""
_library.define("rng_state() -> Tensor", tags=_OF_THE_STATE)
_library.define("set_rng_state(Tensor state) -> ()", tags=_OF_THE_STATE)
_library.define("manual_seed(SymInt seed) -> ()", tags=_OF_THE_STATE)
_library.define("fresh_seed() -> Tensor", tags=_OF_THE_STATE)
_library.define("seeded_state(SymInt seed) -> Tensor", tags=(torch.Tag.cudagraph_unsafe,))


def philox(
    key: tuple[torch.Tensor, torch.Tensor], counter: Sequence[torch.Tensor], rounds: int = _ROUNDS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32 on int64 tensors that hold 32-bit words; returns the four words of each block.

    ``key`` is two words, ``counter`` four; all broadcast against one another.
    """
    key0, key1 = key
    c0, c1, c2, c3 = counter
    for _ in range(rounds):
        high0, low0 = _wide_product(c0, _MULTIPLIERS[0])
        high1, low1 = _wide_product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _KEY_STEPS[0]) & _MASK, (key1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _wide_product(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a 32 by 32 bit product; int64 wraps, so the word is split in halves."""
    low_part = (word & 0xFFFF) * multiplier
    high_part = (word >> 16) * multiplier + (low_part >> 16)
    return (high_part >> 16) & _MASK, ((high_part << 16) | (low_part & 0xFFFF)) & _MASK


def random_reference(
    seed: torch.Tensor, size: Sequence[int], stream: int, kind: str, dtype: torch.dtype
) -> torch.Tensor:
    """What ``turret::random`` must return; see the module docstring.  ``ValueError`` for a bad kind or dtype."""
    size = list(size)
    index = torch.arange(math.prod(size), dtype=torch.int64, device=seed.device)
    return random_numbers(seed.reshape(()), index, stream, kind, dtype).reshape(size)


def random_numbers(seed: torch.Tensor, index: torch.Tensor, stream: int, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Elements number ``index`` (int64) of what ``turret::random`` makes; ``seed`` and ``index`` broadcast."""
    check_random_arguments(kind, dtype)
    stream_words = (torch.full_like(seed, stream & _MASK), torch.full_like(seed, (stream >> 32) & _MASK))
    counter = (index & _MASK, (index >> 32) & _MASK, *stream_words)
    words = philox((seed & _MASK, (seed >> 32) & _MASK), counter)
    return _FROM_WORDS[kind](words, dtype)


def check_random_arguments(kind: str, dtype: torch.dtype) -> None:
    """Raise ``ValueError`` unless ``turret::random`` can make ``kind`` in ``dtype``."""
    allowed = {"uniform": frozenset(UNIFORM_BITS), "normal": _NORMAL_DTYPES, "bits": _BITS_DTYPES}
    if kind not in allowed:
        raise ValueError(f"turret::random: unknown kind {kind!r}; one of {', '.join(allowed)}")
    if dtype not in allowed[kind]:
        names = ", ".join(sorted(str(d) for d in allowed[kind]))
        raise ValueError(f"turret::random: kind {kind!r} cannot be made in {dtype}; one of {names}")


def _bits(words: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return words[0].to(dtype)


def _uniform(words: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float64:
        return _wide(words[0], words[1]).to(dtype) * 2.0**-53
    bits = UNIFORM_BITS[dtype]
    return (words[0] >> (32 - bits)).to(dtype) * 2.0**-bits


def _normal(words: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float64:
        radius = (_wide(words[0], words[1]) + 1).to(dtype) * 2.0**-53
        angle = _wide(words[2], words[3]).to(dtype) * 2.0**-53
    else:
        radius = ((words[0] >> 8) + 1).to(torch.float32) * 2.0**-24
        angle = (words[1] >> 8).to(torch.float32) * 2.0**-24
    return (torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(2.0 * math.pi * angle)).to(dtype)


def _wide(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """53 bits of two words."""
    return (high << 21) | (low >> 11)


_FROM_WORDS = {"bits": _bits, "uniform": _uniform, "normal": _normal}


def _seed(device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)


def _seed_meta(device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


def _random_meta(seed: torch.Tensor, size: Sequence[int], stream: int, kind: str, dtype: torch.dtype) -> torch.Tensor:
    check_random_arguments(kind, dtype)
    return seed.new_empty(size, dtype=dtype)


def _rng_state() -> torch.Tensor:
    return torch.get_rng_state()


def _rng_state_meta() -> torch.Tensor:
    return torch.empty(STATE_SIZE, dtype=torch.uint8)


def _set_rng_state(state: torch.Tensor) -> None:
    torch.set_rng_state(state)


def _manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def _fresh_seed() -> torch.Tensor:
    return torch.tensor(torch.Generator().seed() & (2**63 - 1))


def _fresh_seed_meta() -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


def _seeded_state(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def _seeded_state_meta(seed: int) -> torch.Tensor:
    return _rng_state_meta()


def _no_result(argument: object) -> None:
    return None


STATE_SIZE = torch.get_rng_state().numel()
"""Bytes in the state of the default generator."""

_library.impl("seed", _seed, "CompositeExplicitAutograd")
_library.impl("random", random_reference, "CompositeExplicitAutograd")
torch.library.register_fake("turret::seed", _seed_meta, lib=_library)
torch.library.register_fake("turret::random", _random_meta, lib=_library)

_library.impl("rng_state", _rng_state, "CompositeExplicitAutograd")
_library.impl("set_rng_state", _set_rng_state, "CompositeExplicitAutograd")
_library.impl("manual_seed", _manual_seed, "CompositeExplicitAutograd")
_library.impl("fresh_seed", _fresh_seed, "CompositeExplicitAutograd")
_library.impl("seeded_state", _seeded_state, "CompositeExplicitAutograd")
torch.library.register_fake("turret::rng_state", _rng_state_meta, lib=_library)
torch.library.register_fake("turret::set_rng_state", _no_result, lib=_library)
torch.library.register_fake("turret::manual_seed", _no_result, lib=_library)
torch.library.register_fake("turret::fresh_seed", _fresh_seed_meta, lib=_library)
torch.library.register_fake("turret::seeded_state", _seeded_state_meta, lib=_library)

seed = torch.ops.turret.seed.default
random = torch.ops.turret.random.default
rng_state = torch.ops.turret.rng_state.default
set_rng_state = torch.ops.turret.set_rng_state.default
manual_seed = torch.ops.turret.manual_seed.default
fresh_seed = torch.ops.turret.fresh_seed.default
seeded_state = torch.ops.turret.seeded_state.default
