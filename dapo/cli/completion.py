"""Shell completion of half-typed words. Imports little: it runs at every press of the key."""

from __future__ import annotations

from pathlib import Path


def complete_recipe(incomplete: str) -> list[str]:
    """Return completions of RECIPE and KEY=VALUE: short names, YAML files here, and settings."""
    from dapo.config.settings import settings
    from dapo.config.shipped import recipe_names

    files = sorted(str(path) for path in Path().glob("*.y*ml"))
    keys = [f"{s.path.replace('.N', '.0')}=" for s in settings().values() if not s.section]
    return [word for word in (*recipe_names(), *files, *keys) if word.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """Return settings that begin so."""
    from dapo.config.settings import settings

    return [path for path in settings() if path.startswith(incomplete)]


def complete_name(incomplete: str) -> list[str]:
    """Short names of recipes that begin so."""
    from dapo.config.shipped import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]
