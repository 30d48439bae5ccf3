"""Plants the faults of planted_faults.toml one by one, and tells which test catches each.

    python -m tests.planted_faults [--only TEXT] [--marks EXPRESSION] [--jobs N] [--out FILE.jsonl]

Each fault is planted in a copy of the tracked files, where the test files that could see it run until one test fails.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900.0  # seconds for the test files of one fault


class Fault(NamedTuple):
    """A change of the source that some test must catch.

    Attributes:
        name: what goes wrong.
        file: of the package.
        old: the text that stands there once.
        new: what takes its place.
        tests: the test files that could see it, or tests of them, the likeliest first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def faults() -> list[Fault]:
    """All that are listed."""
    return [Fault(**one) for one in tomllib.loads((ROOT / "tests" / "planted_faults.toml").read_text())["fault"]]


def plant(fault: Fault, root: Path) -> None:
    """Put the fault into the files under `root`.

    Raises:
        ValueError: its old text does not stand there once.
    """
    file = root / "src" / "boonta" / fault.file
    text = file.read_text()
    if (times := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.name!r}: its old text stands {times} times in {fault.file}, not once")
    file.write_text(text.replace(fault.old, fault.new))


def caught_by(fault: Fault, marks: str) -> str | None:
    """The test that fails first where the fault is planted, None if none does."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
        plant(fault, root)
        command = [sys.executable, "-m", "pytest", "-x", "-rfE", "-p", "no:cacheprovider", "-m", marks]
        run = subprocess.Popen(
            [*command, *(f"tests/{name}" for name in fault.tests)],
            cwd=root, env=os.environ | {"PYTHONPATH": str(root / "src")}, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            output, _ = run.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):  # what tests started in its group ends with it
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        if run.returncode == 0:
            return None
        found = re.search(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\n]+?)?)(?: - .*)?$", output, re.MULTILINE)
        if run.returncode not in (1, 2) or not found:
            raise RuntimeError(f"{fault.name!r}: exit code {run.returncode}, and no test is named in\n{output}")
        return found[1]


def main() -> int:
    """The command line; the exit code is 1 where a fault is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults with this text in their names")
    parser.add_argument("--marks", default="not full", help="which tests run; '' for all (default: those of make test)")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--out", type=Path, help="file that rows are added to")
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()

    def row(fault: Fault) -> dict[str, Any]:
        since = time.monotonic()
        found = caught_by(fault, options.marks)
        seconds = round(time.monotonic() - since, 1)
        date = datetime.date.today().isoformat()
        return {"fault": fault.name, "file": fault.file, "caught_by": found, "seconds": seconds,
                "marks": options.marks, "commit": commit, "date": date}  # fmt: skip

    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for one in pool.map(row, [fault for fault in faults() if options.only in fault.name]):
            missed += one["caught_by"] is None
            print(f"{one['fault']}: {one['caught_by'] or 'NOT CAUGHT'} ({one['seconds']:.0f} s)", flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(one) + "\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
