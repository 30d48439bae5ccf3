"""RLlib's IMPALA on two cores for a while; prints steps and seconds. Runs where RLlib is installed, without Boonta."""

import json
import sys
import time

import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

task = json.loads(sys.argv[1])
if "ALE" in task["environment"]:

    def atari(config):  # in processes of their own
        import ale_py
        from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

        del config
        gymnasium.register_envs(ale_py)
        return wrap_atari_for_new_api_stack(gymnasium.make("ALE/Pong-v5", frameskip=1), dim=84, framestack=4)

    from ray.tune.registry import register_env

    register_env("pong", atari)

config = (
    IMPALAConfig()
    .environment("pong" if "ALE" in task["environment"] else task["environment"])
    .env_runners(
        num_env_runners=task["runners"],
        num_envs_per_env_runner=task["envs"],
        rollout_fragment_length=task["unroll"],
    )
    .training(train_batch_size_per_learner=task["batch"])
    .learners(num_learners=0)
    .reporting(min_time_s_per_iteration=1)
    .debugging(seed=task["seed"])
)
if "ALE" not in task["environment"] and "hidden" in task:
    config = config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=task["hidden"]))
ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
algorithm = config.build_algo()


def taken():
    """Environment steps taken so far, after about a second of training."""
    return algorithm.train()["env_runners"].get("num_env_steps_sampled_lifetime", 0)


while not taken():
    pass
before, begin = taken(), time.perf_counter()
steps = before
while time.perf_counter() < begin + task["seconds"]:
    steps = taken()
print(json.dumps({"seconds": time.perf_counter() - begin, "steps": steps - before, "idle": 0}))
algorithm.stop()
ray.shutdown()
