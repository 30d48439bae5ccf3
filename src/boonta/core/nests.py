"""Trees of NumPy arrays, for those who have no JAX: mappings, tuples and lists, in JAX's order."""

from collections.abc import Callable, Iterator
from typing import Any

from boonta.core.types import PyTree


def mapped(function: Callable[..., Any], tree: PyTree, *others: PyTree) -> PyTree:
    """`function` of each leaf, and of those at its place in the others."""
    if isinstance(tree, dict):
        return {key: mapped(function, tree[key], *(other[key] for other in others)) for key in sorted(tree)}
    if isinstance(tree, tuple | list):
        made = [mapped(function, *parts) for parts in zip(tree, *others, strict=True)]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return function(tree, *others)


def named(tree: PyTree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, such as `observation/image`."""
    if isinstance(tree, dict):
        parts = [(str(key), tree[key]) for key in sorted(tree)]
    elif isinstance(tree, tuple | list):
        parts = list(zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=True))
    else:
        yield path, tree
        return
    for key, part in parts:
        yield from named(part, f"{path}/{key}" if path else key)


def leaves(tree: PyTree) -> list[Any]:
    """All leaves."""
    return [leaf for _, leaf in named(tree)]


def filled(tree: PyTree, values: list[Any]) -> PyTree:
    """A tree of the same structure with these leaves, in the order of `leaves`."""
    rest = iter(values)
    return mapped(lambda _: next(rest), tree)
