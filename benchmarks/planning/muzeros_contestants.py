"""Contestants beside other MuZeros: they play with new networks, or make updates from what a new network has played.

What all are told: part (play or learn), game (tic-tac-toe or cartpole), seconds of a run. Peers are used as they come,
but for what they would play or learn elsewhere meanwhile; what is learned from is a batch that lies ready.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.contestant import Compiled, Task, serve

GAMES = 8  # that muzero-general learns from


def ours(task: Task) -> Compiled:
    """Acting as on Anakin, or the updates of its learner. The task also: environment, envs, settings."""
    from benchmarks.planning import contestants

    more = {"agent": "muzero", "game": task["environment"], "steps": 40}
    if task["part"] == "learn":
        return _learning(task | more)
    compiled = contestants.ours(task | more)
    return Compiled(lambda seed: _repeated(lambda: compiled.run(seed), task["seconds"]), compiled.seconds, {})


def _learning(task: Task) -> Compiled:
    import jax
    import jax.numpy as jnp

    from benchmarks.planning.contestants import agent_of
    from boonta.core import acting, random
    from boonta.core.types import Ids, Sample

    agent, environment = agent_of(task)
    ((_, learner),) = agent.learners.items()
    batch = learner.experience.batch
    begin = time.perf_counter()

    @jax.jit
    def start(key: Any) -> tuple[Any, Any, Any]:
        streams = acting.streams(key)
        params = agent.init(streams.params)
        begun = lambda i: acting.begin(agent, environment, params, i, batch, streams.actors)  # noqa: E731
        actors = jax.vmap(begun)(jnp.arange(batch))
        played = acting.unroll(agent, environment, params, actors, learner.experience.length, jnp.int32(0))
        sample = Sample(played[1], jnp.ones(batch), Ids(jnp.arange(batch), jnp.zeros(batch, jnp.int32)))
        return params, learner.init(params), sample

    params, state, sample = start(random.key(0))
    update = jax.jit(learner.update, donate_argnums=0).lower(state, params, sample, random.key(0)).compile()
    held = [state, params]

    def once() -> dict[str, Any]:
        held[0], improved, _ = update(*held, sample, random.key(0))
        held[1] = params | improved
        jax.block_until_ready(held[1])
        return {"steps": 1, "idle": 0}

    once()
    return Compiled(lambda seed: _repeated(once, task["seconds"]), time.perf_counter() - begin, {})


def muzero_general(task: Task) -> Compiled:
    """One game at a time, as each of its workers plays; the trainer and its buffer in this process, without Ray.

    The task also: checkout, the folder of its sources.
    """
    sys.path.insert(0, task["checkout"])
    import games.cartpole
    import games.tictactoe
    import models
    import numpy as np
    import replay_buffer
    import self_play
    import torch
    import trainer

    torch.set_num_threads(1)  # as Ray has it in its workers
    begin = time.perf_counter()
    module: Any = games.cartpole if task["game"] == "cartpole" else games.tictactoe
    config = module.MuZeroConfig()
    start = {"weights": models.MuZeroNetwork(config).get_weights(), "optimizer_state": None, "training_step": 0}
    start |= {"num_played_games": 0, "num_played_steps": 0}
    if task["game"] == "cartpole":
        module.Game.__init__, module.Game.step, module.Game.reset = _of_gymnasium(np)
    player = _bare(self_play.SelfPlay)(start, module.Game, config, 0)

    def game() -> Any:
        temperature = config.visit_softmax_temperature_fn(trained_steps=0)
        return player.play_game(temperature, config.temperature_threshold, False, "self", 0)

    if task["part"] == "play":
        once = lambda: {"steps": len(game().root_values), "idle": 0}  # noqa: E731
    else:
        buffer = _bare(replay_buffer.ReplayBuffer)(start, {}, config)
        for _ in range(GAMES):
            buffer.save_game(game())
        learner = _bare(trainer.Trainer)(start, config)

        _, batch = buffer.get_batch()

        def once() -> dict[str, Any]:
            learner.update_lr()
            learner.update_weights(batch)
            return {"steps": 1, "idle": 0}

    once()
    return Compiled(lambda seed: _repeated(once, task["seconds"]), time.perf_counter() - begin, {})


def _of_gymnasium(np: Any) -> tuple[Callable, Callable, Callable]:
    """Its CartPole by the interface of today."""
    import gymnasium

    def init(self: Any, seed: int | None = None) -> None:
        self.env = gymnasium.make("CartPole-v1")
        self.env.reset(seed=seed)

    def step(self: Any, action: int) -> tuple[Any, float, bool]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return np.array([[observation]]), float(reward), terminated or truncated

    return init, step, lambda self: np.array([[self.env.reset()[0]]])


def _bare(actor: Any) -> Any:
    """The class inside one of Ray's."""
    return actor.__ray_metadata__.modified_class


def lightzero(task: Task) -> Compiled:
    """MuZero on CartPole by its own settings, environments in this process."""
    os.chdir(tempfile.mkdtemp())  # where it writes its logs
    from functools import partial

    from ding.config import compile_config
    from ding.envs import create_env_manager, get_vec_env_setting
    from ding.policy import create_policy
    from lzero.mcts import MuZeroGameBuffer
    from lzero.worker import MuZeroCollector
    from tensorboardX import SummaryWriter
    from zoo.classic_control.cartpole.config.cartpole_muzero_config import create_config, main_config

    begin = time.perf_counter()
    main_config.policy.cuda = False
    main_config.policy.device = "cpu"
    create_config.env_manager.type = "base"
    with contextlib.redirect_stdout(sys.stderr):
        config = compile_config(main_config, seed=0, env=None, auto=True, create_cfg=create_config, save_cfg=False)
    make, each, _ = get_vec_env_setting(config.env)
    environments = create_env_manager(config.env.manager, [partial(make, cfg=one) for one in each])
    environments.seed(0)
    policy = create_policy(config.policy, enable_field=["learn", "collect", "eval"])
    collector = MuZeroCollector(
        env=environments, policy=policy.collect_mode, tb_logger=SummaryWriter("log"), exp_name="run",
        policy_config=config.policy,
    )  # fmt: skip
    buffer = MuZeroGameBuffer(config.policy)

    def play() -> dict[str, Any]:
        before = collector.envstep
        buffer.push_game_segments(collector.collect(train_iter=0, policy_kwargs={"temperature": 1.0, "epsilon": 0.0}))
        return {"steps": collector.envstep - before, "idle": 0}

    play()
    while buffer.get_num_of_transitions() <= 2 * config.policy.batch_size:
        play()
    batch = buffer.sample(config.policy.batch_size, policy)

    def learn() -> dict[str, Any]:
        policy.learn_mode.forward(batch)
        return {"steps": 1, "idle": 0}

    once = play if task["part"] == "play" else learn
    once()
    return Compiled(lambda seed: _repeated(once, task["seconds"]), time.perf_counter() - begin, {})


def _repeated(once: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """For about so long, and at least once."""
    begin, said = time.perf_counter(), [once()]
    while time.perf_counter() < begin + seconds:
        said.append(once())
    steps, idle = (sum(one[what] for one in said) for what in ("steps", "idle"))
    return {"seconds": time.perf_counter() - begin, "steps": steps, "idle": idle}


if __name__ == "__main__":
    serve({"ours": ours, "muzero-general": muzero_general, "lightzero": lightzero})
