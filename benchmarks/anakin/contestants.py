"""Contestants of Anakin's benchmarks: ours, a random policy, and peers."""

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from benchmarks.contestant import Compiled, Task, serve, timed


def ours(task: Task) -> Compiled:
    """Boonta's PPO on Anakin.

    The task: environment, environment_settings, agent (settings), envs (of one member), devices, population (members,
    each on its own share of the devices), steps (all together), account (add what trajectories hold and XLA plans).
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from boonta.agents.ppo import ppo
    from boonta.architectures.anakin import make, program
    from boonta.core import acting, devices
    from boonta.core.random import key

    environment, settings = _set_up(task)
    envs, members = task["envs"], task.get("population", 1)
    iterations = _iterations(task["steps"], members * envs * settings.unroll)
    agent = ppo(environment.spec, settings, iterations)
    unit = make(agent, environment, envs, task["devices"] // members)
    built: Any = program(unit, devices.mesh(_devices(task), members))
    begin = time.perf_counter()
    start = built.start.lower(jnp.arange(members), {}).compile()
    state = start(jnp.arange(members), {})
    go = built.run.lower(state, iterations).compile()
    seconds = time.perf_counter() - begin
    del state

    def run(seed: int) -> dict[str, Any]:
        seeds = seed * members + jnp.arange(members)
        (state, metrics), seconds = timed(lambda: go(start(seeds, {})))
        # Every LAST is followed by one idle act, but for those that are still to come.
        pending = int(np.sum(np.asarray(state.actors.timestep.last())))
        idle = int(np.asarray(metrics["count"], np.int64).sum()) - pending
        return {"seconds": seconds, "steps": members * iterations * unit.steps_per_iteration, "idle": idle}

    def trajectory() -> Any:
        params = agent.init(key(0))
        begin = jax.vmap(lambda i: acting.begin(agent, environment, params, i, envs, key(0)))
        return acting.unroll(agent, environment, params, begin(jnp.arange(envs)), settings.unroll, jnp.int32(0))[1]

    facts: dict[str, Any] = {"iterations": iterations, "updates": unit.updates_per_iteration * iterations}
    if task.get("account"):
        plan = go.memory_analysis()
        facts["trajectory_mb"] = (
            sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(trajectory))) / 1e6
        )
        facts["planned_mb"] = (plan.temp_size_in_bytes + plan.argument_size_in_bytes) / 1e6
    return Compiled(run, seconds, facts)


def ceiling(task: Task) -> Compiled:
    """A random policy in the same environment, its observations summed: no agent in it can be faster.

    The task: environment, envs, devices, steps, agent (for `unroll`, the steps whose keys are drawn at once).
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from boonta.core import devices
    from boonta.core.environment import advance
    from boonta.core.random import key
    from boonta.envs import make as environment_by_name

    environment: Any = environment_by_name(task["environment"], **task.get("environment_settings", {}))
    envs, length, actions = task["envs"], task["agent"]["unroll"], environment.spec.action.n
    iterations = _iterations(task["steps"], envs * length)
    move = jax.vmap(lambda *args: advance(environment, *args))

    def body(carry: Any, xs: Any) -> tuple[Any, None]:
        state, timestep, seen, idle = carry
        state, timestep = move(state, timestep, *xs)
        used = [x.astype(jnp.float32).sum() for x in jax.tree.leaves((timestep.observation, timestep.reward))]
        return (state, timestep, seen + sum(used), idle + timestep.first().sum()), None

    def iteration(carry: Any, _: None) -> tuple[Any, None]:
        keys, rest = carry
        keys = jax.vmap(lambda key: jax.random.split(key, (length + 2,)))(keys)
        action = jax.vmap(lambda key: jax.random.randint(key, (length,), 0, actions))(keys[:, 1])
        xs = (action.T, jnp.moveaxis(keys[:, 2:], 1, 0))
        return (keys[:, 0], jax.lax.scan(body, rest, xs)[0]), None

    def scan(keys: Any) -> tuple[Any, Any]:
        keys, reset_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        state, timestep = jax.vmap(environment.reset)(reset_keys)
        carry = (keys, (state, timestep, jnp.float32(0), jnp.int32(0)))
        _, (_, _, seen, idle) = jax.lax.scan(iteration, carry, None, length=iterations)[0]
        return seen[None], idle[None]

    own = P(devices.LEARNERS)
    mesh = devices.mesh(_devices(task))
    mapped = jax.jit(jax.shard_map(scan, mesh=mesh, in_specs=own, out_specs=own, check_vma=False))
    begin = time.perf_counter()
    compiled = mapped.lower(jax.device_put(jax.random.split(key(0), envs), jax.NamedSharding(mesh, own))).compile()
    seconds = time.perf_counter() - begin

    def run(seed: int) -> dict[str, Any]:
        keys = jax.device_put(jax.random.split(key(seed), envs), jax.NamedSharding(mesh, own))
        (_, idle), seconds = timed(compiled, keys)
        return {"seconds": seconds, "steps": iterations * envs * length, "idle": int(idle.sum())}

    return Compiled(run, seconds, {"iterations": iterations})


def acting(task: Task) -> Compiled:
    """Boonta's PPO acts and does not learn; its trajectories are summed, so that nothing in them is left out.

    The task: environment, environment_settings, agent (settings), envs, devices (1), steps.
    """
    import jax
    import jax.numpy as jnp

    from boonta.agents.ppo import ppo
    from boonta.core import acting
    from boonta.core.random import key
    from boonta.core.types import FIRST

    environment, settings = _set_up(task)
    envs = task["envs"]
    iterations = _iterations(task["steps"], envs * settings.unroll)
    agent = ppo(environment.spec, settings, iterations)

    def scan(seed: Any) -> tuple[Any, Any]:
        params_key, actors_key = jax.random.split(key(seed))
        params = agent.init(params_key)
        begin = partial(acting.begin, agent, environment, params, count=envs, key=actors_key)

        def iteration(carry: Any, _: None) -> tuple[Any, None]:
            actors, seen, idle = carry
            actors, trajectory, _ = acting.unroll(agent, environment, params, actors, settings.unroll, jnp.int32(0))
            read = (trajectory.timesteps.observation, trajectory.timesteps.reward, trajectory.extras)
            seen += sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(read))
            return (actors, seen, idle + (trajectory.timesteps.step_type[:, 1:] == FIRST).sum()), None

        carry = (jax.vmap(begin)(jnp.arange(envs)), jnp.float32(0), jnp.int32(0))
        _, seen, idle = jax.lax.scan(iteration, carry, None, length=iterations)[0]
        return seen, idle

    begin = time.perf_counter()
    compiled = jax.jit(scan).lower(jnp.uint32(0)).compile()
    seconds = time.perf_counter() - begin

    def run(seed: int) -> dict[str, Any]:
        (_, idle), seconds = timed(compiled, jnp.uint32(seed))
        return {"seconds": seconds, "steps": iterations * envs * settings.unroll, "idle": int(idle)}

    return Compiled(run, seconds, {"iterations": iterations})


def rejax(task: Task) -> Compiled:
    """PPO of rejax, as it comes; its evaluations are left out. It has no annealing of the step size."""
    import jax
    from rejax import PPO  # type: ignore[import-not-found]

    agent, envs, steps = task["agent"], task["envs"], _whole(task)
    algorithm = PPO.create(
        env=_bare(task),
        num_envs=envs,
        num_steps=agent["unroll"],
        num_epochs=agent["epochs"],
        num_minibatches=agent["minibatches"],
        learning_rate=agent["learning_rate"],
        gamma=agent["discount"],
        gae_lambda=agent["gae_lambda"],
        clip_eps=agent["clip"],
        ent_coef=agent["entropy_cost"],
        vf_coef=agent["value_cost"],
        max_grad_norm=agent["max_grad_norm"],
        agent_kwargs={"activation": agent["activation"], "hidden_layer_sizes": tuple(agent["hidden"])},
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    )
    algorithm = algorithm.replace(eval_callback=lambda *_: ())
    return _peer(jax.jit(algorithm.train), steps)


def purejaxrl(task: Task) -> Compiled:
    """PPO of PureJaxRL, as it comes, from a checkout at `path`; its network is 2 x 64, separate for each output."""
    import jax

    agent = task["agent"]
    if list(agent["hidden"]) != [64, 64]:
        raise ValueError(f"PureJaxRL's network is fixed: hidden must be [64, 64], got {agent['hidden']}")
    # Its wrappers for other simulators are imported but not used.
    for package, names in {
        "brax": ("envs",),
        "brax.envs": ("wrappers",),
        "brax.envs.wrappers": ("training",),
        "brax.envs.wrappers.training": ("EpisodeWrapper", "AutoResetWrapper"),
        "navix": (),
    }.items():
        if package.partition(".")[0] in sys.modules or importlib.util.find_spec(package) is None:
            stub = ModuleType(package)
            for name in names:
                setattr(stub, name, object)
            sys.modules.setdefault(package, stub)
    sys.path.insert(0, os.path.join(task["path"], "purejaxrl"))
    import ppo  # type: ignore[import-not-found]

    config = {
        "LR": agent["learning_rate"],
        "NUM_ENVS": task["envs"],
        "NUM_STEPS": agent["unroll"],
        "TOTAL_TIMESTEPS": _whole(task),
        "UPDATE_EPOCHS": agent["epochs"],
        "NUM_MINIBATCHES": agent["minibatches"],
        "GAMMA": agent["discount"],
        "GAE_LAMBDA": agent["gae_lambda"],
        "CLIP_EPS": agent["clip"],
        "ENT_COEF": agent["entropy_cost"],
        "VF_COEF": agent["value_cost"],
        "MAX_GRAD_NORM": agent["max_grad_norm"],
        "ACTIVATION": agent["activation"],
        "ENV_NAME": _bare(task),
        "ANNEAL_LR": agent["anneal"],
        "DEBUG": False,
    }
    return _peer(jax.jit(ppo.make_train(config)), _whole(task))


def _peer(train: Any, steps: int) -> Compiled:
    """Both peers are one function of a key; they reset within the step that ends an episode, so no step is idle."""
    import jax

    begin = time.perf_counter()
    compiled = train.lower(jax.random.PRNGKey(0)).compile()
    seconds = time.perf_counter() - begin

    def run(seed: int) -> dict[str, Any]:
        _, seconds = timed(compiled, jax.random.PRNGKey(seed))
        return {"seconds": seconds, "steps": steps, "idle": 0}

    return Compiled(run, seconds, {})


def _set_up(task: Task) -> tuple[Any, Any]:
    """The environment of a task, and PPO's settings there."""
    from boonta.agents.ppo import Settings
    from boonta.envs import make

    chosen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in task["agent"].items()}
    return make(task["environment"], **task.get("environment_settings", {})), Settings(batch=task["envs"], **chosen)


def _devices(task: Task) -> list[Any]:
    import jax

    if len(jax.devices()) < task["devices"]:
        raise ValueError(f"devices must be at most {len(jax.devices())} here, got {task['devices']}")
    return jax.devices()[: task["devices"]]


def _bare(task: Task) -> str:
    return task["environment"].partition(":")[2]


def _iterations(steps: int, per_iteration: int) -> int:
    return max(1, steps // per_iteration)


def _whole(task: Task) -> int:
    """The steps of the task in whole iterations."""
    per_iteration = task["envs"] * task["agent"]["unroll"]
    return _iterations(task["steps"], per_iteration) * per_iteration


KINDS: dict[str, Callable[[Task], Compiled]] = {
    "ours": ours,
    "ceiling": ceiling,
    "acting": acting,
    "rejax": rejax,
    "purejaxrl": purejaxrl,
}


if __name__ == "__main__":
    serve(KINDS)
