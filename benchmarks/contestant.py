"""One contestant in a process of its own: compiles once, then makes one measured run for every line `go SEED`.

The process gets its task as a JSON object in argv and answers in JSON lines. Modules of contestants import nothing but
the standard library and this one until they know their kind, because peers live in environments of their own, without
Boonta.
"""

import contextlib
import ctypes
import gc
import importlib.metadata
import json
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Task = dict[str, Any]
PACKAGES = (
    *("boonta", "jax", "jaxlib", "numpy", "flax", "optax", "gymnax", "rejax", "distrax"),
    *("ale-py", "gymnasium", "sample-factory", "torch", "sbx-rl", "stable-baselines3", "redis", "LightZero"),
    *("mctx", "pgx", "open-spiel", "bitbully", "ray"),
)


class Compiled(NamedTuple):
    """A contestant that is ready.

    Attributes:
        run: seed -> one run from initialisation to the last update: seconds, steps (all), idle (of these, steps
            that no agent chose).
        seconds: tracing and compiling.
        facts: whatever else the answer should say.
    """

    run: Callable[[int], dict[str, Any]]
    seconds: float
    facts: dict[str, Any]


def versions() -> dict[str, str]:
    """Of Python and of the packages that are installed here."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peak_mb() -> float:
    """The most memory this process has held, in MB."""
    # ru_maxrss survives exec, so a small child would report its parent's peak; the kernel's per-program mark does not.
    try:
        return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024 / 1e6
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def forget_peak() -> bool:
    """Start the peak anew, where the kernel can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what the compiler has freed would hide what a small run takes
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def timed(compiled: Callable, *args: Any) -> tuple[Any, float]:
    """What a compiled function answers, and the seconds until the answer is there."""
    import jax

    begin = time.perf_counter()
    out = jax.block_until_ready(compiled(*args))
    return out, time.perf_counter() - begin


def serve(kinds: Mapping[str, Callable[[Task], Compiled]]) -> None:
    """Compile, say so, and make one run for each `go SEED` until stdin closes."""
    # Libraries may print: only answers may reach the parent.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    task = json.loads(sys.argv[1])
    compiled = kinds[task["kind"]](task)
    ready = {
        "compile_seconds": compiled.seconds,
        "compile_peak_mb": peak_mb(),
        "versions": versions(),
        **compiled.facts,
    }
    if task.get("account"):
        ready["own_peak"] = forget_peak()
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        answer = compiled.run(int(line.split()[1]))
        print(json.dumps(answer | {"peak_rss_mb": peak_mb()}), file=answers)
