"""Thoughts as one page that needs no network: positions, search trees, and what was predicted beside what was found."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import imageio.v3 as iio
import numpy as np

from boonta.experiments import page
from boonta.experiments.files import write_text
from boonta.experiments.thoughts import Thought
from boonta.ops.search import Tree

NODES = 48  # of a tree, those with most visits
ACROSS, DOWN, AROUND = 26, 46, 16  # between leaves, between levels, at the edge


def write_page(thoughts: Sequence[Thought], title: str, out: Path) -> None:
    """Write the page.

    Raises:
        ValueError: `out` is not an .html file.
    """
    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html, got {out.name!r}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, document(thoughts, title))


def document(thoughts: Sequence[Thought], title: str) -> str:
    """The page."""
    body = "".join(_move(i, thought) for i, thought in enumerate(thoughts))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{page.style()}{_CSS}</style></head>"
        f"<body><main><header><h1>{escape(title)}</h1><p>{_HEADER}</p></header>{body}</main></body></html>\n"
    )


def _move(number: int, thought: Thought) -> str:
    found, tree = thought.found, thought.found.tree
    words = {"of the network": tree.predicted[0], "of the search": found.value, "in the end": thought.outcome}
    values = "".join(f"<tr><td>{name}</td><td class=number>{value:+.2f}</td></tr>" for name, value in words.items())
    board = f'<img alt="position {number}" src="{_png(thought.frame)}">' if thought.frame is not None else ""
    return page.section(
        f"Move {number + 1}: action {int(found.action)}",
        f'<div class="move"><figure>{board}<table><thead><tr><th>value</th><th></th></tr></thead>{values}</table>'
        f"</figure><figure>{_policies(thought)}</figure><figure>{drawing(tree, int(found.action))}</figure></div>",
    )


def _policies(thought: Thought) -> str:
    """Bars of what the network would do, and of what the search says."""
    found, rows = thought.found, []
    for action in np.flatnonzero(thought.legal | (found.policy > 0)):
        prior, improved = float(found.tree.policy[action]), float(found.policy[action])
        chosen = " class=chosen" if action == found.action else ""
        bars = "".join(
            f'<i style="width:{100 * share:.1f}%" class="{kind}" title="{share:.3f}"></i>'
            for kind, share in (("prior", prior), ("improved", improved))
        )
        rows.append(
            f"<tr{chosen}><td class=number>{action}</td><td>{bars}</td><td class=number>{improved:.2f}</td></tr>"
        )
    return (
        f'<table class="policy"><thead><tr><th>action</th><th>policy</th><th></th></tr></thead>{"".join(rows)}</table>'
    )


class _Place(NamedTuple):
    """Where a node is drawn, what led there, and what it is worth to whoever moves at the root."""

    node: int
    x: float
    y: float
    parent: int
    worth: float


def drawing(tree: Tree, chosen: int) -> str:
    """The most visited nodes of a tree as SVG: a node's area is its visits, its colour its value at the root."""
    places = _placed(tree)
    width = max(one.x for one in places.values()) + AROUND
    height = max(one.y for one in places.values()) + AROUND
    edges, nodes = [], []
    most = max(int(tree.visits[0]), 1)
    for one in places.values():
        visits = int(tree.visits[one.node])
        kind = "good" if one.worth > 0.05 else "bad" if one.worth < -0.05 else "muted"
        if one.parent >= 0:
            above = places[one.parent]
            played = ' class="chosen"' * (one.parent == 0 and int(tree.action[one.node]) == chosen)
            middle = (above.x + one.x) / 2, (above.y + one.y) / 2
            edges.append(
                f'<path d="M{above.x:.1f} {above.y:.1f}L{one.x:.1f} {one.y:.1f}"{played} '
                f'stroke-width="{0.75 + 5 * visits / most:.2f}"/>'
                f'<text x="{middle[0]:.1f}" y="{middle[1]:.1f}">{int(tree.action[one.node])}</text>'
            )
        told = (
            f"{visits} visits, value {tree.value[one.node]:+.2f} to whoever moves, {tree.predicted[one.node]:+.2f} "
            f"predicted, prior {tree.prior[one.node]:.2f}, reward {tree.reward[one.node]:+.2f}"
        )
        radius = 3 + 9 * (visits / most) ** 0.5
        nodes.append(
            f'<circle cx="{one.x:.1f}" cy="{one.y:.1f}" r="{radius:.1f}" style="fill:var(--{kind})">'
            f"<title>{escape(told)}</title></circle>"
        )
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px"'
    return f'<svg class="tree" xmlns="http://www.w3.org/2000/svg" {view}>{"".join(edges)}{"".join(nodes)}</svg>'


def _placed(tree: Tree) -> dict[int, _Place]:
    """Leaves side by side, those above in the middle of what is below them."""
    visited = np.flatnonzero(tree.visits > 0)
    kept = {int(node) for node in sorted(visited, key=lambda node: -int(tree.visits[node]))[:NODES]} | {0}
    children: dict[int, list[int]] = {node: [] for node in kept}
    for node in sorted(kept - {0}, key=lambda node: int(tree.action[node])):
        children[int(tree.parent[node])].append(node)  # whose visits are no fewer: it is kept
    places: dict[int, _Place] = {}
    leaves = 0

    def place(node: int, depth: int, sign: float) -> float:
        nonlocal leaves
        below = [place(child, depth + 1, sign * _turn(tree, child)) for child in children[node]]
        if below:
            x = (below[0] + below[-1]) / 2
        else:
            x = AROUND + ACROSS * leaves
            leaves += 1
        places[node] = _Place(node, x, AROUND + DOWN * depth, int(tree.parent[node]), sign * float(tree.value[node]))
        return x

    place(0, 0, 1.0)
    return places


def _turn(tree: Tree, node: int) -> float:
    return -1.0 if tree.discount[node] < 0 else 1.0


def _png(frame: np.ndarray | None) -> str:
    data: bytes = iio.imwrite("<bytes>", np.asarray(frame), extension=".png")  # type: ignore[assignment]
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


_HEADER = (
    "Of each move: the position, and its value to whoever moves; the policy of the network (pale) and of the search; "
    "and the search tree, in which a node's area is its visits, and green is what is good for whoever moves at the "
    "root. Point at a node to see its numbers."
)
_CSS = """
.move{display:grid;grid-template-columns:minmax(150px,220px) minmax(180px,260px) 1fr;gap:16px}
.move figure{background:var(--card);border:1px solid var(--edge);border-radius:10px;overflow-x:auto}
.move img{display:block;width:100%;image-rendering:pixelated;margin-bottom:10px}
.policy td{padding:3px 6px}.policy td:nth-child(2){width:100%}
.policy i{display:block;height:6px;min-width:1px;background:var(--line-0)}
.policy i.prior{opacity:.35;margin-bottom:2px}
.policy tr.chosen td{font-weight:650}
.tree path{stroke:var(--grid);fill:none}.tree path.chosen{stroke:var(--line-1)}
.tree text{font-size:8px;fill:var(--muted);text-anchor:middle}
.tree circle{stroke:var(--card)}
@media(max-width:800px){.move{grid-template-columns:1fr}}
"""
