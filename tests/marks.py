"""Which suite a test is in: `make test` leaves out what is `full`, `make test-fast` what is `slow` besides."""

import pytest

from boonta.testing import redis_servers

full, slow = pytest.mark.full, pytest.mark.slow
needs_redis = pytest.mark.skipif(
    not redis_servers.installed(),
    reason="redis-server is not installed (Debian, Ubuntu: apt-get install redis-server; macOS: brew install redis)",
)


def in_full(*cases):
    """Parameters, one or a tuple of them a case, for `make test-all` alone."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=full) for case in cases]


def some_of(cases, *quick):
    """The cases that are named as they are, the others for `make test-all` alone."""
    assert {*quick} <= {*cases}
    return [*quick, *in_full(*(case for case in cases if case not in quick))]
