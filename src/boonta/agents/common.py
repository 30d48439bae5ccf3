"""What agents share: the network's settings, rewards as the loss sees them."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from boonta.core.settings import setting
from boonta.core.spec import Spec
from boonta.core.types import Array, PyTree, TimeStep, Trajectory
from boonta.nets.actor_critic import ActorCritic, Heads, actor_critic
from boonta.nets.dense import Init
from boonta.nets.inputs import Inputs, Normalized, legal
from boonta.nets.torso import Activation, Body, Core, Options
from boonta.ops import normalizer
from boonta.ops.rewards import transform_reward

# A metric: the share of the values and rewards to be learned that lie beyond what the network can say.
CLIPPED = "value/clipped_share"


@dataclass(frozen=True)
class RewardSettings:
    """Rewards as the agent sees them."""

    reward_scale: float = setting(
        1.0, "multiplies rewards in the loss, and where a network is fed them; reported returns stay true", above=0.0
    )
    reward_clip: float | None = setting(None, "clips scaled rewards there to [-c, c]; none for no limit", above=0.0)

    def transform_reward(self, reward: Array) -> Array:
        """Rewards float32 [...] as the loss sees them."""
        return transform_reward(reward, self.reward_scale, self.reward_clip)


@dataclass(frozen=True)
class TorsoSettings(RewardSettings):
    """The network's common part, and what it is fed."""

    body: Body = setting(
        "auto", "the network's first part; nature_cnn needs 36 x 36 pixels; auto goes by the observation's shape"
    )
    hidden: tuple[int, ...] = setting(
        (64, 64), "widths of the dense layers; of a convolutional body the last one", low=1
    )
    channels: tuple[int, ...] = setting((16,), "channels of grid_cnn, or of each section of impala_resnet", low=1)
    activation: Activation = setting("tanh", "of the dense layers: tanh, relu, silu, gelu or elu")
    core: Core = setting("none", "memory between body and heads: none, lstm or gru")
    core_size: int = setting(128, "width of the memory", low=1)
    previous: bool = setting(False, "feed the previous action and reward to the memory")
    initial: Init = setting(
        "orthogonal", "how kernels are made: orthogonal, glorot (uniform), or fan_in (uniform, and biases too)"
    )

    def options(self) -> Options:
        """The torso's."""
        return Options(**{name: getattr(self, name) for name in Options._fields})


@dataclass(frozen=True)
class NetworkSettings(TorsoSettings):
    """The network of an actor-critic, and what it is fed."""

    share: bool = setting(False, "one body for policy and value; always so where there is memory")
    squash: bool = setting(False, "squash continuous actions by tanh; otherwise the environment clips them")
    log_std: float = setting(0.0, "initial logarithm of the standard deviation, in units of half the action box")
    normalize_observations: bool = setting(False, "give observations mean 0 and variance 1 by running statistics")


def network(spec: Spec, settings: NetworkSettings) -> ActorCritic:
    """The policy and value network of an agent."""
    heads = Heads(**{name: getattr(settings, name) for name in Heads._fields})
    return actor_critic(spec, settings.options(), heads)


def init_statistics(reads: Inputs) -> PyTree:
    """Statistics of no observations yet."""
    return normalizer.init(reads.numbers(reads.shapes))


def normalize_observation(reads: Inputs, statistics: PyTree, timesteps: TimeStep) -> TimeStep:
    """The time steps [..., ] with the quantities in their observations normalised, and the legal mask as it is."""
    raw = reads.raw(timesteps.observation)
    # A pixel that has hardly ever changed would else be all there is to see when it does.
    floor = reads.numbers(jax.tree.map(lambda x: 1e-4 if x.dtype == jnp.uint8 else 1e-8, raw))
    features = reads.read(raw)
    numbers = normalizer.normalize(statistics, reads.numbers(features), floor=floor)
    observation = Normalized(reads.with_numbers(features, numbers), legal(timesteps.observation))
    return timesteps._replace(observation=observation)


def update_statistics(reads: Inputs, statistics: PyTree, trajectory: Trajectory) -> PyTree:
    """The statistics after the observations that were acted on in a batch of trajectories [B, T+1, ...].

    Of images only the first of each trajectory counts: the others are nearly the same, and many.
    """
    raw = reads.raw(trajectory.timesteps.observation)
    arrays = jax.tree.leaves(raw)
    count = 1 if any(x.dtype == jnp.uint8 for x in arrays) else arrays[0].shape[1] - 1
    some = reads.numbers(reads.read(jax.tree.map(lambda x: x[:, :count].reshape(-1, *x.shape[2:]), raw)))
    return normalizer.update(statistics, some, jnp.ones(len(arrays[0]) * count, jnp.float32))


def masked_means(terms: dict[str, Array], mask: Array, count: Array) -> dict[str, Array]:
    """The sums of `terms` where `mask` is 1, over `count`; all of one shape, and summed in one product."""
    sums = jnp.stack([term.reshape(-1) for term in terms.values()]) @ mask.reshape(-1)
    return dict(zip(terms, sums / count, strict=True))


def annealed(rate: Array, updates: Array, total: int) -> Array:
    """A step size that falls linearly from `rate` to zero over `total` updates; if that is 0, it stays."""
    return rate * jnp.maximum(1.0 - updates / total, 0.0) if total else rate
