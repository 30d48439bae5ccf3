"""Environments by name."""

import subprocess
import sys

import pytest

import boonta.envs
from boonta.core.environment import Environment

MODULE = """
from boonta.envs import catch

class Host:
    def reset(self): ...
    def step(self, action): ...

def mine(rows=4):
    return catch.make(rows=rows)

def host():
    return Host()

def nothing():
    return 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A user's module in the current directory."""
    (tmp_path / "own_envs_of_a_user.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "own_envs_of_a_user"
    sys.modules.pop("own_envs_of_a_user", None)


@pytest.mark.parametrize("name", boonta.envs.names("boonta"))
def test_every_own_name_is_made_and_is_its_own(name):
    environment = boonta.envs.make(name)
    assert isinstance(environment, Environment) and environment.spec.name == name


def test_names_hold_every_family():
    assert {"boonta:catch", "gymnax:CartPole-v1"} <= set(boonta.envs.names())
    assert boonta.envs.make("gymnax:CartPole-v1").spec.name == "gymnax:CartPole-v1"


def test_settings_reach_the_factory():
    assert boonta.envs.make("boonta:catch", rows=7).spec.observation.shape == (7, 5, 1)


def test_own_environments_are_imported_from_the_current_directory(own_module):
    assert boonta.envs.make(f"{own_module}:mine", rows=6).spec.observation.shape == (6, 5, 1)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("catch", {}, "unknown environment 'catch': did you mean .*'boonta:catch'"),
        (
            "bonta:catch",
            {},
            r"unknown family or module 'bonta': did you mean 'boonta'\? allowed: ale, boonta, brax, dm, gym",
        ),
        ("boonta:cach", {}, r"unknown environment boonta:cach: did you mean 'boonta:catch'\? allowed: "),
        (
            "boonta:catch",
            {"row": 3},
            r"unknown setting of boonta:catch 'row': did you mean 'rows'\? allowed: columns",
        ),
        ("gymnax:Cartpole-v1", {}, "did you mean 'gymnax:CartPole-v1'"),
        ("pgx:tic_tac_toe", {"rows": 5}, r"unknown setting of pgx:tic_tac_toe 'rows'"),
        ("minatar:breakout", {"stiky": 0}, r"unknown setting of minatar:breakout 'stiky': did you mean 'sticky'\?"),
        ("minatar:breakout", {"sticky": "none"}, r"env\.sticky"),
    ],
)
def test_unknown_names_and_settings_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        boonta.envs.make(name, **settings)


@pytest.mark.parametrize(
    ("factory", "settings", "message"),
    [
        ("main", {}, r"unknown factory in module own_envs_of_a_user 'main': did you mean 'mine'\?"),
        ("mine", {"raws": 3}, "did you mean 'rows'"),
        ("host", {}, r"returned a own_envs_of_a_user\.Host; allowed: a boonta\.core\.environment\.Environment"),
        ("nothing", {}, r"returned a builtins\.int; allowed"),
    ],
)
def test_own_factories_that_do_not_fit_are_refused(own_module, factory, settings, message):
    with pytest.raises(ValueError, match=message):
        boonta.envs.make(f"{own_module}:{factory}", **settings)


def test_a_missing_import_of_the_users_own_is_not_hidden(own_module, tmp_path):
    (tmp_path / "broken_module_of_a_user.py").write_text("import a_package_that_nobody_has")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        boonta.envs.make("broken_module_of_a_user:make")


def test_unknown_family_of_names_is_refused():
    with pytest.raises(ValueError, match="unknown family 'gymnx'"):
        boonta.envs.names("gymnx")


def test_gymnax_is_imported_only_when_asked_for():
    code = "import sys, boonta.envs; boonta.envs.make('boonta:catch'); sys.exit('gymnax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
