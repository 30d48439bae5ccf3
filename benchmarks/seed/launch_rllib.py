"""RLlib's IMPALA on two cores for a while; prints steps and seconds. Runs where RLlib is installed, without Boonta."""

import json
import sys
import time

import gymnasium
import ray
from ray.rllib.algorithms.impala import IMPALAConfig

task = json.loads(sys.argv[1])
if "ALE" in task["environment"]:
    import ale_py

    gymnasium.register_envs(ale_py)

    def atari(config):
        from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

        del config
        return wrap_atari_for_new_api_stack(gymnasium.make("ALE/Pong-v5", frameskip=1), dim=84, framestack=4)

    from ray.tune.registry import register_env

    register_env("pong", atari)

config = (
    IMPALAConfig()
    .environment("pong" if "ALE" in task["environment"] else task["environment"])
    .env_runners(num_env_runners=task["runners"], num_envs_per_env_runner=task["envs"], rollout_fragment_length=20)
    .training(train_batch_size_per_learner=320)
    .learners(num_learners=0)
    .debugging(seed=task["seed"])
)
ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR")
algorithm = config.build_algo()


def learned():
    """Environment steps that the learner has had."""
    result = algorithm.train()
    return result["num_env_steps_sampled_lifetime"]


learned()
begin, before = time.perf_counter(), learned()
while time.perf_counter() < begin + task["seconds"]:
    steps = learned()
print(json.dumps({"seconds": time.perf_counter() - begin, "steps": steps - before, "idle": 0}))
algorithm.stop()
ray.shutdown()
