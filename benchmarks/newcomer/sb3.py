"""Stable-Baselines3 with its defaults: one run and its greedy episodes, in an environment that has it, without Boonta.

The task is a JSON object in argv; the answer is the last line.
"""

import json
import sys
import time
from importlib.metadata import version

TOGETHER = 10  # environments of an evaluation


def main() -> None:
    """One run."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    make = {"env_id": task["env"], "env_kwargs": task["settings"]}
    began = time.perf_counter()
    algorithm = getattr(stable_baselines3, task["agent"].upper())
    model = algorithm("MlpPolicy", make_vec_env(**make, n_envs=1, seed=task["seed"]), seed=task["seed"])
    model.learn(task["steps"])
    trained = time.perf_counter() - began
    together = make_vec_env(**make, n_envs=min(TOGETHER, task["episodes"]), seed=10_000 + task["seed"])
    returns, _ = evaluate_policy(model, together, task["episodes"], deterministic=True, return_episode_rewards=True)
    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    answer = {"returns": returns, "seconds": trained, "versions": {name: version(name) for name in packages}}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
