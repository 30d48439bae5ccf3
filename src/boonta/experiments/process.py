"""How a process starts JAX, on one host or as one of several, and how it ends."""

import atexit
import codecs
import ctypes
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from boonta.core import signals
from boonta.core.waiting import patiently

T = TypeVar("T", int, int | None)

MEETING = 300  # seconds in which all hosts must be there
ENDING = 3.0  # seconds that a tied process has, once it is to end


class Hosts(NamedTuple):
    """How several hosts find each other.

    Attributes:
        coordinator: HOST:PORT of the first.
        processes: how many hosts.
        process: which this is, from 0.
        found: whether the cluster's environment tells all of that.
    """

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    found: bool = False

    def several(self) -> bool:
        """Whether there is more than this host.

        Raises:
            ValueError: what is given does not say who is who.
        """
        if self.found or all(given is None for given in self[:3]):
            return self.found
        if self.coordinator is None or self.processes is None or self.process is None:
            raise ValueError("several hosts need all of --coordinator, --processes and --process")
        if not 0 <= self.process < self.processes:
            raise ValueError(f"--process must be from 0 to {self.processes - 1}, got {self.process}")
        return True


def mend_streams() -> None:
    """Let what is printed never end a run: where stderr is closed it goes nowhere, and what stdout cannot encode is
    spelt in plain letters."""
    if sys.stderr is None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        sys.stderr = os.fdopen(nowhere, "w")
    codecs.register_error("boonta", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="boonta")


PLAIN = {"±": "+-", "–": "-", "…": "...", "·": "|"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def start(devices: int, hosts: Hosts | None = None) -> None:
    """Decide how many devices a CPU shows, let JAX start and meet the other hosts. Before JAX is first used.

    Args:
        devices: of all hosts, 0 for as many as there are.
        hosts: None for one host.
    """
    from boonta.core.host import cores

    hosts = hosts or Hosts()
    flag = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={-(-devices // (hosts.processes or 1)) or cores()}".strip()
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):  # which JAX, imported by now, has read already
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "boonta" / "jax"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # of small programs there are dozens
    if hosts.several():
        jax.config.update("jax_enable_recoverability", True)  # or a dead host ends the others without a word of ours
        meeting = lambda: jax.distributed.initialize(  # noqa: E731 -- None: as the cluster says
            hosts.coordinator, hosts.processes, hosts.process, initialization_timeout=MEETING
        )
        others = f"the other hosts, at {hosts.coordinator or 'the coordinator that the cluster names'}"
        patiently(meeting, others, MEETING + 10.0)
        if jax.process_index():
            ctypes.CDLL(None).signal(signal.SIGABRT, _on_abort)


class Tied(subprocess.Popen[bytes]):
    """A process that ends when this one does (`tie`); the pipe by which it sees that is closed once it has ended."""

    def __init__(self, words: Sequence[str], **more: Any) -> None:
        super().__init__(words, stdin=subprocess.PIPE, **more)

    def poll(self) -> int | None:
        """As Popen's."""
        return self._let_go(super().poll())

    def wait(self, timeout: float | None = None) -> int:
        """As Popen's."""
        super().wait(timeout)
        return self._let_go(self.returncode)

    def ask_to_end(self) -> None:
        """Close the pipe."""
        assert self.stdin is not None
        self.stdin.close()

    def end(self, seconds: float) -> None:
        """Wait for its end, and kill it after so many seconds."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):  # one that cannot be ended is left behind
                self.wait(seconds)

    def _let_go(self, code: T) -> T:
        if code is not None:
            self.ask_to_end()
        return code


def tie() -> None:
    """Let this process end when its standard input does, and not before, for a parent that holds the other end.

    A terminal, or a cluster, sends signals to all processes of a run, whose parent needs this one until it has saved.
    """
    ended, main = threading.Event(), threading.get_ident()

    def interrupt(number: int, frame: object) -> None:
        if ended.is_set():
            raise KeyboardInterrupt

    def watch() -> None:
        while os.read(0, 1 << 10):
            pass
        ended.set()
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(ENDING)
        os._exit(1)  # its main thread hangs, in an environment maybe

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, interrupt)
    signals.hear()
    threading.Thread(target=watch, name="standard input", daemon=True).start()


def end_with(parent: int) -> None:
    """Let this process get SIGTERM when its parent ends, where the system can do that."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:  # which has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def readable(text: str) -> int:
    """A descriptor of a file without a name, which a process that inherits it opens as `/dev/fd/N`."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


def no_backend(error: Exception) -> str:
    """What to tell where an error comes of JAX finding no device of the kind it was told to use; else nothing."""
    jax = sys.modules.get("jax")
    if jax is None:
        return ""
    try:
        jax.devices()
        return ""
    except (RuntimeError, AssertionError):  # as the error may be
        (why, *_) = [*str(error).strip().splitlines(), "there is none of that kind"]
    platforms = os.environ.get("JAX_PLATFORMS")
    return f"JAX finds no device (JAX_PLATFORMS={platforms or 'unset'}): {why}; unset it, or see `boonta doctor`"


def leads() -> bool:
    """Whether this is the first host, which speaks for all."""
    import jax

    return jax.process_index() == 0


def printable(text: object) -> str:
    """A text in which others may have a say, without what would move a terminal's cursor or set its clipboard."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(text))


def last_word(message: str) -> None:
    """Say why a run failed; of several hosts, whose libraries go on about the dead one, nothing comes after it."""
    sys.stderr.flush()
    os.write(2, f"{printable(message)}\n".encode())
    jax = sys.modules.get("jax")
    if jax and jax.distributed.is_initialized():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(number: int) -> None:
    """JAX aborts hosts that have lost the first one, maybe before the run itself notices; C alone can still speak."""
    from boonta.experiments.agreement import unreachable

    last_word(f"boonta: {unreachable('JAX aborts without the first host')}")
    os._exit(1)


_code = 1  # with which this process exits, unless `end` says otherwise


def leave_quickly() -> None:
    """Let this process exit once all that is registered later has been done: what Python then tidies takes a second."""

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(_code)

    atexit.register(leave)  # the first to be registered is the last to be called


def end(code: int) -> NoReturn:
    """Exit with `code`, without waiting for hosts that may be dead; 1 says that the run failed."""
    global _code
    _code = code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; what is left would only show a traceback
    jax = sys.modules.get("jax")
    if jax and jax.distributed.is_initialized():
        if code != 1 and leads():
            time.sleep(1.0)  # all have agreed to end; the first host, which the others need, leaves last
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # a usual exit would wait for the other hosts
    sys.exit(code)
