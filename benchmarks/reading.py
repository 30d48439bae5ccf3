"""How much a reader of Boonta's code meets: files that a run calls, files that an example imports, and what repeats.

python -m benchmarks.reading [--checkout PATH] ...   # several checkouts stand side by side
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import ROOT, notes, table

COMMAND = ["train", "ppo", "gymnax:CartPole-v1", "--steps", "20000", "--set", "run.eval_episodes=4"]
EXAMPLE = "examples/anakin_ppo.py"
SHARED = ("State", "Settings", "System")  # names of public classes that many modules may give
EQUAL = 6  # lines
LIMIT = 900.0  # seconds that the command may take

# Runs in a process of its own: which files a function of is called, in any thread, before the process ends.
CALLED = """
import json, os, sys, threading
here, out, words = sys.argv[1], sys.argv[2], sys.argv[3:]
found = set()

def profile(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and not code.co_name.startswith("<"):  # 1: no module, no class body
        found.add(code.co_filename)

def write():
    sys.setprofile(None)
    with open(out, "w") as file:
        json.dump(sorted(name for name in found if name.startswith(here)), file)

leave = os._exit
os._exit = lambda code: (write(), leave(code))
threading.setprofile(profile)
sys.setprofile(profile)
from boonta.cli import main
code = main(words)
write()
sys.exit(code)
"""
IMPORTED = """
import json, runpy, sys
here, out, example = sys.argv[1:]
runpy.run_path(example, run_name="example")
files = {getattr(one, "__file__", None) or "" for one in sys.modules.values()}
with open(out, "w") as file:
    json.dump(sorted(name for name in files if name.startswith(here)), file)
"""


class Function(NamedTuple):
    """A function, and its lines without those of the functions inside it."""

    name: str
    lines: int


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The counts of each checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, action="append", help="another than this one; may be given again")
    parser.add_argument("--still", action="store_true", help="only what is counted without a run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = [counts(path.resolve(), args.still) for path in args.checkout or [ROOT]]
    if args.json:
        print(json.dumps(rows))
        return rows
    shown = table("What a reader meets", "counted", *(row["checkout"] for row in rows))
    for key, value in rows[0].items():
        if key != "checkout" and not isinstance(value, list):
            shown.add_row(key, *(f"{row[key]:,}" if isinstance(row[key], int) else row[key] for row in rows))
    notes.print(shown)
    return rows


def counts(root: Path, still: bool = False) -> dict[str, Any]:
    """The counts of one checkout."""
    files = sorted((root / "src").rglob("*.py"))
    trees = {file: ast.parse(file.read_text("utf-8")) for file in files}
    longest = max((function for tree in trees.values() for function in functions(tree)), key=lambda one: one.lines)
    largest = max(files, key=_lines)
    again = shared_names(list(trees.values()))
    found: dict[str, Any] = {"checkout": _commit(root)}
    if not still:
        called, imported = _called(root), _imported(root)
        found |= {"files called": len(called), "their lines": sum(map(_lines, called))}
        found |= {"files imported by the example": len(imported), "lines of these": sum(map(_lines, imported))}
    return found | {
        "lines of src": sum(map(_lines, files)),
        "largest file": f"{largest.relative_to(root / 'src' / 'boonta')}, {_lines(largest)}",
        "files above 400 lines": sum(_lines(file) > 400 for file in files),
        "longest function": f"{longest.name}, {longest.lines}",
        "names of several public classes": len(again),
        "these names": sorted(again),
        f"pairs of places with {EQUAL} equal lines": pairs([file.read_text("utf-8") for file in files]),
    }


def functions(tree: ast.AST) -> list[Function]:
    """All functions of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            inner, waiting = 0, list(ast.iter_child_nodes(node))
            while waiting:
                one = waiting.pop()
                if isinstance(one, kinds):
                    inner += _span(one)
                else:
                    waiting += ast.iter_child_nodes(one)
            found.append(Function(node.name, _span(node) - inner))
    return found


def shared_names(trees: Sequence[ast.Module]) -> set[str]:
    """The names that more than one public class at the top of a module has."""
    classes = (node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    counted = Counter(name for name in classes if not name.startswith("_") and name not in SHARED)
    return {name for name, count in counted.items() if count > 1}


def pairs(texts: Sequence[str]) -> int:
    """Pairs of places from which on so many lines are equal; blank lines, comments and imports do not count.

    Where more lines are equal, they are one pair.
    """
    files = [[line for line in map(str.strip, text.splitlines()) if _counts(line)] for text in texts]
    places: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for i, lines in enumerate(files):
        for j in range(len(lines) - EQUAL + 1):
            places[tuple(lines[j : j + EQUAL])].append((i, j))
    found = 0
    for same in places.values():
        for first, (i, j) in enumerate(same):
            for k, m in same[first + 1 :]:
                found += not (j and m and files[i][j - 1] == files[k][m - 1])
    return found


def _counts(line: str) -> bool:
    return bool(line) and not line.startswith(("#", "import ", "from "))


def _span(node: Any) -> int:
    return node.end_lineno - node.lineno + 1


def _lines(file: Path) -> int:
    return len(file.read_text("utf-8").splitlines())


def _called(root: Path) -> list[Path]:
    with tempfile.TemporaryDirectory() as folder:
        return _told(root, folder, CALLED, [*COMMAND, "--out", f"{folder}/run"])


def _imported(root: Path) -> list[Path]:
    with tempfile.TemporaryDirectory() as folder:
        return _told(root, folder, IMPORTED, [str(root / EXAMPLE)])


def _told(root: Path, folder: str, code: str, words: Sequence[str]) -> list[Path]:
    """The files that a process told of, with the sources of a checkout."""
    here, out = str(root / "src"), Path(folder) / "told.json"
    environment = os.environ | {"PYTHONPATH": here}
    process = [sys.executable, "-P", "-c", code, here, str(out), *words]
    done = subprocess.run(
        process, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode or not out.exists():
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return [Path(name) for name in json.loads(out.read_text())]


def _commit(root: Path) -> str:
    words = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
