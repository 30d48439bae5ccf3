"""Write the tables of the README and of the documentation from the results that the repository keeps.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else of the page is left alone.
"""

import re

from benchmarks.tables import anakin, learning, newcomer, planning, sebulba, seed, split
from benchmarks.tables.common import ROOT
from boonta.experiments.files import write_text

PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "value-first.md")
TABLES = (
    anakin.TABLES | sebulba.TABLES | seed.TABLES | planning.TABLES | split.TABLES | learning.TABLES | newcomer.TABLES
)


def main() -> None:
    """Bring every page up to date."""
    for page in PAGES:
        write_text(page, render(page.read_text("utf-8")))


def render(text: str) -> str:
    """The page with its tables made anew; a table whose results are not there says so."""

    def one(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{TABLES[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin ([\w-]+) -->.*?<!-- end \1 -->", one, text, flags=re.DOTALL)


if __name__ == "__main__":
    main()
