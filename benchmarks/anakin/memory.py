"""Memory against environments x unroll: a line through the peaks of fresh processes, beside what was to be expected.

Two predictions: the bytes that the trajectories alone hold (which a batch exists at least once for), and what XLA plans
for the compiled program, activations of a minibatch included.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.anakin.peers import AGENT
from benchmarks.common import Row, compete, finish, notes, numbers, parse, parser, row, table


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("memory", __doc__ or "", rounds=1)
    options.add_argument(
        "--environment", default="gymnax:Breakout-MinAtar", help="ENV (default gymnax:Breakout-MinAtar)"
    )
    options.add_argument("--envs", type=numbers, help="environments (default 128,512,2048)")
    options.add_argument("--unroll", type=numbers, help="steps of a trajectory (default 32,64,128)")
    options.add_argument("--minibatches", type=int, default=4, help="gradient steps of one pass (default 4)")
    args = parse(options, argv)
    sizes = args.envs or ([8, 512] if args.quick else [128, 512, 2048])
    lengths = args.unroll or ([32] if args.quick else [32, 64, 128])
    rows: list[Row] = []
    result = table(
        f"PPO, {args.environment}: peak memory of a run, MB",
        "environments", "unroll", "env-steps", "peak", "of the fit", "trajectories", "XLA's plan", "compiling",
    )  # fmt: skip
    tasks: dict[str, dict[str, Any]] = {}
    for envs in sizes:
        for unroll in lengths:
            agent = AGENT | {"unroll": unroll, "minibatches": args.minibatches, "epochs": 1}
            base = {"kind": "ours", "environment": args.environment, "envs": envs, "agent": agent, "devices": 1}
            # Three iterations: the donated state has then been reused.
            tasks[f"{envs}x{unroll}"] = base | {"steps": 3 * envs * unroll, "account": True}
    measured: dict[str, dict[str, Any]] = {}
    for cell, task in tasks.items():
        notes.print(cell)
        outcome = compete({"ours": task}, args.rounds, hurry=True)["ours"]
        measured[cell] = outcome.ready | {"peaks": [run["peak_rss_mb"] for run in outcome.runs]}
    steps = np.array([task["envs"] * task["agent"]["unroll"] for task in tasks.values()], float)
    peaks = np.array([np.median(facts["peaks"]) for facts in measured.values()])
    slope, fixed = np.polyfit(steps, peaks, 1)
    fitted = fixed + slope * steps
    trajectory = measured[list(tasks)[-1]]["trajectory_mb"] / steps[-1] * 1e6
    plan = np.polyfit(steps, [facts["planned_mb"] for facts in measured.values()], 1)[0] * 1e6
    for (cell, task), fit in zip(tasks.items(), fitted, strict=True):
        facts, unroll = measured[cell], task["agent"]["unroll"]
        keys = ("compile_seconds", "compile_peak_mb", "trajectory_mb", "planned_mb", "own_peak", "versions")
        more = {key: facts[key] for key in keys} | {"environment": args.environment, "envs": task["envs"]}
        more |= {"unroll": unroll, "agent": task["agent"], "fitted_mb": float(fit)}
        rows.append(row(args, cell, "ours", facts["peaks"], "MB", peak_rss_mb=max(facts["peaks"]), **more))
        result.add_row(
            str(task["envs"]),
            str(unroll),
            str(task["envs"] * unroll),
            f"{rows[-1]['median']:.0f}",
            f"{rows[-1]['median'] / fit:.0%}",
            *(f"{facts[key]:.1f}" for key in ("trajectory_mb", "planned_mb", "compile_peak_mb")),
        )
    residual = float(np.sqrt(np.mean((peaks - fitted) ** 2)))
    more = {
        "fixed_mb": float(fixed),
        "residual_mb": residual,
        "trajectory_bytes_per_env_step": trajectory,
        "planned_bytes_per_env_step": float(plan),
    }
    rows.append(row(args, "fit", "ours", [float(slope * 1e6)], "bytes per env-step", **more))
    remarks = [
        f"peak = {fixed:.0f} MB + {slope * 1e6:.0f} bytes per env-step; residual {residual:.1f} MB (root mean square)",
        f"a trajectory holds {trajectory:.0f} bytes per env-step; XLA plans {plan:.0f}",
    ]
    if not all(facts["own_peak"] for facts in measured.values()):
        remarks.append("Peaks include compilation: this kernel cannot start them anew.")
    return finish(args, rows, result, remarks=remarks)


if __name__ == "__main__":
    main()
