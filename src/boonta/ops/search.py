"""Monte Carlo tree search for one environment, by mctx: Gumbel MuZero (Danihelka et al. 2022) and MuZero's PUCT."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import mctx

from boonta.core.types import Array, Key, PyTree

LEAST = 1e-6  # probability that still says something


class Options(NamedTuple):
    """How to search; the agents' settings of the same names say what each is."""

    search: Literal["gumbel", "puct"] = "gumbel"
    simulations: int = 32
    depth: int | None = None
    considered: int = 16
    value_scale: float = 0.1
    visit_offset: float = 50.0
    dirichlet_alpha: float = 0.3
    dirichlet_fraction: float = 0.25
    puct_init: float = 1.25
    puct_base: float = 19652.0


class Node(NamedTuple):
    """What a model says of a state.

    Attributes:
        state: pytree, whatever the model goes on from.
        logits: float32 [A], of the policy.
        value: float32 [], of whoever is to move there.
        reward: float32 [], of whoever moved to it; unused at the root.
        discount: float32 [], gamma times the discount that came with it: below 0 where the turn passed, 0 where the
            episode ended; unused at the root.
    """

    state: PyTree
    logits: Array
    value: Array
    reward: Array
    discount: Array


class Tree(NamedTuple):
    """What a search looked at: N nodes, of which the root is the first; those that it did not need have no visits.

    Attributes:
        parent: int32 [N], -1 of the root.
        action: int32 [N], what leads from there to the node.
        prior: float32 [N], how probable that was to the policy.
        visits: int32 [N].
        value: float32 [N], the mean of what was found below, to whoever is to move at the node.
        predicted: float32 [N], what the model said of the node itself.
        reward: float32 [N], on the way to the node, to whoever moved.
        discount: float32 [N], on the way to it.
        policy: float32 [A], the model's at the root.
    """

    parent: Array
    action: Array
    prior: Array
    visits: Array
    value: Array
    predicted: Array
    reward: Array
    discount: Array
    policy: Array


class Found(NamedTuple):
    """What a search found at its root.

    Attributes:
        action: int32 [].
        policy: float32 [A], the improved policy.
        value: float32 [], what the simulations found: with puct their mean, with gumbel what the improved policy would
            come to, of the actions that were tried. (Halving tries actions however bad they look, so that the mean
            would be too low where one is.)
        tree: Tree.
    """

    action: Array
    policy: Array
    value: Array
    tree: Tree


Step = Callable[[PyTree, Array, Key], Node]  # (state, int32 [], key) -> Node


def search(
    options: Options, root: Node, step: Step, legal: Array | None, key: Key, temperature: Array, exploring: bool
) -> Found:
    """Look ahead from one state; `vmap` it for many, which is as fast as mctx's own batches.

    Args:
        options: Options.
        root: Node to begin at.
        step: the model.
        legal: bool [A], actions that the root allows; None for all. Below it the policy alone says what may be done.
        key: consumed; where the temperature is 0 and nothing is explored it is the model's alone.
        temperature: float32 [], how much chance there is in the choice: the scale of the Gumbel noise, or of visits the
            exponent's inverse. At 0 there is none.
        exploring: whether there may be Dirichlet noise.
    """
    start: Any = mctx.RootFnOutput  # whose arguments the type checker does not know
    answer: Any = mctx.RecurrentFnOutput
    temperature = jnp.asarray(temperature, jnp.float32)

    def recurrent(params: Any, key: Key, action: Array, state: PyTree) -> tuple[Any, PyTree]:
        del params
        node = step(jax.tree.map(lambda x: x[0], state), action[0], key)
        node = jax.tree.map(lambda x: x[None], node)
        out = answer(reward=node.reward, discount=node.discount, prior_logits=node.logits, value=node.value)
        return out, node.state

    one = jax.tree.map(lambda x: x[None], root)
    begin = start(prior_logits=one.logits, value=one.value, embedding=one.state)
    invalid = None if legal is None else ~legal[None]
    common: dict[str, Any] = {"params": (), "rng_key": key, "root": begin, "recurrent_fn": recurrent}
    common |= {"num_simulations": options.simulations, "invalid_actions": invalid, "max_depth": options.depth}
    out: Any
    if options.search == "gumbel":
        transform = partial(
            mctx.qtransform_completed_by_mix_value, value_scale=options.value_scale, maxvisit_init=options.visit_offset
        )
        out = mctx.gumbel_muzero_policy(
            **common,
            max_num_considered_actions=options.considered,
            gumbel_scale=temperature,
            qtransform=transform,
        )
        action, value = out.action[0], _improved(out)
    else:
        out = mctx.muzero_policy(
            **common,
            dirichlet_fraction=options.dirichlet_fraction if exploring else 0.0,
            dirichlet_alpha=options.dirichlet_alpha,
            pb_c_init=options.puct_init,
            pb_c_base=options.puct_base,
            temperature=temperature,
        )
        visited = out.search_tree.summary().visit_counts[0]
        action = jnp.where(temperature > 0, out.action[0], jnp.argmax(visited).astype(out.action.dtype))
        value = out.search_tree.node_values[0, 0]
    return Found(action, out.action_weights[0], value, _tree(out.search_tree, root.logits))


def _improved(out: Any) -> Array:
    """The value of the improved policy among the actions that were tried; the mean where it would do none of them."""
    below = out.search_tree.summary()
    weight = jnp.where(below.visit_counts[0] > 0, out.action_weights[0], 0.0)
    share = weight / jnp.maximum(jnp.sum(weight), LEAST)
    return jnp.where(jnp.sum(weight) > LEAST, jnp.sum(share * below.qvalues[0]), below.value[0])


def _tree(tree: Any, logits: Array) -> Tree:
    """mctx's, of a batch of one."""
    parent, action = tree.parents[0], tree.action_from_parent[0]

    def led(of_children: Array) -> Array:
        return jnp.where(parent < 0, 0.0, of_children[0][parent, action])

    prior = led(jax.nn.softmax(tree.children_prior_logits))
    reward, discount = led(tree.children_rewards), led(tree.children_discounts)
    looked = (tree.node_visits[0], tree.node_values[0], tree.raw_values[0])
    return Tree(parent, action, prior, *looked, reward, discount, jax.nn.softmax(logits))
