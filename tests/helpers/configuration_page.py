"""Page of settings, made from the schema: ``python tests/helpers/configuration_page.py > docs/configuration.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dapo.config.faults import brief
from dapo.config.load import difference_from_preset
from dapo.config.presets import PRESETS, preset_settings
from dapo.config.schema import Recipe
from dapo.config.settings import REQUIRED, Setting, settings

_HEAD = """# Configuration reference

Every setting of a recipe.

Settings are laid on top of each other: the preset, then the recipe file, then `key=value` on the command line
(`algorithm.clip.high=0.3`). Sections are merged key by key; a list replaces the list below it. On the command line a
number names a list item (`rewards.0.weight=2`), and the number after the last one appends. Files are YAML 1.2: `1e-6`
is a number, `off` is text, `true` and `false` are the only truth values. Relative paths are looked up in the working
directory, then in the recipe's folder. An unknown key, a wrong type or a combination that cannot work is refused with
the line, the value, what was expected, and the nearest right name, also for the names of [other trainers](peers.md).

The column *resume* says what may change with `dapo train --resume RUN key=value`: `free` settings at will, `ask`
settings when the command names them, `fixed` ones never.

Secrets go only to what needs them; the run's files, console, pages and trackers show `<hidden-secret>`. Secrets are
values under a key such as `hf_token`, `api_key` or `password` in `engine_args` or `options`, credentials and keys in an
address, and tokens in the exact form of their service; in `slurm` and `environment.run` also the values of such
variables and options. A path is never one. A resume asks for secrets again:
`dapo train --resume RUN rollout.vllm.engine_args.hf_token=VALUE`. An environment variable is better.

A section with a key `kind` takes the options of that kind alone: `algorithm.loss: {kind: cispo, cap: 5}`. A kind that
needs no option may be written as its name: `algorithm.loss.reduction: constant`.

A function of yours is named `package.module:function`, with the signature of the built-in one
(see [hooks](hooks.md)); modules in the working directory are found.
"""


def reference() -> str:
    """Return the whole page."""
    lines = [_HEAD, "## Presets", "", *_presets()]
    sections = [s for s in settings().values() if s.section]
    tables: dict[str, list[str]] = {}
    top = [s for s in settings().values() if not s.section and "." not in s.path]
    lines += ["", "## The recipe", "", *_table(top)]
    for section in sections:
        inside = section.path + (".N" if section.expected.startswith("a list") else "")
        fields = [s for s in settings().values() if s.path.rpartition(".")[0] == inside and not s.section]
        if fields:
            lines += ["", f"## `{inside}`", "", _cell(section.doc), ""]
            table = list(_table(fields))
            same = next((title for title, before in tables.items() if set(table) <= set(before)), None)
            names = ", ".join(f"`{s.name}`" for s in fields)
            lines += [f"The keys {names} are those of `{same}`."] if same else table
            tables[inside] = table
    return "\n".join(lines) + "\n"


def _table(fields: list[Setting]) -> Iterator[str]:
    yield "| key | accepts | default | resume | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for s in fields:
        yield f"| `{s.name}` | {_cell(s.expected)} | {_default(s)} | {s.resume} | {_cell(s.doc)} |"


def _default(setting: Setting) -> str:
    if setting.default is REQUIRED:
        return "required"
    return f"`{_cell(brief(setting.default))}`"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


def _presets() -> Iterator[str]:
    """Yield one row for each preset: the settings in which it differs from the schema's defaults."""
    smallest: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": [{"path": "d"}]}}
    yield "`preset: NAME` is where a recipe starts. `dapo` is the default: the column *default* below has its values."
    yield ""
    yield "| preset | what it changes |"
    yield "| --- | --- |"
    for name in PRESETS:
        # compared with the schema's defaults, by naming the preset whose settings are empty
        own = {**smallest, **preset_settings(name), "preset": "dapo"}
        own["model"] = {**smallest["model"], **preset_settings(name).get("model", {})}
        changed = difference_from_preset(Recipe.model_validate(own))
        # null: an option that the preset's kind does not have
        shown = [f"`{path}: {brief(now)}`" for path, (_, now) in changed.items() if now is not None]
        if shown:
            yield f"| `{name}` | {', '.join(shown)} |"


if __name__ == "__main__":
    print(reference(), end="")
