"""Reports of runs that went well, badly and not at all."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from boonta import envs
from boonta.experiments import atari, curves, files
from boonta.experiments.atari import human_normalized
from boonta.experiments.report import write_report


@pytest.fixture(autouse=True)
def charts_are_not_drawn():
    """Here they are."""


VOID = {"meta", "br", "img", "link", "use"}


class Page(HTMLParser):
    """A page as its text, its ids and whatever it would load; raises where tags do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.ids: list[str | None] = []
        self.loads: list[str | None] = []
        self.handlers: list[str] = []
        self.feed(path.read_text("utf-8"))
        assert not self.open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.loads += [v for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith("#")]
        self.handlers += [key for key in values if key.startswith("on")]
        assert tag not in ("script", "link", "iframe")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def curve(member: int | None = None, name: str | None = None, points: int = 40, speed: float = 1.0, top: float = 480.0):
    """Rows of a run that learns, with an evaluation every tenth one."""
    rng = np.random.default_rng(member or 0)
    who = {} if member is None else {"member": member, "member_name": name}
    for i in range(points):
        share = (i + 1) / points
        steps, level = int(1e6 * share), top / (1 + math.exp(-10 * speed * (share - 0.45)))
        yield {
            **who,
            "env_steps": steps,
            "frames": steps,
            "seconds": 95 * share + 4,
            "updates": 8 * (i + 1),
            "steps_per_second": 1.1e4 + 500 * rng.normal(),
            "episode/return_mean": None if i == 0 else level + 25 * rng.normal(),
            "episode/length_mean": level + 10,
            "policy_lag_mean": 1 + 0.2 * rng.normal(),
            "loss/policy": 0.02 * rng.normal(),
            "loss/value": 3 * math.exp(-3 * share) + 0.1 * rng.random(),
            "loss/entropy": 0.69 - 0.4 * share,
            "time/acting": 0.6,
            "time/learning": 0.3,
            "time/waiting": 0.1,
        }
        if i % 10 == 9:
            yield {**who, "env_steps": steps, "eval/return_mean": level + 20, "eval/return_std": 12.0}


def make(folder: Path, rows=(), **info) -> Path:
    """A run folder; keywords go to run.json, or as `agent_x` to the agent's settings."""
    settings = {key.removeprefix("agent_"): info.pop(key) for key in list(info) if key.startswith("agent_")}
    settings = {"learning_rate": 3e-4, "layers": [64, 64], **settings}
    toml = [
        '[run]\nagent = "ppo"\nenv = "gymnax:CartPole-v1"\narchitecture = "anakin"\nsteps = 1_000_000\nseed = 3',
        "[agent]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items()),
        "[env]\nnormalize = true\n\n[architecture]\nenvs = 256\ndevices = 1",
    ]
    result = {"eval_return_mean": 497.25, "eval_return_std": 8.1, "eval_episodes": 128, "env_steps": 1_000_000}
    result |= {"seconds": 99.0, "steps_per_second": 10_101.0, "compile_seconds": 6.5, "updates": 320}
    files.write_text(folder / "config.toml", "\n\n".join(toml))
    files.write_json(
        folder / "run.json",
        {
            "versions": {"boonta": "0.1.0", "jax": "0.10.2", "python": "3.11.7"},
            "devices": {"platform": "cpu", "count": 2, "kind": "cpu"},
            "machine": {"cpus": 2, "memory_gib": 16, "system": "Linux"},
            "commit": "0123456789abcdef",
            "command": "boonta train ppo gymnax:CartPole-v1 --on anakin",
            "seed": 3,
            "status": "done",
            "cause": None,
            "started": "2025-01-01T10:00:00Z",
            "finished": "2025-01-01T10:01:39Z",
            "result": result,
        }
        | info,
    )
    files.write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def check(path: Path) -> Page:
    """The page, which stands alone and has its picture beside it."""
    page = Page(path)
    assert page.loads == [] and len(set(page.ids)) == len(page.ids)
    source = path.read_text("utf-8")
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", source)
    references = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', source))
    assert references <= set(page.ids)
    assert not re.search("#0102[0f]", source), "every colour follows the theme"
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    return page


def test_a_run(tmp_path):
    run = make(tmp_path / "cartpole", curve())
    path = write_report([run])
    assert path == run / "report.html"
    page = check(path)
    for words in ("gymnax:CartPole-v1", "497.2", "128 episodes", "1M", "1 min 39 s", "loss/value", "learning_rate"):
        assert words in page.text
    for words in ("01234567", "2 × cpu", "0.10.2", "acting 60.0%", "steps per second", "of training", "done"):
        assert words in page.text
    assert path.read_bytes() == write_report([run]).read_bytes(), "the same run gives the same page"


def test_scores_of_atari_games_beside_a_human(tmp_path):
    run = make(tmp_path / "pong", curve())
    config = run / "config.toml"
    files.write_text(config, config.read_text("utf-8").replace("gymnax:CartPole-v1", "ale:Pong"))
    record = files.read_json(run / "run.json")
    record["result"]["eval_return_mean"] = 19.0
    files.write_json(run / "run.json", record)
    page = check(write_report([run]))
    assert "128 episodes, 112% human-normalized" in page.text
    assert "19 ± 8.1 (human-normalized 112%)" in page.text


def test_human_normalized_scores():
    names = {env.removeprefix("ale:") for env in envs.names() if env.startswith("ale:")}
    assert set(atari._SCORES) <= names and len(atari._SCORES) == 57
    assert human_normalized("ale:Pong", -20.7) == 0 and human_normalized("ale:Pong", 14.6) == 1
    assert human_normalized("ale:Skiing", -17098.1) == 0 and human_normalized("ale:Skiing", -4336.9) == 1
    assert human_normalized("gym:Pong", 3.0) is None and human_normalized("ale:Adventure", 3.0) is None


def test_a_population_of_seeds(tmp_path):
    rows = [row for seed in range(4) for row in curve(seed, f"seed={seed}")]
    page = check(write_report([make(tmp_path / "seeds", rows)]))
    assert "mean ± standard deviation" in page.text and "4 members" in page.text


def test_a_sweep_is_one_line_per_setting(tmp_path):
    rates = (0.001, 0.01)
    members = [(rate, seed) for rate in rates for seed in range(2)]
    names = [f"learning_rate={rate},seed={seed}" for rate, seed in members]
    rows = [row for i, name in enumerate(names) for row in curve(i, name, speed=1 + 100 * members[i][0])]
    run = make(tmp_path / "sweep", rows)
    tracks = curves.tracks(curves.load([run]))
    assert [(track.label, len(track.members)) for track in tracks] == [(f"learning_rate={rate}", 2) for rate in rates]
    page = check(write_report([run]))
    assert "Members" in page.text and "learning_rate=0.01" in page.text
    assert "best of 2 settings" in page.text and "learning_rate=0.01, seeds: 2" in page.text


def test_several_runs_show_what_differs_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        make(tmp_path / "a" / "run", curve(), agent_learning_rate=1e-3),
        make(tmp_path / "b" / "run", curve(points=25, speed=2), agent_clip=0.2),
    ]
    path = write_report(runs)
    assert path == tmp_path / "report.html"
    page = check(path)
    assert "2 runs compared" in page.text and "a/run" in page.text and "b/run" in page.text
    differing, common = page.text.split("settings in common")
    assert "agent.learning_rate" in differing and "agent.clip" in differing and "agent.layers" in common
    assert check(write_report(runs, tmp_path / "out" / "both.html")).text == page.text


def test_a_failed_run_says_what_it_died_of(tmp_path):
    rows = [row | {"loss/policy": math.nan if i > 10 else 1.0, "loss/bad": None} for i, row in enumerate(curve())]
    cause = "FloatingPointError: loss/policy is <NaN> & $x_1$"
    run = make(tmp_path / "<b>&$a_1$", [files.plain(row) for row in rows], status="failed", cause=cause, result=None)
    page = check(write_report([run]))
    assert cause in page.text and "<b>&$a_1$" in page.text and "failed" in page.text
    assert "not finite" in page.text and "never finite: loss/bad" in page.text


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"env_steps": 100}],
        [{"env_steps": 100, "seconds": 1.0, "episode/return_mean": None, "loss/policy": None}],
        [{"env_steps": 100, "seconds": 1.0, "episode/return_mean": 1.5, "loss/policy": -1e-9}],
        [{"env_steps": 100, "eval/return_mean": 1e9}],
        [{"env_steps": 0, "member": m, "eval/return_mean": 1.0} for m in range(2)],
    ],
)
def test_hardly_any_metrics(tmp_path, rows):
    runs = [make(tmp_path / name, rows, status="running", finished=None, result=None) for name in ("one", "two")]
    check(write_report(runs[:1]))
    check(write_report(runs, tmp_path / "both.html"))


def test_bare_folders(tmp_path):
    files.write_json(tmp_path / "run.json", {})
    text = check(write_report([tmp_path])).text
    assert "No metrics yet." in text and "Members" not in text


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="not a run folder"):
        write_report([tmp_path])
    with pytest.raises(ValueError, match="at least one run folder"):
        write_report([])
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write_report([make(tmp_path / "run")], tmp_path / "report.pdf")
    files.write_text(tmp_path / "run" / "config.toml", "= 1")
    with pytest.raises(ValueError, match=r"config\.toml is not TOML"):
        write_report([tmp_path / "run"])


def test_long_lines_are_thinned_and_keep_their_spikes(tmp_path):
    x, y = np.arange(50_000.0), np.zeros(50_000)
    y[12_345] = 7.0
    thin_x, thin_y = curves.thin(x, y, curves.MAX_POINTS)
    assert thin_x.size <= curves.MAX_POINTS and 7.0 in thin_y and thin_x[0] == 0 and thin_x[-1] == 49_999
    path = write_report([make(tmp_path / "long", curve(points=5_000))])
    check(path)
    assert path.stat().st_size < 1_500_000


def test_evaluations_borrow_the_clock_of_training(tmp_path):
    rows = [{"env_steps": s, "seconds": s / 10, "loss/x": 0.0} for s in (0, 100, 200)]
    run = make(tmp_path / "run", [*rows, {"env_steps": 150, "eval/return_mean": 1.0}])
    (track,) = curves.tracks(curves.load([run]))
    assert curves.line(track, track.members[0], "eval/return_mean", "seconds")[0].tolist() == [15.0]


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&$\\frac{"


def test_what_somebody_else_wrote_is_text(tmp_path):
    rows = [
        {"env_steps": i, "seconds": i, "member": EVIL, "member_name": f"{EVIL}={i % 2}", "episode/return_mean": i,
         f"loss/{EVIL}": i, f"time/{EVIL}/{EVIL}": 1.0, "steps_per_second": 10**400, "episode/length_mean": [EVIL]}
        for i in range(20)
    ]  # fmt: skip
    everywhere = {key: {EVIL: EVIL, "kind": EVIL, "count": EVIL} for key in ("versions", "devices", "machine")}
    texts = dict.fromkeys(("command", "commit", "status", "cause", "seed", "started", "finished"), EVIL)
    folders = [make(tmp_path / name, rows, **everywhere, **texts) for name in ("a<b>", EVIL.replace("/", "|"))]
    table = "[agent]\nname = {0}\n{0} = {0}\n[env]\nname = {0}\n[architecture]\nname = {0}\n[{0}]\n{0} = [{0}]\n[run]\n"
    for folder in folders:
        files.write_text(folder / "config.toml", table.format(json.dumps(EVIL)))
    for given in ([folders[0]], folders):
        page = check(write_report(given, tmp_path / "report.html"))  # which has no script in it, and loads nothing
        assert page.text.count("<script>alert(1)</script>") > 10
        assert not page.handlers


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.toml", "run = 3\n", "'run' must be a table"),
        ("run.json", '{"devices": [1]}', "'devices' must be an object, got list"),
        ("run.json", '{"result": "good"}', "'result' must be an object, got str"),
        ("run.json", '{"result": {"eval_return_mean": "good"}}', "'eval_return_mean' must be a number, got 'good'"),
        ("run.json", '{"result": {"episode_return_mean": {}}}', "'episode_return_mean' must be a number"),
        ("run.json", '{"result": {"eval_return_mean": 1' + "0" * 400 + "}}", "'eval_return_mean' must be a number"),
        ("run.json", '{"a":' * 100_000, "is not JSON"),
        ("metrics.jsonl", "3\n{}\n", "line 1, must be a JSON object"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_one_line(name, text, words, tmp_path):
    make(tmp_path / "run", curve())
    files.write_text(tmp_path / "run" / name, text)
    with pytest.raises(ValueError, match=words):
        write_report([tmp_path / "run"])


def seeded(folder, seed, rate, returns):
    """A run folder with this seed and step size."""
    folder.mkdir(parents=True)
    config = (
        f"[run]\nseed = {seed}\nsteps = 100\n[agent]\nname = 'ppo'\nlearning_rate = {rate}\n"
        "[env]\nname = 'boonta:catch'\n[architecture]\nname = 'sebulba'\n"
    )
    (folder / "config.toml").write_text(config)
    files.write_json(folder / "run.json", {"status": "done", "seed": seed, "result": {}})
    rows = [{"env_steps": 10 * i, "seconds": 1.0 * i, "eval/return_mean": x} for i, x in enumerate(returns)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_that_differ_by_their_seed_are_pooled(tmp_path):
    made = [
        seeded(tmp_path / f"{rate}-{seed}", seed, rate, [0.0, 10 * rate + seed])
        for rate in (0.1, 0.2)
        for seed in range(3)
    ]
    tracks = curves.tracks(curves.load(made))
    assert [(track.label, len(track.members)) for track in tracks] == [
        ("learning_rate=0.1 (3 runs)", 3), ("learning_rate=0.2 (3 runs)", 3)
    ]  # fmt: skip
    page = Page(write_report(made, tmp_path / "report.html"))
    assert "95 % interval (Student" in page.text and "1.33 to 2.67" not in page.text.split("Seeds")[0]
    assert curves.interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)
    assert curves.interval([1.0]) is None
