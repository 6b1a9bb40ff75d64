"""Who may import whom: the package's layers, checked on the source itself."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import paceline

SOURCE = Path(paceline.__file__).parent

LAYERS = (
    ("errors", "clock"),
    ("parameters",),
    ("records",),
    ("step_records",),
    ("config",),
    ("policy",),
    ("planner",),
    ("kernels",),
    ("sampling",),
    ("cache",),
    ("models",),
    ("drafters",),
    ("engine",),
    ("llm",),
    ("runtime",),
    ("metrics",),
    ("administration",),
    ("measure",),
    ("server",),
    ("vllm",),
    ("ray",),
    ("cli",),
)
"""A package imports only from its own line and those above it."""

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
WITHOUT_TORCH = ("policy", "planner")
ENVIRONMENT = ("environ", "getenv")


def _modules() -> dict[str, ast.Module]:
    """Parse every module, by its dotted name."""
    trees = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


def _imports(tree: ast.Module, known: Mapping[str, object]) -> Iterator[str]:
    """Give the dotted name of every module that is imported anywhere in the tree, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def _layer(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "paceline" and len(parts) > 1 else None


def _imports_down_the_list(modules: Mapping[str, ast.Module]) -> list[str]:
    faults = []
    for module, tree in modules.items():
        own = _layer(module)
        for imported in _imports(tree, modules):
            other = _layer(imported)
            if own and other and RANK[other] > RANK[own]:
                faults.append(f"{module} imports {imported}")
    return faults


def _cycle(modules: Mapping[str, ast.Module]) -> list[str]:
    """Return the modules of one cycle of imports, in order, or nothing."""
    edges = {name: {i for i in _imports(tree, modules) if i in modules} for name, tree in modules.items()}
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for imported in sorted(edges[name]):
            if found := visit(imported, [*path, name]):
                return found
        finished.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name, []))), [])


def _reached(modules: Mapping[str, ast.Module], layer: str) -> set[str]:
    """Return all that a package imports, and all that those import, of ours and others'."""
    seen: set[str] = set()
    waiting = [module for module in modules if _layer(module) == layer]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module in modules:
            # A package's own `__init__` runs too; that of `paceline` loads what it names only when asked.
            parents = [module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)]
            waiting += [*_imports(modules[module], modules), *(p for p in parents if p != "paceline")]
    return seen


def _environment_readers(modules: Mapping[str, ast.Module]) -> list[str]:
    faults = []
    for module, tree in modules.items():
        for node in ast.walk(tree):
            direct = isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT
            named = isinstance(node, ast.ImportFrom) and any(a.name in ENVIRONMENT for a in node.names)
            if (direct or named) and _layer(module) != "config":
                faults.append(f"{module}:{node.lineno}")
    return faults


def _torch_users(modules: Mapping[str, ast.Module]) -> list[str]:
    return [
        module
        for module, tree in modules.items()
        if _layer(module) in WITHOUT_TORCH
        and any(imported.split(".")[0] == "torch" for imported in _imports(tree, modules))
    ]


def test_every_package_has_its_place_in_the_list() -> None:
    assert {layer for module in _modules() if (layer := _layer(module))} <= RANK.keys()


def test_no_import_goes_down_the_list() -> None:
    assert _imports_down_the_list(_modules()) == []


def test_no_cycle_of_imports() -> None:
    assert _cycle(_modules()) == []


def test_only_config_reads_the_environment() -> None:
    assert _environment_readers(_modules()) == []


def test_policy_and_planner_do_without_torch() -> None:
    assert _torch_users(_modules()) == []


def test_the_policy_reaches_neither_torch_nor_an_engine_by_any_way() -> None:
    reached = _reached(_modules(), "policy")
    assert "paceline.policy.controller" in reached
    assert "paceline.policy.simulation.simulator" in reached
    assert {name.split(".")[0] for name in reached} & {"torch", "transformers", "gguf"} == set()
    allowed = {"errors", "clock", "parameters", "records", "step_records", "config", "policy"}
    assert {layer for name in reached if (layer := _layer(name))} <= allowed


def test_the_planner_reaches_neither_torch_nor_an_engine_by_any_way() -> None:
    reached = _reached(_modules(), "planner")
    assert "paceline.policy.simulation.simulator" in reached
    assert {name.split(".")[0] for name in reached} & {"torch", "transformers", "gguf"} == set()
    assert not {"kernels", "models", "engine"} & {layer for name in reached if (layer := _layer(name))}


def _written(**sources: str) -> dict[str, ast.Module]:
    return {
        "paceline." + name.replace("__", "."): ast.parse(textwrap.dedent(text))
        for name, text in sources.items()
    }


def test_an_import_down_the_list_is_found_even_inside_a_function() -> None:
    modules = _written(
        models__decoder="def load():\n    from paceline.engine import step", engine="", engine__step=""
    )
    assert _imports_down_the_list(modules) == ["paceline.models.decoder imports paceline.engine.step"]


def test_a_cycle_is_found() -> None:
    modules = _written(
        cache__a="import paceline.cache.b",
        cache__b="from paceline.cache import c",
        cache__c="from paceline.cache.a import x",
    )
    names = ["paceline.cache.a", "paceline.cache.b", "paceline.cache.c", "paceline.cache.a"]
    assert _cycle(modules) == names


def test_readers_of_the_environment_are_found() -> None:
    modules = _written(
        config__settings="import os\nos.environ",
        models__a="import os\nos.environ['X']",
        models__b="from os import getenv",
        models__c="import os\nos.getenv('X')",
    )
    faults = ["paceline.models.a:2", "paceline.models.b:1", "paceline.models.c:2"]
    assert _environment_readers(modules) == faults


def test_torch_in_the_policy_is_found() -> None:
    modules = _written(policy__costs="import torch.nn", models__decoder="import torch")
    assert _torch_users(modules) == ["paceline.policy.costs"]
