"""Compiled programs that are found again by the next process."""

import os
import subprocess
import sys

import pytest

from tests.marks import in_full, slow

LOWERED = """
import hashlib
import jax, numpy as np
from boonta.experiments import config, systems

system = systems.build(config.resolve({agent!r}, {env!r}, "anakin", "none"))
state = jax.eval_shape(system.program.start, *config.stacked(system.members))
text = system.program.advance.lower(state, system.program.nothing(state), np.int32(0)).as_text()
print(hashlib.sha256(text.encode()).hexdigest())
"""


@slow
@pytest.mark.parametrize(
    ("agent", "env"),
    [
        ("ppo", "boonta:catch"),
        *in_full(("dqn", "boonta:catch"), ("sac", "gymnax:Pendulum-v1"), ("muzero", "boonta:catch")),
    ],
)
def test_the_program_is_the_same_in_every_process(agent, env):
    """Whatever order sets of names have there."""
    code, made = LOWERED.format(agent=agent, env=env), set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True, timeout=300,
        )  # fmt: skip
        made.add(done.stdout)
    assert len(made) == 1
