"""The run folder's files: atomic writes, the metrics log and the progress line."""

import json
import math
import multiprocessing
import struct

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from boonta.experiments import files, metrics, progress
from boonta.experiments.metrics import MetricsLog, read_metrics


def test_files_are_renamed_into_place(tmp_path):
    path = tmp_path / "new" / "run.json"
    files.write_json(path, {"a": np.float32(1.5), "b": [math.nan, math.inf, 2], "c": tmp_path, "d": np.arange(3)})
    assert files.read_json(path) == {"a": 1.5, "b": [None, None, 2], "c": str(tmp_path), "d": [0, 1, 2]}
    files.write_text(path, "¡hola!")
    assert path.read_text("utf-8") == "¡hola!"
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]
    with pytest.raises(ValueError, match=r"run\.json is not JSON"):
        files.read_json(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_text(path, "old")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_rows_come_back(tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    with MetricsLog(tmp_path) as log:
        log.write({"env_steps": 10, "loss/total": np.float32(0.5), "episode/return_mean": math.nan})
        assert len(read_metrics(tmp_path)) == 1, "each row is flushed"
        log.write({"env_steps": np.int64(20), "loss/total": jnp.asarray(-math.inf), "updates": jnp.asarray(3)})
    assert read_metrics(tmp_path) == [
        {"env_steps": 10, "loss/total": 0.5, "episode/return_mean": None},
        {"env_steps": 20, "loss/total": None, "updates": 3},
    ]
    log.close()
    with pytest.raises(ValueError):
        log.write({"env_steps": 30})


def test_tensorboard_mirrors_members_apart(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write({"env_steps": 1, "loss/total": 1.0})
        for member in range(2):
            log.write({"env_steps": 1, "member": member, "member_name": f"seed={member}", "eval/return_mean": 1.0})
    assert all(list((tmp_path / "tensorboard" / place).glob("events*")) for place in (".", "member-0", "member-1"))
    with MetricsLog(tmp_path / "without", tensorboard=False) as log:
        log.write({"env_steps": 1})
    assert not (tmp_path / "without" / "tensorboard").exists()


def events(folder):
    """Those of every file of a folder, oldest file first: lengths of 8 bytes and their checksum, data, its checksum."""
    for path in sorted(folder.glob("events*"), key=lambda path: int(path.name.rpartition(".")[2])):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack_from("<Q", data)
            yield Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]


def test_tensorboard_shows_rows_and_hides_what_a_resume_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing, "Queue", None)  # /dev/shm may be full
    with MetricsLog(tmp_path) as log:
        log.write({"env_steps": 10, "loss/total": 0.5, "eval/return_mean": 2, "member_name": "a", "ok": True})
        log.write({"env_steps": 20, "loss/total": None})
        log.truncate_after(10)
        log.write({"env_steps": 15, "loss/total": 0.25})
    told = list(events(tmp_path / "tensorboard"))
    rows = [(one.step, {value.tag: value.simple_value for value in one.summary.value}) for one in told]
    assert [row for row in rows if row[1]] == [
        (10, {"loss/total": 0.5, "eval/return_mean": 2.0}),
        (15, {"loss/total": 0.25}),
    ]
    assert [one.step for one in told if one.session_log.status == SessionLog.START] == [11]


def test_resume_drops_what_came_after_the_checkpoint(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in (10, 20, 30):
            log.write({"env_steps": step})
        log.truncate_after(20)
        log.write({"env_steps": 25})
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [10, 20, 25]


@pytest.mark.parametrize("tail, kept", [('{"env_st', [10]), ('{"env_steps": 20}', [10, 20]), ('{"a": "\udcff', [10])])
def test_half_written_last_lines_are_mended(tmp_path, tail, kept):
    path = tmp_path / metrics.METRICS
    path.write_bytes(b'{"env_steps": 10}\n' + tail.encode("utf-8", "surrogateescape"))
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == kept
    with MetricsLog(tmp_path, tensorboard=False) as log:
        log.write({"env_steps": 30})
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [*kept, 30]


@pytest.mark.parametrize("line", ["nonsense", "[1]"])
def test_other_broken_lines_are_named(tmp_path, line):
    (tmp_path / metrics.METRICS).write_text(f'{{"env_steps": 10}}\n{line}\n{{"env_steps": 20}}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(tmp_path)
    assert read_metrics(tmp_path / "nowhere") == []


def test_progress_keeps_stdout_clean(capsys, monkeypatch):
    with progress.Progress(1000) as line:
        line.update(100, 50.0, None)
        assert capsys.readouterr() == ("", ""), "no line before its time"
        monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
        line.update(400, 10.0, float(np.float32(1.5)), "lag 2")
    with progress.Progress(1000, quiet=True) as line:
        line.update(100, 50.0, 1.0)
    assert capsys.readouterr() == ("", "400 / 1k steps · 10 steps/s · return 1.5 · 1:00 left · lag 2\n")


def test_progress_draws_a_bar_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.Progress(2_000_000) as line:
        line.update(1_000_000, 5e5, math.nan, "[odd] extra")
    out, err = capsys.readouterr()
    assert out == "" and "1M" in err and "50%" in err and "0:02 left" in err and "[odd] extra" in err
