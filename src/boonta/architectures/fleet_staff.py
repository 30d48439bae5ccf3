"""Who is in a fleet, what each was asked for, and what happens where no answer comes."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from boonta.core.crew import Crew, Gone, Lost, Member, Raised, Ref, Resources
from boonta.core.faults import Broken, Exhausted, Supervisor

CHECK = 0.2  # seconds that answers are waited for at a time
READY = 600.0  # seconds that a member has to begin, and for its first answer of a kind: it may have to compile
ROOM = 30.0  # seconds of waiting for room after which that is told
LOST = 20  # answers in a row that fail for what others lost, before a member is taken for the cause


class Failed(RuntimeError):
    """The fleet cannot go on; the message says why."""


class Post:
    """A place in the fleet, and the member that holds it.

    Attributes:
        life: how often it was taken, from the run's first life on.
        here: whether there was room for its member, so that its process is there.
        waits: whether it was told that there is none.
        ready: whether it can be asked for something.
        said: what it said when it was.
        heard: when it was hired, or last answered.
        busy: whether its member makes something. The driver's to say.
        replaced: called when somebody else has taken it.
    """

    def __init__(self, name: str, hire: Callable[[int, float], Member], needs: Resources, life: int) -> None:
        self.name, self.needs, self._hire = name, needs, hire
        self.life = life - 1
        self.replaced: Callable[[], None] = _nothing
        self.renew(0.0)

    def renew(self, delay: float) -> None:
        """Somebody else, in the next life, who begins after so many seconds."""
        self.life += 1
        self.member = self._hire(self.life, delay)
        self.here = self.waits = self.ready = self.busy = False
        self.said: Any = None
        self.heard = time.monotonic()
        self.lost = 0  # answers in a row that failed for what others lost
        self.known: set[str] = set()  # what it has answered


class _Call(NamedTuple):
    """Something that a member was asked for, since when, and how long it may take (0: as the staff says)."""

    post: Post
    method: str
    then: Callable[[Any], None]
    undo: Callable[[], None]
    since: float
    patience: float


class Staff:
    """Asks members, takes their answers, and replaces whoever is gone.

    Args:
        crew: Crew.
        restarts: how often each of them may be replaced within an hour.
        timeout: seconds after which one that does not answer is.
    """

    def __init__(self, crew: Crew, restarts: int, timeout: float) -> None:
        self.crew, self.timeout = crew, timeout
        self.supervisor = Supervisor(restarts)
        self.posts: list[Post] = []
        self.notices: list[str] = []
        self._calls: dict[Ref, _Call] = {}
        self._quiet = 0.0  # seconds waited since anybody answered, or made something

    def hire(self, name: str, make: Callable[[int], Any], needs: Resources, life: int) -> Post:
        """Somebody new; `make`: life -> the object that answers."""
        hired = lambda life, delay: self.crew.hire(name, partial(_made, make, life, delay), needs)  # noqa: E731
        post = Post(name, hired, needs, life)
        self.posts.append(post)
        self._begin(post)
        return post

    def begin(self, asked: Callable[[], bool]) -> bool:
        """Wait until all are ready; false if the run is asked to end before.

        Raises:
            Failed: one could not begin.
        """
        while not all(post.ready for post in self.posts):
            if asked():
                return False
            self.receive()
        return True

    def ask(
        self, post: Post, method: str, *args: Any, then: Callable[..., None] | None = None,
        undo: Callable[[], None] | None = None, heavy: bool = False, patience: float = 0.0,
    ) -> None:  # fmt: skip
        """Ask for something. What is heavy comes in two parts, of which the first stays where it is.

        Args:
            post: who.
            method: what; one that answers in two parts where it is heavy.
            args: what that takes, or references to it that are there.
            then: takes the answer; of a heavy one a reference, and the second part.
            undo: called if there never will be an answer.
            heavy: whether it is.
            patience: seconds that it may take; 0 for the timeout.
        """
        refs = self.crew.ask(post.member, method, *args, answers=2 if heavy else 1)
        ref, *others = (refs[1], refs[0]) if heavy else (refs,)
        done = partial(then or _nothing, *others)
        self._calls[ref] = _Call(post, method, done, undo or _nothing, time.monotonic(), patience)

    def have(self, post: Post, method: str, *args: Any) -> Any:
        """Ask, and wait for the answer, of whoever holds the post by then.

        Raises:
            Failed: there is none.
        """
        asked: list[bool] = []
        answers: list[Any] = []
        while not answers:
            if not asked:  # after a replacement, once whoever came has what it needs
                asked.append(True)
                self.ask(post, method, *args, then=answers.append, undo=asked.clear, patience=READY)
            self.receive()
        return answers[0]

    def receive(self) -> None:
        """Take the answers that are there; replace whoever is gone, or has been silent for too long.

        Raises:
            Failed: one had to be replaced too often, or raised; or there is no room for somebody whom all wait for.
        """
        since = time.monotonic()
        refs = self.crew.wait(list(self._calls), CHECK)
        now = time.monotonic()
        at_work = any(call.post.ready for call in self._calls.values())
        self._quiet = 0.0 if refs or at_work else self._quiet + now - since
        for ref in refs:
            if call := self._calls.pop(ref, None):  # else of a member that was replaced meanwhile
                self._take(ref, call)
        oldest = {call.post: call for call in reversed(self._calls.values())}  # the others wait behind it
        for call in oldest.values():
            post, patience = call.post, call.patience or self.timeout
            patience = patience if call.method in post.known else max(patience, READY)
            silent = now - max(call.since, post.heard)
            if post.here and silent > (patience if post.ready else READY):
                named = " (architecture.timeout)" if post.ready and patience == self.timeout else ""
                self._replace(post, f"no answer to {call.method!r} in {silent:.0f} s{named}")
                return  # what else is late may be so because of this
            if not post.here and self._quiet > READY:
                raise Failed(f"{post.name}: no room for it ({_parts(post.needs)}) in {self._quiet:.0f} s")
            if not (post.here or post.waits) and silent > ROOM:
                post.waits = True
                self.notices.append(f"{post.name} waits for room ({_parts(post.needs)})")

    def _take(self, ref: Ref, call: _Call) -> None:
        post = call.post
        try:
            value = self.crew.get(ref, max(call.patience, self.timeout))
        except Lost as error:  # with somebody who will be missed anyway
            post.lost += 1
            call.undo()
            if post.lost == LOST:
                self._replace(post, f"{LOST} times in a row: {error}")
        except (Gone, TimeoutError) as error:
            call.undo()
            self._replace(post, str(error))
        except Raised as error:
            if not isinstance(error.why, Broken):  # environments may be made anew
                raise Failed(f"{post.name}, asked to {call.method!r}: {error}") from error
            call.undo()
            self._replace(post, str(error.why))
        else:
            post.heard, post.lost = time.monotonic(), 0
            post.known.add(call.method)
            call.then(value)

    def _replace(self, post: Post, why: str) -> None:
        """Somebody else in its place, and what was asked of it undone."""
        try:
            restart = self.supervisor.incident(post.name, why, "is replaced", of=post.name)
        except Exhausted as error:
            raise Failed(str(error)) from error
        self.crew.dismiss(post.member)
        post.renew(restart.delay)
        self.notices += self.supervisor.told()
        lost = {ref: call for ref, call in self._calls.items() if call.post is post}
        for ref in lost:
            del self._calls[ref]
        self._begin(post)
        for call in lost.values():
            call.undo()
        post.replaced()

    def _begin(self, post: Post) -> None:
        here, now = self.crew.here(post.member), time.monotonic()
        self._calls[here] = _Call(post, "here", partial(setattr, post, "here"), _nothing, now, 0.0)
        self.ask(post, "ready", then=partial(self._begun, post))

    def _begun(self, post: Post, said: Any) -> None:
        post.ready, post.said = True, said


def _made(make: Callable[[int], Any], life: int, delay: float) -> Any:
    """A member, in its own process, which alone waits until it may begin."""
    time.sleep(delay)
    return make(life)


def _parts(needs: Resources) -> str:
    return f"{needs.cpus:g} cores, {needs.gpus:g} accelerators"


def _nothing(*_: Any) -> None:
    """There is nothing to be done."""
