"""A compile worker: Triton source in, cubin out; runs as a script of its own and imports nothing of Turret or torch.

This is the one module that knows Triton's compiler interface and the calling convention of its kernels, for
versions 3.6 to 3.9.  Requests and answers are JSON behind a four-byte length, on standard input and output.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import traceback
from typing import IO, Any

_ENTRY = re.compile(r"\.entry\s+(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)", re.DOTALL)


def compile_kernel(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Compile one kernel; the answer's fields are those of ``compile.CompiledKernel``, with the image in base64.

    ``request``: ``source``, ``name``, ``parameters`` in order with their types in ``signature``, ``constants``,
    ``divisible``, ``options``, Triton's ``backend`` and ``arch`` (90 for compute capability 9.0).
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = _load(request["source"], request["name"], folder)
    parameters, constants = request["parameters"], request["constants"]
    signature = {p: request["signature"][p] for p in parameters} | dict.fromkeys(constants, "constexpr")
    # Triton binds types by position, so the signature goes in the order of the function's own parameters.
    missing = [name for name in function.arg_names if name not in signature]
    if missing or set(signature) != set(function.arg_names):
        raise ValueError(f"{request['name']} takes {function.arg_names}, given {list(signature)}")
    signature = {name: signature[name] for name in function.arg_names}
    attributes = {(function.arg_names.index(p),): [["tt.divisibility", 16]] for p in request["divisible"]}
    source = ASTSource(function, signature, constants, attributes)
    compiled = triton.compile(
        source, target=GPUTarget(request["backend"], request["arch"], 32), options=request["options"]
    )
    metadata = compiled.metadata
    entry = _ENTRY.search(compiled.asm["ptx"])
    assert entry is not None, "PTX without an entry"
    hidden = entry["parameters"].count(".param") - len(parameters)
    if hidden < 0:
        raise ValueError(f"{request['name']} compiled to {len(parameters) + hidden} of {len(parameters)} parameters")
    return {
        "image": base64.b64encode(compiled.asm["cubin"]).decode(),
        "function": metadata.name,
        "num_warps": metadata.num_warps,
        "shared": metadata.shared,
        "cluster": list(getattr(metadata, "cluster_dims", None) or (getattr(metadata, "num_ctas", 1), 1, 1)),
        "programmatic": "griddepcontrol.wait" in compiled.asm["ptx"],
        "cooperative": bool(getattr(metadata, "launch_cooperative_grid", False)),
        # After a kernel's own parameters come pointers to memory that Triton wants: first global scratch (so many
        # bytes for each program), then profile scratch (none is asked for unless an instrumentation is on).
        "hidden_pointers": hidden,
        "global_scratch": getattr(metadata, "global_scratch_size", 0) or 0,
    }


def _load(source: str, name: str, folder: str) -> Any:
    """The ``@triton.jit`` function of a source; it must lie in a file, for Triton reads it back."""
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    module: dict[str, Any] = {"__name__": name, "__file__": path}
    exec(compile(source, path, "exec"), module)
    return module[name]


def _load_compiler() -> None:
    """Import what a compile needs, before the first request: the parent still traces meanwhile."""
    import triton.compiler.code_generator
    import triton.language.extra.libdevice
    import triton.runtime.cache

    # The cache is this process's own and goes with it, so its keys need not tell one compiler from another.  Triton
    # would read and hash all of itself for that, its library included (0.3 s).
    triton.runtime.cache.triton_key = lambda: triton.__version__


def receive(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next message, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    body = stream.read(length)
    return json.loads(body) if len(body) == length else None


def send(stream: IO[bytes], value: dict[str, Any]) -> None:
    """Write one message."""
    body = json.dumps(value).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def main() -> None:
    """Answer requests until standard input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the compiler prints must not get among the answers
    folder = tempfile.mkdtemp(prefix="turret-triton-")
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "cache")
    os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        _load_compiler()
        while (request := receive(requests)) is not None:
            try:
                answer = compile_kernel(request, folder)
            except Exception:
                answer = {"error": traceback.format_exc(limit=-6)}
            send(answers, answer)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
