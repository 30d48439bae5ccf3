"""What a run ran on."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from boonta.core import host

PACKAGES = ("boonta", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnax", "gymnasium", "mctx", "numpy")
EXTRAS = {  # packages, and what they bring
    "atari": (("ale-py",), "ale:, Atari"),
    "box2d": (("box2d", "pygame-ce"), "gym:LunarLander, BipedalWalker, CarRacing; films of gym:'s small tasks"),
    "mujoco": (("mujoco",), "gym:HalfCheetah and the other MuJoCo tasks"),
    "control": (("dm-control",), "dm:, the control suite"),
    "brax": (("brax",), "brax:, compiled physics"),
    "playground": (("playground",), "playground:, compiled robots"),
    "games": (("open-spiel", "pgx"), "pgx: and openspiel:, board games"),
    "seed": (("grpcio",), "--on seed, serve and actor"),
    "ray": (("ray",), "--on fleet, clusters"),
    "redis": (("redis",), "--on split across machines"),
    "cuda": (("jax-cuda12-plugin",), "NVIDIA GPUs"),
}


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Installed versions; None for what is missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def machine() -> dict[str, Any]:
    """Processor, cores and memory (bytes)."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        processor = lines[0].partition(":")[2].strip() if lines else processor
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {"system": platform.platform(), "processor": processor, "cores": host.cores(), "memory": memory}


def commit() -> str | None:
    """The commit of the code that runs, with `+` where code was changed since; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        answer = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True)
        return answer.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # else the checkout around is another project's
        results = (":(top,exclude)benchmarks/results", ":(top,exclude)docs", ":(top,exclude)README.md")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *results)
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
