"""Sebulba without the command line: V-trace on Gymnasium's CartPole, two actor threads and a learner.

python examples/sebulba_vtrace.py
"""

import jax

from boonta import envs
from boonta.agents import vtrace
from boonta.architectures import sebulba
from boonta.architectures.sebulba_threads import Plan, Threads
from boonta.core import episodes
from boonta.core.host import Workers
from boonta.core.trace import Trace

SETTINGS = vtrace.Settings(batch=32, unroll=32, learning_rate=2e-3, reward_scale=0.1)


def main(settings: vtrace.Settings = SETTINGS, iterations: int = 300) -> float:
    """Trains for so many updates; the mean return of the episodes that ended during the last tenth of them."""
    host = envs.make("gym:CartPole-v1")
    agent = vtrace.vtrace(host.spec, settings, total_updates=iterations)
    device = jax.devices()[0]  # acts and learns
    plan = Plan([device], [device], threads=2, envs=settings.batch // 2)
    unit = sebulba.make(agent, host.spec, plan.envs, shards=1)  # what is compiled, as pure functions
    workers = Workers("serial")
    threads = Threads(unit, lambda index, life: host.make(index, 0, life, workers), plan, seed=0, trace=Trace())
    state = threads.init()
    threads.compile(state, host.spec)
    threads.start(state)  # from here on the actors go on by themselves
    finished, mean = [], 0.0
    try:
        for i in range(1, iterations + 1):
            state, _, items = threads.iterate(state)
            finished += [item.finished for item in items]
            if i % (iterations // 10) == 0:
                together = episodes.merge(jax.tree.map(lambda *x: jax.numpy.stack(x), *finished))
                mean, finished = float(episodes.summary(together)["episode/return_mean"]), []
                print(f"{i * settings.batch * settings.unroll:>9,} steps: {mean:.0f}")
    finally:
        threads.stop()
    return mean


if __name__ == "__main__":
    main()
