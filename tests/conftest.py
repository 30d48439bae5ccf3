"""What all tests share: eight virtual devices, a cache of compiled programs, and reproducible properties."""

import os
import threading
from pathlib import Path

import pytest

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "boonta" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import hypothesis  # noqa: E402

hypothesis.settings.register_profile("boonta", deadline=None, max_examples=20, derandomize=True, database=None)
hypothesis.settings.load_profile("boonta")


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    """Of those that act, or play an evaluation."""
    before = {*threading.enumerate()}
    yield
    left = [one.name for one in {*threading.enumerate()} - before if one.name.startswith(("actor", "evaluator"))]
    assert not left, f"left behind: {left}"
