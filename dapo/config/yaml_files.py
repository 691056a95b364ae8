"""Reading YAML with line numbers, and finding the files that a recipe names."""

from __future__ import annotations

import difflib
import errno
import glob
import math
import os
import stat
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from dapo.config.faults import Problem
from dapo.config.shipped import recipe_names
from dapo.errors import DapoError, RecipeError

RESOLVED = "recipe.resolved.yaml"
"""File of a run folder that holds every setting."""

MOST_BYTES = 1_000_000
"""Of a recipe's text. The longest have ten thousand."""
_MOST_NODES = 100_000  # with each alias counted as what it stands for
_DEEPEST = 32  # sections within each other; the schema's own go three deep
_LARGEST = 2**63 - 1  # of a whole number: larger ones fit into no file and no library
_PATH_MAX = 4096


def read_recipe_file(path: Path) -> str:
    """Return the text of a recipe file.

    Raises:
        RecipeError: it is not there or not text; the message names recipes that are.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except FileNotFoundError:
        there = sorted({p for d in (path.parent, Path("recipes")) if d.is_dir() for p in d.glob("*.y*ml")})
        shipped = recipe_names()
        near = difflib.get_close_matches(path.stem, [p.stem for p in there] + shipped, 1, 0.6)
        hint = next((f"; did you mean {p}?" for p in there if p.stem in near), "")
        hint = hint or "".join(f"; did you mean {name}, which comes with the package?" for name in near)
        hint = hint or (f"; there are {', '.join(map(str, there[:8]))}" if there else "")
        hint = hint or f"; with the package come {', '.join(shipped)} (`dapo recipes`)"
        raise RecipeError(f"recipe file not found: {path}{hint}") from None
    except IsADirectoryError:
        hint = f"give a recipe file. `dapo train --resume {path}` goes on with a run"
        raise RecipeError(f"{path} is a folder; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe file {path} cannot be read: {error}") from None


def read_bytes(path: Path) -> bytes:
    """Read a small file, or the pipe of ``<(command)``; never a device or a named pipe, which may not end or never
    begin.

    Raises:
        OSError: it is not there, is something else, or has more than ``MOST_BYTES``.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISFIFO(mode) and str(path).startswith(("/dev/fd/", "/proc/self/fd/", "/dev/stdin")):
            os.set_blocking(file.fileno(), True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"a recipe has at most {MOST_BYTES:,} bytes", str(path))
    return data


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a recipe's settings and the line of each key. YAML 1.2: ``1e-6`` is a number, ``off`` is text.

    Raises:
        RecipeError: not YAML, not a mapping, a key that stands twice, or far too much of it.
    """
    if len(text) > MOST_BYTES:
        raise RecipeError(f"{name}: a recipe has at most {MOST_BYTES:,} characters, this one {len(text):,}")
    value, lines = _load_yaml(text, name)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise RecipeError(f"{name}: expected keys and values (`model:` ...), found {type(value).__name__}")
    return value, lines


def parse_value(text: str, what: str) -> Any:
    """Return the value of the override ``what``, read as YAML.

    Raises:
        RecipeError: not YAML, or far too much of it.
    """
    if len(text) > MOST_BYTES:
        raise RecipeError(f"{what}: a value has at most {MOST_BYTES:,} characters, this one {len(text):,}")
    try:
        return _load_yaml(text, what)[0]
    except RecipeError as error:
        raise RecipeError(f"{error}{'' if 'quotes' in str(error) else '; to mean text, put it in quotes'}") from None


def _load_yaml(text: str, name: str) -> tuple[Any, dict[str, int]]:
    """Value of a text that is neither endless nor deep, and the line of each key. Every failure is a RecipeError."""
    try:
        yaml = YAML(typ="safe", pure=True)
        root = yaml.compose(text)
        if _expanded(root, {}) > _MOST_NODES:
            raise RecipeError(f"{name}: its aliases (*name) stand for more than {_MOST_NODES:,} values; write them out")
        lines: dict[str, int] = {}
        for path, line in _keys(root, ""):
            if path in lines:
                twice = f"`{path}` stands twice, on lines {lines[path]} and {line}"
                raise RecipeError(f"{name}: {twice}; keep the one you mean")
            lines[path] = line
        return None if root is None else yaml.constructor.construct_document(root), lines
    except DapoError:
        raise
    except MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        said = error.problem or error.context
        if "unknown escape character" in (said or ""):  # a pattern such as "\d+"
            said = f"{said} between double quotes; single quotes keep a backslash as it is"
        raise RecipeError(f"{name}{place}: not valid YAML: {said}") from None
    except YAMLError as error:
        raise RecipeError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise RecipeError(f"{name}: its values stand too deep within each other") from None
    except Exception as error:  # what a reader of numbers and dates raises: 5,000 digits, the 30th of February
        said = str(error).partition("; use sys.")[0]
        raise RecipeError(f"{name}: not valid YAML: a value cannot be read: {said}") from None


def check_plain(value: Any, path: str = "", depth: int = 0) -> Iterator[Problem]:
    """Problems of values that no setting can hold, whichever it is: they could not be written down again."""
    if depth > _DEEPEST:
        yield Problem(path, f"stands more than {_DEEPEST} sections deep")
    elif isinstance(value, Mapping):
        for key, below in value.items():
            if not isinstance(key, str):
                yield Problem(path, f"expected names as keys, found {type(key).__name__}; put it in quotes", str(key))
            else:
                yield from _check_text(key, path, "the name of a key")
                yield from check_plain(below, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list | tuple):
        for n, below in enumerate(value):
            yield from check_plain(below, f"{path}.{n}" if path else str(n), depth + 1)
    elif isinstance(value, str):
        yield from _check_text(value, path, "the text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield Problem(path, "must be finite", str(value))
    elif isinstance(value, int):
        if abs(value) > _LARGEST:
            yield Problem(path, f"a whole number here lies between -{_LARGEST:,} and {_LARGEST:,}", _digits(value))
    elif value is not None:
        kind = {"date": "a date", "datetime": "a time", "set": "a set", "bytes": "binary data"}
        what = kind.get(type(value).__name__, type(value).__name__)
        yield Problem(path, f"expected text, a number, true, false, a list or a mapping, found {what}", str(value))


def _check_text(text: str, path: str, what: str) -> Iterator[Problem]:
    if "\0" in text:
        yield Problem(path, f"{what} holds a NUL character, which no name, path or prompt takes; take it out", text)
    elif not _encodable(text):
        yield Problem(path, f"{what} is not valid Unicode (it holds a lone surrogate); write it in UTF-8", text)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digits(value: int) -> str:
    return f"a number of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"


def _expanded(node: Node | None, known: dict[int, float]) -> float:
    """Count the values in a node with each alias written out; long texts are several, a node in itself is infinite."""
    if not isinstance(node, MappingNode | SequenceNode):
        return 1 + len(node.value) // 100 if node is not None else 1
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
    data, run = given.get("data"), given.get("run")
    stage = "sft" if isinstance(run, dict) and run.get("stage") == "sft" else "data"  # the other's data are not read
    for name, part in product(("data", "sft"), ("train", "validation")):
        section = given.get(name)
        sources = section.get(part) if isinstance(section, dict) else None
        for n, source in enumerate(sources if isinstance(sources, list) else []):
            path = source.get("path") if isinstance(source, dict) else None
            if not isinstance(path, str) or path.startswith("hub:"):
                continue
            found = _find(path, folder) or _find_pattern(path, folder)
            if found:
                source["path"] = found
            elif name == stage:
                problems.append(Problem(f"{name}.{part}.{n}.path", _not_found("file", path, folder), path))
    if isinstance(data, dict) and isinstance(template := data.get("chat_template"), str) and not is_jinja(template):
        try:
            data["chat_template"] = _read_template(template, folder)
        except ValueError as error:
            problems.append(Problem("data.chat_template", str(error), template))
    model = given.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    if isinstance(model, dict) and isinstance(path, str) and not path.startswith("builtin/"):
        before, inside, member = path.partition(".whl/")  # a GGUF file in a wheel
        file, member = (f"{before}.whl", f"/{member}") if inside else (path, "")
        found = _find(file, folder)
        what = "file" if file.endswith((".gguf", ".whl")) else "model folder"
        if found:
            model["path"] = found + member
        elif path.startswith(("/", "./", "../", "~")) or path.count("/") > 1:
            problems.append(Problem("model.path", _not_found(what, file, folder), path))
    return given, problems


def is_jinja(text: str) -> bool:
    """Whether it is a template's text; everything else names a file."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


def _read_template(path: str, folder: Path) -> str:
    """Return the text of a chat template's file: the recipe then holds it, and no file can change a run.

    Raises:
        ValueError: there is no such file, or it holds no template.
    """
    found = _find(path, folder)
    if found is None or not Path(found).is_file():
        raise ValueError(
            f"is neither a Jinja template (it has no {{{{ or {{%) nor a file: {_not_found('file', path, folder)}"
        )
    try:
        text = Path(found).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not is_jinja(text):
        raise ValueError(f"{found} holds no Jinja template: it has no {{{{ or {{%")
    return text


def _find(path: str, folder: Path) -> str | None:
    for place in (Path.cwd(), folder):
        try:
            if path and (place / _expanded_user(path)).exists():
                return str((place / _expanded_user(path)).absolute())
        except (OSError, ValueError):  # a name that is too long, a folder that may not be looked into
            continue
    return None


def _expanded_user(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # `~name` of nobody
        return Path(path)


def _find_pattern(path: str, folder: Path) -> str | None:
    """Return a pattern such as ``data/*.jsonl``, made absolute, if at least one file fits it."""
    for place in (Path.cwd(), folder.absolute()):
        pattern = str(Path(glob.escape(str(place))) / _expanded_user(path))
        if glob.has_magic(path) and next(glob.iglob(pattern, recursive=True), None) is not None:
            return pattern
    return None


def _not_found(what: str, path: str, folder: Path) -> str:
    """Return a message that names the missing path, where it was searched, and the nearest existing name."""
    if len(path.encode(errors="replace")) > _PATH_MAX:
        return f"expected a path of at most {_PATH_MAX:,} bytes"
    places = list(dict.fromkeys([Path.cwd(), folder.absolute()]))
    own = _expanded_user(path)
    searched = "" if own.is_absolute() else f" in {' or '.join(map(str, places))}"
    try:
        return f"no such {what}{searched}{_nearest_place(places, own, path, what != 'file')}"
    except (OSError, ValueError) as error:
        return f"no such {what}{searched} ({getattr(error, 'strerror', None) or error})"


def _nearest_place(places: list[Path], own: Path, path: str, folders: bool) -> str:
    for place in places:
        target = place / own
        beside = target.parent.iterdir() if target.parent.is_dir() else []
        there = sorted(p.name for p in beside if p.is_dir() or not folders)
        near = difflib.get_close_matches(target.stem, [Path(p).stem for p in there], 1, 0.5)
        if near:
            name = next(p for p in there if Path(p).stem == near[0])
            return f"; did you mean `{Path(path).parent / name}`?"
    for place in places:
        parent = (place / own).parent
        if not parent.is_dir():
            missing = next(p for p in [*reversed(parent.parents), parent] if not p.is_dir())
            return f"; the folder {missing} does not exist"
    return ""
