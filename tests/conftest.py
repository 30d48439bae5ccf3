"""What all tests share: virtual devices, how programs are compiled, reproducible properties, and what a run tells."""

import collections
import contextlib
import ctypes
import gc
import os
import resource
import sys
import tempfile
import threading
import tomllib
from pathlib import Path

import pytest

_FLAGS = {"--xla_force_host_platform_device_count": "8"}
if not os.environ.get("BOONTA_TEST_OPTIMIZED"):
    # Half the time to compile, for programs that run a little slower (docs/decisions/0037).
    _FLAGS |= {"--xla_backend_optimization_level": "1", "--xla_cpu_use_fusion_emitters": "false"}
for _name, _value in _FLAGS.items():
    if _name not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_name}={_value}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "boonta" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # else writing them down is an eighth of a warm suite

# Keys that seal run folders are not those of whoever runs the tests.
_HOME = tempfile.TemporaryDirectory(prefix="boonta-tests-")
os.environ["XDG_CONFIG_HOME"] = _HOME.name

# Tracing makes many objects that live, and by default Python looks through them all for garbage a fifth of the time.
gc.set_threshold(100_000, 50, 100)

import hypothesis  # noqa: E402

hypothesis.settings.register_profile("boonta", deadline=None, max_examples=20, derandomize=True, database=None)
hypothesis.settings.load_profile("boonta")

# Megabytes of a worker, beyond which it lets go of the programs that it has compiled: between files, and at any time.
BETWEEN, EVER = 1200, 2000
TOLD = 15  # test files whose time is told


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    """Of those that act, or play an evaluation."""
    before = {*threading.enumerate()}
    yield
    left = [one.name for one in {*threading.enumerate()} - before if one.name.startswith(("actor", "evaluator"))]
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True)
def charts_are_not_drawn(monkeypatch):
    """In the reports that runs end with, of which drawing takes nearly all the time; test_report draws."""
    monkeypatch.setattr("boonta.experiments.page.svg", lambda *_: "<svg></svg>")
    monkeypatch.setattr("boonta.experiments.report.png", lambda _: b"")


@pytest.fixture(autouse=True)
def memory_is_bounded():
    """Compiled programs are kept for as long as a process lives."""
    yield
    _bound(EVER)


@pytest.fixture(autouse=True, scope="module")
def memory_is_bounded_between_files():
    """Tests of one file share programs, those of two hardly."""
    yield
    _bound(BETWEEN)


def _bound(megabytes: float) -> None:
    if _resident() > megabytes and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # of glibc; else what was freed stays with the process
            ctypes.CDLL(None).malloc_trim(0)


def _resident() -> float:
    """Megabytes of this process; the most that it ever had where the system does not tell more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    except OSError:
        return _most()


def _most() -> float:
    """Megabytes that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def pytest_addoption(parser):
    parser.addoption(
        "--only-named-skips", action="store_true", help="fail where a test is skipped that skips.toml does not name"
    )


def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["most"] = _most()
    elif session.exitstatus == pytest.ExitCode.OK and _unnamed(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_testnodedown(node, error):
    _MOST.append(getattr(node, "workeroutput", {}).get("most", 0.0))


_MOST: list[float] = []  # megabytes that each worker had at most


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """The time by file, and what was not tested."""
    spent = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                spent[report.nodeid.partition("::")[0]] += report.duration
    if not spent:
        return
    terminalreporter.section("slowest files")
    for file, seconds in spent.most_common(TOLD):
        terminalreporter.line(f"{seconds:7.1f} s  {file}")
    terminalreporter.line(f"{sum(spent.values()):7.1f} s  in all, over all workers")
    if _MOST:
        terminalreporter.line(f"{max(_MOST):7.0f} MB at most in a worker")
    if skipped := terminalreporter.stats.get("skipped", []):
        terminalreporter.section("skipped")
        for reason, count in collections.Counter(_reason(report) for report in skipped).items():
            terminalreporter.line(f"{count:4d} tests: {reason}")
    for nodeid in _unnamed(terminalreporter.config):
        terminalreporter.line(f"ERROR: {nodeid} is skipped, and tests/skips.toml does not name it")


def _reason(report) -> str:
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _unnamed(config) -> list[str]:
    """Tests that were skipped without being named in tests/skips.toml, where that is asked for."""
    if not config.getoption("--only-named-skips"):
        return []
    named = tomllib.loads((Path(__file__).parent / "skips.toml").read_text())
    skipped = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    return [report.nodeid for report in skipped if report.nodeid not in named]
