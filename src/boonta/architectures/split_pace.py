"""How far environments and learners may run ahead of one another: counts held to ratios, by whoever looks at them.

Each process asks before it moves. With a(l) = ratio(l) * steps beyond the minimum - updates(l), learner l waits while
a(l) would fall below 0, and environments while any a(l) would rise above its band. The band holds at least what both
move at a time, so one of them may always go on; and once environments stop, learners end with the updates that are due.
Where a run goes on without the experience that it had, the minimum is filled again first, and what is then due made up.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from boonta.core.agent import Agent


class Pace(NamedTuple):
    """The ratios of a run.

    Attributes:
        minimum: environment steps before learning starts.
        moved: environment steps that all processes together make at a time.
        ratios: updates for each environment step, by learner.
        bands: updates that learners may be behind, by learner.
        free: whether nobody waits, but for the minimum.
    """

    minimum: int
    moved: int
    ratios: dict[str, Fraction]
    bands: dict[str, Fraction]
    free: bool = False

    def may_step(self, steps: int, updates: Mapping[str, int], begun: int = 0) -> bool:
        """Whether environments may step on, of whose steps those from `begun` on are there to learn from."""
        if self.free or steps < begun + self.minimum:
            return True
        return all(self._due(name, steps + self.moved) - updates[name] <= self.bands[name] for name in self.ratios)

    def may_update(self, name: str, steps: int, updates: int, begun: int = 0) -> bool:
        """Whether a learner may make its next update, likewise."""
        if steps < begun + self.minimum:
            return False
        return self.free or self._due(name, steps) >= updates + 1

    def _due(self, name: str, steps: int) -> Fraction:
        return self.ratios[name] * max(steps - self.minimum, 0)


def pace(agent: Agent, minimum: int, moved: int, band: float = 0.0, free: bool = False) -> Pace:
    """The pace that an agent's learners ask for.

    Args:
        agent: its learners, all with replay.
        minimum: environment steps before learning starts.
        moved: environment steps that all processes together make at a time.
        band: in updates; 0 for the least that cannot deadlock.
        free: whether nobody waits.

    Raises:
        ValueError: a learner without replay, or a band with which both sides could wait for ever.
    """
    ratios, bands = {}, {}
    for name, learner in agent.learners.items():
        wanted = learner.experience
        if not wanted.capacity:
            raise ValueError(f"split is for learners with replay, and {name} has none (its experience.capacity is 0)")
        each = Fraction(wanted.samples_per_insert).limit_denominator(1_000_000) / wanted.batch
        period = wanted.period or wanted.length
        ratios[name] = each / period
        least = ratios[name] * moved + 1
        if band and band < least:
            raise ValueError(
                f"architecture.band must be at least {float(least):g} ({moved} environment steps x "
                f"{float(ratios[name]):g} updates of {name}, and one), got {band:g}: else both could wait for ever"
            )
        bands[name] = max(Fraction(band).limit_denominator(1_000_000), least)
    return Pace(minimum, moved, ratios, bands, free)
