"""Contestants of self-play: our acting, and the plain loop of pgx and mctx that is its ceiling, with equal networks."""

import time
from typing import Any

from benchmarks.contestant import Compiled, Task, serve, timed


def ours(task: Task) -> Compiled:
    """Acting as on Anakin, nothing learned.

    The task: agent (alphazero or muzero), game, envs, steps (of one call), settings (of the agent), devices (1 if left
    out), which share the games.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from boonta.core import acting, devices, random
    from boonta.core.types import LAST

    agent, environment = agent_of(task)
    begin = time.perf_counter()

    @jax.jit
    def start(key: Any) -> tuple[Any, Any]:
        streams = acting.streams(key)
        params, index = agent.init(streams.params), jnp.arange(task["envs"])
        begun = lambda i: acting.begin(agent, environment, params, i, task["envs"], streams.actors)  # noqa: E731
        return params, jax.vmap(begun)(index)

    def act(params: Any, actors: Any) -> tuple[Any, Any]:
        actors, trajectory, _ = acting.unroll(agent, environment, params, actors, task["steps"], jnp.int32(0))
        idle = devices.total(jnp.sum(trajectory.timesteps.step_type[:, :-1] == LAST))
        return actors, (idle, trajectory.extras)

    mesh, everywhere, own = devices.mesh(jax.devices()[: task.get("devices", 1)]), P(), P(devices.LEARNERS)
    sharded = jax.shard_map(
        act, mesh=mesh, in_specs=(everywhere, own), out_specs=(own, (everywhere, own)), check_vma=False
    )
    params, actors = (
        jax.device_put(tree, jax.NamedSharding(mesh, spec))
        for tree, spec in zip(start(random.key(0)), (everywhere, own), strict=True)
    )
    compiled = jax.jit(sharded).lower(params, actors).compile()
    held = [actors]

    def run(seed: int) -> dict[str, Any]:
        del seed
        (held[0], (idle, _)), seconds = timed(compiled, params, held[0])
        return {"seconds": seconds, "steps": task["envs"] * task["steps"], "idle": int(idle)}

    run(0)
    return Compiled(run, time.perf_counter() - begin, {})


def plain(task: Task) -> Compiled:
    """What one would write with pgx and mctx alone: a batch, a scan, games begun anew where they end."""
    import jax
    import mctx
    import pgx
    from pgx.experimental import auto_reset

    from boonta.core import random
    from boonta.ops.two_hot import expected

    agent, _ = agent_of(task)
    params = agent.init(random.key(0))
    game = pgx.make(task["game"].partition(":")[2])
    settings = _settings(task)
    support, simulations = settings.support(), settings.simulations
    root_of, recurrent = (_true_model if task["agent"] == "alphazero" else _learned_model)(
        task, game, support, expected
    )
    step = jax.vmap(auto_reset(game.step, game.init))

    def move(carry: tuple[Any, Any], key: Any) -> tuple[tuple[Any, Any], Any]:
        params, state = carry
        search_key, step_key = jax.random.split(key)
        found = mctx.gumbel_muzero_policy(
            params, search_key, root_of(params, state), recurrent, simulations,
            invalid_actions=~state.legal_action_mask, max_num_considered_actions=settings.considered,
        )  # fmt: skip
        state = step(state, found.action, jax.random.split(step_key, task["envs"]))
        value = found.search_tree.summary().value
        return (params, state), (state.observation, state.rewards, state.terminated, found.action_weights, value)

    def play(params: Any, state: Any, key: Any) -> tuple[Any, Any]:
        (_, state), seen = jax.lax.scan(move, (params, state), jax.random.split(key, task["steps"]))
        return state, seen

    begin = time.perf_counter()
    state = jax.jit(jax.vmap(game.init))(jax.random.split(jax.random.key(0), task["envs"]))
    compiled = jax.jit(play).lower(params, state, jax.random.key(0)).compile()
    held = [state]

    def run(seed: int) -> dict[str, Any]:
        (held[0], _), seconds = timed(compiled, params, held[0], jax.random.key(seed))
        return {"seconds": seconds, "steps": task["envs"] * task["steps"], "idle": 0}

    run(0)
    return Compiled(run, time.perf_counter() - begin, {})


def _settings(task: Task) -> Any:
    from boonta.agents import alphazero, muzero

    module = alphazero if task["agent"] == "alphazero" else muzero
    settings: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in task["settings"].items()
    }
    return module.Settings(**settings)


def agent_of(task: Task) -> tuple[Any, Any]:
    """The agent of a task, and the environment that is its game."""
    from boonta import envs
    from boonta.agents import alphazero, muzero

    model = task["agent"] == "alphazero"
    environment = envs.make(task["game"], **({"model": True} if model else {}))
    factory = alphazero.alphazero if model else muzero.muzero
    return factory(environment.spec, _settings(task)), environment  # type: ignore[union-attr]


def _true_model(task: Task, game: Any, support: Any, expected: Any) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp
    import mctx

    from boonta.nets.planner import judge

    net = judge(game.observation_shape, game.num_actions, support.bins, _settings(task).network())
    start: Any = mctx.RootFnOutput
    answer: Any = mctx.RecurrentFnOutput

    def judged(params: Any, state: Any) -> tuple[Any, Any]:
        (logits, value), _ = net.apply(
            params["network"], params["statistics"], state.observation.astype(jnp.float32), False
        )
        logits = jnp.where(state.legal_action_mask, logits, jnp.finfo(jnp.float32).min)
        return logits, expected(value, support)

    def root(params: Any, state: Any) -> Any:
        logits, value = judged(params, state)
        return start(prior_logits=logits, value=value, embedding=state)

    def recurrent(params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        del key
        mover = state.current_player
        state = jax.vmap(game.step)(state, action)
        logits, value = judged(params, state)
        reward = jax.vmap(lambda rewards, player: rewards[player])(state.rewards, mover)
        discount = jnp.where(state.terminated, 0.0, -1.0)
        value = jnp.where(state.terminated, 0.0, value)
        return answer(reward=reward, discount=discount, prior_logits=logits, value=value), state

    return root, recurrent


def _learned_model(task: Task, game: Any, support: Any, expected: Any) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp
    import mctx

    from boonta.nets.planner import planner
    from boonta.ops.imagined import TURNS

    net = planner(game.observation_shape, game.num_actions, support.bins, _settings(task).network())
    start: Any = mctx.RootFnOutput
    answer: Any = mctx.RecurrentFnOutput
    turns = jnp.asarray(TURNS, jnp.float32)

    def root(params: Any, state: Any) -> Any:
        seen = state.observation.astype(jnp.float32)
        out, _ = net.initial(params["network"], params["statistics"], seen, False)
        return start(prior_logits=out.policy, value=expected(out.value, support), embedding=out.state)

    def recurrent(params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        del key
        out, _ = net.recurrent(params["network"], params["statistics"], state, action, False)
        value, reward = expected(out.value, support), expected(out.reward, support)
        discount = jax.nn.softmax(out.discount) @ turns
        return answer(reward=reward, discount=discount, prior_logits=out.policy, value=value), out.state

    return root, recurrent


if __name__ == "__main__":
    serve({"ours": ours, "plain": plain})
