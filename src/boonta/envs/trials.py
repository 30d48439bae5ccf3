"""The trial of an environment: one is made, reset, stepped and closed before a run is built on it."""

import contextlib
import multiprocessing
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from boonta.core import own_modules, signals
from boonta.core.host import Workers
from boonta.core.own_modules import no_modules_from_here
from boonta.envs.parts import CLOSING

T = TypeVar("T")

_WORKERS: ContextVar[Workers | None] = ContextVar("workers", default=None)


class Tried(NamedTuple):
    """What a trial found.

    Attributes:
        spaces: what the environment says of itself.
        remarks: what a user should know.
    """

    spaces: Any
    remarks: tuple[str, ...]


@contextlib.contextmanager
def stepped_by(workers: Workers) -> Iterator[None]:
    """Environments made in here are tried as these workers will step them, and for as long as those may take."""
    token = _WORKERS.set(workers)
    try:
        yield
    finally:
        _WORKERS.reset(token)


def tried(trial: Callable[[], T]) -> T:
    """What a trial finds, in a thread of its own, or in a process of its own where processes will step environments.

    Where nobody has said how they will be stepped, it is made here and now, and may take its time.

    Raises:
        TimeoutError: it took longer than `architecture.worker_timeout`; the message says so.
        Exception: what the environment raised; of a process, an error of the same words.
    """
    if (workers := _WORKERS.get()) is None:
        return trial()
    try:
        if workers.kind == "processes":
            return _in_a_process(trial, workers.timeout)
        return within(workers.timeout, trial)
    except Late:
        raise TimeoutError(
            f"no answer within {workers.timeout:g} s; architecture.worker_timeout gives it longer to be made and reset"
        ) from None
    except (ValueError, RuntimeError) as error:
        if workers.kind == "processes" or not any(word in str(error) for word in ("main thread", "event loop")):
            raise
        raise type(error)(
            f"{error}; architecture.workers=processes makes each environment in the main thread of a process of its own"
        ) from error


class Late(Exception):
    """A trial took too long; not what an environment raises that waits for something itself."""


def within(seconds: float, what: Callable[[], T]) -> T:
    """What it returns, if it does so in time; it goes on in a thread of its own if not.

    Raises:
        Late: it did not.
        BaseException: what it raised.
    """
    answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put((what(), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=work, name="an environment is tried", daemon=True).start()
    try:
        value, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise Late from None
    if error:
        raise error
    return value


def _in_a_process(trial: Callable[[], T], seconds: float) -> T:
    try:
        pickle.dumps(trial)
    except Exception as error:  # each type that cannot has its own
        raise ValueError(
            f"it cannot travel to a process ({error}): its factory must be a function that can be imported by its "
            "name; or take architecture.workers=threads or serial"
        ) from error
    context = multiprocessing.get_context("spawn")  # a fork of a process with JAX's threads may hang
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_try, args=(theirs, trial), daemon=True)
    with signals.held(), no_modules_from_here():
        process.start()
    theirs.close()
    deadline = time.monotonic() + seconds
    try:
        if not ours.poll(seconds):
            raise Late
        found, error = ours.recv()
        process.join(min(max(deadline - time.monotonic(), 1.0), CLOSING))
    except EOFError:
        process.join(1.0)
        raise RuntimeError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join(1.0)
        ours.close()
    if error is not None:
        raise error
    return found


def _try(pipe: Any, trial: Callable[[], Any]) -> None:
    signals.hear()
    own_modules.started()
    try:
        answer = trial(), None
    except Exception as error:  # whatever the environment raises
        answer = None, error
    try:
        pickle.loads(pickle.dumps(answer))  # some errors can be packed, and not unpacked
        pipe.send(answer)
    except Exception:  # errors, or spaces, that cannot travel
        found, error = answer
        pipe.send((None, RuntimeError(f"{type(error).__name__}: {error}" if error else f"{found!r} cannot travel")))
