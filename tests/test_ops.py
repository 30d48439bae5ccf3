"""The formulas against rlax, against slow plain references, and against the laws of boundaries."""

import importlib
import warnings
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from boonta.core import devices
from boonta.ops import normalizer
from boonta.ops.distributions import Categorical, Gaussian, TanhGaussian
from boonta.ops.gae import gae
from boonta.ops.optimizers import clip_by_global_norm, optimizer
from boonta.ops.product import product
from boonta.ops.recurrence import backward
from boonta.ops.returns import lambda_returns, n_step_returns
from boonta.ops.shuffle import permutation
from boonta.ops.vtrace import vtrace

T = 20
SEEDS = range(5)


@pytest.fixture(scope="module")
def rlax():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("rlax")
        except ImportError:
            pytest.skip("rlax is not installed")


def close(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def sequence(seed, boundaries=True, gamma=0.97):
    """Rewards, discounts, values, ratios and `first_t`, with true ends, time limits and passing turns."""
    rng = np.random.default_rng(seed)
    r, v = rng.normal(size=T).astype(np.float32), rng.normal(size=T + 1).astype(np.float32)
    rho = np.exp(rng.normal(size=T)).astype(np.float32)
    discount, first = np.ones(T, np.float32), np.zeros(T, bool)
    if boundaries:
        discount[rng.random(T) < 0.3] = -1.0
        # Steps 5, 9, 10 and T are LAST; an episode of a single step is among them.
        for last, end in ((5, 0.0), (9, 1.0), (11, 0.0), (T, 1.0)):
            discount[last - 1] = end
            if last < T:
                first[last], r[last], discount[last] = True, 0.0, 1.0
    return r, gamma * discount, v, rho, first


# Slow references: one explicit sum for each time, which stops at LAST.


def slow_gae(r, d, v, rho, first, lambda_=0.9):
    out = np.zeros(T)
    for t in range(T):
        weight = 1.0
        for k in range(t, T):
            if first[k]:
                break
            out[t] += weight * (r[k] + d[k] * v[k + 1] - v[k])
            weight *= d[k] * lambda_
    return out


def slow_vtrace(r, d, v, rho, first, lambda_=0.9, rho_clip=1.0, pg_rho_clip=1.0):
    target, advantage = v[:-1].astype(float).copy(), np.zeros(T)
    for t in range(T):
        weight = 1.0
        for k in range(t, T):
            if first[k]:
                break
            target[t] += weight * min(rho_clip, rho[k]) * (r[k] + d[k] * v[k + 1] - v[k])
            weight *= d[k] * lambda_ * min(1.0, rho[k])
    for t in range(T):
        if not first[t]:
            beyond = v[t + 1] if t == T - 1 else lambda_ * target[t + 1] + (1 - lambda_) * v[t + 1]
            advantage[t] = min(pg_rho_clip, rho[t]) * (r[t] + d[t] * beyond - v[t])
    return target, advantage


def slow_n_step(r, d, v, first, t, n):
    total, weight = 0.0, 1.0
    for k in range(t, min(t + n, T)):
        if first[k]:
            return total + weight * v[k]
        total, weight = total + weight * r[k], weight * d[k]
    return total + weight * v[min(t + n, T)]


def slow_lambda(r, d, v, rho, first, lambda_=0.9):
    """A mixture of n-step returns, all beyond LAST being the same."""
    out = np.zeros(T)
    for t in range(T):
        end = next((k for k in range(t, T) if first[k]), T)
        steps = [slow_n_step(r, d, v, first, t, n) for n in range(1, max(end - t, 1) + 1)]
        weights = [(1 - lambda_) * lambda_**n for n in range(len(steps) - 1)]
        out[t] = np.dot([*weights, lambda_ ** (len(steps) - 1)], steps)
    return out


def slow_n(r, d, v, rho, first):
    return np.array([slow_n_step(r, d, v, first, t, 3) for t in range(T)])


FORMULAS = {
    "gae": (lambda r, d, v, rho, first: gae(r, d, v, 0.9, first), slow_gae),
    "vtrace target": (lambda r, d, v, rho, first: vtrace(r, d, v, rho, first, 0.9)[0], lambda *a: slow_vtrace(*a)[0]),
    "vtrace advantage": (
        lambda r, d, v, rho, first: vtrace(r, d, v, rho, first, 0.9)[1],
        lambda *a: slow_vtrace(*a)[1],
    ),
    "lambda returns": (lambda r, d, v, rho, first: lambda_returns(r, d, v, 0.9, first), slow_lambda),
    "n-step returns": (lambda r, d, v, rho, first: n_step_returns(r, d, v, 3, first), slow_n),
}
formulas = pytest.mark.parametrize("name", FORMULAS)


@cache
def fast(name):
    return jax.jit(FORMULAS[name][0])


@formulas
@pytest.mark.parametrize("seed", SEEDS)
def test_formulas_equal_their_slow_references_through_boundaries(name, seed):
    close(fast(name)(*sequence(seed)), FORMULAS[name][1](*sequence(seed)))


@formulas
@pytest.mark.parametrize("constant", [True, False])
def test_with_the_true_value_every_advantage_is_zero(name, constant):
    """Law 6: through true ends, time limits and passing turns alike."""
    _, d, v, rho, first = sequence(0)
    v = np.full_like(v, 1.7) if constant else v
    r = np.where(first, 0.0, v[:-1] - d * v[1:]).astype(np.float32)
    out = fast(name)(r, d, v, rho, first)
    close(out if name in ("gae", "vtrace advantage") else out - v[:-1], np.zeros(T), 1e-5)


@formulas
@pytest.mark.parametrize("at", [6, 10, 12])
def test_nothing_flows_across_first(name, at):
    r, d, v, rho, first = sequence(1)
    assert first[at - 1]
    r2, d2, v2, rho2, _ = sequence(2)

    def spliced(a, b, n):
        return np.concatenate([a[:n], b[n:]])

    out = np.asarray(fast(name)(r, d, v, rho, first))
    other_after = [spliced(a, b, at - 1) for a, b in ((r, r2), (d, d2))]
    after = fast(name)(*other_after, spliced(v, v2, at), spliced(rho, rho2, at), first)
    np.testing.assert_array_equal(after[:at], out[:at])
    other_before = [spliced(a, b, at) for a, b in ((r2, r), (d2, d))]
    before = fast(name)(*other_before, spliced(v2, v, at), spliced(rho2, rho, at), first)
    np.testing.assert_array_equal(before[at:], out[at:])


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_gae_is_rlax(rlax, lambda_):
    r, d, v, _, first = sequence(3, boundaries=False)
    close(gae(r, d, v, lambda_, first), rlax.truncated_generalized_advantage_estimation(r, d, lambda_, v))


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
@pytest.mark.parametrize(("rho_clip", "pg_rho_clip"), [(1.0, 1.0), (2.0, 0.5)])
def test_vtrace_is_rlax(rlax, lambda_, rho_clip, pg_rho_clip):
    """Golden: the advantage bootstraps from the target mixed with the value by lambda."""
    r, d, v, rho, first = sequence(4, boundaries=False)
    expected = rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, rho, lambda_, rho_clip, pg_rho_clip)
    ours = vtrace(r, d, v, rho, first, lambda_, rho_clip, pg_rho_clip)
    close(ours.target - v[:-1], expected.errors)
    close(ours.advantage, expected.pg_advantage)


def test_vtrace_on_policy_is_gae():
    """Remark 1 of the paper, with lambda = 1: the target is the n-step return, the advantage its error."""
    r, d, v, _, first = sequence(5)
    ours, expected = vtrace(r, d, v, np.ones(T, np.float32), first), gae(r, d, v, 1.0, first)
    close(ours.target - v[:-1], expected)
    close(ours.advantage, expected)


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_lambda_returns_are_rlax(rlax, lambda_):
    r, d, v, _, first = sequence(6, boundaries=False)
    close(lambda_returns(r, d, v, lambda_, first), rlax.lambda_returns(r, d, v[1:], lambda_))


@pytest.mark.parametrize("n", [1, 2, 5, T + 3])
def test_n_step_returns_are_rlax(rlax, n):
    r, d, v, _, first = sequence(7, boundaries=False)
    close(n_step_returns(r, d, v, n, first), rlax.n_step_bootstrapped_returns(r, d, v[1:], min(n, T)))


def test_lambda_one_is_n_step_without_end():
    r, d, v, _, first = sequence(8)
    close(lambda_returns(r, d, v, 1.0, first), n_step_returns(r, d, v, T, first))


def test_gae_is_the_lambda_return_less_the_value():
    r, d, v, _, first = sequence(9)
    close(gae(r, d, v, 0.7, first), lambda_returns(r, d, v, 0.7, first) - v[:-1])


def test_backward():
    x, decay = np.array([1.0, 2.0, 3.0], np.float32), np.array([0.5, 0.0, 2.0], np.float32)
    close(backward(x, decay, 10.0), [1 + 0.5 * 2, 2.0, 3 + 20.0])


# Distributions


def masked(n, seed=0):
    rng = np.random.default_rng(seed)
    legal = rng.random(n) < 0.5
    legal[rng.integers(n)] = True
    return Categorical.of(jnp.asarray(rng.normal(size=n) * 2, jnp.float32), jnp.asarray(legal)), legal


def test_categorical_probabilities_sum_to_one_and_illegal_ones_are_zero():
    for policy, legal in (masked(7), (Categorical.of(jnp.arange(5.0)), np.ones(5, bool))):
        p = np.exp(jax.vmap(policy.log_prob)(jnp.arange(len(legal))))
        close(p.sum(), 1.0)
        assert np.all(p[~legal] == 0)
        assert legal[policy.mode()]


def test_illegal_ones_of_many_are_never_drawn_however_sums_are_rounded():
    keys = jax.random.split(jax.random.key(1), 20)
    for key in keys:
        legal = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, (1000,))
        p = jnp.exp(Categorical.of(jax.random.normal(key, (1000,)), legal).logits)
        curve = np.asarray(jax.lax.cummax(jnp.where(p > 0, jnp.cumsum(p), 0.0)))
        assert not np.any((np.diff(curve) > 0) & ~np.asarray(legal)[1:])
        draws = jax.vmap(Categorical.of(jax.random.normal(key, (1000,)), legal).sample)(jax.random.split(key, 200))
        assert np.all(legal[draws])


@pytest.mark.parametrize("n", [7, 100])
def test_samples_come_as_often_as_they_should_and_illegal_ones_never(n):
    policy, legal = masked(n)
    draws = np.asarray(jax.jit(jax.vmap(policy.sample))(jax.random.split(jax.random.key(0), 10_000)))
    counts = np.bincount(draws, minlength=n)
    assert len(counts) == n and np.all(counts[~legal] == 0)
    p = np.exp(np.asarray(policy.logits))
    assert np.all(np.abs(counts / len(draws) - p) < 5 * np.sqrt(p / len(draws)) + 1e-9)


@pytest.mark.parametrize("n", [7, 64, 65, 300])
@pytest.mark.parametrize("seed", range(3))
def test_no_uniform_number_draws_an_illegal_action(n, seed, monkeypatch):
    """Above all those next to the steps of the cumulative distribution, where rounding decides."""
    policy, legal = masked(n, seed)
    steps = np.cumsum(np.exp(np.asarray(policy.logits))).astype(np.float32)
    near = np.concatenate([steps, np.nextafter(steps, 0), np.nextafter(steps, 2), np.linspace(0.9999, 1, 500), [0.0]])
    highest = np.float32(1 - 2.0**-23)
    u = np.minimum(near, highest).astype(np.float32)
    monkeypatch.setattr(jax.random, "uniform", lambda key, dtype: key)
    draws = np.asarray(jax.jit(jax.vmap(policy.sample))(u))
    assert np.all((draws >= 0) & (draws < n)) and np.all(legal[draws])


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_a_step_can_be_differentiated_where_gradients_are_zero(name):
    """Forward and reverse, through clipping too; and the step itself is optax's to the last bit."""
    plain = {
        "adam": optax.scale_by_adam(eps=1e-5),
        "rmsprop": optax.scale_by_rms(decay=0.99, eps=1e-5),
        "sgd": optax.identity(),
    }[name]
    theirs = optax.chain(optax.clip_by_global_norm(0.5), plain, optax.scale_by_learning_rate(0.1))
    ours = optimizer(name, 0.1, 0.5, 1e-5)

    def steps(transform, grads):
        state, made = transform.init(grads), []
        for scale in (1.0, 0.0, 0.3, 1e-12):
            step, state = transform.update(scale * grads, state)
            made.append(step)
        return jnp.stack(made)

    for grads in (jnp.array([0.3, 0.0, -2.0]), jnp.zeros(3)):
        np.testing.assert_array_equal(jax.jit(partial(steps, ours))(grads), jax.jit(partial(steps, theirs))(grads))
        reverse = jax.jacrev(partial(steps, ours))(grads)
        assert np.all(np.isfinite(reverse))
        close(jax.jacfwd(partial(steps, ours))(grads), reverse, 1e-4)


def test_a_clip_of_zero_is_none():
    grads = jnp.array([3.0, -4.0])
    for limit, expected in ((0.0, grads), (10.0, grads), (1.0, grads / 5)):
        step, _ = clip_by_global_norm(limit).update(grads, optax.EmptyState())
        close(step, expected)


@pytest.mark.parametrize(("d", "f"), [(3, 5), (5, 3)])
def test_a_product_has_derivatives_in_both_modes(d, f):
    keys = jax.random.split(jax.random.key(0), 4)
    x, w = jax.random.normal(keys[0], (2, 7, d)), jax.random.normal(keys[1], (d, f))
    x_dot, w_dot = jax.random.normal(keys[2], x.shape), jax.random.normal(keys[3], w.shape)
    value, tangent = jax.jvp(product, (x, w), (x_dot, w_dot))
    np.testing.assert_array_equal(value, x @ w)
    close(tangent, x_dot @ w + x @ w_dot, 1e-5)

    def loss(multiply, x, w):
        return jnp.sum(jnp.sin(multiply(x, w)))

    for ours, plain in zip(
        jax.grad(partial(loss, product), (0, 1))(x, w), jax.grad(partial(loss, jnp.matmul), (0, 1))(x, w), strict=True
    ):
        close(ours, plain, 1e-5)
    twice = [jax.hessian(partial(loss, multiply, x))(w) for multiply in (product, jnp.matmul)]
    close(*twice, 1e-4)


def test_masks_leave_gradients_and_entropies_finite():
    legal = jnp.array([True, False, True, False])

    def loss(logits, legal):
        policy = Categorical.of(logits, legal)
        return policy.log_prob(jnp.int32(0)) + policy.entropy()

    for mask in (legal, jnp.array([True, False, False, False]), jnp.ones(4, bool)):
        grads = jax.grad(loss)(jnp.array([0.3, 50.0, -1.0, -60.0]), mask)
        assert np.all(np.isfinite(grads)) and np.all(grads[~mask] == 0)
    entropy = Categorical.of(jnp.zeros(4), legal).entropy()
    close(entropy, np.log(2))
    close(Categorical.of(jnp.zeros(4), jnp.array([False, True, False, False])).entropy(), 0.0)


def test_a_mask_without_any_legal_action_gives_no_nan():
    policy = Categorical.of(jnp.arange(3.0), jnp.zeros(3, bool))
    assert np.all(np.isfinite(policy.logits)) and np.isfinite(policy.entropy())


MEAN, LOG_STD = np.array([0.3, -1.2]), np.array([-0.5, 0.4])


def normal_log_density(x):
    return -0.5 * ((x - MEAN) / np.exp(LOG_STD)) ** 2 - LOG_STD - 0.5 * np.log(2 * np.pi)


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
def test_gaussian_densities(kind):
    policy = kind(jnp.asarray(MEAN, jnp.float32), jnp.asarray(LOG_STD, jnp.float32))
    x = np.random.default_rng(0).normal(size=(50, 2)) * 1.5
    expected = normal_log_density(x)
    if kind is TanhGaussian:
        expected = expected - np.log1p(-(np.tanh(x) ** 2))
    close(policy.log_prob(jnp.asarray(x, jnp.float32)), expected.sum(-1), 1e-4)


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
def test_densities_of_actions_integrate_to_one(kind):
    policy = kind(jnp.array([0.3]), jnp.array([-0.5]))
    x = np.linspace(-6, 6, 20_001, dtype=np.float32)[:, None]
    action = np.asarray(policy.action(x), np.float64)[:, 0]
    p = np.exp(np.asarray(policy.log_prob(x), np.float64))
    close(np.sum((p[1:] + p[:-1]) / 2 * np.diff(action)), 1.0, 1e-3)


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
@pytest.mark.parametrize("log_std", [-3.0, -0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
def test_entropies_and_their_slopes_are_those_of_numerical_integration(kind, mean, log_std):
    """-∫ p log p over the action, in float64, from the log-probabilities that `log_prob` gives."""

    def integrated(mean, log_std):
        z = np.linspace(-9.0, 9.0, 40_001)
        x = mean + np.exp(log_std) * z
        log_p = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
        if kind is TanhGaussian:
            log_p = log_p - 2 * (np.log(2) - np.abs(x) - np.log1p(np.exp(-2 * np.abs(x))))
        policy = kind(jnp.float32(mean)[None], jnp.float32(log_std)[None])
        close(policy.log_prob(jnp.asarray(x[::500, None], jnp.float32)), log_p[::500], 1e-3)
        return -np.sum(np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * log_p) * (z[1] - z[0])

    def entropy(mean, log_std):
        return kind(mean[None], log_std[None]).entropy()

    close(entropy(jnp.float32(mean), jnp.float32(log_std)), integrated(mean, log_std), 0.01)
    slopes, h = jax.grad(entropy, (0, 1))(jnp.float32(mean), jnp.float32(log_std)), 1e-4
    close(slopes[0], (integrated(mean + h, log_std) - integrated(mean - h, log_std)) / (2 * h), 0.03)
    close(slopes[1], (integrated(mean, log_std + h) - integrated(mean, log_std - h)) / (2 * h), 0.1)


def test_the_entropy_of_a_categorical_is_its_sum():
    p = np.array([0.5, 0.3, 0.2])
    close(Categorical.of(jnp.log(p)).entropy(), -np.sum(p * np.log(p)))


@pytest.mark.parametrize("kind", [Gaussian, TanhGaussian])
def test_gaussian_samples_and_entropy(kind):
    policy = kind(jnp.asarray(MEAN, jnp.float32), jnp.asarray(LOG_STD, jnp.float32))
    x = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 20_000))
    close(x.mean(0), MEAN, 0.05)
    close(x.std(0), np.exp(LOG_STD), 0.05)
    close(policy.entropy(), -jnp.mean(policy.log_prob(x)), 0.05)
    close(policy.mode(), MEAN)


def test_tanh_density_is_stable_where_tanh_saturates():
    policy = TanhGaussian(jnp.array([18.0]), jnp.array([0.0]))
    for x in (-30.0, 20.0, 60.0):
        value, slope = jax.value_and_grad(lambda x: policy.log_prob(x[None]))(jnp.float32(x))
        log_det = 2 * (np.log(2) - abs(x))
        close(value, -0.5 * (x - 18) ** 2 - 0.5 * np.log(2 * np.pi) - log_det, 1e-4)
        close(slope, -(x - 18) + 2 * np.sign(x), 1e-4)


# The normaliser


def test_normalizer_is_the_mean_and_variance_of_all_batches():
    rng = np.random.default_rng(0)
    update = jax.jit(normalizer.update)
    statistics = normalizer.init({"a": jnp.zeros(3), "b": jnp.zeros((2, 2))})
    seen = {"a": [], "b": []}
    for n in (5, 1, 40):
        batch = {"a": rng.normal(3, 2, (n, 3)), "b": rng.normal(-1, 0.1, (n, 2, 2))}
        weight = (rng.random(n) < 0.7).astype(np.float32)
        weight[0] = 1.0
        statistics = update(statistics, jax.tree.map(jnp.float32, batch), weight)
        for name, x in batch.items():
            seen[name].append(x[weight > 0])
        for name, all_ in seen.items():
            all_ = np.concatenate(all_)
            close(statistics["mean"][name], all_.mean(0), 1e-4)
            close(statistics["variance"][name], all_.var(0), 1e-4)
            assert statistics["count"] == len(all_)


def test_normalizer_without_statistics_leaves_observations_as_they_are():
    statistics = normalizer.init(jnp.zeros(2))
    x = jnp.array([[1.0, -3.0]])
    close(normalizer.normalize(statistics, x), x)
    untouched = normalizer.update(statistics, x, jnp.zeros(1))
    close(normalizer.normalize(untouched, x), x)


def test_normalized_observations_have_mean_zero_and_variance_one_and_are_clipped():
    x = jnp.asarray(np.random.default_rng(0).normal(5, 3, (200, 2)), jnp.float32)
    statistics = normalizer.update(normalizer.init(x[0]), x, jnp.ones(200))
    y = normalizer.normalize(statistics, x)
    close(y.mean(0), 0.0, 1e-4)
    close(y.std(0), 1.0, 1e-4)
    close(normalizer.normalize(statistics, x[:1] + 1e6), 10.0)
    close(normalizer.normalize(statistics, x[:1] + 1e6, 3.0), 3.0)


def test_normalizer_means_over_all_devices():
    x = jnp.asarray(np.random.default_rng(0).normal(2, 3, (8, 2)), jnp.float32)
    weight = jnp.array([1.0, 1, 0, 1, 0, 0, 1, 0])
    alone = normalizer.update(normalizer.init(x[0]), x, weight)
    update = jax.shard_map(
        partial(normalizer.update, normalizer.init(x[0])),
        mesh=devices.mesh(jax.devices()[:2]),
        in_specs=P(devices.LEARNERS),
        out_specs=P(),
        check_vma=False,
    )
    together = jax.jit(update)(x, weight)
    close(together["mean"], alone["mean"])
    close(together["variance"], alone["variance"])


# The shuffle


@settings(max_examples=8)
@given(st.integers(1, 400) | st.sampled_from([1, 64, 512, 1009, 2048]), st.integers(0, 2**31 - 1))
def test_permutation_is_a_bijection(n, seed):
    order = np.asarray(jax.jit(permutation, static_argnums=1)(jax.random.key(seed), n))
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


@cache
def orders(n, count=20_000):
    keys = jax.random.split(jax.random.key(n), count)
    return np.asarray(jax.jit(jax.vmap(partial(permutation, n=n)))(keys))


def excess(counts, expected, freedom):
    """Standard deviations by which chi-square exceeds what chance explains."""
    return (np.sum((counts - expected) ** 2 / expected) - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("n", [7, 12, 64])
def test_permutation_sends_every_index_everywhere_alike(n):
    drawn = orders(n)
    counts = np.stack([np.bincount(drawn[:, i], minlength=n) for i in range(n)])
    assert excess(counts, len(drawn) / n, (n - 1) ** 2) < 5


@pytest.mark.parametrize("n", [3, 7, 8, 16, 64])
def test_permutation_does_not_keep_neighbours_together(n):
    """Where the first two go is uniform over all pairs; so minibatches mix."""
    drawn = orders(n)
    pairs = np.bincount(drawn[:, 0] * n + drawn[:, 1], minlength=n * n).reshape(n, n)
    assert np.all(np.diag(pairs) == 0)
    assert excess(pairs[~np.eye(n, dtype=bool)], len(drawn) / (n * (n - 1)), n * (n - 1) - 1) < 5


# Optimisers


@pytest.mark.parametrize("name", ["adam", "rmsprop", "sgd"])
def test_optimizers_take_traced_step_sizes_and_clip(name):
    params = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(0.5)}
    grads = {"w": jnp.array([30.0, 0.0]), "b": jnp.array(40.0)}

    @jax.jit
    def step(rate):
        transform = optimizer(name, rate, 5.0, 1e-8)
        return transform.update(grads, transform.init(params), params)[0]

    slow, quick = step(0.1), step(0.2)
    jax.tree.map(lambda a, b: close(2 * a, b), slow, quick)
    if name == "sgd":
        close(slow["w"], [-0.3, 0.0])
        close(slow["b"], -0.4)
