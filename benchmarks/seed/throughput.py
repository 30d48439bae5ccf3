"""Steps/s of SEED: Pong with the Nature CNN beside Sebulba and RLlib, and the server alone with an agent that is none.

The server alone: clients whose environments cost nothing and show the pixels of Atari games, and an agent that acts at
random; by the number of environments and of actor processes.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, notes, numbers, outcome_row, parse, parser, short, table
from benchmarks.sebulba.pong import WORDS

MODULE = "benchmarks.seed.contestants"
STUB = ["benchmarks.seed.stub:random_policy", "benchmarks.seed.environments:blank"]
# As its IMPALA comes, and with as many environments and trajectories in a batch as ours, and our perceptron.
RLLIB = {"rllib": {"runners": 2, "envs": 1, "unroll": 50, "batch": 500}}
RLLIB["rllib, wide"] = {"runners": 2, "envs": 8, "unroll": 20, "batch": 320, "hidden": [64, 64]}
CARTPOLE = ["vtrace", "gym:CartPole-v1", "agent.batch=16", "agent.unroll=20", "architecture.envs=16"]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("throughput", __doc__ or "", rounds=3, module="seed")
    options.add_argument("--envs", type=numbers, default=[8, 32, 128], help="environments of the server alone")
    options.add_argument("--actors", type=numbers, default=[1, 2, 4], help="its actor processes")
    options.add_argument("--rllib", metavar="PYTHON", help="interpreter of an environment that has it")
    options.add_argument("--only", choices=("peers", "server"), help="one of the two parts")
    args = parse(options, argv)
    rows, tables = [], []
    if args.only != "server":
        for env, words, iterations in (("ale:Pong", WORDS, 60), ("gym:CartPole-v1", CARTPOLE, 400)):
            made, shown = _beside_peers(args, env, words, 2 if args.quick else iterations)
            rows += made
            tables.append(shown)
    if args.only != "peers":
        made, shown = _server(args)
        rows += made
        tables.append(shown)
    return finish(args, rows, *tables)


def _beside_peers(args: Any, env: str, words: list[str], iterations: int) -> tuple[list[Row], Any]:
    ours = {"module": MODULE, "kind": "ours", "words": words, "iterations": iterations}
    tasks: dict[str, dict[str, Any]] = {"seed": ours | {"on": "seed"}, "sebulba": ours | {"on": "sebulba"}}
    pythons = {}
    for peer, shape in RLLIB.items() if args.rllib else ():
        name = "ALE/Pong-v5" if env == "ale:Pong" else "CartPole-v1"
        seconds = 5 if args.quick else 30
        tasks[peer] = {"module": MODULE, "kind": "rllib", "environment": name, "seconds": seconds, **shape}
        pythons[peer] = args.rllib
    if not args.rllib:
        notes.print("NO PEER: --rllib names an interpreter that has it")
    outcomes = compete(tasks, args.rounds, pythons)
    rates = {name: outcome.rate for name, outcome in outcomes.items()}
    others = [one for one in ("sebulba", *RLLIB) if one in rates]
    rows, shown = [], table(f"{env}, V-trace", "", "steps/s", *(f"of {one}" for one in others))
    for name, outcome in outcomes.items():
        of = {one: rates[name] / rates[one] for one in others}
        rows.append(outcome_row(args, env, name, outcome, of=of))
        shown.add_row(name, short(rates[name]), *(f"{share:.2f}" for share in of.values()))
    return rows, shown


def _server(args: Any) -> tuple[list[Row], Any]:
    rows, shown = [], table("The server alone", "actors", *(f"{n} environments" for n in args.envs))
    for actors in args.actors:
        rates = []
        for envs in args.envs:
            iterations = 2 if args.quick else max(10, 60_000 // (20 * envs))
            words = [*STUB, f"architecture.envs={envs}", f"architecture.actors={actors}", f"agent.batch={envs}"]
            words += [] if actors > 1 else ["architecture.minimum=1"]
            task = {"module": MODULE, "kind": "ours", "on": "seed", "words": words, "iterations": iterations}
            (outcome,) = compete({"ours": task}, args.rounds).values()
            rows.append(outcome_row(args, f"server/{actors} actors/{envs} envs", "ours", outcome))
            rates.append(short(outcome.rate))
        shown.add_row(str(actors), *rates)
    return rows, shown


if __name__ == "__main__":
    main()
