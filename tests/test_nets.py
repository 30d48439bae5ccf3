"""Networks: two spellings of a convolution, and acting step by step against unrolling."""

from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.spec import Continuous, Discrete, Spec
from boonta.core.types import FIRST, LAST, MID, TimeStep
from boonta.nets.actor_critic import Heads, actor_critic
from boonta.nets.convolution import Conv, convolve
from boonta.nets.dense import Dense
from boonta.nets.inputs import inputs, legal
from boonta.nets.mlp import ACTIVATIONS, MLP
from boonta.nets.torso import Options
from boonta.nets.vision import GridCNN, ImpalaResNet, NatureCNN, _max_pool
from boonta.ops.blocks import mapped, summed
from boonta.ops.distributions import Categorical, Gaussian, TanhGaussian


@pytest.mark.parametrize(("width", "features"), [(3, 5), (5, 3), (4, 4)])
def test_dense_layers_are_those_of_flax_with_their_derivatives(width, features):
    x, init = jax.random.normal(jax.random.key(0), (2, 7, width)), nn.initializers.orthogonal(2.0)
    ours, flax = Dense(features, gain=2.0), nn.Dense(features, kernel_init=init)
    params = jax.tree.map(lambda p: p + 0.1, flax.init(jax.random.key(1), x))
    assert jax.tree.map(jnp.shape, ours.init(jax.random.key(1), x)) == jax.tree.map(jnp.shape, params)

    def derivatives(net):
        def loss(params, x):
            return jnp.sum(jnp.tanh(net.apply(params, x)) ** 2)

        def second(params):
            return sum(jnp.sum(g**3) for g in jax.tree.leaves(jax.grad(loss)(params, x)))

        several = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), params)
        over_params = jax.vmap(jax.grad(loss), (0, None))(several, x)
        return loss(params, x), jax.grad(loss, (0, 1))(params, x), jax.grad(second)(params), over_params

    jax.tree.map(close, derivatives(ours), derivatives(flax))


@pytest.mark.parametrize(
    ("layer", "shape", "inputs"), [(Dense(64, "fan_in"), (1, 9), 9), (Conv(64, 2, initial="fan_in"), (1, 3, 3, 4), 16)]
)
def test_biases_are_drawn_like_kernels_where_that_is_asked_for(layer, shape, inputs):
    params = layer.init(jax.random.key(0), jnp.zeros(shape))["params"]
    for x in (params["kernel"], params["bias"]):
        assert 0.9 * inputs**-0.5 < np.abs(x).max() <= inputs**-0.5
        assert abs(np.mean(x)) < 0.3 * inputs**-0.5


# height, width, channels, kernel, features, stride, padding
CONVOLUTIONS = {
    "nature 1": (84, 84, 4, 8, 32, 4, "VALID"),
    "nature 2": (20, 20, 32, 4, 64, 2, "VALID"),
    "nature 3": (9, 9, 64, 3, 64, 1, "VALID"),
    "impala": (21, 21, 16, 3, 32, 1, "SAME"),
    "grid": (10, 10, 4, 3, 16, 1, "VALID"),
    "oblong, stride beside kernel": (11, 14, 2, 3, 5, 2, "VALID"),
    "pixels left over": (13, 10, 3, 4, 2, 3, "VALID"),
    "same with stride": (10, 7, 3, 5, 4, 2, "SAME"),
    "same, even kernel": (8, 9, 2, 4, 3, 1, "SAME"),
    "stride beyond kernel": (9, 9, 2, 2, 3, 3, "VALID"),
    "stride beyond kernel, same": (9, 10, 2, 1, 3, 2, "SAME"),
    "one by one": (4, 4, 3, 1, 6, 1, "VALID"),
}


def close(actual, expected, tolerance=1e-4):
    """Equal up to a part of the largest."""
    expected = np.asarray(expected)
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1e-8)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights(shapes):
    """Random ones everywhere, so that no head is silent; and orthogonal ones take seconds to compile."""
    leaves, structure = jax.tree.flatten(shapes)
    return structure.unflatten([normal(i, *x.shape) * max(x.size, 1) ** -0.25 for i, x in enumerate(leaves)])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_both_formulations_agree_in_values_and_gradients(name):
    height, width, channels, size, outputs, stride, padding = CONVOLUTIONS[name]
    x, kernel = normal(0, 2, height, width, channels), normal(1, size, size, channels, outputs)
    shape = jax.eval_shape(lambda: convolve(x, kernel, stride, padding, "direct")).shape
    weight = normal(2, *shape)

    def run(formulation):
        @jax.jit
        def both(x, kernel):
            out, pull = jax.vjp(lambda *args: convolve(*args, stride, padding, formulation), x, kernel)
            return out, pull(weight)

        return both(x, kernel)

    jax.tree.map(close, run("matmul"), run("direct"))


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_parameters_are_those_of_flax(padding):
    x = normal(0, 2, 9, 9, 3)
    ours, theirs = Conv(5, 3, 2, padding), nn.Conv(5, (3, 3), 2, padding)
    shapes, expected = (jax.eval_shape(module.init, jax.random.key(0), x) for module in (ours, theirs))
    assert shapes == expected
    params = weights(shapes)
    close(ours.apply(params, x), theirs.apply(params, x))


@pytest.mark.parametrize("n", [16, 64, 65])
@pytest.mark.parametrize("block", [0, 32])
def test_blocks_make_the_whole(n, block):
    x = normal(0, n, 84, 84)
    close(mapped(lambda x: x @ normal(1, 84, 2), x, block), x @ normal(1, 84, 2))


@pytest.mark.parametrize(("height", "width"), [(84, 84), (21, 21), (11, 10), (3, 4), (1, 2)])
def test_max_pool_is_that_of_flax(height, width):
    x = normal(0, 2, height, width, 3) - 5.0  # all below zero: padding must never win
    np.testing.assert_array_equal(_max_pool(x), nn.max_pool(x, (3, 3), (2, 2), "SAME"))


@pytest.mark.parametrize(
    ("make", "shape"),
    [(NatureCNN, (84, 84, 4)), (GridCNN, (10, 10, 3)), (lambda **kw: ImpalaResNet((4, 8), 1, **kw), (24, 24, 2))],
)
def test_vision_networks_agree_in_both_formulations(make, shape):
    x = normal(0, 2, *shape)
    direct, matmul = (make(hidden=16, formulation=formulation) for formulation in ("direct", "matmul"))
    params = weights(jax.eval_shape(direct.init, jax.random.key(0), x))
    out = jax.jit(direct.apply)(params, x)
    assert out.shape == (2, 16)
    close(jax.jit(matmul.apply)(params, x), out)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp(activation):
    mlp = MLP((8, 5), activation)
    params = weights(jax.eval_shape(mlp.init, jax.random.key(0), jnp.zeros((1, 3))))
    out = mlp.apply(params, normal(0, 4, 6, 3))
    assert out.shape == (4, 6, 5) and np.all(np.isfinite(out))


# The actor-critic

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
BOX = Continuous((2,), np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
CASES = {
    "vector": (VECTOR, Discrete(3), Options()),
    "vector, shared": (VECTOR, Discrete(3), Options(activation="relu"), Heads(share=True)),
    "lstm": (VECTOR, Discrete(3), Options(core="lstm", core_size=8)),
    "gru": (VECTOR, Discrete(3), Options(core="gru", core_size=8)),
    "lstm, previous": (VECTOR, Discrete(3), Options(core="lstm", core_size=8, previous=True)),
    "gru, previous, continuous": (VECTOR, BOX, Options(core="gru", core_size=8, previous=True)),
    "continuous": (VECTOR, BOX, Options(), Heads(log_std=-1.0)),
    "continuous, squashed": (VECTOR, BOX, Options(), Heads(squash=True)),
    "legal": ({"board": VECTOR, "legal": jax.ShapeDtypeStruct((3,), bool)}, Discrete(3), Options()),
    "many and legal": (
        {"a": VECTOR, "b": jax.ShapeDtypeStruct((2, 2), jnp.int32), "legal": jax.ShapeDtypeStruct((3,), bool)},
        Discrete(3),
        Options(),
    ),
    "scalar": (jax.ShapeDtypeStruct((), jnp.int32), Discrete(2), Options()),
    "grid": (jax.ShapeDtypeStruct((6, 6, 2), bool), Discrete(3), Options(hidden=(16,), channels=(4,))),
    "grid, lstm": (
        jax.ShapeDtypeStruct((6, 6, 2), bool),
        Discrete(3),
        Options(hidden=(16,), channels=(4,), core="lstm", core_size=8),
    ),
    "screen": (jax.ShapeDtypeStruct((36, 36, 1), jnp.uint8), Discrete(2), Options(hidden=(16,)), Heads(share=True)),
    "impala": (
        jax.ShapeDtypeStruct((12, 12, 1), jnp.uint8),
        Discrete(2),
        Options(body="impala_resnet", channels=(2, 4), hidden=(16,)),
        Heads(share=True),
    ),
}
cases = pytest.mark.parametrize("name", CASES)
recurrent = pytest.mark.parametrize("name", ["lstm", "gru", "lstm, previous", "grid, lstm"])
L = 7


@cache
def network(name):
    observation, action, *shape = CASES[name]
    net = actor_critic(Spec("test", observation, action), *shape)
    params = weights(jax.eval_shape(net.init, jax.random.key(0)))
    return net, params, jax.jit(net.unroll), jax.jit(net.step)


def steps(name, kinds, seed=0):
    """Time steps [len(kinds), ...] of random content."""
    observation, action, *_ = CASES[name]
    rng, n = np.random.default_rng(seed), len(kinds)

    def draw(shape):
        if shape.dtype == bool:
            x = rng.random((n, *shape.shape)) < 0.5
            x[..., 0] = True
            return x
        high = 255 if shape.dtype == jnp.uint8 else 5
        return (rng.random((n, *shape.shape)) * high).astype(shape.dtype)

    kinds = np.array(kinds, np.int8)
    acts = rng.integers(0, action.n, n, np.int32) if isinstance(action, Discrete) else normal(seed, n, *action.shape)
    acts = np.where((kinds == FIRST).reshape(n, *[1] * (acts.ndim - 1)), np.zeros_like(acts), acts)
    reward = np.where(kinds == FIRST, 0, rng.normal(size=n)).astype(np.float32)
    return TimeStep(jax.tree.map(draw, observation), acts, reward, np.ones(n, np.float32), kinds)


def one_by_one(name, timesteps, memory):
    _, params, _, step = network(name)
    out = []
    for t in range(len(timesteps.reward)):
        memory, policy, value = step(params, memory, jax.tree.map(lambda x, t=t: x[t], timesteps))
        out.append((policy, value))
    return memory, jax.tree.map(lambda *xs: jnp.stack(xs), *out)


def unrolled(name, timesteps, memory):
    _, params, unroll, _ = network(name)
    batched = jax.tree.map(lambda x: jnp.asarray(x)[None], (memory, timesteps))
    return jax.tree.map(lambda x: x[0], unroll(params, *batched))


MIDDLE = [MID, MID, LAST, FIRST, MID, MID, MID]


@cases
def test_unrolling_is_stepping(name):
    timesteps, memory = steps(name, MIDDLE), network(name)[0].memory()
    memory = jax.tree.map(lambda x: x + 0.5, memory)
    jax.tree.map(close, unrolled(name, timesteps, memory), one_by_one(name, timesteps, memory)[1])


@pytest.mark.parametrize("name", ["lstm", "many and legal", "grid"])
def test_a_batch_is_its_sequences(name):
    net, params, unroll, _ = network(name)
    each = [steps(name, MIDDLE, seed) for seed in range(2)]
    memory = jax.tree.map(lambda x: jnp.stack([x, x]), net.memory())
    together = unroll(params, memory, jax.tree.map(lambda *xs: np.stack(xs), *each))
    alone = [unrolled(name, timesteps, net.memory()) for timesteps in each]
    jax.tree.map(close, together, jax.tree.map(lambda *xs: np.stack(xs), *alone))


@recurrent
def test_memory_starts_anew_at_first(name):
    """A sequence with FIRST in its middle is two sequences, whatever is remembered."""
    net = network(name)[0]
    timesteps, at = steps(name, MIDDLE), MIDDLE.index(FIRST)
    loud = jax.tree.map(lambda x: x + 3.0, net.memory())
    memory, whole = one_by_one(name, timesteps, net.memory())
    left, right = (jax.tree.map(lambda x, part=part: x[part], timesteps) for part in (slice(0, at), slice(at, None)))
    _, before = one_by_one(name, left, net.memory())
    after_memory, after = one_by_one(name, right, loud)
    jax.tree.map(lambda x, a, b: np.testing.assert_array_equal(x, np.concatenate([a, b])), whole, before, after)
    jax.tree.map(np.testing.assert_array_equal, memory, after_memory)
    second = jax.tree.map(lambda x: x[at:], unrolled(name, timesteps, loud))
    jax.tree.map(close, second, after)


@recurrent
def test_memory_matters_within_an_episode(name):
    net = network(name)[0]
    timesteps = steps(name, [MID] * 3)
    _, quiet = one_by_one(name, timesteps, net.memory())
    _, loud = one_by_one(name, timesteps, jax.tree.map(lambda x: x + 3.0, net.memory()))
    assert not np.allclose(quiet[1], loud[1])


def test_the_first_policy_is_nearly_uniform():
    """The policy's head starts small."""
    net = actor_critic(Spec("test", VECTOR, Discrete(3)), Options(hidden=(8, 8)), Heads(share=True))
    params = jax.jit(net.init)(jax.random.key(0))
    timestep = TimeStep(jnp.ones(4), jnp.int32(0), jnp.float32(0), jnp.float32(1), jnp.int8(FIRST))
    _, policy, _ = net.step(params, net.memory(), timestep)
    assert np.max(np.abs(policy.logits - np.log(1 / 3))) < 0.05


def test_previous_action_and_reward_are_seen():
    net, params, _, step = network("lstm, previous")
    timestep = jax.tree.map(lambda x: x[0], steps("lstm, previous", [MID]))
    values = [
        step(params, net.memory(), timestep._replace(action=np.int32(action), reward=np.float32(reward)))[2]
        for action, reward in ((0, 0), (1, 0), (0, 1))
    ]
    assert len({float(value) for value in values}) == 3


@cases
def test_policies_and_actions_fit_the_spec(name):
    net, params, _, step = network(name)
    timestep = jax.tree.map(lambda x: x[0], steps(name, [MID]))
    memory, policy, value = step(params, net.memory(), timestep)
    _, spec, options, *heads = CASES[name]
    squash = bool(heads) and heads[0].squash
    kind = Categorical if isinstance(spec, Discrete) else TanhGaussian if squash else Gaussian
    assert isinstance(policy, kind) and value.shape == () and value.dtype == jnp.float32
    assert jax.tree.map(jnp.shape, memory) == jax.tree.map(jnp.shape, net.memory())
    assert net.recurrent == bool(jax.tree.leaves(memory)) == (options.core != "none")
    sample = policy.sample(jax.random.key(0))
    action = net.action(policy, sample)
    assert action.shape == spec.zero().shape and action.dtype == spec.zero().dtype
    assert policy.log_prob(sample).shape == policy.entropy().shape == ()
    if squash:
        assert np.all((action > spec.low) & (action < spec.high))
    mask = legal(timestep.observation)
    if mask is not None:
        np.testing.assert_array_equal(np.exp(policy.logits) > 0, mask)


@pytest.mark.parametrize("squash", [False, True])
def test_the_middle_of_the_box_is_where_units_are_zero(squash):
    net = actor_critic(Spec("test", VECTOR, BOX), Options(), Heads(squash=squash))
    policy = (TanhGaussian if squash else Gaussian)(jnp.zeros(2), jnp.zeros(2))
    close(net.action(policy, jnp.zeros(2)), [0.0, 5.0])
    if squash:
        close(net.action(policy, jnp.full(2, 50.0)), [1.0, 10.0])


def test_unbounded_actions_keep_their_units():
    box = Continuous((2,), np.array([-np.inf, -2], np.float32), np.array([np.inf, 4], np.float32))
    close(box.scale(jnp.array([3.0, -1.0])), [3.0, -2.0])


def test_features_leave_out_the_mask_and_scale_images():
    observation = {"screen": np.full((4, 4, 1), 255, np.uint8), "legal": np.ones(3, bool)}
    seen = inputs(Spec("screen", observation, Discrete(3))).features(observation)
    np.testing.assert_array_equal(seen, np.ones((4, 4, 1), np.float32))
    flags = np.array([True, False])
    assert inputs(Spec("flags", flags, Discrete(3))).features(flags).dtype == jnp.float32


@pytest.mark.parametrize("body", ["grid_cnn", "nature_cnn", "impala_resnet"])
def test_a_convolution_refuses_a_vector(body):
    with pytest.raises(ValueError, match=rf"'{body}' needs an image .* \(4,\); use mlp"):
        actor_critic(Spec("test", VECTOR, Discrete(2)), Options(body=body))


def test_the_body_goes_by_the_shape():
    def bodies(shape):
        net = actor_critic(Spec("test", jax.ShapeDtypeStruct(shape, jnp.float32), Discrete(2)), Options(hidden=(8,)))
        return [name for name in jax.eval_shape(net.init, jax.random.key(0))["body"]["params"] if "Conv" in name]

    assert [len(bodies(shape)) for shape in ((4,), (10, 10, 2), (84, 84, 4))] == [0, 1, 3]


@pytest.mark.parametrize("n", [6, 12, 13])
def test_sums_over_blocks_are_the_sum(n):
    x = {"a": normal(n, 3), "b": normal(n)}
    total = summed(lambda x: {"both": (x["a"] ** 2).sum(0) * 2, "b": x["b"].sum()}, x, block=4)
    close(total["both"], 2 * (x["a"] ** 2).sum(0))
    close(total["b"], x["b"].sum())
