"""The folders are the architecture: imports point one way, and what is public is listed."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import boonta

ROOT = Path(boonta.__file__).parent
MAY_IMPORT = {
    "core": set(),
    "ops": {"core"},
    "nets": {"core", "ops"},
    "agents": {"core", "ops", "nets"},
    "envs": {"core"},
    "replay": {"core"},
    "transport": {"core"},
    "architectures": {"core", "replay"},
    "testing": {"core", "replay", "transport"},
    "experiments": {"core", "ops", "nets", "agents", "envs", "replay", "transport", "architectures", "experiments"},
}
OWN_FILES = {  # optional packages, each imported in a file or two alone
    "ale_py": {"envs/ale.py"},
    "brax": {"envs/brax.py"},
    "mujoco": {"envs/physics.py"},
    "mujoco_playground": {"envs/playground.py"},
    "ray": {"transport/ray.py"},
    "redis": {"transport/redis_server.py"},
    "grpc": {"transport/client.py", "transport/server.py"},
    "minatar": {"envs/minatar.py"},
    "pgx": {"envs/pgx.py"},
    "pyspiel": {"envs/openspiel.py", "experiments/games/players.py"},
}
OPTIONAL = {*OWN_FILES, "open_spiel", "rlax", "distrax"}


def imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file):
    folder = file.relative_to(ROOT).parts[0]
    ours = {name.split(".")[1] for name in imports(file) if name.startswith("boonta.") and "." in name}
    if folder in MAY_IMPORT:
        assert ours <= MAY_IMPORT[folder] | {folder}, f"{folder} may import only {sorted(MAY_IMPORT[folder])}"
    optional = OPTIONAL & {name.split(".")[0] for name in imports(file)}
    assert all(file.relative_to(ROOT).as_posix() in OWN_FILES.get(name, ()) for name in optional)


def test_every_folder_has_its_place():
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders <= set(MAY_IMPORT)


@pytest.mark.parametrize("module", [f"boonta.{m.name}" for m in pkgutil.iter_modules(boonta.__path__) if m.ispkg])
def test_all_is_complete(module):
    package = importlib.import_module(module)
    for names in getattr(package, "_WHERE", {}).values():  # imported when they are asked for
        for name in names:
            getattr(package, name)
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith(module)
        and not hasattr(value, "__path__")
    }
    listed = set(getattr(package, "__all__", ()))
    assert public == {name for name in listed if hasattr(getattr(package, name), "__module__")}
    assert all(hasattr(package, name) for name in listed)


def test_the_command_line_starts_without_jax():
    assert not {name for name in imports(ROOT / "cli.py") if name.startswith("jax")} - {"jax"}
