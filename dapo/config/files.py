"""Reading YAML with line numbers, and finding the files that a recipe names."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from dapo.config.problems import Problem
from dapo.errors import RecipeError

MOST_BYTES = 1_000_000
"""Of a recipe's text. The longest have ten thousand."""
_MOST_NODES = 100_000  # with each alias counted as what it stands for


def read_recipe_file(path: Path) -> str:
    """The text of a recipe file.

    Raises:
        RecipeError: it is not there or not text; the message names recipes that are.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        there = sorted({p for d in (path.parent, Path("recipes")) if d.is_dir() for p in d.glob("*.y*ml")})
        near = difflib.get_close_matches(path.stem, [p.stem for p in there], 1, 0.6)
        hint = next((f"; did you mean {p}?" for p in there if p.stem in near), "")
        hint = hint or (f"; there are {', '.join(map(str, there[:8]))}" if there else "")
        raise RecipeError(f"recipe file not found: {path}{hint}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder; give a recipe file, or --resume {path} to go on with a run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe file {path} cannot be read: {error}") from None


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """A recipe's settings and the line of each key. YAML 1.2: ``1e-6`` is a number, ``off`` is text.

    Raises:
        RecipeError: not YAML, not a mapping, a key that stands twice, or far too much of it.
    """
    if len(text) > MOST_BYTES:
        raise RecipeError(f"{name}: a recipe has at most {MOST_BYTES:,} characters, this one {len(text):,}")
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        if _expanded(root, {}) > _MOST_NODES:
            raise RecipeError(f"{name}: its aliases (*name) stand for more than {_MOST_NODES:,} values; write them out")
        lines: dict[str, int] = {}
        for path, line in _keys(root, ""):
            if path in lines:
                raise RecipeError(
                    f"{name}: `{path}` stands twice, on lines {lines[path]} and {line}; keep the one you mean"
                )
            lines[path] = line
        value = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise RecipeError(f"{name}{place}: not valid YAML: {error.problem or error.context}") from None
    except YAMLError as error:
        raise RecipeError(f"{name}: not valid YAML: {error}") from None
    except RecursionError:
        raise RecipeError(f"{name}: its values stand too deep within each other") from None
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise RecipeError(f"{name}: expected keys and values (`model:` ...), found {type(value).__name__}")
    return value, lines


def parse_value(text: str, what: str) -> Any:
    """The value of an override, read as YAML."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise RecipeError(f"override `{what}`: the value is not valid YAML: {problem}; put it in quotes") from None


def _expanded(node: Node | None, known: dict[int, float]) -> float:
    """Values in a node with each alias written out; infinite where a node stands within itself."""
    if not isinstance(node, MappingNode | SequenceNode):
        return 1
    if id(node) not in known:
        known[id(node)] = math.inf  # until it is known
        parts = [part for pair in node.value for part in pair] if isinstance(node, MappingNode) else node.value
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


def _keys(node: Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            yield path, key.start_mark.line + 1
            yield from _keys(value, f"{path}.")
    elif isinstance(node, SequenceNode):
        for n, value in enumerate(node.value):
            yield f"{prefix}{n}", value.start_mark.line + 1
            yield from _keys(value, f"{prefix}{n}.")


def resolve_paths(given: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Make local files absolute: looked up in the working directory, then in the recipe's folder.

    An absolute path in the resolved recipe lets a run be resumed from anywhere. ``hub:`` and ``builtin/`` names
    stay as they are, and so does a model name that is no folder (it is then a hub name).

    Returns:
        The settings with the paths found, and a problem for each file that is in neither place.
    """
    problems: list[Problem] = []
    data = given.get("data")
    for part in ("train", "validation"):
        sources = data.get(part) if isinstance(data, dict) else None
        for n, source in enumerate(sources if isinstance(sources, list) else []):
            path = source.get("path") if isinstance(source, dict) else None
            if not isinstance(path, str) or path.startswith("hub:"):
                continue
            found = _find(path, folder)
            if found:
                source["path"] = found
            else:
                problems.append(Problem(f"data.{part}.{n}.path", _not_found("file", path, folder), path))
    model = given.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    if isinstance(model, dict) and isinstance(path, str) and not path.startswith("builtin/"):
        found = _find(path, folder)
        if found:
            model["path"] = found
        elif path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
            problems.append(Problem("model.path", _not_found("model folder", path, folder), path))
    return given, problems


def _find(path: str, folder: Path) -> str | None:
    relative = Path(path).expanduser()
    for place in (Path.cwd(), folder):
        if path and (place / relative).exists():
            return str((place / relative).absolute())
    return None


def _not_found(what: str, path: str, folder: Path) -> str:
    """What was looked for and where, and the name of the nearest thing that does exist."""
    places = list(dict.fromkeys([Path.cwd(), folder.absolute()]))
    searched = "" if Path(path).expanduser().is_absolute() else f" in {' or '.join(map(str, places))}"
    for place in places:
        target = place / Path(path).expanduser()
        there = sorted(p.name for p in target.parent.iterdir()) if target.parent.is_dir() else []
        near = difflib.get_close_matches(target.stem, [Path(p).stem for p in there], 1, 0.5)
        if near:
            name = next(p for p in there if Path(p).stem == near[0])
            return f"no such {what}{searched}; did you mean `{Path(path).parent / name}`?"
    for place in places:
        parent = (place / Path(path).expanduser()).parent
        if not parent.is_dir():
            missing = next(p for p in [*reversed(parent.parents), parent] if not p.is_dir())
            return f"no such {what}{searched}; the folder {missing} does not exist"
    return f"no such {what}{searched}"
