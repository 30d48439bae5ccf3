"""Wrong commands of the kind that people type, each with an answer that says what to type."""

import pytest

from boonta import cli
from boonta.core.names import nearest_names

CARTPOLE = ["train", "ppo", "gym:CartPole-v1"]
SET = "settings are given as in --set "
ANSWERS = {
    # The command
    "trian ppo": ["unknown COMMAND 'trian'", "did you mean 'train'?"],
    "evaluate runs/x": ["unknown COMMAND 'evaluate'", "did you mean 'eval'?"],
    "ppo gym:CartPole-v1": ["did you mean `boonta train ppo`?"],
    "gym:CartPole-v1": ["did you mean `boonta train gym:CartPole-v1`?"],
    "list agent": ["did you mean 'agents'?"],
    # Names
    "train gymnax:CartPole-v1 ppo": ["is an environment", "`boonta train ppo gymnax:CartPole-v1`"],
    "train gym:CartPole-v1": ["is an environment", "`boonta train ppo gym:CartPole-v1`"],
    "train ppo CartPole-v1": ["'gym:CartPole-v1'", "'gymnax:CartPole-v1'", "boonta list envs"],
    "train ppo cartpole": ["'gym:CartPole-v1'", "'gymnax:CartPole-v1'"],
    "train ppo gym:CartPole": ["'gym:CartPole-v1'"],
    "train ppo gym:cartpole-v1": ["'gym:CartPole-v1'"],
    "train ppo minatar:Breakout": ["'minatar:breakout'"],
    "train ppo ale:PongNoFrameskip-v4": ["'ale:Pong'"],
    "train ppo ALE/Pong-v5": ["'ale:Pong'"],
    "train ppo gym:ALE/Pong-v5": ["take ale:Pong"],
    "train ppo dm:cheetah_run": ["'dm:cheetah-run'"],
    "train a2c gym:CartPole-v1": ["unknown agent 'a2c'", "did you mean 'vtrace'?"],
    "train rainbow gym:CartPole-v1": ["unknown agent 'rainbow'", "allowed: alphazero"],
    "train --on ray": ["did you mean 'fleet'?"],
    "train --config ppo-cartpol": ["'ppo-cartpole'", "boonta list recipes"],
    # Options
    "train ppo --lr 1e-3": ["no option --lr", SET + "agent.learning_rate=1e-3"],
    "train ppo --learning-rate=1e-3": ["no option --learning-rate", SET + "agent.learning_rate=1e-3"],
    "train ppo --num-envs 8": [SET + "architecture.envs=8"],
    "train ppo --total-timesteps 8": [SET + "run.steps=8"],
    "train ppo --batch-size 64": [SET + "agent.batch=64"],
    "train ppo --step 100": ["did you mean --steps?"],
    "train ppo --gpu": ["no option --gpu", SET + "agent.KEY=VALUE"],
    "eval runs/x --lr 1": ["no option --lr; see"],
    "train --steps many": ["--steps", "'many'"],
    # Settings
    "train --set lr=1e-3": ["table.key=value", "did you mean agent.learning_rate=1e-3?"],
    "train --set agent.lr=1e-3": ["unknown key agent.lr", "did you mean 'agent.learning_rate'?"],
    "train --set agent.gamma=0.9": ["did you mean 'agent.discount'?"],
    "train --set agent.ent_coef=0.1": ["did you mean 'agent.entropy_cost'?"],
    "train --set agent.n_steps=8": ["did you mean 'agent.unroll'?"],
    "train --set architecture.num_envs=8": ["did you mean 'architecture.envs'?"],
    "train --set agent.zzz=8": ["unknown key agent.zzz; the nearest of "],
    # An agent that does not fit
    "train dqn gym:Pendulum-v1": ["continuous actions"],
    "train sac gym:CartPole-v1": ["discrete actions", "use dqn or ppo"],
    "eval runs/nothing": ["not a run folder"],
}


@pytest.mark.parametrize("typed", ANSWERS)
def test_a_wrong_command_has_a_short_answer(typed, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(typed.split())
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) <= 3
    assert len(err) <= 300
    for text in ANSWERS[typed]:
        assert text in err


@pytest.mark.parametrize(("agent", "env"), [("mine", "gym:CartPole-v1"), ("ppo", "mine")])
def test_a_module_without_its_factory_is_recognised(agent, env, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    assert cli.main(["train", agent, env]) == 2
    assert "name what it defines too, as mine:FACTORY" in capsys.readouterr().err


def test_a_sweep_tells_of_its_settings_the_best_first():
    means = {"a=1,seed=0": 1.0, "a=1,seed=1": 3.0, "a=2,seed=0": 40.0, "a=3,seed=0": None}
    members = [{"name": name, "eval_return_mean": mean} for name, mean in means.items()]
    assert cli._by_setting(members).split("\n") == [
        "            a=2: 40.0",
        "            a=1: 2.000 ± 1.000 over 2 seeds",
        "",
    ]
    assert cli._by_setting(members[:2]) == ""


def test_boonta_alone_says_what_to_type_first(capsys):
    assert cli.main([]) == 0
    assert "boonta train " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "found"),
    [("LEARNING_RATE", ["learning_rate"]), ("lr", ["learning_rate"]), ("nothing of it", [])],
)
def test_names_are_near_in_any_case(word, found):
    assert nearest_names(word, ["learning_rate", "unroll", "clip"]) == found


def test_steps_are_counted_in_thousands_and_millions(capsys, monkeypatch):
    given = []
    monkeypatch.setitem(cli.COMMANDS, "train", lambda args: given.append(args.steps) or 0)
    for text in ("1M", "1e6", "1_000_000", "1000k"):
        assert cli.main(["train", "--steps", text]) == 0
    assert given == [1_000_000] * 4
