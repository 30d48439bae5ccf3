"""Processes that only answer calls, wherever they are: what a driver with centralised control asks of its carrier."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

Ref = Any  # of a value that is somewhere, or will be; given as an argument, the value arrives in its place
Member = Any


class Resources(NamedTuple):
    """What one member of a crew needs, in parts of a machine.

    Attributes:
        cpus: cores.
        gpus: accelerators; a fraction shares one.
    """

    cpus: float = 1.0
    gpus: float = 0.0


class Gone(RuntimeError):
    """A member ended, or its machine did, before it could answer."""


class Lost(RuntimeError):
    """What a call was given is gone, with the member or the machine that had it; whoever was asked is well."""


class Raised(RuntimeError):
    """What a member was asked for raised; the message has its traceback.

    Attributes:
        why: what it raised.
    """

    def __init__(self, message: str, why: BaseException) -> None:
        super().__init__(message)
        self.why = why


class Crew(Protocol):
    """Hires members, asks them, and waits for answers."""

    def hire(self, name: str, make: Callable[[], Any], resources: Resources) -> Member:
        """A member: the object that `make` returns, made for the first call, in a process of its own, which answers one
        call after the other."""
        ...

    def here(self, member: Member) -> Ref:
        """True, as soon as there was room for a member."""
        ...

    def ask(self, member: Member, method: str, *args: Any, answers: int = 1) -> Any:
        """Call a method there; the Ref of its answer, or a list of as many as it returns in a tuple."""
        ...

    def put(self, value: Any) -> Ref:
        """A value that many members will need, stored once."""
        ...

    def wait(self, refs: Sequence[Ref], seconds: float) -> list[Ref]:
        """Those that are there, or never will be, as soon as there is one; none after so many seconds."""
        ...

    def get(self, ref: Ref, seconds: float) -> Any:
        """The value.

        Raises:
            Gone: whoever was to make it ended.
            Lost: what was to be made of it is gone.
            Raised: it could not be made.
            TimeoutError: not in time.
        """
        ...

    def dismiss(self, member: Member) -> None:
        """End a member, whatever it is doing."""
        ...

    def close(self) -> None:
        """End all of them."""
        ...
