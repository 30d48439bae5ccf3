"""What a report's page is made of: sections, tables, legends, figures, numbers in words, and the style sheet."""

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from boonta.experiments.charts import DARK, LIGHT, Chart, Ink, svg
from boonta.experiments.curves import EPISODE, EVAL, Track, finite
from boonta.experiments.progress import short

_BORDERS = ("solid", "dashed", "dotted")  # in a legend, for the dashes of a chart


def section(title: str, *content: str, note: str = "") -> str:
    """A heading, a remark beside it, and HTML below; nothing where there is nothing below."""
    if not any(content):
        return ""
    aside = f'<span class="note">{escape(note)}</span>' if note else ""
    return f"<section><h2>{escape(title)}{aside}</h2>{''.join(content)}</section>"


def table(head: Iterable[str], rows: list[list[str]], right: tuple[int, ...] = (), mark: bool = False) -> str:
    """A table of ready HTML cells, with `right` the columns of numbers; `mark` tints the cells after the first."""

    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(f"<{tag}{' class=number' if i in right else ''}>{cell}</{tag}>" for i, cell in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    kind = ' class="differing"' if mark else ""
    head_row = f"<thead><tr>{cells('th', head)}</tr></thead>"
    return f'<div class="scroll"><table{kind}>{head_row}<tbody>{body}</tbody></table></div>'


def legend(tracks: list[Track], both: bool) -> str:
    """Which line is whose; of a single track, which is training and which evaluation if there are `both`."""

    def chip(track: Track, label: str, opacity: float = 1.0) -> str:
        border = _BORDERS[track.style // len(LIGHT.lines) % len(_BORDERS)]
        line = f"border-top:3px {border} var(--line-{track.style % len(LIGHT.lines)});opacity:{opacity}"
        return f'<li><span style="{line}"></span>{escape(label)}</li>'

    if len(tracks) > 1:
        chips = "".join(chip(track, track.label) for track in tracks)
    elif both:
        chips = chip(tracks[0], "training episodes", 0.5) + chip(tracks[0], "evaluation")
    else:
        return ""
    return f'<ul class="legend">{chips}</ul>'


def figures(charts: list[Chart], tracks: list[Track], size: tuple[float, float], points: int, kind: str) -> str:
    """The charts in a grid, each under its title."""
    drawn = []
    for i, chart in enumerate(charts):
        rows = [row for track in tracks for rows in track.members for row in rows]
        # A mean return is null until an episode ends: that is no news. A loss is.
        lost = sum(key in row and row[key] is None for row in rows for key in chart.keys if key not in (EPISODE, EVAL))
        news = f'<b class="lost">{lost} not finite</b>' if lost and not chart.keys[0].startswith("episode/") else ""
        picture = svg(chart, tracks, size, points, f"{kind}{i}")
        drawn.append(f"<figure><figcaption>{escape(chart.title)}{news}</figcaption>{picture}</figure>")
    return f'<div class="{kind}">{"".join(drawn)}</div>' if drawn else ""


def cards(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of names and values side by side."""
    made = "".join(
        f"<div><h3>{escape(name)}</h3><table>"
        + "".join(f"<tr><td>{escape(key)}</td><td>{worded(value)}</td></tr>" for key, value in table.items())
        + "</table></div>"
        for name, table in tables.items()
        if table
    )
    return f'<div class="cards">{made}</div>' if made else ""


def number(value: Any) -> str:
    """A number as people write it, or – where there is none."""
    if not finite(value := value.item() if isinstance(value, np.generic) else value):
        return "–"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.2e}"


def with_spread(mean: float | None, std: float | None) -> str:
    """A mean ± its standard deviation, where that is known."""
    return number(mean) + (f" ± {number(std)}" if std is not None else "")


def shortened(value: Any) -> str:
    """12,345,678 as 12.3M."""
    return short(value) if finite(value) and abs(value) >= 10_000 else number(value)


def clock(seconds: Any) -> str:
    """Seconds in the units people use."""
    if not finite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def worded(value: Any) -> str:
    """A setting, escaped."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(worded(item) for item in value) or "[ ]"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def style() -> str:
    """The style sheet, light and dark."""

    def variables(ink: Ink, **more: str) -> str:
        lines = {f"line-{i}": line for i, line in enumerate(ink.lines)}
        named = {"text": ink.text, "muted": ink.muted, "grid": ink.grid} | lines | more
        return "".join(f"--{key}:{value};" for key, value in named.items())

    light = variables(LIGHT, **_LIGHT_PAGE)
    dark = variables(DARK, **_DARK_PAGE)
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{_CSS}"


_LIGHT_PAGE = {
    "page": "#f6f7f9",
    "card": "#fff",
    "edge": "#e6e8ec",
    "tint": "#fff4dc",
    "bad": "#c22f4e",
    "good": "#16825b",
}
_DARK_PAGE = {
    "page": "#14171b",
    "card": "#1c2026",
    "edge": "#2b313a",
    "tint": "#3a3017",
    "bad": "#ff7a93",
    "good": "#42c998",
}
_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
  font-variant-numeric:tabular-nums;-webkit-font-smoothing:antialiased}
main{max-width:1240px;margin:0 auto;padding:40px 24px 64px}
header p{margin:6px 0 0;color:var(--muted)}
h1{margin:0;font-size:26px;line-height:1.25;font-weight:650;letter-spacing:-.015em;overflow-wrap:anywhere}
h1 i{margin:0 .4em;color:var(--muted);font-weight:400}
h2{margin:0 0 14px;font-size:17px;font-weight:620;letter-spacing:-.005em}
h3{margin:0 0 6px;font-size:13px;font-weight:600;color:var(--muted)}
section{margin-top:40px}
.note{margin-left:12px;font-size:13px;font-weight:400;letter-spacing:0;color:var(--muted)}
.tiles,.facts,.cards,.wide,.small{display:grid;gap:16px;margin:0}
.tiles{grid-template-columns:repeat(auto-fit,minmax(200px,1fr));margin-top:28px}
.tiles div,.facts,.wide figure,.small figure,.cards>div,.scroll,details,aside,.bar,.empty{background:var(--card);
  border:1px solid var(--edge);border-radius:10px}
.tiles div{padding:14px 18px 12px}
dt,.tiles small{font-size:13px;color:var(--muted)}
dd{margin:0}
.tiles dd{font-size:27px;line-height:1.3;font-weight:620;letter-spacing:-.02em;white-space:nowrap}
.tiles i{font-size:17px;font-style:normal;font-weight:450;color:var(--muted)}
.tiles small{display:block;min-height:1.5em}
.facts{grid-template-columns:repeat(auto-fill,minmax(165px,1fr));padding:16px 18px}
.facts dd{overflow-wrap:anywhere}
.wide{grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr))}
.small{grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr))}
figure{margin:0;padding:14px 14px 8px}
figcaption{margin:0 4px 4px;font-size:13px;font-weight:600;overflow-wrap:anywhere}
.lost{float:right;font-weight:500;color:var(--bad)}
svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0 0 12px;padding:0;list-style:none;font-size:13px}
.legend span{display:inline-block;width:22px;margin-right:8px;vertical-align:middle}
.legend b{font-weight:600}
.bar{display:flex;height:26px;overflow:hidden;gap:1px;margin-bottom:10px}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;font-size:13px}
th,td{padding:8px 10px;text-align:left;vertical-align:top;border-top:1px solid var(--edge)}
thead th{border-top:0;font-weight:550;color:var(--muted);white-space:nowrap}
.scroll td{white-space:nowrap}
.scroll th:first-child,.scroll td:first-child{padding-left:18px}
.number{text-align:right}
.differing td+td{background:var(--tint)}
.cards{grid-template-columns:repeat(auto-fill,minmax(min(260px,100%),1fr));align-items:start}
.cards>div{padding:12px 16px}
.cards td{padding:4px 0;overflow-wrap:anywhere}
.cards td:first-child{padding-right:16px;overflow-wrap:normal;color:var(--muted)}
.cards td+td{text-align:right}
.cards tr:first-child td{border-top:0}
details{margin-top:12px;padding:10px 14px}
summary{cursor:pointer;font-size:14px}
details>div{margin-top:10px;border:0}
details .cards>div{background:none}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
aside{margin-top:24px;padding:14px 18px;border-left:4px solid var(--bad)}
aside b{color:var(--bad);font-weight:600}
pre{margin:8px 0 0;white-space:pre-wrap;overflow-wrap:anywhere}
.empty{margin:0;padding:32px;text-align:center;color:var(--muted)}
.badge{display:inline-block;padding:0 9px;border:1px solid;border-radius:20px;font-size:12.5px;color:var(--muted)}
.badge.done{color:var(--good)}.badge.running{color:var(--line-0)}
.badge.failed{color:var(--bad)}.badge.interrupted{color:var(--line-1)}
p .badge{margin-right:8px}
@media print{body{background:none}section{break-inside:avoid}}
"""
