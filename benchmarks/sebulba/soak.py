"""A long run, watched: its memory, threads and open files must not grow.

Flat is what stays, over the last third of the run, within what its middle third showed: memory on average, plus 3 % or
50 MB, whichever is more; threads and open files at their least, which leaves out those of evaluations and checkpoints:
they come and go, and whether a look finds all of them is chance. A run that is given stays where it is and can be
resumed.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.common import Row, finish, notes, parse, parser, row, table

RUN = "vtrace ale:Pong --on sebulba --steps 100000000"
WARM_UP = 60.0  # seconds of learning that are not looked at
UNITS = {"memory": "MB", "threads": "threads", "files": "open files"}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make the run and watch it; the rows it wrote."""
    options = parser("soak", __doc__ or "", rounds=1, module="sebulba")
    options.add_argument("--minutes", type=float, help="how long to watch (default 30)")
    options.add_argument("--every", type=float, default=5.0, help="seconds from one look to the next (default 5)")
    options.add_argument("words", nargs=argparse.REMAINDER, help=f"what `boonta train` is given (default: {RUN})")
    args = parse(options, argv)
    minutes = args.minutes or (0.5 if args.quick else 30.0)
    with tempfile.TemporaryDirectory() as folder:
        words = args.words or RUN.split()
        places = [Path(words[i + 1]) for i, word in enumerate(words) if word in ("--out", "--resume")]
        words += [] if places else ["--out", f"{folder}/run"]
        log = (places or [Path(folder) / "run"])[0] / "metrics.jsonl"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "boonta", "train", *words, "--json"], stdout=subprocess.DEVNULL
        )
        try:
            samples = _watch(process, log, 0.0 if args.quick else WARM_UP, 60 * minutes, args.every)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(120.0)
    rows = []
    shown = table(f"boonta train {' '.join(words[:2])}", "", "middle third", "last third", "at most", "flat")
    for name, unit in UNITS.items():
        values = [sample[name] for sample in samples]
        middle, last, flat = thirds(values, memory=name == "memory")
        rows.append(
            row(args, name, "ours", values, unit, middle=middle, last=last, flat=flat, minutes=minutes, code=code)
        )
        shown.add_row(f"{name}, {unit}", f"{middle:.0f}", f"{last:.0f}", f"{max(values):.0f}", "yes" if flat else "NO")
    return finish(args, rows, shown)


def thirds(values: Sequence[float], memory: bool) -> tuple[float, float, bool]:
    """What the middle and the last third of a run held (memory on average, others at least), and whether it is flat."""
    third = len(values) // 3
    of = statistics.fmean if memory else min
    middle, last = of(values[third : 2 * third]), of(values[2 * third :])
    return middle, last, last <= middle + (max(0.03 * middle, 50.0) if memory else 0.0)


def _watch(
    process: subprocess.Popen[bytes], log: Path, before: float, seconds: float, every: float
) -> list[dict[str, float]]:
    """Look at a process and all that it started, again and again, once it has learned for a while."""
    samples = []
    begin = time.monotonic()
    while (now := time.monotonic() - begin) < before + seconds:
        with suppress(subprocess.TimeoutExpired):
            raise RuntimeError(f"the run ended after {now:.0f} s, code {process.wait(every)}")
        if not log.is_file() or not log.stat().st_size:
            begin = time.monotonic()
        elif now >= before:
            samples.append(_look(psutil.Process(process.pid)))
            if len(samples) % 60 == 0:
                notes.print(f"{now / 60:.0f} min: {samples[-1]}")
    return samples


def _look(process: psutil.Process) -> dict[str, float]:
    found = {"memory": 0.0, "threads": 0, "files": 0}
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess), one.oneshot():
            found["memory"] += one.memory_info().rss / 1e6
            found["threads"] += one.num_threads()
            found["files"] += one.num_fds()
    return found


if __name__ == "__main__":
    main()
