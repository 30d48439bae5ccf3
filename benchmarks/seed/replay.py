"""Replays of R2D2's sequences of Atari frames: insertions and samples a second, and memory for each frame.

Ours in the host's memory, plain and compressed, and on a device, beside flashbax where it is installed. A frame as it
is has 84 x 84 = 7056 bytes; its observation, a stack of four, 28224.
"""

import importlib.util
from collections.abc import Sequence

from benchmarks.common import Row, compete, finish, notes, outcome_row, parse, parser, short, table

MODULE = "benchmarks.seed.contestants"
FRAME = 84 * 84


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("replay", __doc__ or "", rounds=3, module="seed")
    options.add_argument("--capacity", type=int, help="sequences (default 1000)")
    options.add_argument("--batch", type=int, default=64, help="sequences of a sample")
    args = parse(options, argv)
    capacity = args.capacity or (40 if args.quick else 1000)
    batch = 4 if args.quick else args.batch
    stores = ["host", "compressed", "device"]
    if importlib.util.find_spec("flashbax"):
        stores.append("flashbax")
    else:
        notes.print("NO PEER: flashbax is not installed")
    rows, rates, bytes_of = [], {}, {}
    for what in ("insert", "sample"):
        task = {"module": MODULE, "kind": "store", "what": what, "capacity": capacity, "batch": batch}
        for name, outcome in compete({one: task | {"store": one} for one in stores}, args.rounds).items():
            rates[name, what], bytes_of[name] = outcome.rate, outcome.ready["bytes_per_frame"]
            more = {"bytes_per_frame": bytes_of[name], "of_frame": bytes_of[name] / FRAME}
            rows.append(outcome_row(args, what, name, outcome, **more))
    shown = table(
        "Sequences of 120 steps of Pong", "replay", "pieces of 40 steps in/s", "sequences out/s", "bytes a frame",
        "of the frame itself",
    )  # fmt: skip
    for name in stores:
        size = bytes_of[name]
        shown.add_row(
            name, short(rates[name, "insert"]), short(rates[name, "sample"]), f"{size:.0f}", f"{size / FRAME:.2f}"
        )
    return finish(args, rows, shown)


if __name__ == "__main__":
    main()
