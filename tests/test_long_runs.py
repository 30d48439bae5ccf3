"""What a run that is left alone for a week needs: intervals that are kept, restarts, sums of metrics, hung updates."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from boonta.architectures import anakin
from boonta.cli import main
from boonta.core import totals
from boonta.core.episodes import Finished, merge_all, summary
from boonta.core.faults import HOUR, Exhausted, Supervisor
from boonta.core.totals import Totals
from boonta.core.watch import Watch
from boonta.experiments import agreement, own_folder, watchdog
from boonta.experiments.checkpoint import Checkpoints
from boonta.experiments.intervals import Interval
from boonta.experiments.metrics import read_metrics
from tests.marks import full, slow


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


# Restarts


@pytest.mark.parametrize("apart", [3600.0, 2 * HOUR])
def test_incidents_that_lie_far_apart_end_nothing(apart):
    clock = Clock()
    supervisor = Supervisor(3, clock)
    for _ in range(12):
        clock.now += apart
        assert supervisor.incident("a worker", "it fell").count <= 3
    assert supervisor.incidents == 12


def test_incidents_in_a_minute_end_the_run_with_their_cause():
    clock = Clock()
    supervisor = Supervisor(3, clock)
    with pytest.raises(Exhausted, match="a worker, after 3 restarts within an hour .*: it fell 3"):
        for i in range(12):
            clock.now += 5.0
            supervisor.incident("a worker", f"it fell {i}")
    assert supervisor.incidents == 3


def test_what_fails_again_soon_is_begun_later_and_later_and_never_all_at_once():
    chances = iter([1.0, 1.0, 1.0, 0.0, 1.0] + [1.0] * 20)
    supervisor = Supervisor(100, Clock(), lambda: next(chances))
    delays = [supervisor.incident("a worker", "it fell").delay for _ in range(20)]
    assert delays[:5] == pytest.approx([0.1, 0.2, 0.4, 0.4, 1.6])
    assert max(delays) == 30.0


def test_each_is_counted_for_itself_where_that_is_asked_for():
    supervisor = Supervisor(1, Clock())
    for who in ("one", "two"):
        assert supervisor.incident(who, "it fell", of=who).count == 1
    with pytest.raises(Exhausted, match="two, after 1 restarts .*: it fell"):
        supervisor.incident("two", "it fell", of="two")


# Intervals


@settings(max_examples=200)
@given(
    st.integers(1, 5000), st.floats(0.3, 700.0), st.integers(0, 3000), st.integers(0, 100),
)  # fmt: skip
def test_an_interval_is_kept_to_the_iteration(every, each, before, done):
    at = lambda n: int(before + n * each) if n else 0  # noqa: E731
    interval = Interval(at, every, 1)
    following = interval.following(done)
    due = [n for n in range(done + 1, following + 3) if at(n) // every > at(n - 1) // every]
    assert due[0] == following
    assert interval.passed(done, following) and not interval.passed(done, following - 1)


def test_without_steps_an_interval_is_of_iterations():
    interval = Interval(lambda n: 10 * n, 0, 7)
    assert [interval.following(n) for n in (0, 6, 7, 8)] == [7, 7, 14, 14]
    assert interval.passed(6, 7) and not interval.passed(7, 13)


# Sums of metrics


def rows_of(count, members=1):
    random = np.random.default_rng(3)
    for i in range(count):
        episodes = random.integers(0, 3)
        returns = random.normal(5.0, 3.0, episodes)
        far = float(((returns - returns.mean()) ** 2).sum()) if episodes else 0.0
        yield {
            "health": 4 if i == 7 else 0, "made": i % 2, "loss/td": float(i), "policy_lag_max": float(i % 5),
            "loss/largest_max": float(-i), "depth": float(i),
            "count": float(episodes), "total": float(returns.sum()), "squares": far, "length": 9.0 * episodes,
        }, returns  # fmt: skip


def test_sums_of_metrics_are_those_of_all_iterations():
    rows, returns = zip(*rows_of(20), strict=True)
    found = None
    for row in rows:
        new = totals.once(row)
        found = totals.merge(found, new) if found else new
    told = totals.means(
        totals.of_one_member(totals.with_shares(found, {"busy": 0.5, "none": np.nan}, {"restarts": 2.0}))
    )
    odd = [i for i in range(20) if i % 2]
    assert told["loss/td"] == np.mean(odd) and told["depth"] == np.mean(range(20))
    assert told["policy_lag_max"] == 4.0 and told["loss/largest_max"] == -1.0
    assert told["busy"] == 0.5 and np.isnan(told["none"]) and told["restarts"] == 2.0
    assert (found.made, found.bad, found.bad_at, found.iterations) == (10, 4, 8, 20)
    everyone = np.concatenate(returns)
    finished = summary(found.finished)
    np.testing.assert_allclose(finished["episode/return_mean"], everyone.mean())
    np.testing.assert_allclose(finished["episode/return_std"], everyone.std())
    assert finished["episode/count"] == len(everyone)


def test_what_learners_report_where_nothing_was_learned_means_nothing():
    (row, _), *_ = rows_of(1)
    told = totals.means(totals.of_one_member(totals.once(row)))
    assert np.isnan(told["loss/td"]) and np.isnan(told["loss/largest_max"]) and told["depth"] == 0.0


def test_a_compiled_program_sums_as_the_host_does():
    rows = [row for row, _ in rows_of(20)]
    stacked = jax.tree.map(lambda *x: jnp.asarray(x), *rows)
    pick = lambda i: totals.once(jax.tree.map(lambda x: x[i], stacked), jnp)  # noqa: E731
    begin = totals.nothing(jax.eval_shape(pick, 0))
    body = lambda i, sums: totals.merge(sums, pick(i), jnp)  # noqa: E731
    found = jax.jit(lambda n: jax.lax.fori_loop(0, n, body, begin))(20)
    expected = totals.once(rows[0])
    for row in rows[1:]:
        expected = totals.merge(expected, totals.once(row))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_sums_come_back_from_a_checkpoint():
    (row, _), *_ = rows_of(1)
    found = totals.of_one_member(totals.once(row))
    again = totals.from_json(json.loads(json.dumps(totals.to_json(found))))
    assert isinstance(again, Totals) and isinstance(again.finished, Finished)
    jax.tree.map(np.testing.assert_array_equal, again, found)
    assert totals.from_json(totals.to_json(None)) is None


def test_what_was_counted_stays_where_metrics_have_other_names():
    (one, _), (other, _), *_ = rows_of(2)
    before = totals.of_one_member(totals.once(one))
    new = totals.of_one_member(totals.once({k.replace("depth", "height"): x for k, x in other.items()}))
    found = totals.after(before, new)
    assert found.iterations == 2 and found.made == 1 and found.finished.count == one["count"] + other["count"]
    assert totals.means(found)["height"] == 1.0 and "depth" not in totals.means(found)


def test_merging_many_is_merging_one_after_the_other():
    parts = [Finished(*(float(x) for x in row)) for row in np.random.default_rng(0).uniform(1, 5, (4, 4))]
    blank = {"health": 0, "made": 0}
    found = totals.once(blank | parts[0]._asdict())
    for part in parts[1:]:
        found = totals.merge(found, totals.once(blank | part._asdict()))
    np.testing.assert_allclose(np.asarray(found.finished), np.asarray(merge_all(parts)), rtol=1e-6)


# Updates that hang


def test_a_watch_tells_since_when_the_oldest_update_is_made():
    clock = Clock()
    watch = Watch(clock)
    assert watch.elapsed() is None
    watch.begin()
    clock.now += 2
    watch.begin()  # which waits for the one before
    assert watch.elapsed() == 2
    clock.now += 1
    watch.end()
    clock.now += 4
    assert watch.elapsed() == 4 and watch.slowest == 3
    watch.end()
    assert watch.elapsed() is None and watch.slowest == watch.lately() == 4
    for _ in range(40):
        with watch.update():
            clock.now += 1
    assert watch.slowest == 4 and watch.lately() == 1


@pytest.mark.parametrize(
    ("timeout", "slowest", "limit"), [(None, 0.0, 600.0), (None, 100.0, 2000.0), (5.0, 100.0, 5.0), (0.0, 1.0, np.inf)]
)
def test_how_long_an_update_may_take(timeout, slowest, limit):
    watch = Watch()
    watch.slowest = slowest
    dog = watchdog.Watchdog(watch, timeout, lambda: "", lambda status, cause: None)
    assert dog._limit() == limit


HANGS = """
import sys, time
import jax, jax.numpy as jnp
import numpy as np
from boonta.agents import ppo as ours

def hang(x):
    hang.calls += 1
    if hang.calls > 60:
        time.sleep(1000)
    return x
hang.calls = 0

Settings = ours.Settings
def ppo(spec, settings, total_updates=0):
    agent = ours.ppo(spec, settings, total_updates)
    (name, learner), = agent.learners.items()
    def update(state, params, sample, key):
        state, owned, feedback = learner.update(state, params, sample, key)
        metrics = feedback.metrics
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        metrics["loss/value"] = jax.pure_callback(hang, shape, metrics["loss/value"], vmap_method="sequential")
        return state, owned, feedback._replace(metrics=metrics)
    return agent._replace(learners={name: learner._replace(update=update)})
"""
TINY = [
    "--steps", "1000000", "--json", "--set", "agent.body=mlp", "--set", "agent.hidden=[8]", "--set", "agent.batch=8",
    "--set", "agent.unroll=8", "--set", "run.eval_episodes=0", "--set", "run.checkpoint_every=640",
]  # fmt: skip


@pytest.fixture
def hanging(tmp_path):
    """Begins a run whose 61st update hangs."""
    (tmp_path / "hangs.py").write_text(HANGS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "JAX_PLATFORMS": "cpu"}
    with ExitStack() as started:

        def begin(architecture, *more):
            where = ["--on", architecture, "--out", str(tmp_path / "run"), *TINY, *more]
            words = [sys.executable, "-m", "boonta", "train", "hangs:ppo", "boonta:catch", *where]
            run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            started.enter_context(run)
            started.callback(run.kill)
            return run

        yield begin


def saved(folder):
    """Steps of the checkpoints of a run; what is being written has another name."""
    return sorted(int(one.name) for one in (folder / "checkpoints").glob("*") if one.name.isdigit())


@pytest.mark.parametrize(
    "architecture", ["sebulba", pytest.param("anakin", marks=full), pytest.param("seed", marks=full)]
)
@slow
def test_an_update_that_hangs_ends_the_run_with_its_stacks(architecture, hanging, tmp_path):
    run = hanging(architecture, "--set", "run.update_timeout=2", "--devices", "1")
    _, err = run.communicate(timeout=200)
    assert run.returncode == 1, err
    assert "Thread 0x" in err and "hangs.py" in err
    *_, last = [line for line in err.splitlines() if line.startswith("boonta: ")]
    assert "an update has taken" in last and "(run.update_timeout)" in last and "--resume" in last
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "failed" and "run.update_timeout" in record["cause"]
    assert f"checkpoints/{max(saved(tmp_path / 'run'))}" in last


@pytest.mark.parametrize(
    "architecture", ["sebulba", pytest.param("anakin", marks=full), pytest.param("seed", marks=full)]
)
@full
def test_a_signal_while_an_update_hangs_ends_the_run_soon(architecture, hanging, tmp_path):
    run = hanging(architecture, "--devices", "1")
    before = []
    while before != (now := saved(tmp_path / "run")) or not now:
        before = now
        assert run.poll() is None, run.communicate()
        time.sleep(6.0)  # without a checkpoint: it hangs
    run.terminate()
    _, err = run.communicate(timeout=30)
    assert run.returncode == 128 + signal.SIGTERM, err
    *_, last = err.splitlines()
    assert "SIGTERM, while an update has hung" in last and f"checkpoints/{before[-1]}" in last and "are lost" in last


# Signals


def test_a_signal_that_comes_again_at_once_says_nothing_new(monkeypatch):
    monkeypatch.setattr(agreement, "PATIENCE", 0.3)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with agreement.received() as received:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        time.sleep(0.35)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


# Checkpoints


ODD = ["[1]", "lab [gpu0]", "b*", "c?", "back\\slash", "with space", "ünï", "x" * 150, "q#%2f", "{a,b}"]


@pytest.mark.parametrize("name", ODD)
def test_a_checkpoint_can_be_read_wherever_it_lies(name, tmp_path):
    state, folder = {"w": jnp.arange(6.0).reshape(2, 3)}, tmp_path / name / "run"
    folder.mkdir(parents=True)
    (tmp_path / "bb").mkdir()  # which b* would match
    checkpoints = Checkpoints(folder)
    checkpoints.save(5, state, {}, None)
    assert checkpoints.restore(state).passed_over == []
    checkpoints.close()
    moved = folder.rename(tmp_path / "moved")
    again = Checkpoints(moved)
    np.testing.assert_array_equal(again.restore(state).state["w"], state["w"])
    again.close()


def test_a_checkpoint_that_cannot_be_found_again_is_a_failed_save(tmp_path, monkeypatch):
    monkeypatch.setattr("boonta.experiments.checkpoint._PATTERN", set())
    folder = tmp_path / "[1]"
    folder.mkdir()
    checkpoints = Checkpoints(folder)
    with pytest.raises(OSError, match="the checkpoint at step 5 could not be saved .* what was written has no w"):
        checkpoints.save(5, {"w": jnp.ones(3)}, {}, None)
    assert checkpoints.steps() == []


def test_names_of_arrays_may_have_slashes_and_dots(tmp_path):
    """As those of networks of other libraries have."""
    state = {"params": {"mlp/~/linear_0": {"w": jnp.ones(3)}, "a.b": jnp.zeros(2)}, "n": jnp.int32(4)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, {}, None)
    found = checkpoints.restore(jax.eval_shape(lambda: state), "latest").state
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert float(found["params"]["mlp/~/linear_0"]["w"].sum()) == 3.0
    checkpoints.close()


def test_a_folder_of_a_killed_process_is_swept_away():
    code = (
        "from boonta.experiments.own_folder import OwnFolder as F; import os; print(F().path, flush=True); os._exit(9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip())
    mine = own_folder.OwnFolder()
    assert left.is_dir()
    own_folder.sweep()
    assert not left.exists() and mine.path.is_dir()
    mine.close()
    assert not mine.path.exists()


# Whole runs on Anakin


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run on Anakin with intervals that do not divide one another, of iterations of 64 steps."""
    folder = tmp_path_factory.mktemp("short") / "run"
    words = ["train", "ppo", "boonta:catch", "--devices", "1", *TINY, "--steps", "6400", "--out", str(folder)]
    words += ["--set", "run.eval_episodes=4", "--set", "run.evaluate_every=1000", "--set", "run.log_every=3000"]
    words += ["--set", "run.checkpoint_every=500", "--set", "run.keep=100"]
    compiled = []
    with pytest.MonkeyPatch.context() as patch:
        program = anakin.program

        def counted(*args):
            made = program(*args)

            class Advance:
                def lower(self, *args):
                    compiled.append(args)
                    return made.advance.lower(*args)

            return made._replace(advance=Advance())

        patch.setattr(anakin, "program", counted)
        assert main(words) == 0
    return folder, len(compiled)


@slow
def test_each_interval_is_kept_whatever_the_others_are(short):
    folder, compiled = short
    assert compiled == 1
    rows = read_metrics(folder)
    logged = [row["env_steps"] for row in rows if "updates" in row]
    evaluated = [row["env_steps"] for row in rows if "eval/return_mean" in row]
    due = lambda every: sorted({-(-k // 64) * 64 for k in range(every, 6401, every)} | {6400})  # noqa: E731
    late = 6016  # so shortly before the end that what is due waits for it
    assert (logged, evaluated) == (
        [step for step in due(3000) if step != late],
        [step for step in due(1000) if step != late],
    )
    assert {*due(500)} <= {*saved(folder)}


@slow
def test_more_steps_are_made_where_a_run_ended(short, tmp_path, capfd):
    folder, _ = short
    copy = shutil.copytree(folder, tmp_path / "run")
    assert main(["train", "--resume", str(copy), "--steps", "3000", "--json"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "--steps must be at least 6400, which the run" in line and "got 3000" in line
    assert main(["train", "--resume", str(copy), "--steps", "7000", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out.splitlines()[-1])["env_steps"] == 6976
    assert "7,000 steps" in err and "of the new total, of which 91% is done" in err


@slow
def test_a_run_begins_with_the_networks_of_another(short, tmp_path, capfd):
    folder, _ = short
    words = ["train", "ppo", "boonta:catch", "--devices", "1", *TINY, "--steps", "64", "--from", str(folder)]
    assert main([*words, "--out", str(tmp_path / "same")]) == 0
    assert json.loads((tmp_path / "same" / "run.json").read_text())["from"]["folder"] == str(folder)
    capfd.readouterr()
    words += ["--set", "agent.hidden=[12]"]
    assert main([*words, "--out", str(tmp_path / "other")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "none of its networks has the shape" in line and not (tmp_path / "other").exists()


@slow
@pytest.mark.parametrize("name", ["run.json", "config.toml"])
def test_a_damaged_run_folder_is_named_as_it_was_given(name, short, tmp_path, capfd):
    copy = shutil.copytree(short[0], tmp_path / "run")
    (copy / name).write_text("nothing [of] = the kind")
    assert main(["train", "--resume", str(copy)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"boonta: --resume {copy}: its {name} is damaged")
    (copy / name).unlink()
    assert main(["train", "--resume", str(copy)]) == (1 if name == "run.json" else 2)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"boonta: --resume {copy}: ")
