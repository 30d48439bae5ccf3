"""How training is getting on: a bar in a terminal, a plain line now and then elsewhere; always on stderr."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

PLAIN_EVERY = 30.0
"""Seconds between the lines that are printed where stderr is not a terminal."""


class Progress:
    """The progress of one training run, as a context manager.

    Args:
        total_steps: environment steps the run will take.
        quiet: print nothing at all.
    """

    def __init__(self, total_steps: int, quiet: bool = False) -> None:
        self._total = total_steps
        self._quiet = quiet
        self._printed = time.monotonic()
        self._bar: Bar | None = None
        console = Console(file=sys.stderr, stderr=True, highlight=False)
        if not quiet and console.is_terminal:
            self._bar = Bar(
                TextColumn("[bold]{task.fields[steps]}[/] [dim]/ {task.fields[total_text]}[/]"),
                BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[text]}"),
                console=console,
                expand=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._task = self._bar.add_task(
                "", total=total_steps, steps="0", total_text=short(total_steps), text="[dim]compiling…[/]"
            )

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(
        self, env_steps: int, steps_per_second: float | None, return_mean: float | None, extra: str = ""
    ) -> None:
        """Show where the run is.

        Args:
            env_steps: environment steps taken so far, those before a resume included.
            steps_per_second: current speed; the time left follows from it.
            return_mean: mean return of the latest episodes; None or NaN where none has ended.
            extra: anything else worth a few characters.
        """
        if self._quiet:
            return
        env_steps, speed = int(env_steps), float(steps_per_second or 0.0)
        left = _clock((self._total - env_steps) / speed) if speed > 0 else "–:––"
        reward = "–" if return_mean is None or return_mean != return_mean else f"{float(return_mean):.4g}"
        parts = [f"{short(speed)} steps/s", f"return {reward}", f"{left} left", *([extra] if extra else [])]
        if self._bar:
            text = "[dim] · [/]".join(part.replace("[", r"\[") for part in parts)
            self._bar.update(self._task, completed=env_steps, steps=short(env_steps), text=text)
        elif time.monotonic() - self._printed >= PLAIN_EVERY:
            self._printed = time.monotonic()
            print(
                f"{short(env_steps)} / {short(self._total)} steps · " + " · ".join(parts), file=sys.stderr, flush=True
            )

    def note(self, text: str) -> None:
        """Show what goes on beside the run, in a line of its own."""
        if self._bar:
            self._bar.console.print(f"[dim]{text}[/]")
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)


def short(number: float) -> str:
    """A number in three digits: 12,345,678 as 12.3M."""
    number = float(f"{number:.3g}")
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
