"""Stacks of what was seen and done: acting and learning see the same ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.ops import history

T, LENGTH, ACTIONS = 12, 3, 4


def sequence(first_at=(0, 5, 6)):
    random = np.random.default_rng(0)
    frames = random.normal(size=(T, 2, 2, 1)).astype(np.float32)
    actions = random.integers(0, ACTIONS, T).astype(np.int32)
    first = np.isin(np.arange(T), first_at)
    return frames, actions, first


def slow(frames, actions, first, t):
    """The stack of step t, by looking back no further than the episode's first step."""
    stack, did = np.zeros((LENGTH, *frames.shape[1:]), np.float32), np.full(LENGTH, history.NOTHING)
    for back in range(LENGTH):
        at = t - back
        if at < 0:
            break
        stack[LENGTH - 1 - back] = frames[at]
        if first[at]:
            break
        did[LENGTH - 1 - back] = actions[at]
    return stack, did


@pytest.mark.parametrize("first_at", [(0,), (0, 5, 6), (0, 11)])
def test_stacks_end_where_episodes_begin(first_at):
    frames, actions, first = sequence(first_at)
    stacks = history.follow_all(frames, actions, first, LENGTH)
    for t in range(T):
        stack, did = slow(frames, actions, first, t)
        np.testing.assert_array_equal(stacks.frames[t], stack)
        np.testing.assert_array_equal(stacks.actions[t], did)


@pytest.mark.parametrize("start", [0, 1, 4, 6])
def test_learning_from_the_middle_sees_what_acting_saw(start):
    """A window that begins anywhere, with L - 1 steps before the first that counts."""
    frames, actions, first = sequence()
    acting = history.empty(frames.shape[1:], frames.dtype, LENGTH)
    acted = []
    for t in range(T):
        acting, stack = history.follow(acting, frames[t], actions[t], first[t])
        acted.append(stack)
    window = history.follow_all(frames[start:], actions[start:], first[start:], LENGTH)
    for t in range(start + LENGTH - 1, T):
        np.testing.assert_array_equal(window.frames[t - start], acted[t].frames)
        np.testing.assert_array_equal(window.actions[t - start], acted[t].actions)


def test_planes_are_frames_then_actions():
    """MooZi, figure 9: three frames of two channels and three actions of two make twelve channels."""
    frames = jnp.arange(3 * 2 * 2 * 2, dtype=jnp.float32).reshape(3, 2, 2, 2)
    out = history.planes(history.History(frames, jnp.asarray([0, history.NOTHING, 1])), 2)
    assert out.shape == (2, 2, 12)
    np.testing.assert_array_equal(out[..., :6], np.concatenate(list(frames), axis=-1))
    np.testing.assert_array_equal(out[0, 0, 6:], [0.5, 0, 0, 0, 0, 0.5])
    np.testing.assert_array_equal(out[..., 6:], np.broadcast_to(out[0, 0, 6:], (2, 2, 6)))


def test_vectors_are_stacked_alike():
    out = history.planes(history.History(jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.asarray([1, 0])), 2)
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 0, 0.5, 0.5, 0])


def test_the_newest_frame_alone():
    frames, actions, first = sequence()
    stacks = jax.vmap(history.planes, (0, None))(history.follow_all(frames, actions, first, 1), ACTIONS)
    np.testing.assert_array_equal(stacks[..., :1], frames)
