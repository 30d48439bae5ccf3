"""What agents that plan share: settings of the network, of the search and of the replay, and how actions are chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from boonta.agents.common import annealed
from boonta.agents.values import explore
from boonta.core.agent import Experience
from boonta.core.devices import average
from boonta.core.flat import ravel
from boonta.core.settings import setting
from boonta.core.spec import Spec
from boonta.core.types import Array, Feedback, Key, Params, PyTree, Sample, Trajectory
from boonta.nets.inputs import Inputs, inputs
from boonta.nets.planner import Options as NetworkOptions
from boonta.ops.blocks import summed
from boonta.ops.imagined import search_returns
from boonta.ops.optimizers import Optimizer, global_norm, optimizer
from boonta.ops.search import Options as SearchOptions
from boonta.ops.two_hot import Support

GRADIENT_ROWS = 64  # roots whose activations stay in a CPU's cache, measured with 16 and 32 channels


@dataclass(frozen=True)
class PlannerSettings:
    """Settings of every agent that plans."""

    body: Literal["auto", "mlp", "resnet"] = setting("auto", "the network's kind; auto goes by the observation's shape")
    width: int = setting(128, "mlp: width of the dense layers, and of the hidden state", low=1)
    channels: int = setting(32, "resnet: channels, of the hidden state too", low=1)
    head: int = setting(128, "width of the layer in each head", low=1)
    norm: Literal["batch", "layer", "none"] = setting("layer", "after each layer: batch normalisation, layer or none")
    support_limit: float = setting(5.0, "the highest bin of values and rewards, after squashing", above=0.0)
    support_bins: int = setting(11, "bins of values and rewards", low=2)
    search: Literal["gumbel", "puct"] = setting("gumbel", "gumbel, or puct: MuZero's own")
    simulations: int = setting(32, "of a search", low=1)
    simulations_greedy: int = setting(0, "of a search outside of training; 0: as many as in training", low=0)
    depth: int | None = setting(None, "the deepest that a search looks; none for no limit", low=1)
    considered: int = setting(16, "gumbel: actions tried at the root", low=1)
    value_scale: float = setting(
        0.1, "gumbel: c_scale, how much found values, which are scaled to [0, 1], outweigh the prior", above=0.0
    )
    visit_offset: float = setting(50.0, "gumbel: c_visit, visits added to the most visited action's in that", low=0.0)
    dirichlet_alpha: float = setting(0.3, "puct: concentration of the noise at the root", above=0.0)
    dirichlet_fraction: float = setting(0.25, "puct: share of the noise in the root's prior", low=0.0, high=1.0)
    puct_init: float = setting(1.25, "puct: c_1 of the exploration bonus", low=0.0)
    puct_base: float = setting(19652.0, "puct: c_2 of the exploration bonus", above=0.0)
    temperature: float = setting(1.0, "of actions in training: scale of Gumbel noise; visits^(1/t) for puct", low=0.0)
    temperature_last: float = setting(1.0, "the same when it has fallen", low=0.0)
    temperature_for: float = setting(0.0, "share of the run's updates in which it falls linearly", low=0.0, high=1.0)
    temperature_moves: int = setting(0, "steps of an episode after which training acts greedily; 0: never", low=0)
    explore: float = setting(0.0, "probability of any legal action in training, each alike", low=0.0, high=1.0)
    n_step: int = setting(10, "N, steps before a return bootstraps from a search's value", low=1)
    value_coefficient: float = setting(0.25, "of the value's loss", low=0.0, traced=True)
    l2_coefficient: float = setting(1e-4, "of half the sum of the parameters' squares", low=0.0, traced=True)
    learning_rate: float = setting(1e-3, "step size of the optimiser", above=0.0, traced=True)
    anneal: bool = setting(False, "let the step size fall linearly to zero over the run")
    optimizer: Optimizer = setting("adam", "adam, rmsprop or sgd")
    epsilon: float = setting(1e-5, "epsilon of adam and rmsprop", above=0.0)
    max_grad_norm: float = setting(
        5.0, "global norm that gradients are clipped to; 0 for no clipping", low=0.0, traced=True
    )
    discount: float = setting(0.997, "gamma", low=0.0, high=1.0, traced=True)
    unroll: int = setting(8, "steps acted between looks at the replay", low=1)
    roots: int = setting(1, "consecutive steps of a window from each of which the model is unrolled", low=1)
    batch: int = setting(64, "windows in one update over all devices", low=1)
    capacity: int = setting(50_000, "windows that replay keeps; 0: learn from each once", low=0)
    minimum: int = setting(1000, "windows in replay before learning starts", low=1)
    replay_ratio: float = setting(4.0, "steps unrolled from for each step of an environment", low=0.001)
    sampler: Literal["uniform", "prioritized", "ranked"] = setting("uniform", "how replay draws")
    priority_exponent: float = setting(1.0, "alpha of prioritized replay", low=0.0)
    importance_exponent: float = setting(1.0, "beta, of the weights that make up for it", low=0.0, high=1.0)
    reanalyse: float = setting(
        0.0, "share of searches made on stored steps, to renew their targets", low=0.0, high=0.99
    )

    def network(self) -> NetworkOptions:
        """The network's."""
        return NetworkOptions(**{name: getattr(self, name) for name in NetworkOptions._fields})

    def searching(self, exploring: bool) -> SearchOptions:
        """The search's, in training or outside of it."""
        options = SearchOptions(**{name: getattr(self, name) for name in SearchOptions._fields})
        greedy = 0 if exploring else self.simulations_greedy
        return options._replace(simulations=greedy or self.simulations)

    def support(self) -> Support:
        """Of values and rewards."""
        return Support(self.support_limit, self.support_bins)

    def experience(self, before: int, after: int) -> Experience:
        """What is learned from.

        Args:
            before: steps of a window before its roots.
            after: steps of a window after them, of which the searches' results are needed.
        """
        plain = self.capacity == 0
        return Experience(
            length=before + self.roots + after,
            batch=self.batch,
            period=0 if plain else self.roots,
            unroll=0 if plain else self.unroll,
            minimum=0 if plain else self.minimum,
            capacity=self.capacity,
            sampler="once" if plain else self.sampler,
            samples_per_insert=1.0 if plain else self.replay_ratio,
            priority_exponent=self.priority_exponent,
            importance_exponent=self.importance_exponent,
            reanalyse=self.reanalyse / (1.0 - self.reanalyse),
            memory=False,
            trained_step=before if self.roots == 1 else None,
        )

    def transform(self, learning_rate: Array | float, max_grad_norm: Array | float) -> optax.GradientTransformation:
        """The optimiser."""
        return optimizer(self.optimizer, learning_rate, max_grad_norm, self.epsilon)

    def ranked(self) -> bool:
        """Whether windows have priorities."""
        return self.capacity > 0 and self.sampler != "uniform"

    def block(self, windows: int, network: PyTree) -> int:
        """How many windows a gradient is made of at a time on a CPU: few where convolutions see each alone, or all."""
        if self.norm == "batch" or all(x.ndim < 4 for x in jax.tree.leaves(network)):
            return windows
        return min(windows, max(1, GRADIENT_ROWS // self.roots))

    def temperature_after(self, updates: Array, total: int) -> Array:
        """Of actions in training, after so many updates of `total` (0 if unknown: then it does not fall)."""
        falls = self.temperature_for * total
        fallen = jnp.minimum(updates / falls, 1.0) if falls else jnp.float32(0.0)
        return self.temperature + fallen * (self.temperature_last - self.temperature)

    def temperature_at(self, temperature: Array, moves: Array) -> Array:
        """The same at a step of an episode."""
        return jnp.where(moves >= self.temperature_moves, 0.0, temperature) if self.temperature_moves else temperature

    def tried(self, key: Key, action: Array, actions: int, observation: PyTree) -> Array:
        """The action that is taken in training, int32 []: the one found, or any legal one. Consumes the key."""
        action = action.astype(jnp.int32)
        if not self.explore:
            return action
        found = jnp.where(jnp.arange(actions) == action, 0.0, jnp.finfo(jnp.float32).min)
        return explore(key, found, observation, jnp.float32(self.explore))

    def returns(self, gamma: Array, trajectory: Trajectory) -> Array:
        """n-step returns from the searches' values, float32 [T], of one window."""
        return search_returns(trajectory.timesteps, trajectory.extras["value"], gamma, self.n_step)

    def priority(self, trajectory: Trajectory, returns: Array, before: int) -> Array:
        """Of one window by its roots: how far the searches' values are from the returns (MooZi, section 5.2.16)."""
        error = ~trajectory.timesteps.last()[:-1] * jnp.abs(trajectory.extras["value"] - returns)  # ends are known
        return jnp.mean(error[before : before + self.roots])


class State(NamedTuple):
    """The optimiser's state, and the number of updates made."""

    optimizer: optax.OptState
    updates: Array


# float32 [] to descend, of (network, params, returns [B, T], sample); metrics, and the network's new statistics
Loss = Callable[[PyTree, Params, Array, Sample], tuple[Array, tuple[dict[str, Array], PyTree]]]


def fresh(settings: PlannerSettings, params: Params) -> State:
    """Before the first update."""
    return State(settings.transform(0.0, 1.0).init(ravel(params["network"])[0]), jnp.int32(0))


def descend(
    settings: PlannerSettings, loss: Loss, total_updates: int, state: State, params: Params, sample: Sample
) -> tuple[State, Params, Feedback]:
    """One step down the loss: the groups `network`, `statistics` and `temperature` of the parameters."""
    hyper = params["settings"]
    returns = jax.vmap(partial(settings.returns, hyper["discount"]))(sample.trajectory)
    flat, unravel = ravel(params["network"])

    def share(part: tuple[Array, Sample]) -> tuple[Array, dict[str, Array], PyTree]:
        """What some windows bring to the means over all of them."""
        grads, (metrics, statistics) = jax.grad(loss, has_aux=True)(params["network"], params, *part)
        fraction = len(part[0]) / len(returns)
        return jax.tree.map(lambda x: fraction * x, (ravel(grads)[0], metrics, statistics))

    block = settings.block(len(returns), params["network"])
    grads, metrics, statistics = average(summed(share, (returns, sample), block))
    step_size = annealed(hyper["learning_rate"], state.updates, total_updates if settings.anneal else 0)
    steps, moments = settings.transform(step_size, hyper["max_grad_norm"]).update(grads, state.optimizer, flat)
    network, updates = unravel(flat + steps), state.updates + 1  # type: ignore[operator]
    temperature = settings.temperature_after(updates, total_updates)
    improved = {"network": network, "statistics": statistics, "temperature": temperature}
    return State(moments, updates), improved, Feedback(metrics | {"loss/grad_norm": global_norm(grads)})


class Frames(NamedTuple):
    """What a planner's network reads: an image as it is stored, or one vector of everything.

    Attributes:
        reads: what there is.
    """

    reads: Inputs

    def frame(self, observation: PyTree) -> Array:
        """Of one observation, [...]."""
        if not self._image():
            return self.reads.vector(observation)
        (x,) = jax.tree.leaves(self.reads.raw(observation))
        return self.reads.leaves[0].arranged(x)

    def scaled(self, frame: Array) -> Array:
        """Frames [..., *frame] as float32, as the network reads them."""
        return self.reads.leaves[0].scaled(frame) if self._image() else frame

    def _image(self) -> bool:
        return len(self.reads.leaves) == 1 and len(self.reads.leaves[0].shape) == 3


def frames(spec: Spec, settings: PlannerSettings, who: str) -> Frames:
    """How the network of agent `who` reads an environment's observations.

    Raises:
        ValueError: images beside other arrays, categories that need an embedding, or as `inputs`.
    """
    reads = inputs(spec, flat=settings.body == "mlp")
    reads.only_vectors(who, spec)
    return Frames(reads)


def masked(logits: Array, legal: Array | None) -> Array:
    """Logits [..., A] with those of illegal actions as low as can be."""
    return logits if legal is None else jnp.where(legal, logits, jnp.finfo(logits.dtype).min)


def cross_entropy(target: Array, logits: Array) -> Array:
    """float32 [N], of probabilities and logits [N, A]."""
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)


def over_roots(x: Array) -> Array:
    """[B, roots, ...] -> [N, ...]."""
    return x.reshape(-1, *x.shape[2:])
