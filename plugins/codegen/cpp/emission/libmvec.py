"""Functions of the C library that have vectors (glibc's libmvec), for vectors of any length and single elements.

All of them call the vector function of the machine's widest registers.  The last bits of libmvec's results differ from
those of the scalar function, and from one length of vectors to the next; what an element gives would depend on where
it lies, in the loop or in what is left over of it, and equal elements would give different results: a maximum at
another place, a value that equals nothing, a variance of equal elements that is not 0.  Eager's kernels keep the
promise for most functions, so a compiled program keeps it for all.
"""

from __future__ import annotations

from turret.ir import OPS

SINCE = {
    "2, 22": ("exp", "log", "sin", "cos", "pow"),
    "2, 35": (
        "exp2", "expm1", "log2", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh", "erf", "erfc", "atan2", "hypot",
    ),
}  # fmt: skip
"""By the version of glibc (x86-64) that first had their vectors: functions, named as the scalar ops are."""

VECTOR_MATH = frozenset(name for names in SINCE.values() for name in names)

HEADER = """\
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)  // Clang takes no vectors of functions by name
#define LIBMVEC_SINCE(major, minor) __GLIBC_PREREQ(major, minor)
#else
#define LIBMVEC_SINCE(major, minor) 0
#endif
"""

_TYPES = """\
typedef float float_by_4 __attribute__((vector_size(16)));
typedef float float_by_8 __attribute__((vector_size(32)));
typedef float float_by_16 __attribute__((vector_size(64)));
typedef double double_by_2 __attribute__((vector_size(16)));
typedef double double_by_4 __attribute__((vector_size(32)));
typedef double double_by_8 __attribute__((vector_size(64)));
#define HIDDEN extern "C" __attribute__((weak, visibility("hidden")))
#define ALONE static __attribute__((used, noinline))"""

_ONE = """\
#define WIDEST(kind, name, isa, lanes) \\
extern "C" kind##_by_##lanes _ZGV##isa##N##lanes##v_##name(kind##_by_##lanes) noexcept; \\
extern "C" kind alike_##name(kind) noexcept __attribute__((simd("notinbranch"), const)); \\
HIDDEN kind##_by_##lanes _ZGV##isa##N##lanes##v_alike_##name(kind##_by_##lanes x) noexcept { \\
  return _ZGV##isa##N##lanes##v_##name(x); \\
} \\
ALONE kind alone_##name(kind x) noexcept asm("alone_" #name); \\
ALONE kind alone_##name(kind x) noexcept { return _ZGV##isa##N##lanes##v_##name(x - (kind##_by_##lanes){})[0]; } \\
asm(".set alike_" #name ", alone_" #name); \\
INLINE kind name(kind x) { return alike_##name(x); }
#define NARROW(kind, name, isa, lanes, less, fewer) \\
HIDDEN kind##_by_##fewer _ZGV##less##N##fewer##v_alike_##name(kind##_by_##fewer x) noexcept { \\
  union { kind##_by_##fewer parts[lanes / fewer]; kind##_by_##lanes all; } a; \\
  for (int i = 0; i < lanes / fewer; i++) a.parts[i] = x; \\
  a.all = _ZGV##isa##N##lanes##v_##name(a.all); \\
  return a.parts[0]; \\
}"""

_TWO = """\
#define WIDEST_2(kind, name, isa, lanes) \\
extern "C" kind##_by_##lanes _ZGV##isa##N##lanes##vv_##name(kind##_by_##lanes, kind##_by_##lanes) noexcept; \\
extern "C" kind alike_##name(kind, kind) noexcept __attribute__((simd("notinbranch"), const)); \\
HIDDEN kind##_by_##lanes \\
_ZGV##isa##N##lanes##vv_alike_##name(kind##_by_##lanes x, kind##_by_##lanes y) noexcept { \\
  return _ZGV##isa##N##lanes##vv_##name(x, y); \\
} \\
ALONE kind alone_##name(kind x, kind y) noexcept asm("alone_" #name); \\
ALONE kind alone_##name(kind x, kind y) noexcept { \\
  return _ZGV##isa##N##lanes##vv_##name(x - (kind##_by_##lanes){}, y - (kind##_by_##lanes){})[0]; \\
} \\
asm(".set alike_" #name ", alone_" #name); \\
INLINE kind name(kind x, kind y) { return alike_##name(x, y); }
#define NARROW_2(kind, name, isa, lanes, less, fewer) \\
HIDDEN kind##_by_##fewer \\
_ZGV##less##N##fewer##vv_alike_##name(kind##_by_##fewer x, kind##_by_##fewer y) noexcept { \\
  union { kind##_by_##fewer parts[lanes / fewer]; kind##_by_##lanes all; } a, b; \\
  for (int i = 0; i < lanes / fewer; i++) a.parts[i] = x, b.parts[i] = y; \\
  a.all = _ZGV##isa##N##lanes##vv_##name(a.all, b.all); \\
  return a.parts[0]; \\
}"""

_MACHINES = {"__AVX512F__": "edb", "__AVX2__": "db", "__AVX__": "cb", "__x86_64__": "b"}
"""The letters of the vector ABI that compilers may call on a machine, its widest registers first."""
_BYTES = {"b": 16, "c": 32, "d": 32, "e": 64}


def _by_machine(prefix: str, kind: str) -> str:
    """``VECTORS<prefix>_<kind>(name)``, by the kind of machine."""
    size = {"float": 4, "double": 8}[kind]
    lines = []
    for place, (machine, letters) in enumerate(_MACHINES.items()):
        (widest, lanes), *others = ((letter, _BYTES[letter] // size) for letter in letters)
        calls = [f"WIDEST{prefix}({kind}, name, {widest}, {lanes})"]
        calls += [f"NARROW{prefix}({kind}, name, {widest}, {lanes}, {less}, {fewer})" for less, fewer in others]
        lines.append(f"#{'elif' if place else 'if'} defined({machine})")
        lines.append(f"#define VECTORS{prefix}_{kind}(name) {' '.join(calls)}")
    return "\n".join([*lines, "#endif"])


def _function(name: str, kind: str, symbol: str, since: str) -> str:
    arity = OPS[name].arity
    vectors = f"VECTORS{_PREFIXES[arity]}_{kind}({symbol})"
    plain = f'extern "C" {kind} {symbol}({", ".join([kind] * arity)}) noexcept __attribute__((const));'
    return f"#if LIBMVEC_SINCE({since})\n{vectors}\n#else\n{plain}\n#endif"


_PREFIXES = {1: "", 2: "_2"}

PARTS = {
    "HIDDEN": _TYPES,
    "WIDEST": _ONE,
    "WIDEST_2": _TWO,
    **{
        f"VECTORS{prefix}_{kind}": _by_machine(prefix, kind)
        for prefix in _PREFIXES.values()
        for kind in ("float", "double")
    },
    **{
        name + suffix: _function(name, kind, name + suffix, since)
        for since, names in SINCE.items()
        for name in names
        for kind, suffix in (("float", "f"), ("double", ""))
    },
}
"""The text of each function, and what it mentions, by name and in order."""
