"""Which files a path stands for: one file, a pattern such as ``data/*.jsonl``, or a folder.

A folder is what ``save_to_disk`` of the library ``datasets`` wrote (one data set, or one per split), a data set
downloaded from the hub (``data/train-00000-of-00001.parquet``), or simply files. Of those the split is taken: by the
words in their names, or in the names of their folders.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Collection
from pathlib import Path, PurePath

from dapo.errors import DataError

DEFAULT_SPLIT = "train"
_SAME = (("train", "training"), ("validation", "valid", "val", "dev"), ("test", "testing", "eval", "evaluation"))
_ABOUT_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "metadata.json"}
_DEEPEST = 4  # folders below the one given
_MOST_FILES = 20_000  # looked at in a folder
_NAMED = 8  # files that an error names


def files_of(path: str, split: str, kinds: Collection[str]) -> list[Path]:
    """Return the files of a path, in the order of their names.

    Args:
        path: a file, a folder or a pattern with ``*``, ``?``, ``[...]`` or ``**``.
        split: chooses among a folder's files; a single file and a pattern are taken as they are.
        kinds: suffixes that can be read.

    Raises:
        DataError: nothing is there, or it is not clear what is meant; the message says what there is.
    """
    try:
        file = Path(path).expanduser()
        if file.is_dir():
            return _folder(file, split, kinds)
        if not file.exists() and glob.has_magic(path):
            found = sorted(Path(name) for name in glob.glob(str(file), recursive=True) if not os.path.isdir(name))
            if not found:
                raise DataError(f"no file fits the pattern {path}{_neighbours(file, kinds)}")
            return [_of_known_kind(one, kinds) for one in found]
        if not file.exists():
            raise DataError(f"data file not found: {path}{_neighbours(file, kinds)}")
        return [_of_known_kind(file, kinds)]
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, holds NUL, or has no such home
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path[:200]!r} cannot be looked up: {error}") from error


def _of_known_kind(file: Path, kinds: Collection[str]) -> Path:
    if file.suffix.lower() not in kinds:
        hint = "; unpack it first" if file.suffix.lower() in (".gz", ".zip", ".zst", ".xz", ".bz2", ".tar") else ""
        raise DataError(f"{file}: unknown kind of file {file.suffix!r}; expected one of {', '.join(kinds)}{hint}")
    return file


def _neighbours(file: Path, kinds: Collection[str]) -> str:
    """Return what exists next to a missing file, as the tail of an error message."""
    if glob.has_magic(str(file.parent)):
        return f"; relative paths start at {Path.cwd()}"
    if not file.parent.is_dir():
        return f" (the folder {file.parent} does not exist either; relative paths start at {Path.cwd()})"
    names = sorted(p.name for p in file.parent.iterdir() if p.suffix.lower() in kinds)
    return f"; the folder {file.parent} holds: {', '.join(names[:_NAMED]) or 'no data files'}"


def _folder(folder: Path, split: str, kinds: Collection[str]) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        splits = _json_field(folder / "dataset_dict.json", "splits")
        name = next((s for word in _words(split) for s in splits if s == word), None)
        if name is None:
            raise DataError(f"{folder} has no split {split!r}; it has {', '.join(map(str, splits))}: set `split`")
        return _saved(folder / str(name))
    if (folder / "state.json").is_file():
        return _saved(folder)
    files = _below(folder, kinds)
    if not files:
        raise DataError(f"the folder {folder} holds no data files; expected files of {', '.join(kinds)}")
    return _one_set(folder, _of_split(folder, files, split), split)


def _saved(folder: Path) -> list[Path]:
    """Return the files of a data set that ``save_to_disk`` wrote."""
    state = folder / "state.json"
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in _json_field(state, "_data_files")]
    if not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{state}: expected the names of data files in `_data_files`; save the set again")
    files = [folder / str(name) for name in names]
    missing = [file for file in files if not file.exists()]
    if missing:
        raise DataError(f"{missing[0]} is missing, which {state} names; copy the whole folder")
    return files


def _json_field(file: Path, key: str) -> list[object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get(key)
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(f"{file} cannot be read ({error}); save the data set again") from error
    if not isinstance(found, list):
        raise DataError(f"{file}: expected a list `{key}`; save the data set again")
    return found


def _below(folder: Path, kinds: Collection[str]) -> list[PurePath]:
    """Return data files in a folder and those below it, relative to it; hidden ones and descriptions left out."""
    found: list[PurePath] = []
    looked_at = 0
    for place, folders, names in os.walk(folder, followlinks=True):
        relative = Path(place).relative_to(folder)
        deep = len(relative.parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(n for n in folders if not n.startswith((".", "__")) and n != "blobs")
        looked_at += len(names) + len(folders)
        if looked_at > _MOST_FILES:
            raise DataError(f"{folder} holds more than {_MOST_FILES:,} files; give the folder of the data set itself")
        for name in sorted(names):
            known = PurePath(name).suffix.lower() in kinds and name not in _ABOUT_DATA
            if known and not name.startswith((".", "__")):
                found.append(relative / name)
    return found


def _words(split: str) -> tuple[str, ...]:
    """Return a split's name, then others for it."""
    same = next((names for names in _SAME if split in names), ())
    return (split, *(name for name in same if name != split))


def _splits_in(name: str, others: Collection[str]) -> set[str]:
    """Return the splits that a file's or folder's name mentions, each by its usual name."""
    groups = [*_SAME, *((other,) for other in others if not any(other in names for names in _SAME))]
    return {
        names[0]
        for names in groups
        if any(re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z])", name.lower()) for word in names)
    }


def _of_split(folder: Path, files: list[PurePath], split: str) -> list[PurePath]:
    usual = next((names[0] for names in _SAME if split in names), split)
    by_split: dict[str, list[PurePath]] = {}
    unnamed = []
    for file in files:
        spoken = next((found for part in reversed(file.parts) if (found := _splits_in(part, [split]))), set())
        for name in spoken:
            by_split.setdefault(name, []).append(file)
        if not spoken:
            unnamed.append(file)
    if usual in by_split:
        return by_split[usual]
    if split == DEFAULT_SPLIT and not by_split:
        return unnamed
    there = [f"{name} ({files[0]}{', ...' if len(files) > 1 else ''})" for name, files in sorted(by_split.items())]
    there += [f"files that name no split ({unnamed[0]})"] if unnamed else []
    raise DataError(f"the folder {folder} has no files of the split {split!r}; it has {', '.join(there)}: set `split`")


def _one_set(folder: Path, files: list[PurePath], split: str) -> list[Path]:
    """All in one place and of one kind, or else it would be guessed which of them are meant."""
    places = sorted({str(file.parent) for file in files})
    if len(places) > 1:
        shown = ", ".join(str(folder / place) for place in places[:_NAMED])
        raise DataError(f"{folder} has files of the split {split!r} in several folders; give the one you mean: {shown}")
    kinds = sorted({file.suffix.lower() for file in files})
    if len(kinds) > 1:
        shown = ", ".join(str(file) for file in files[:_NAMED])
        raise DataError(
            f"{folder} has files of several kinds: {shown}; give one of them, or a pattern as {folder}/*{kinds[0]}"
        )
    return [folder / file for file in files]
