"""A crew of Ray actors (Moritz et al. 2018), on this machine or a cluster."""

import logging
import math
import os
import socket
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from boonta.core import own_modules
from boonta.core.crew import Gone, Lost, Raised, Resources
from boonta.core.waiting import patiently
from boonta.transport.reaper import Reaper

PROBING, JOINING = 5.0, 60.0  # seconds in which a cluster must be listened at, and be joined
VARIABLES = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # or each member would be installed anew under `uv run`
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
}
# Ray shows a cluster that is named its token only if told to, before it is imported; what it starts later must agree.
if "ray" not in sys.modules and Path("~/.ray/auth_token").expanduser().is_file():
    VARIABLES["RAY_AUTH_MODE"] = "token"
for name, value in VARIABLES.items():
    os.environ.setdefault(name, value)  # read where Ray is imported
try:
    import ray
    from ray import cloudpickle, exceptions
    from ray.job_config import JobConfig
except ImportError as error:
    raise ImportError(f"the fleet, and split on a cluster, need Ray ({error}): pip install 'boonta[ray]'") from error

# Why what a call was given may not be there.
LOSSES = (
    exceptions.ObjectLostError, exceptions.RayActorError, exceptions.NodeDiedError, exceptions.OutOfMemoryError,
    exceptions.WorkerCrashedError,
)  # fmt: skip


class _Host:
    """What runs in an actor's process: the object that answers.

    Args:
        path: the driver's path of imports, which the process goes on with: before Python's own modules, and after.
        make: makes the object, pickled: what it names is imported only then.
    """

    def __init__(self, path: tuple[list[str], list[str]], make: bytes) -> None:
        own_modules.started()
        before, after = ([one for one in part if one not in sys.path] for part in path)
        sys.path[:] = [*before, *sys.path, *after]
        self._make, self._made = make, None

    def here(self) -> bool:
        return True

    def call(self, method: str, *args: Any) -> Any:
        if self._made is None:
            self._made = cloudpickle.loads(self._make)()
        return getattr(self._made, method)(*args)


class _Nowhere(list[str]):
    """The folders that Ray puts first on the path of imports of a worker: but for this, the driver's current one."""

    def extend(self, folders: Iterable[str]) -> None:
        pass


class Cluster:
    """See `core.crew.Crew`.

    Args:
        address: of a cluster; "" for a Ray of this run's own on this machine, ended with it; "auto" for the one that
            this machine is part of.
        cpus: that a Ray of this run's own may give away, whatever this machine has.

    Raises:
        ValueError: it is no address.
        ConnectionError: there is no cluster at it.
    """

    def __init__(self, address: str, cpus: float) -> None:
        if "://" in address:  # Ray imports what stands before that
            raise ValueError(f"architecture.cluster must be auto, local or HOST:PORT, got {address!r}")
        own: dict[str, Any] = {} if address else {"num_cpus": math.ceil(cpus), "include_dashboard": False}
        elsewhere = address not in ("", "local")
        if elsewhere:
            _probe(address)
            own["runtime_env"] = {"env_vars": {own_modules.SAFE_PATH: own_modules.OURS}}
        self._reaper = None if elsewhere else Reaper()
        own["job_config"] = job = JobConfig()
        job._py_driver_sys_path = _Nowhere()
        init = lambda: ray.init(address=address or "local", logging_level=logging.ERROR, **own)  # noqa: E731
        with warnings.catch_warnings(), own_modules.no_modules_from_here():
            # Ray forks, and what is forked runs another program at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            if elsewhere:
                patiently(init, f"the Ray cluster at {address} (architecture.cluster)", JOINING)
            else:
                init()
        self._members: list[Any] = []

    def hire(self, name: str, make: Callable[[], Any], resources: Resources) -> Any:
        """See `Crew`."""
        needs: dict[str, Any] = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_restarts": 0}
        named = type(name.title().replace(" ", ""), (_Host,), {})  # as its process is then called
        python = sysconfig.get_path("stdlib")
        place = sys.path.index(python) if python in sys.path else 0
        packed = cloudpickle.dumps(make)  # pyright: ignore[reportPrivateImportUsage]
        self._members.append(ray.remote(named).options(**needs).remote((sys.path[:place], sys.path[place:]), packed))
        return self._members[-1]

    def here(self, member: Any) -> Any:
        """See `Crew`."""
        return member.here.remote()

    def ask(self, member: Any, method: str, *args: Any, answers: int = 1) -> Any:
        """See `Crew`."""
        return member.call.options(num_returns=answers).remote(method, *args)

    def put(self, value: Any) -> Any:
        """See `Crew`."""
        return ray.put(value)

    def wait(self, refs: Sequence[Any], seconds: float) -> list[Any]:
        """See `Crew`."""
        if not refs:
            time.sleep(seconds)
            return []
        ready, others = ray.wait(list(refs), num_returns=1, timeout=seconds, fetch_local=False)
        more = ray.wait(others, num_returns=len(others), timeout=0, fetch_local=False)[0] if ready and others else []
        return ready + more

    def get(self, ref: Any, seconds: float) -> Any:
        """See `Crew`."""
        try:
            return ray.get(ref, timeout=seconds)
        except exceptions.GetTimeoutError as error:
            raise TimeoutError(f"no answer in {seconds:g} s") from error
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, LOSSES):
                raise Lost(_first_line(cause)) from error
            raise Raised(str(error), cause) from error
        except exceptions.ObjectLostError as error:
            raise Lost(_first_line(error)) from error
        except exceptions.RayError as error:
            raise Gone(_first_line(error)) from error

    def dismiss(self, member: Any) -> None:
        """See `Crew`."""
        self._members.remove(member)
        _kill(member)

    def close(self) -> None:
        """See `Crew`."""
        for member in self._members:
            _kill(member)
        ray.shutdown()
        if self._reaper:
            self._reaper.release()


def _probe(address: str) -> None:
    """Look whether anybody listens at the address of a cluster, which Ray itself tries for minutes.

    Raises:
        ConnectionError: nobody.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdigit()):
        return  # `auto`, say
    try:
        socket.create_connection((host, int(port)), PROBING).close()
    except OSError as error:
        raise ConnectionError(f"there is no Ray cluster at {address} (architecture.cluster): {error}") from error


def address_here() -> str:
    """Of this machine, as the others of the cluster reach it; of a member's."""
    return ray.util.get_node_ip_address()


def _kill(member: Any) -> None:
    with suppress(exceptions.RayError):  # where all of Ray is gone, so is the member
        ray.kill(member, no_restart=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
