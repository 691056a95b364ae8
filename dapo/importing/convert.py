"""From a file of another trainer to a recipe in which every line says where it came from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dapo.config.load import difference_from_preset, recipe_from_dict
from dapo.config.peer_names import ALONE, apart_row, in_section_apart, peer_entry
from dapo.config.settings import kinds_at, lookup, options_of, settings
from dapo.config.unread import unread
from dapo.errors import RecipeError
from dapo.importing import areal, huggingface, nemo, ranks, skyrl, slurm, verl
from dapo.importing.arithmetic import from_text, is_off, shown
from dapo.importing.contents import Processes, SourceFile
from dapo.importing.named_files import SourceFiles
from dapo.importing.python_source import read_python
from dapo.importing.reading import Apart, Listed, Reading, SourceValue
from dapo.importing.recipe_text import ARGUMENTS, nested, recipe_text
from dapo.importing.recognise import SYSTEMS, recognise
from dapo.importing.script_source import APART, read_script
from dapo.importing.source_text import read_source
from dapo.importing.training_method import refuse_other_methods
from dapo.importing.turns import convert_turns
from dapo.importing.yaml_source import read_yaml

_CONVERT: dict[str, Callable[[Reading], None]] = {
    "nemo-rl": nemo.convert,
    "skyrl": skyrl.convert,
    "areal": areal.convert,
    "ms-swift": huggingface.convert_swift,
    "verl": verl.convert,
    "trl": huggingface.convert_trl,
}


@dataclass(frozen=True, slots=True)
class Imported:
    """A recipe made of another trainer's configuration."""

    system: str  # as --from takes it
    reading: Reading  # its lines, what is apart, what was said
    missing: tuple[str, ...]  # settings that the source does not hold and a run needs
    refused: str  # why `dapo check` will refuse it even so; empty: it will not

    @property
    def text(self) -> str:
        """The recipe with everything that is listed at its end."""
        return recipe_text(self.reading, self.missing, whole=True)

    @property
    def brief(self) -> str:
        """The recipe without the list of what is off, or memory, speed and logs only."""
        return recipe_text(self.reading, self.missing, whole=False)


def import_file(path: str | Path, system: str | None = None, devices: int | None = None) -> Imported:
    """Read a YAML file, a launch script or a Python file with config objects. Nothing in it is executed.

    Args:
        path: the file.
        system: one of ``SYSTEMS``; None: recognised by its keys.
        devices: processes that learn there, for trainers that count batches for each device.

    Raises:
        RecipeError: it cannot be read, or whose it is is unclear.
    """
    path = Path(path)
    return import_text(read_source(path), path.name, system, devices, path.parent)


def import_text(
    text: str, name: str, system: str | None = None, devices: int | None = None, folder: Path | None = None
) -> Imported:
    """As ``import_file``, of a text. ``folder``: where files that it names as its base are looked for."""
    if system is not None and system not in SYSTEMS:
        raise RecipeError(f"--from {system}: expected one of {', '.join(SYSTEMS)}")
    files = SourceFiles(folder)
    try:
        source = _read(text, name, files)
    except RecursionError:
        raise RecipeError(f"{name}: its values stand too deep within each other") from None
    source.files, source.folder = files.read, folder
    system = recognise(source, system)
    if system in ("trl", "ms-swift"):
        source.settings = {_flat(key): given for key, given in source.settings.items()}
    refuse_other_methods(source, system)
    if source.gaps:
        what, why = source.gaps[0]
        raise RecipeError(
            f"{name}: {what} could not be read ({why}). It may set any key, so no default can stand for one: "
            "write it out"
        )
    if devices:
        source.processes = Processes({"num_processes": str(devices)})
    reading = Reading(source, SYSTEMS[system], cautions=list(source.cautions))
    for row in ALONE:
        if reading.title in row.who:
            reading.copy(row.ours, row.keys, None if row.default is None else from_text(row.default), row.note)
    convert_turns(reading)
    _CONVERT[system](reading)
    slurm.convert(reading)
    ranks.convert(reading)
    _by_the_table(reading)
    refused = _without_idle_lines(reading)
    _without_defaults(reading)
    _list_what_stands_nowhere(reading)
    missing = tuple(key for key in ARGUMENTS if key not in reading.lines or reading.lines[key].fill_in)
    return Imported(system, reading, missing, refused)


def _flat(key: str) -> str:
    """``training_args.epsilon_high`` of a nested file is ``epsilon_high``."""
    return key.rpartition(".")[2]


def _read(text: str, name: str, files: SourceFiles) -> SourceFile:
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        raise RecipeError(f"{name} holds a NUL character, which no configuration does")
    ending = Path(name).suffix.lower()
    if ending == ".py":
        return read_python(text, name)
    if ending in (".yaml", ".yml", ".json"):
        return read_yaml(text, name, files.folder, files)
    looks_like_yaml = re.search(r"(?m)^[\w.]+:(\s|$)", text) and not re.search(r"(?m)^#!|\\$|^\s*(python|swift) ", text)
    if looks_like_yaml and ending != ".sh":
        try:
            return read_yaml(text, name, files.folder, files)
        except RecipeError as error:
            raise RecipeError(f"{error}. Its name does not say what it is, and it looked like YAML: {APART}") from None
    return read_script(text, name, files)


def _by_the_table(r: Reading) -> None:
    """Keys that stand alone: by the table of peers' keys; the rest is listed."""
    for key, given in r.source.settings.items():
        if key in r.used:
            continue
        what = f"{key} = {shown(given.value)}"
        if given.value is None:
            r.apart.append(Apart(what, "null", Listed.IDLE))
            continue
        entry = None if in_section_apart(key, r.title) else peer_entry(key, r.title)
        row = apart_row(key, r.title)
        converted = entry.converted(given.value) if entry is not None else None
        if entry is not None and converted is not None and entry.ours[0] not in r.lines:
            setting = lookup(entry.ours[0])
            if setting is not None:
                r.put(entry.ours[0], converted[0], r.find(key))
                continue
        of_model = "model.path" in r.lines and given.value == r.lines["model.path"].value  # such as a tokenizer's path
        kind = Listed.IDLE if is_off(given.value) or of_model else Listed.DIFFERS
        switch = r.source.settings.get(f"{key.partition('.')[0]}.enabled")
        if row is not None and row.effect == "replaced" and switch is not None and is_off(switch.value):
            kind = Listed.IDLE
        first = row is not None and not any(row.reason in caution for caution in r.cautions)
        if row is not None and row.effect == "replaced" and kind is Listed.DIFFERS and first:
            r.replace(SourceValue(given.value, f"from {what}", True), row.reason)
        elif row is not None:
            r.apart.append(Apart(what, row.reason, Listed.IDLE if row.effect == "idle" else kind))
        elif entry is not None and entry.ours:
            said = f"is `{'` and `'.join(entry.ours)}` here{f': {entry.note}' if entry.note else ''}"
            r.apart.append(Apart(what, f"{said}; not converted, set it by hand", kind))
        elif entry is not None:
            r.apart.append(Apart(what, entry.note, kind))
        else:
            r.apart.append(Apart(what, "not known to `dapo import`", Listed.UNKNOWN))
    for what, why in r.source.unresolved:
        r.apart.append(Apart(what, f"could not be read: {why}", Listed.UNKNOWN))


def _list_what_stands_nowhere(r: Reading) -> None:
    """List each given key that is neither a line's origin nor listed: what is off, and what only another key reads."""
    said = "\n".join([*(line.comment for line in r.lines.values()), *(entry.what for entry in r.apart), *r.said])
    for key, given in r.source.settings.items():
        if (
            key in r.used
            and given.value is not None
            and not re.search(rf"(?<![\w.]){re.escape(key)}(?![\w-]|\.\w)", said)
        ):
            what = f"{key} = {shown(given.value)}"
            word = isinstance(given.value, str) and not is_off(given.value) and key not in r.usual
            row = apart_row(key, r.title)
            kind = Listed.DIFFERS if word and (row is None or row.effect != "idle") else Listed.IDLE
            r.apart.append(Apart(what, f"has no effect together with {r.title}'s other settings, or none here", kind))


def _without_defaults(r: Reading) -> None:
    """Take out the lines that the source does not give and that say what a recipe without them says."""
    known = settings()
    for key, line in list(r.lines.items()):
        default, value = known[key].default, line.value
        if isinstance(value, str) and not isinstance(default, str):
            default = getattr(default, "kind", default)  # a section of which the recipe names the kind alone
        elif isinstance(value, list) and isinstance(default, tuple):
            default = list(default)
        if not line.given and isinstance(value, bool) == isinstance(default, bool) and value == default:
            del r.lines[key]


def _without_idle_lines(r: Reading) -> str:
    """Take out the lines that have no effect, such as an eps next to a scale of none.

    Returns:
        What is wrong with the recipe apart from models and data, which may be elsewhere; empty: nothing.
    """
    for key in [key for key in r.lines if not _has_option(r, key)]:
        without = r.lines.pop(key)
        if without.comment.startswith("from "):
            reason = f"nothing would read `{key}`: `{key.rpartition('.')[0]}` is of another kind"
            r.apart.append(Apart(without.comment.removeprefix("from "), reason, Listed.IDLE))
    known = {key: line.value for key, line in r.lines.items() if not line.fill_in}
    flat = {key: value for key, value in known.items() if not key.startswith(("data.train", "data.valid"))}
    flat["model.path"] = "builtin/signed-sum"
    flat.setdefault("trainer.steps", 1_000_000)
    given = nested(flat)
    given.setdefault("data", {})["train"] = [{"task": "signed_sum"}]
    if "data.validation" in r.lines:
        given["data"]["validation"] = [{"task": "signed_sum", "seed": 1}]
    try:
        recipe = recipe_from_dict(given).recipe
    except RecipeError as error:
        return str(error)
    for path, reason in unread(recipe, difference_from_preset(recipe)):
        line = r.lines.pop(path, None)
        if line is not None and line.comment.startswith("from "):
            why = f"nothing would read `{path}`: {reason}"
            r.apart.append(Apart(line.comment.removeprefix("from "), why, Listed.IDLE))
    return ""


def _has_option(r: Reading, key: str) -> bool:
    """Whether a line is no option of a section with kinds, or one that the kind in its lines has."""
    section, _, name = key.rpartition(".")
    kinds = kinds_at(section)
    kind = r.lines.get(f"{section}.kind")
    return not kinds or name == "kind" or name in options_of(section, kind.value if kind else kinds[0])
