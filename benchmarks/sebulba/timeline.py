"""A timeline of a run on Sebulba, drawn: what each thread did in a short while, from the file of `--trace`."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "curves" / "timeline.png"
RUN = "vtrace ale:Pong --on sebulba --steps 20000 --set run.eval_episodes=1 --set agent.batch=16"
COLOURS = {
    "act": "#3b6fd4", "step environments": "#e08a1e", "hand over": "#7a52c7", "wait for the learner": "#c9ced6",
    "learn": "#16825b", "publish": "#c22f4e", "wait for experience": "#c9ced6",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> Path:
    """Make the run, or read its trace; write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sebulba.timeline", description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file that --trace wrote; default: of a short run of Pong")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a while to draw (default 1)")
    parser.add_argument("--out", type=Path, default=PICTURE)
    args = parser.parse_args(argv)
    if args.trace:
        draw(json.loads(args.trace.read_text("utf-8")), args.seconds, args.out)
        return args.out
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        words = [*RUN.split(), "--out", f"{folder}/run", "--json", "--trace", str(trace)]
        subprocess.run([sys.executable, "-P", "-m", "boonta", "train", *words], check=True, stdout=subprocess.DEVNULL)
        draw(json.loads(trace.read_text("utf-8")), args.seconds, args.out)
    return args.out


def draw(trace: dict[str, Any], seconds: float, out: Path) -> None:
    """A picture of the middle of the trace."""
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [event for event in events if event["ph"] == "X"]
    middle = max(event["ts"] for event in spans if event["name"] == "learn") * 0.7
    shown = [event for event in spans if middle - event["dur"] <= event["ts"] <= middle + seconds * 1e6]
    threads = sorted({event["tid"] for event in shown}, key=lambda tid: names[tid])
    figure = Figure((10, 0.9 + 0.6 * len(threads)), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, tid in enumerate(threads):
        for name, colour in COLOURS.items():
            bars = [((e["ts"] - middle) / 1e3, e["dur"] / 1e3) for e in shown if e["tid"] == tid and e["name"] == name]
            if bars:
                axes.broken_barh(
                    bars, (row - 0.35, 0.7), facecolors=colour, edgecolor="white", linewidth=0.3, label=name
                )
    axes.set_yticks(range(len(threads)), [names[t] for t in threads])
    axes.set_xlim(0, seconds * 1e3)
    axes.set_xlabel("milliseconds")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles), frameon=False, fontsize=8
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


if __name__ == "__main__":
    main()
