"""Users' environments, one symptom each; test_user_environments.py says what is right for each."""

import signal
import sqlite3

import gymnasium
import numpy as np
from gymnasium import spaces


class Base(gymnasium.Env):
    """Ten steps, each with reward 1, in which nothing is seen."""

    observation_space: spaces.Space = spaces.Box(-1, 1, (3,), np.float32)
    action_space: spaces.Space = spaces.Discrete(2)
    length = 10

    def __init__(self):
        self.t = 0

    def seen(self):
        return np.zeros(3, np.float32)

    def reward(self, action):
        return 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), self.reward(action), self.t >= self.length, False, {}


class Checked(Base):
    """Every action must lie in its space, in its dtype."""

    def reward(self, action):
        assert self.action_space.contains(action), (type(action), getattr(action, "dtype", None), action)
        return -float(np.abs(np.asarray(action, np.float64)).sum())


class Offset(Checked):
    action_space = spaces.Box(2.0, 5.0, (1,), np.float32)


class Doubles(Checked):
    action_space = spaces.Box(-0.1, 0.1, (1,), np.float64)


class Wholes(Checked):
    action_space = spaces.Box(0, 3, (2,), np.int64)


class Unbounded(Checked):
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Largest(Checked):
    action_space = spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,), np.float32)


class HalfBounded(Checked):
    action_space = spaces.Box(0.0, np.inf, (1,), np.float32)


class ZeroD(Checked):
    action_space = spaces.Box(-1.0, 1.0, (), np.float32)


class TwoD(Checked):
    action_space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)


class Equal(Checked):
    action_space = spaces.Box(np.array([-1, 0.5], np.float32), np.array([1, 0.5], np.float32))


class Huge(Checked):
    action_space = spaces.Discrete(50_000)


class One(Checked):
    action_space = spaces.Discrete(1)


class Start(Checked):
    action_space = spaces.Discrete(3, start=-1)


class Multi(Base):
    action_space = spaces.MultiDiscrete([3, 2])


class Binary(Base):
    action_space = spaces.MultiBinary(4)


class DictAction(Base):
    action_space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,)))


class NoNumber(Base):
    action_space = spaces.Box(-1.0, 1.0, (0,), np.float32)


class RewardInt(Base):
    def reward(self, action):
        return 1


class RewardBool(Base):
    def reward(self, action):
        return True


class RewardArray(Base):
    def reward(self, action):
        return np.ones(1)


class RewardNone(Base):
    def reward(self, action):
        return None


class RewardNaN(Base):
    def reward(self, action):
        return float("nan") if self.t == 7 else 1.0


class RewardHuge(Base):
    def reward(self, action):
        return 1e9 * (action - 0.5)


class EndArrays(Base):
    def step(self, action):
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, np.array([terminated]), np.array([truncated]), info


class Both(Base):
    def step(self, action):
        seen, reward, terminated, _, info = super().step(action)
        return seen, reward, terminated, terminated, info


class FourTuple(Base):
    def step(self, action):  # type: ignore[override]
        seen, reward, terminated, _, info = super().step(action)
        return seen, reward, terminated, info


class Never(Base):
    length = 10**12


class OneStep(Base):
    length = 1


class WrongShape(Base):
    def seen(self):
        return np.full((1,), 0.5, np.float32)


class Longer(Base):
    def seen(self):
        return np.zeros(4, np.float32)


class Scalar(Base):
    def seen(self):
        return 0.25


class LaterScalar(Base):
    def seen(self):
        return np.zeros(3 if self.t < 5 else 1, np.float32)


class FloatsForBytes(Base):
    observation_space = spaces.Box(0, 255, (12, 12, 3), np.uint8)

    def seen(self):
        return np.full((12, 12, 3), 0.7, np.float32)


class Bytes(Base):
    observation_space = spaces.Box(0, 3, (2,), np.uint8)
    values: tuple = ()

    def seen(self):
        return np.array(self.values[min(self.t, len(self.values) - 1)])


class FirstStep(Bytes):
    values = ((1, 2), (300, -1))


class LaterBytes(Bytes):
    values = ((1, 2), (1, 2), (1, 2), (300, 0))


class LateAnswer(Base):
    def seen(self):
        raise TimeoutError("the simulator at port 5 refused")


class Odd(Exception):
    """Can be packed, and not unpacked."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


class OddError(Base):
    def seen(self):
        raise Odd("two", "words")


class Categories(Base):
    observation_space = spaces.MultiDiscrete([3, 4], start=[1, -2])

    def seen(self):
        return np.array([3, -2 + self.t % 4])


class Beyond(Base):
    """Numbers up to 255, where its space ends at 1."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)

    def seen(self):
        return np.full(3, 255.0, np.float32)


class FewBytes(Base):
    observation_space = spaces.Box(0, 3, (4,), np.uint8)

    def seen(self):
        return np.array([3, 2, 1, 0], np.uint8)


class Zeros(Base):
    """Sees zeros of its space."""

    def seen(self):
        return np.zeros(self.observation_space.shape, self.observation_space.dtype)  # type: ignore[arg-type]


class First(Zeros):
    observation_space = spaces.Box(0, 255, (3, 84, 84), np.uint8)


class Stack(Zeros):
    observation_space = spaces.Box(0, 255, (4, 40, 40, 3), np.uint8)


class Wide(Zeros):
    observation_space = spaces.Box(0, 255, (20, 300, 3), np.uint8)


class TinyImage(Zeros):
    observation_space = spaces.Box(0, 255, (2, 2, 3), np.uint8)


class Cube(Zeros):
    observation_space = spaces.Box(0, 255, (64, 64, 64), np.uint8)


class ImageAndVector(Base):
    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (40, 40, 3), np.uint8),
        nested=spaces.Dict(vector=spaces.Box(-1, 1, (3,)), state=spaces.Discrete(5)),
    )

    def seen(self):
        image, vector = np.zeros((40, 40, 3), np.uint8), np.zeros(3, np.float32)
        return {"image": image, "nested": {"vector": vector, "state": self.t % 5}}


class Text(Base):
    observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), mission=spaces.Text(20))


class Seq(Base):
    observation_space = spaces.Sequence(spaces.Box(-1, 1, (2,)))


class MixedKeys(Base):
    observation_space = spaces.Dict({1: spaces.Discrete(2), "a": spaces.Discrete(2)})  # type: ignore[dict-item]


class Big(Base):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def seen(self):
        return np.array([1e12, -1e12, 1e30 if self.t % 2 else 3.0])


class TooBig(Base):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def seen(self):
        return np.array([1e39, 0, 0])


class NanSeen(Base):
    def seen(self):
        return np.array([np.nan if self.t == 5 else 0, 0, 0], np.float32)


class Mask(Base):
    """One of four actions is legal."""

    action_space = spaces.Discrete(4)
    key, kind = "legal", spaces.Box(0, 1, (4,), np.bool_)

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"x": spaces.Box(-1, 1, (3,)), self.key: self.kind})

    def seen(self):
        mask = np.zeros(4, self.kind.dtype)
        mask[self.t % 4] = 1
        self.legal = self.t % 4
        return {"x": np.zeros(3, np.float32), self.key: mask}

    def step(self, action):
        assert action == self.legal, f"illegal action {action}, only {self.legal} is legal"
        return super().step(action)


class MaskBinary(Mask):
    kind = spaces.MultiBinary(4)


class MaskInt8(Mask):
    kind = spaces.Box(0, 1, (4,), np.int8)


class MaskNamed(Mask):
    key, kind = "action_mask", spaces.MultiBinary(4)


class Sqlite(Base):
    """Must be made, stepped and closed in one thread."""

    def __init__(self):
        super().__init__()
        self.base = sqlite3.connect(":memory:")

    def seen(self):
        self.base.execute("select 1").fetchone()
        return np.zeros(3, np.float32)

    def close(self):
        self.base.close()


class Signal(Base):
    """Must be made in the main thread."""

    def __init__(self):
        super().__init__()
        signal.signal(signal.SIGALRM, lambda *_: None)


class Prints(Base):
    def __init__(self):
        super().__init__()
        print("hello from an environment")

    def close(self):
        print("bye from an environment")


class CloseRaises(Base):
    render_mode = "rgb_array"

    def render(self):
        return np.zeros((21, 21, 3), np.uint8)

    def close(self):
        raise RuntimeError("cannot close")


class Draws(Base):
    render_mode = "rgb_array"

    def render(self):
        return None


class DrawsText(Base):
    render_mode = "ansi"

    def render(self):
        return "text"


class DrawsFloats(Base):
    render_mode = "rgb_array"

    def render(self):
        return np.zeros((21, 21, 3))


class DrawsRGBA(Base):
    render_mode = "rgb_array"

    def render(self):
        return np.zeros((21, 21, 4), np.uint8)


class Settings(Base):
    """Has settings that are named like ours."""

    def __init__(self, model="", action_span=0, limit=10):
        super().__init__()
        assert (model, action_span, limit) == ("small", 3, None)


class SmallTaxi(gymnasium.Env):
    """Taxi on a street of four cells: fetch a passenger at one end, and leave him at the other; 1 for that, else -0.05.

    The observation is the cell, the end where the passenger waits, and whether he is in, as one category.
    """

    observation_space = spaces.Discrete(16, start=3)
    action_space = spaces.Discrete(4)  # left, right, take him in, let him out

    def seen(self):
        return 3 + self.cell + 4 * (self.begin == 3) + 8 * self.inside

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.begin, self.inside, self.t = int(self.np_random.integers(4)), 0, False, 0
        self.begin = 3 * int(self.np_random.integers(2))
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        done = action == 3 and self.inside and self.cell == 3 - self.begin
        if action < 2:
            self.cell = min(max(self.cell + 2 * int(action) - 1, 0), 3)
        self.inside |= action == 2 and self.cell == self.begin
        return self.seen(), 1.0 if done else -0.05, done, self.t >= 20, {}


class Shown(gymnasium.Env):
    """Eight contexts of one step each episode of ten: 1 for the action that is shown."""

    action_space = spaces.Discrete(4)

    def seen(self):
        raise NotImplementedError

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._next(), {}

    def step(self, action):
        reward, self.t = float(action == self.wanted), self.t + 1
        return self._next(), reward, self.t >= 10, False, {}

    def _next(self):
        self.wanted = int(self.np_random.integers(4))
        return self.seen()


class SmallDict(Shown):
    """An image says one half of what is wanted, and a vector the other."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (6, 6, 1), np.uint8), vector=spaces.Box(-1, 1, (2,), np.float32)
    )

    def seen(self):
        image = np.zeros((6, 6, 1), np.uint8)
        image[:, 3 * (self.wanted // 2) : 3 * (self.wanted // 2) + 3] = 255
        return {"image": image, "vector": np.eye(2, dtype=np.float32)[self.wanted % 2]}


class SmallGrid(Shown):
    """A grid of small numbers in which one place says what is wanted."""

    observation_space = spaces.Box(0, 3, (4, 4), np.uint8)

    def seen(self):
        grid = self.np_random.integers(0, 4, (4, 4)).astype(np.uint8)
        grid[1, 2] = self.wanted
        return grid
