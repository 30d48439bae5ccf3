"""Where the time of a command goes."""

import json
import subprocess
import sys
import time

from boonta.experiments import parts
from tests.marks import slow


def test_a_part_inside_another_takes_its_time_from_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(parts, "age", lambda: 20.0)
    clock = parts.Parts()
    with clock.of("evaluating"):
        now[0] += 2.0
        with clock.of("saving"):
            now[0] += 3.0
        now[0] += 4.0
    clock.seconds["training"] += 5.0
    assert clock.whole() == {
        "starting": 0.0, "compiling": 0.0, "training": 5.0, "evaluating": 6.0, "saving": 3.0, "other": 6.0
    }  # fmt: skip


@slow
def test_the_time_that_is_told_is_that_which_passed(tmp_path):
    words = [sys.executable, "-P", "-m", "boonta", "train", "ppo", "boonta:catch", "--steps", "5000", "--json"]
    began = time.monotonic()
    done = subprocess.run([*words, "--out", str(tmp_path / "run")], capture_output=True, check=True, timeout=300)
    passed = time.monotonic() - began
    summary = json.loads(done.stdout.splitlines()[-1])
    assert abs(summary["wall_seconds"] - passed) <= 0.05 * passed + 0.3  # the command's end is not told
    assert abs(sum(summary["parts"].values()) - summary["wall_seconds"]) < 0.02
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["result"]
    assert {key: kept[key] for key in ("wall_seconds", "parts")} == {
        key: summary[key] for key in ("wall_seconds", "parts")
    }
    assert "of " in (tmp_path / "run" / "report.html").read_text()


def test_the_command_line_is_understood_without_numpy_or_jax():
    code = "import sys, boonta.arguments; print(sorted({'numpy', 'jax'} & {*sys.modules}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
