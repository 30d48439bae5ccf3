"""Search: the compiled one against one written for reading, on random trees; legal actions; and what chance may do."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.ops.search import Node, Options, search
from tests.plain_search import Node as PlainNode
from tests.plain_search import gumbel, puct

ACTIONS, STATES, SIMULATIONS = 4, 40, 20


class Tables(NamedTuple):
    """A random model: where actions lead among numbered states, and what it says of each."""

    next: np.ndarray
    logits: np.ndarray
    value: np.ndarray
    reward: np.ndarray
    discount: np.ndarray

    @classmethod
    def of(cls, seed, turns=(1.0, -1.0, 0.0)):
        random = np.random.default_rng(seed)
        return cls(
            random.integers(0, STATES, (STATES, ACTIONS)),
            random.normal(size=(STATES, ACTIONS)).astype(np.float32),
            random.normal(size=STATES).astype(np.float32),
            random.normal(size=(STATES, ACTIONS)).astype(np.float32),
            0.9 * random.choice(np.asarray(turns, np.float32), (STATES, ACTIONS)),
        )

    def plain(self, state, action):
        to = self.next[state, action]
        return to, self.logits[to], self.value[to], self.reward[state, action], self.discount[state, action]

    def compiled(self, state, action, key):
        del key
        to = self.next[state, action]
        return Node(to, self.logits[to], self.value[to], self.reward[state, action], self.discount[state, action])

    def root(self, state=0):
        nothing = jnp.float32(0.0)
        return Node(jnp.int32(state), self.logits[state], self.value[state], nothing, nothing)

    def plain_root(self, state=0):
        return PlainNode(state, self.logits[state], self.value[state])


@cache
def program(options, exploring):
    """A search of any tables: one program for all of them."""
    return jax.jit(
        lambda tables, legal, key, temperature: search(
            options, tables.root(), tables.compiled, legal, key, temperature, exploring
        )
    )


def found(tables, options, legal, key, temperature):
    return program(options, temperature > 0)(jax.tree.map(jnp.asarray, tables), legal, key, temperature)


@pytest.mark.parametrize("seed", range(4))
def test_gumbel_is_the_search_written_for_reading(seed):
    tables, key = Tables.of(seed), jax.random.key(seed)
    legal = np.asarray([True, seed % 2 == 0, True, True])
    for temperature in (0.0, 1.0):
        noise = temperature * np.asarray(jax.random.gumbel(jax.random.split(key)[1], (1, ACTIONS)))[0]
        action, policy, value = gumbel(tables.plain_root(), tables.plain, SIMULATIONS, legal, noise)
        out = found(tables, Options(simulations=SIMULATIONS), jnp.asarray(legal), key, temperature)
        np.testing.assert_allclose(out.policy, policy, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(out.value, value, rtol=1e-4)
        assert out.action == action


@pytest.mark.parametrize("seed", range(4))
def test_puct_is_the_search_written_for_reading(seed):
    tables = Tables.of(seed)
    legal = np.asarray([True, seed % 2 == 0, True, True])
    _, policy, value = puct(tables.plain_root(), tables.plain, SIMULATIONS, legal)
    options = Options("puct", SIMULATIONS)
    out = found(tables, options, jnp.asarray(legal), jax.random.key(seed), 0.0)
    np.testing.assert_allclose(out.policy, policy, atol=1e-6)
    np.testing.assert_allclose(out.value, value, rtol=1e-4)
    assert policy[int(out.action)] == policy.max()


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_many_at_once_are_each_by_itself(kind):
    """The composition of a batch changes nothing."""
    tables, options = jax.tree.map(jnp.asarray, Tables.of(0)), Options(kind, SIMULATIONS, dirichlet_fraction=0.9)
    keys = jax.random.split(jax.random.key(1), 16)
    one = partial(search, options, tables.root(), tables.compiled, None, temperature=jnp.float32(4.0), exploring=True)
    together = jax.jit(jax.vmap(one))(keys)
    backwards = jax.jit(jax.vmap(one))(keys[::-1])
    np.testing.assert_array_equal(together.action, backwards.action[::-1])
    np.testing.assert_array_equal(together.policy, backwards.policy[::-1])
    assert len(set(np.asarray(together.action).tolist())) > 1  # several answers


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_without_temperature_the_key_says_nothing(kind):
    tables, options = Tables.of(2), Options(kind, SIMULATIONS)
    one, other = (found(tables, options, None, jax.random.key(seed), 0.0) for seed in (0, 1))
    assert one.action == other.action
    np.testing.assert_array_equal(one.policy, other.policy)


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_what_is_not_legal_is_not_done(kind):
    options = Options(kind, 8, dirichlet_fraction=0.9)
    for seed in range(8):
        legal = jnp.arange(ACTIONS) == seed % ACTIONS
        out = found(Tables.of(seed), options, legal, jax.random.key(seed), 2.0)
        assert out.action == seed % ACTIONS
        np.testing.assert_allclose(out.policy, legal.astype(np.float32), atol=1e-6)


def test_a_turn_that_passes_changes_the_sign():
    """Of a state worth 1 to the opponent and one worth -1 to them, I want the second."""

    def model(state, action, key):
        value = jnp.where(action == 0, 1.0, -1.0)
        return Node(state, jnp.zeros(2), value, jnp.float32(0.0), jnp.float32(-1.0))

    root = Node(jnp.int32(0), jnp.zeros(2), jnp.float32(0.0), jnp.float32(0.0), jnp.float32(0.0))
    for kind in ("gumbel", "puct"):
        out = search(Options(kind, 2, depth=1), root, model, None, jax.random.key(0), jnp.float32(0.0), False)
        assert out.action == 1 or kind == "puct"
        tree = out.tree
        below = np.flatnonzero(tree.parent == 0)
        worth = {int(tree.action[i]): float(tree.reward[i] + tree.discount[i] * tree.value[i]) for i in below}
        assert worth == {0: -1.0, 1: 1.0}
