"""A crew in this process, a thread for each member: the mock of all others."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from boonta.core.crew import Gone, Lost, Raised, Resources

STEP = 0.001  # seconds between looks at what is there
CLOSING = 10.0  # seconds that members have to finish what they are doing


class _Ref:
    def __init__(self) -> None:
        self.there = threading.Event()
        self.value: Any = None
        self.error: Exception | None = None

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        if not self.there.is_set():
            self.value, self.error = value, error
            self.there.set()


class _Member:
    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.name, self._make = name, make
        self.calls: queue.SimpleQueue[tuple[list[_Ref], str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self.open: list[_Ref] = []
        self.ended = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.ended = True
        self.calls.put(None)
        for ref in self.open:
            ref.settle(error=Gone(f"{self.name} ended"))

    def _work(self) -> None:
        made = None
        while (call := self.calls.get()) is not None and not self.ended:
            refs, method, args = call
            try:
                made = self._make() if made is None else made
                value = getattr(made, method)(*(_waited(arg) for arg in args))
                for ref, part in zip(refs, [value] if len(refs) == 1 else value, strict=True):
                    ref.settle(part)
            except (Lost, Raised) as error:
                _fail(refs, error)
            except Exception as error:
                _fail(refs, Raised(traceback.format_exc(), error))
        if close := getattr(made, "close", None):  # in the thread that made it, as environments may ask for
            close()


class Inline:
    """See `core.crew.Crew`."""

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def hire(self, name: str, make: Callable[[], Any], resources: Resources) -> _Member:
        """Resources are not looked at."""
        del resources
        self._members.append(_Member(name, make))
        return self._members[-1]

    def here(self, member: _Member) -> _Ref:
        """There always is."""
        del member
        return self.put(True)

    def ask(self, member: _Member, method: str, *args: Any, answers: int = 1) -> Any:
        """See `Crew`."""
        refs = [_Ref() for _ in range(answers)]
        member.open = [ref for ref in member.open if not ref.there.is_set()] + refs
        if member.ended:
            _fail(refs, Gone(f"{member.name} ended"))
        else:
            member.calls.put((refs, method, args))
        return refs if answers > 1 else refs[0]

    def put(self, value: Any) -> _Ref:
        """See `Crew`."""
        ref = _Ref()
        ref.settle(value)
        return ref

    def wait(self, refs: Sequence[_Ref], seconds: float) -> list[_Ref]:
        """See `Crew`."""
        end = time.monotonic() + seconds
        while not (ready := [ref for ref in refs if ref.there.is_set()]) and time.monotonic() < end:
            time.sleep(STEP)
        return ready

    def get(self, ref: _Ref, seconds: float) -> Any:
        """See `Crew`."""
        if not ref.there.wait(seconds):
            raise TimeoutError(f"no answer in {seconds:g} s")
        if ref.error is not None:
            raise ref.error
        return ref.value

    def dismiss(self, member: _Member) -> None:
        """See `Crew`."""
        member.end()

    def close(self) -> None:
        """See `Crew`."""
        there = [member for member in self._members if not member.ended]  # others may hang for ever
        for member in there:
            member.end()
        for member in there:
            member.thread.join(CLOSING)


def _waited(arg: Any) -> Any:
    if not isinstance(arg, _Ref):
        return arg
    arg.there.wait()
    if isinstance(arg.error, Gone):
        raise Lost(str(arg.error)) from arg.error
    if arg.error is not None:
        raise arg.error
    return arg.value


def _fail(refs: list[_Ref], error: Exception) -> None:
    for ref in refs:
        ref.settle(error=error)
