"""The further files that a source names: which are read, which are only named, and how many at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dapo.config.shipped import recipe_names
from dapo.errors import RecipeError
from dapo.importing.source_text import read_source

ENDINGS = (".yaml", ".yml", ".json")
OWN_DEFAULTS = {
    "grpo_math_1B": "NeMo RL",
    "ppo_trainer": "verl",
    "ppo_megatron_trainer": "verl",
    "dapo_trainer": "verl",
    "dapo_megatron_trainer": "verl",
}
"""Files of trainers whose values the importers take where nothing is said: their absence changes nothing."""
_NEAREST = {
    "dapo-qwen2.5-7b": "dapo_qwen2.5_7b_8gpu",
    "grpo_math_8B": "dapo_qwen3_8b_2nodes",
    "gsm8k_dapo": "gsm8k_0.5b_1gpu",
    "run_dapo_gsm8k": "gsm8k_0.5b_1gpu",
}
"""Files that the trainers' pages on DAPO name, with the recipe of this package for the same model or data."""
_MOST_FILES = 20
_MOST_CHARACTERS = 1_000_000


class SourceFiles:
    """Find and read the files that a source names, within its folder and the working directory."""

    def __init__(self, folder: Path | None) -> None:
        """``folder``: of the source; None: it is a text without one."""
        self.folder = folder
        self.read: list[str] = []
        self.merged: dict[Path, dict[str, Any]] = {}  # YAML files with what their defaults name, each made once
        self._texts: dict[Path, str] = {}

    def find(
        self, name: str, places: tuple[Path | None, ...], endings: tuple[str, ...] = ENDINGS
    ) -> tuple[Path | None, str]:
        """Return the file of a name in one of the folders, or None and why it is not read."""
        why = "it is not there"
        for place in places:
            for ending in ("", ".yaml"):
                try:
                    path = place / f"{name}{ending}" if place is not None and len(name) < 500 else None
                    if path is None or not path.is_file():
                        continue
                    if path.suffix.lower() not in endings:
                        why = f"it is no {'YAML' if endings == ENDINGS else 'script'} by its name"
                    elif self._inside(path):
                        return path, ""
                    else:
                        why = "it lies outside of the source's folder and the working directory, so it was not read"
                except (OSError, ValueError, RuntimeError):
                    continue
        return None, why

    def text(self, path: Path) -> str:
        """Return the text of a file that ``find`` found.

        Raises:
            RecipeError: it cannot be read, or the source names more than can be meant.
        """
        real = path.resolve()
        if real not in self._texts:
            if len(self._texts) >= _MOST_FILES:
                raise RecipeError(
                    f"{path}: the source names more than {_MOST_FILES} files; import the file that they make"
                )
            self._texts[real] = read_source(path)
            self.read.append(self._shown(real))
            if sum(map(len, self._texts.values())) > _MOST_CHARACTERS:
                raise RecipeError(f"{path}: the files that the source names have over {_MOST_CHARACTERS:,} characters")
        return self._texts[real]

    def _roots(self) -> list[Path]:
        return [place.resolve() for place in (self.folder, Path.cwd()) if place is not None]

    def _inside(self, path: Path) -> bool:
        real = path.resolve()
        return any(real.is_relative_to(root) for root in self._roots())

    def _shown(self, real: Path) -> str:
        root = next((root for root in reversed(self._roots()) if real.is_relative_to(root)), real.parent)
        return str(real.relative_to(root))


def nearest_recipe(name: str) -> str:
    """Say which recipe of this package to take where a trainer's own file is not there."""
    ours = _NEAREST.get(Path(name).stem)
    if ours in recipe_names():
        return f"The recipe here for the same model or data is {ours}: `dapo recipes --copy {ours}`"
    return "`dapo recipes` lists what comes with this package"
