"""In which order the devices of a compiled program meet, read off its text."""

import re

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LINE = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
CALLED = re.compile(r"(?:condition|body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
WORD = re.compile(r"%([\w.\-]+)")


def unordered(text: str) -> list[tuple[str, str]]:
    """Pairs of a loop or branch within which devices meet and another place where they do, that no data orders.

    XLA on a CPU may run such two in either order on each device, where a program comes from the cache: it orders
    collectives of one sequence, but not those of a loop's body with those around it.
    """
    computations = _computations(text)
    meeting: dict[str, bool] = {}

    def meets(name: str) -> bool:
        if name not in meeting:
            meeting[name] = False
            meeting[name] = any(_direct(line) or any(map(meets, _called(line))) for line in computations[name].values())
        return meeting[name]

    found = []
    for lines in computations.values():
        direct = [name for name, line in lines.items() if _direct(line)]
        nested = [name for name, line in lines.items() if not _direct(line) and any(map(meets, _called(line)))]
        before: dict[str, set[str]] = {}
        for name, line in lines.items():  # operands come first in the text
            operands = [x for x in WORD.findall(line) if x in before]
            before[name] = set(operands).union(*(before[x] for x in operands))
        for one in nested:
            others = [*direct, *nested[nested.index(one) + 1 :]]
            found += [(one, x) for x in others if one not in before[x] and x not in before[one]]
    return found


def _computations(text: str) -> dict[str, dict[str, str]]:
    """Instructions by name, of computations by name."""
    computations: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{") and "->" in line:
            current = computations.setdefault(line.removeprefix("ENTRY ").lstrip("%").split(" ")[0], {})
        elif match := LINE.match(line):
            current[match["name"]] = match["rest"]
    return computations


def _direct(line: str) -> bool:
    return any(f" {kind}(" in line or f" {kind}-start(" in line for kind in COLLECTIVES)


def _called(line: str) -> list[str]:
    branches = [name.strip().lstrip("%") for group in BRANCHES.findall(line) for name in group.split(",")]
    return CALLED.findall(line) + branches
