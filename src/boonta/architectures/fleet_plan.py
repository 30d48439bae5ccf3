"""Who there is in a fleet, and how far ahead of one another they may be."""

from typing import NamedTuple

from boonta.core.crew import Resources
from boonta.core.host import Workers

ROLES = ("server", "replay", "training", "reanalyse", "testing")


class Plan(NamedTuple):
    """A fleet as it is asked for.

    Attributes:
        workers: training workers.
        envs: environments of each.
        reanalysers: reanalyse workers.
        batch: windows of a sample; 0 where each trajectory is learned from once.
        rounds: trajectories of all workers that an update then takes.
        ratio: samples for each window inserted, on average.
        minimum: windows in replay before learning starts.
        each: windows that one piece completes.
        reanalyse: pieces acted on again for each piece inserted.
        capacity: windows that replay keeps, those included that wait for their last pieces.
        compress: see `Memory`.
        ahead: samples, or trajectories of all workers, that lie ready for the parameter server, and are asked for. What
            is learned from once is at most 2 ahead + publish turns of learning old (a turn may be several updates), for
            which learning waits for a slow worker.
        publish: updates between copies of the parameters.
        devices: of the parameter server; 0 for all that it sees.
        restarts: how often a member may be replaced before the run fails.
        timeout: seconds after which a member that has not answered is replaced.
        finite: whether an observation or reward that is not finite is a fault.
        simulators: what steps environments.
        resources: of each role, by the names of ROLES.
    """

    workers: int
    envs: int
    reanalysers: int = 0
    batch: int = 0
    rounds: int = 1
    ratio: float = 1.0
    minimum: int = 0
    each: int = 1
    reanalyse: float = 0.0
    capacity: int = 0
    compress: bool = False
    ahead: int = 2
    publish: int = 1
    devices: int = 0
    restarts: int = 3
    timeout: float = 120.0
    finite: bool = False
    simulators: Workers = Workers()
    resources: dict[str, Resources] = {}  # noqa: RUF012

    def pieces(self) -> int:
        """Windows in what a worker makes at a time."""
        return self.envs * self.each
