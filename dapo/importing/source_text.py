"""The text of a file that is to be imported."""

from __future__ import annotations

import difflib
from pathlib import Path

from dapo.config.yaml_files import MOST_BYTES, read_bytes
from dapo.errors import RecipeError

ENDINGS = (".yaml", ".yml", ".json", ".sh", ".bash", ".slurm", ".sbatch", ".py")
"""Of files that are offered where one is not found. Others are read too, by their content."""
TAKES = "`dapo import` takes YAML, a launch script, or Python with config objects"
_MOST_SHOWN = 8


def read_source(path: Path) -> str:
    """Return the text of a file.

    Raises:
        RecipeError: it is not there, no file, too large or not text; the message names what there is.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path} is not there{_instead(path)} {TAKES}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder; give a file{_those(_sources(path))}. {TAKES}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"{path} cannot be read: it is not text (UTF-8). {TAKES}") from None
    except OSError as error:
        said = error.strerror or error
        raise RecipeError(f"{path} cannot be read: {said} (at most {MOST_BYTES:,} bytes). {TAKES}") from None


def _instead(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f", nor is the folder {folder}."
    there = _sources(folder)
    near = difflib.get_close_matches(path.name, [file.name for file in there], 1, 0.6)
    return f"; did you mean {folder / near[0]}?" if near else f"{_those(there, f'; in {folder.absolute()} there ')}."


def _those(files: list[Path], words: str = ": there ") -> str:
    if not files:
        return ""
    more = f" and {len(files) - _MOST_SHOWN} more" if len(files) > _MOST_SHOWN else ""
    return f"{words}{'is' if len(files) == 1 else 'are'} {', '.join(map(str, files[:_MOST_SHOWN]))}{more}"


def _sources(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
    except OSError:
        return []
