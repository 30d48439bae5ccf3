"""The examples keep the laws and learn; what the documentation says is there."""

import dataclasses
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import generate_settings

from boonta import cli
from boonta.architectures import anakin
from boonta.arguments import parser
from boonta.core import devices, episodes
from boonta.experiments import registry
from boonta.testing import AgentContract, EnvironmentContract, ReplayContract
from boonta.testing.exchange import ExchangeContract
from examples import anakin_ppo, own_agent, own_environment, sebulba_vtrace

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TEXTS = {page: page.read_text("utf-8") for page in PAGES}
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


class TestOwnEnvironment(EnvironmentContract):
    def make(self):
        return own_environment.make(length=5)


class TestOwnAgent(AgentContract):
    of_the_action = ("sample",)

    def make(self):
        environment = own_environment.make(length=5, limit=6)
        settings = own_agent.Settings(unroll=12, batch=4)
        return own_agent.reinforce(environment.spec, settings), environment


@pytest.mark.parametrize(
    ("name", "most"), [("own_environment", 60), ("own_agent", 60), ("anakin_ppo", 40), ("sebulba_vtrace", 60)]
)
def test_an_example_is_one_page(name, most):
    lines = (ROOT / "examples" / f"{name}.py").read_text("utf-8").splitlines()
    assert len(lines) <= most and max(map(len, lines)) <= 120


def test_sebulba_runs_without_the_command_line():
    assert sebulba_vtrace.main(replace(sebulba_vtrace.SETTINGS, unroll=16, batch=4), 60) > 0


def test_they_learn_together():
    """REINFORCE in the corridor: at random 0, optimal close to 1."""
    environment = own_environment.make(length=5)
    agent = own_agent.reinforce(environment.spec, own_agent.Settings(unroll=32, batch=32, learning_rate=1e-2))
    program = anakin.program(anakin.make(agent, environment, 32), devices.mesh(jax.devices()[:1]))
    state, returns = program.start(jnp.zeros(1, jnp.int32), {}), []
    for _ in range(3):
        state, metrics = program.run(state, 20)
        finished = episodes.merge(episodes.Finished(*(metrics[field] for field in episodes.Finished._fields)))
        returns.append(float(episodes.summary(finished)["episode/return_mean"]))
        assert np.all(metrics["health"] == 0)
    assert returns[-1] > max(0.7, returns[0])


def test_ppo_trains_in_it_from_the_command_line(tmp_path, capsys):
    words = ["train", "ppo", "examples.own_environment:make", "--steps", "256", "--out", str(tmp_path / "run")]
    small = ["agent.batch=4", "agent.unroll=16", "agent.hidden=8", "run.eval_episodes=4", "architecture.devices=1"]
    assert cli.main([*words, "--json", *(word for text in small for word in ("--set", text))]) == 0
    assert '"env_steps": 256' in capsys.readouterr().out.splitlines()[-1]


def test_the_library_alone():
    settings = replace(anakin_ppo.SETTINGS, batch=4, unroll=32, hidden=(8,))
    returns = anakin_ppo.main(settings, seeds=2, chunks=2, iterations=2)
    assert returns.shape == (2,) and np.all(np.isfinite(returns))


def test_the_page_of_settings_is_up_to_date():
    assert generate_settings.PAGE.read_text("utf-8") == generate_settings.page(), "python docs/generate_settings.py"


def test_the_page_of_settings_has_all_of_them():
    parts = generate_settings.page().split("\n## ")
    tables = {part.partition("\n")[0]: part for part in parts}
    for name in registry.AGENTS:
        settings = registry.agent(name).settings
        shared = [
            text for title, text in tables.items() if title.startswith("`agent`") and not title.endswith(f": {name}")
        ]
        own = tables[f"`agent`: {name}"]
        for field in dataclasses.fields(settings):
            inherited = [
                one
                for one in generate_settings.SHARED
                if issubclass(settings, one) and field in dataclasses.fields(one)
            ]
            assert f"| `{field.name}` |" in own or (inherited and any(f"| `{field.name}` |" in text for text in shared))


@pytest.mark.parametrize("page", [page for page in PAGES if "boonta " in TEXTS[page]], ids=lambda page: page.name)
def test_commands_can_be_given(page):
    """Every line of shell that starts with `boonta`, and every such piece of code in a sentence."""
    text = TEXTS[page]
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    commands = re.findall(r"^boonta (.*)$", shell, re.M) + re.findall(r"`boonta ([^`]*)`", prose)
    for command in commands:
        words = shlex.split(command, comments=True)
        try:
            args = parser(cli.COMMANDS).parse_args([*words, "--help"] if words[1:] == [] else words)
        except SystemExit as end:
            assert end.code == 0, f"{page.name}: no such command: boonta {command}"
            continue
        agent = getattr(args, "agent", None)
        if agent and agent.islower():
            registry.agent(agent)


@pages
def test_targets_of_make_exist(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert {*re.findall(r"(?:^|`|\w )make ([\w-]+)(?:`|$|  )", TEXTS[page], re.M)} <= {*targets}


@pages
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)|(?:src|href)=\"([^\"]+)\"", TEXTS[page]):
        target = "".join(target)
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"


@pages
def test_tests_that_are_named_exist(page):
    sources = [*ROOT.glob("tests/*.py"), *ROOT.glob("src/boonta/testing/*.py")]
    known = set(re.findall(r"def (test_\w+)", "".join(file.read_text("utf-8") for file in sources)))
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)", TEXTS[page]))
    assert not named - known, f"{page.name} names tests that there are not"


def test_every_law_and_contract_is_held_by_make_test(request):
    """Cases may be left out, but no law, contract or way of an architecture; to be seen where all are collected."""
    items = [one for one in request.session.items if not one.get_closest_marker("full")]
    if {one.path for one in items} != {*ROOT.glob("tests/test_*.py")}:
        return
    laws = {*re.findall(r"\b(test_\w+)\b(?!\.py)", (ROOT / "docs" / "laws.md").read_text("utf-8"))}
    assert laws and not laws - {one.originalname for one in items}
    for contract in (AgentContract, EnvironmentContract, ReplayContract, ExchangeContract):
        assert any(issubclass(one.cls or object, contract) for one in items), contract
    ways = {one.callspec.params["architecture"] for one in items if one.path.name == "test_whole_runs.py"}
    assert {"anakin", *ways} == {*registry.ARCHITECTURES}  # anakin's is in test_training
