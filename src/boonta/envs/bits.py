"""Environments of others in 32 bits, for which they were written, also where JAX computes in 64."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from boonta.core.environment import Environment


def in_32_bits(make: Callable[[], Environment]) -> Environment:
    """What `make` makes; under `JAX_ENABLE_X64` some would not trace, and others would emit observations of 64 bits."""
    if jax.dtypes.canonicalize_dtype("float64") == "float32":
        return make()
    made = _narrow(make)()
    return made._replace(reset=_narrow(made.reset), step=_narrow(made.step))


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def narrow(*args: Any) -> Any:
        with jax.enable_x64(False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)  # that is what is meant
            return function(*args)

    return narrow
