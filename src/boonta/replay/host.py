"""Replay of windows in the host's memory: what `ring` is on a device, for pieces that arrive one by one."""

import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from boonta.core import nests
from boonta.core.agent import Experience
from boonta.core.types import LAST, Ids, PyTree, Sample, TimeStep, Trajectory
from boonta.replay import frames
from boonta.replay.types import LEAST, SAMPLERS
from boonta.replay.weights import Weights
from boonta.replay.windows import steps, windows

NOWHERE = (-1, -1)


class HostReplay:
    """A ring of pieces, of which many threads may insert, draw and revise. Arrays in and out are NumPy's.

    Args:
        experience: whose windows, sampler and exponents.
        batch: windows in a sample.
        capacity: windows that are kept, those included that wait for their last pieces.
        example: one piece, or its shapes.
        stack: frames in an observation of the environment (`Spec.stack`).
        compress: keep observations compressed: less memory for more time.
        seed: of what is drawn, any number of integers.

    Raises:
        ValueError: windows that do not begin every period, an unknown sampler, or observations that are no stacks.
    """

    def __init__(
        self,
        experience: Experience,
        batch: int,
        capacity: int,
        example: Trajectory,
        stack: int = 1,
        compress: bool = False,
        seed: Sequence[int] = (0,),
    ) -> None:
        if experience.sampler not in SAMPLERS:
            raise ValueError(f"experience.sampler must be {', '.join(SAMPLERS)}, got {experience.sampler!r}")
        self.experience, self.batch, self.stack, self.compress = experience, batch, stack, compress
        self.sizes = windows(experience)
        self.places = max(-(-capacity // self.sizes.each), self.sizes.pieces)
        frames.check(example.timesteps.observation, stack)
        one = nests.mapped(lambda x: np.zeros(x.shape, x.dtype), self._kept(example))
        one = frames.pack(_without_last(one), stack)
        self._seen = one.timesteps.observation
        if compress:
            one = _with_observation(one, ())
        # Memory that is not yet written to is not yet there.
        self._pieces: Trajectory = nests.mapped(lambda x: np.zeros((self.places, *x.shape), x.dtype), one)
        self._packed: list[list[bytes]] = [[] for _ in range(self.places if compress else 0)]
        self._generation = np.zeros(self.places, np.int32)
        self._chain = np.zeros((self.places, self.sizes.pieces), np.int32)
        self._tails: dict[int, tuple[tuple[int, int], list[int]]] = {}
        self._written = 0
        self._weights = Weights(self.places * self.sizes.each, sums=experience.sampler == "prioritized")
        self._renewed = np.zeros(self.places, bool)
        self._highest = 1.0
        self._count = 0
        self._seed, self._random = seed, np.random.default_rng(seed)
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def __len__(self) -> int:
        """Windows that can be drawn."""
        return self._count

    def nbytes(self) -> int:
        """Bytes of the pieces that are there."""
        there = min(self._written, self.places)
        whole = sum(x.nbytes // self.places * there for x in nests.leaves(self._pieces))
        return whole + sum(len(part) for parts in self._packed for part in parts)

    def insert(self, piece: Trajectory) -> Ids:
        """One piece of U + 1 time steps in place of the oldest; Ids of the windows complete with it, [K] or [0].

        Places below 0 stand for windows that are never drawn. Pieces of one environment come in their order.
        """
        with self._writing:
            return self._insert(piece)

    def _insert(self, piece: Trajectory) -> Ids:
        sizes, cut = self.sizes, frames.pack(_without_last(self._kept(piece)), self.stack)
        packed = []
        if self.compress:
            seen = nests.leaves(cut.timesteps.observation)
            packed = [zlib.compress(np.ascontiguousarray(x).tobytes(), 1) for x in seen]
            cut = _with_observation(cut, ())
        with self._lock:
            number, at = self._written, self._written % self.places
            self._written += 1
            self._generation[at] += 1  # whoever reads it now will notice
            gone = at * sizes.each + np.arange(sizes.each)
            self._count -= int(np.count_nonzero(self._weights.at(gone)))
            self._weights.put(gone, 0.0)
            self._renewed[at] = False
        nests.mapped(lambda all_, new: all_.__setitem__(at, new), self._pieces, cut)
        if self.compress:
            self._packed[at] = packed
        with self._lock:
            origin = piece.origin
            environment, here = int(origin.environment), (int(origin.life), int(origin.step))
            due, before = self._tails.get(environment, (NOWHERE, []))
            numbers = [*(before if due == here else []), number][-sizes.pieces :]
            self._tails[environment] = ((here[0], here[1] + sizes.unroll), numbers)
            if len(numbers) < sizes.pieces or self._written - numbers[0] > self.places:
                return _ids(*np.zeros((2, 0), np.int32))
            first = numbers[0] % self.places
            self._chain[first] = np.asarray(numbers) % self.places
            complete = (first * sizes.each + np.arange(sizes.each)).astype(np.int32)
            void = self._is_void(self._chain[first])
            self._weights.put(complete[~void], self._raised(self._highest))
            self._count += int(np.count_nonzero(~void))
            return _ids(np.where(void, np.int32(-1), complete), np.repeat(self._generation[first], sizes.each))

    def _is_void(self, chain: np.ndarray) -> np.ndarray:
        """As in `ring`, of one chain: bool [K]."""
        sizes, wanted = self.sizes, self.experience
        if wanted.trained_step is None or wanted.sampler == "uniform":
            return np.zeros(sizes.each, bool)
        which, step = steps(sizes, np.arange(sizes.each) * sizes.period + wanted.trained_step, 1, np.arange)
        return np.asarray(self._pieces.timesteps.step_type)[chain[which[:, 0]], step[:, 0]] == LAST

    def sample(self) -> Sample:
        """Windows [B, ...], whose observations are packed: `frames.unpack` makes them whole, on a device.

        Raises:
            ValueError: there is nothing to draw.
        """
        ids, weights = self._draw(self.batch)
        trajectory = self.window(ids)
        # Copied while others write: what was overwritten meanwhile is drawn again.
        while len(lost := np.flatnonzero(self._generation[ids.place // self.sizes.each] != ids.generation)):
            again, more = self._draw(len(lost))
            parts = (trajectory, ids, weights), (self.window(again), again, more)
            nests.mapped(lambda all_, new: all_.__setitem__(lost, new), *parts)
        return Sample(trajectory, weights, ids)  # type: ignore[arg-type]

    def window(self, ids: Ids) -> Trajectory:
        """Trajectory [K, ...] of Ids [K], packed likewise."""
        sizes, place = self.sizes, np.asarray(ids.place)
        first, begin = place // sizes.each, place % sizes.each * sizes.period
        chain = self._chain[first]
        which, step = steps(sizes, begin, sizes.length + 1, np.arange)
        pieces = self._pieces
        if self.compress:
            used, compact = np.unique(chain, return_inverse=True)
            chain = compact.reshape(chain.shape)
            pieces = _with_observation(nests.mapped(lambda x: x[used], pieces), self._unpacked(used))
            first = chain[:, 0]
        at = np.take_along_axis(chain, which, axis=1)
        timesteps = frames.window(pieces.timesteps, self.stack, begin, at, step)
        extras = nests.mapped(lambda x: x[at[:, :-1], step[:, :-1]], pieces.extras)
        memory = pieces.memory if self.experience.memory else ()
        memory, origin = nests.mapped(lambda x: x[first], (memory, pieces.origin))
        return Trajectory(memory, timesteps, extras, origin._replace(step=origin.step + begin))

    def revise(self, ids: Ids, priorities: np.ndarray) -> None:
        """New priorities [K]; windows that are gone, and priorities that are not finite, are passed over."""
        if self.experience.sampler == "uniform":
            return
        place, priorities = np.asarray(ids.place), np.asarray(priorities, np.float64)
        with self._lock:
            there = (self._generation[place // self.sizes.each] == ids.generation) & np.isfinite(priorities)
            there &= (place >= 0) & (self._weights.at(place) > 0)
            if there.any():
                priorities = np.maximum(priorities[there], LEAST)
                self._weights.put(place[there], self._raised(priorities))
                self._highest = max(self._highest, float(priorities.max()))

    def past(self, n: int) -> tuple[Ids, Trajectory]:
        """Stored pieces to act on again, each as likely: Ids [n], and Trajectory [n, U, ...] packed like windows.

        Raises:
            ValueError: there is nothing to draw.
        """
        with self._writing, self._lock:  # what is being written is not there yet
            if not self._written:
                raise ValueError("there is nothing in replay to act on again")
            place = self._random.integers(min(self._written, self.places), size=n).astype(np.int32)
            generation = self._generation[place]
        pieces, at = self._pieces, place
        if self.compress:
            used, at = np.unique(place, return_inverse=True)
            pieces = _with_observation(nests.mapped(lambda x: x[used], pieces), self._unpacked(used))
        which, step = np.broadcast_arrays(at[:, None], np.arange(self.sizes.unroll))
        timesteps = frames.window(pieces.timesteps, self.stack, np.zeros_like(at), which, step)
        others = nests.mapped(lambda x: x[at], pieces._replace(timesteps=()))  # type: ignore[arg-type]
        return _ids(place, generation), others._replace(timesteps=timesteps)

    def renew(self, ids: Ids, extras: PyTree, version: int) -> Ids:
        """New extras [n, U, ...] of pieces that `past` gave; those that are gone are passed over.

        Returns:
            Ids [K] of the windows that begin in these pieces.
        """
        place, each = np.asarray(ids.place), self.sizes.each
        with self._lock:
            there = self._generation[place] == ids.generation
            place = place[there]
            nests.mapped(lambda all_, new: all_.__setitem__(place, new[there]), self._pieces.extras, extras)
            self._pieces.origin.version[place] = version  # type: ignore[index]
            self._renewed[place] = True
            begin = (place[:, None] * each + np.arange(each)).reshape(-1)
            begin = begin[self._weights.at(begin) > 0].astype(np.int32)
            return _ids(begin, self._generation[begin // each])

    def renewed(self) -> float:
        """The share of the pieces that has been acted on again."""
        return float(self._renewed.sum()) / max(min(self._written, self.places), 1)

    @contextmanager
    def arrays(self) -> Iterator[dict[str, np.ndarray]]:
        """Everything there is, for a checkpoint: not copied but where compressed; nobody changes anything meanwhile."""
        with self._writing, self._lock:
            there = min(self._written, self.places)
            kept = {f"pieces/{name}": x[:there] for name, x in nests.named(self._pieces)}
            packed = [part for parts in self._packed[:there] for part in parts]
            tails = [
                [key, *due, *numbers, *[-1] * (self.sizes.pieces - len(numbers))]
                for key, (due, numbers) in self._tails.items()
            ]
            yield kept | {
                "packed": np.frombuffer(b"".join(packed), np.uint8),
                "packed_sizes": np.asarray([len(part) for part in packed], np.int64),
                "generation": self._generation,
                "chain": self._chain,
                "tails": np.asarray(tails, np.int64).reshape(-1, 3 + self.sizes.pieces),
                "weights": self._weights.all(),
                "numbers": np.asarray([self._written, self._count], np.int64),
                "highest": np.asarray(self._highest),
                "renewed": self._renewed,
            }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """What `arrays` gave, to a replay made alike.

        Raises:
            ValueError, KeyError: it was made otherwise.
        """
        for name, mine in nests.named(self._pieces):
            found = arrays[f"pieces/{name}"]
            if (found.shape[1:], found.dtype) != (mine.shape[1:], mine.dtype) or len(found) > len(mine):
                raise ValueError(f"{name} is {found.dtype}{list(found.shape)}, not {mine.dtype}{list(mine.shape)}")
            mine[: len(found)] = found
        if (there := len(arrays["weights"])) != (wanted := len(self._weights.all())):
            raise ValueError(f"weights are of {there} windows, not {wanted}")
        with self._lock:
            self._generation[:], self._chain[:] = arrays["generation"], arrays["chain"]
            self._weights.put(np.arange(len(arrays["weights"])), arrays["weights"])
            self._written, self._count = (int(x) for x in arrays["numbers"])
            self._highest = float(arrays["highest"])
            self._renewed[:] = arrays["renewed"]
            self._random = np.random.default_rng([*self._seed, self._written])  # what was drawn is not drawn again
            self._tails = {
                int(key): ((int(life), int(step)), [int(n) for n in numbers if n >= 0])
                for key, life, step, *numbers in arrays["tails"]
            }
            ends = np.cumsum(arrays["packed_sizes"])
            parts = [arrays["packed"][e - n : e].tobytes() for e, n in zip(ends, arrays["packed_sizes"], strict=True)]
            each = len(nests.leaves(self._seen))
            for i in range(len(parts) // each):
                self._packed[i] = parts[i * each : (i + 1) * each]

    def _draw(self, count: int) -> tuple[Ids, np.ndarray]:
        """Ids [K] and their importance weights, float32 [K]."""
        wanted = self.experience
        with self._lock:
            if not self._count:
                raise ValueError("there is nothing in replay to draw from")
            if wanted.sampler == "uniform":
                place, weights = self._any(count), np.ones(count)
            else:
                draw = self._by_rank if wanted.sampler == "ranked" else self._by_weight
                place, chance = draw(self._random.random(count))
                weights = (self._count * chance) ** -wanted.importance_exponent
            generation = self._generation[place // self.sizes.each]
        return _ids(place.astype(np.int32), generation), weights.astype(np.float32)

    def _any(self, count: int) -> np.ndarray:
        """As in `ring`."""
        there = min(self._written, self.places) * self.sizes.each
        place = self._random.integers(there, size=count)
        while len(missed := np.flatnonzero(self._weights.at(place) == 0)):
            place[missed] = self._random.integers(there, size=len(missed))
        return place

    def _by_weight(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = self._weights.find(shares)
        return place, self._weights.at(place) / self._weights.total()

    def _by_rank(self, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As in `ring`."""
        order = np.argsort(-self._weights.all(), kind="stable")[: self._count]
        chances = np.arange(1, self._count + 1.0) ** -self.experience.priority_exponent
        chances /= chances.sum()
        rank = np.minimum(np.searchsorted(np.cumsum(chances), shares, side="right"), self._count - 1)
        return order[rank], chances[rank]

    def _kept(self, piece: Trajectory) -> Trajectory:
        wanted = self.experience
        return piece if wanted.memory or wanted.reanalyse else piece._replace(memory=())

    def _raised(self, priority: np.ndarray | float) -> np.ndarray | float:
        sampler = self.experience.sampler
        return {"prioritized": priority**self.experience.priority_exponent, "ranked": priority}.get(sampler, 1.0)

    def _unpacked(self, places: np.ndarray) -> PyTree:
        """Observations of the pieces at places [K], [K, ...]."""
        whole = nests.mapped(lambda x: np.empty((len(places), *x.shape), x.dtype), self._seen)
        for i, place in enumerate(places):
            for leaf, part in zip(nests.leaves(whole), self._packed[place], strict=True):
                leaf[i] = np.frombuffer(zlib.decompress(part), leaf.dtype).reshape(leaf.shape[1:])
        return whole


def _without_last(piece: Trajectory) -> Trajectory:
    return piece._replace(timesteps=nests.mapped(lambda x: x[:-1], piece.timesteps))


def _with_observation(piece: Trajectory, observation: PyTree) -> Trajectory:
    timesteps: TimeStep = piece.timesteps._replace(observation=observation)
    return piece._replace(timesteps=timesteps)


def _ids(place: np.ndarray, generation: np.ndarray) -> Ids:
    return Ids(place, generation)  # type: ignore[arg-type]
