"""Read the fields of other trainers' configurations from their released packages, without importing them.

    pip download --no-deps --dest WHEELS trl verl ms-swift skyrl areal   # then unpack each into WHEELS/NAME
    python tests/helpers/peer_schema.py WHEELS NEMO_RL_CHECKOUT

writes tests/data/peer_schemas/SYSTEM.json: the version, and each field with its default. NeMo RL has no package with a
schema, so its fields are those of its example configurations at one commit.
`tests/unit/importing/test_importing_schemas.py` imports every field.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parents[1] / "data/peer_schemas"
UNKNOWN = "?"
"""The default of a field that only running code knows."""

Fields = dict[str, Any]
Classes = dict[str, ast.ClassDef]


def classes_of(files: list[Path]) -> Classes:
    """Return the classes of modules by name; a later file's class replaces an earlier one's."""
    found: Classes = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name] = node
    return found


def default_of(value: ast.expr | None) -> Any:
    """Return a field's default where it is a literal, else ``UNKNOWN``."""
    if isinstance(value, ast.Call):
        given = {word.arg: word.value for word in value.keywords}
        if "default" in given:
            return default_of(given["default"])
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            return default_of(factory.body)
        return {"list": [], "dict": {}}.get(ast.unparse(factory), UNKNOWN) if factory else UNKNOWN
    try:
        return ast.literal_eval(value) if value is not None else UNKNOWN
    except ValueError:
        return UNKNOWN


def nested_class(annotation: ast.expr, classes: Classes, name: str) -> str | None:
    """Return the class of a field that is a section, as ``Optional[OptimizerConfig]`` is."""
    words = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
    quoted = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant)]
    text = [value for value in quoted if isinstance(value, str)]
    inside = [word for word in words + text if word in classes and is_dataclass(classes[word])]
    return inside[0] if inside and "List" not in words and "list" not in words and inside[0] != name else None


def is_dataclass(node: ast.ClassDef) -> bool:
    """Return whether a class is a data class."""
    return any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)


def fields_of(name: str, classes: Classes, prefix: str = "", flat: bool = False) -> Fields:
    """Return the fields of a data class and of its bases, with dots for those of sections.

    Args:
        name: of the class.
        classes: where it and its bases are looked for.
        prefix: the sections above it.
        flat: whether fields that are data classes count as fields.
    """
    found: Fields = {}
    node = classes[name]
    for base in reversed(node.bases):
        above = ast.unparse(base).rpartition(".")[2]
        if above in classes and above != name:
            found |= fields_of(above, classes, prefix, flat)
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if line.target.id.startswith("_"):
            continue
        key, section = prefix + line.target.id, nested_class(line.annotation, classes, name)
        if "ClassVar" in ast.unparse(line.annotation):
            continue
        if section and not flat:
            found |= fields_of(section, classes, f"{key}.")
        else:
            found[key] = default_of(line.value)
    return found


def of_yaml(files: list[Path]) -> Fields:
    """Return the settings of YAML files with dots; the first file's default counts."""
    found: Fields = {}

    def walk(value: Any, prefix: str) -> None:
        if isinstance(value, dict) and value:
            for key, inside in value.items():
                walk(inside, f"{prefix}.{key}" if prefix else str(key))
        elif not prefix.endswith(("_target_", "defaults")):
            found.setdefault(prefix, value)

    for file in files:
        walk(yaml.safe_load(file.read_text()), "")
    return found


def transformers_arguments() -> ast.ClassDef:
    """Return the class ``TrainingArguments`` of the installed transformers."""
    import transformers

    file = Path(transformers.__file__).with_name("training_args.py")
    return classes_of([file])["TrainingArguments"]


def read(wheels: Path, nemo: Path) -> dict[str, tuple[str, Fields]]:
    """Return version and fields of each system."""
    arguments = {"TrainingArguments": transformers_arguments()}
    trl, swift = wheels / "trl/trl", wheels / "ms_swift/swift"
    trl_files = ("trainer/base_config.py", "trainer/grpo_config.py", "trainer/model_config.py", "scripts/utils.py")
    trl_classes = arguments | classes_of([trl / file for file in trl_files])
    trl_fields: Fields = {}
    for name in ("GRPOConfig", "ModelConfig", "ScriptArguments"):
        trl_fields |= fields_of(name, trl_classes, flat=True)
    swift_files = [*(swift / "rlhf_trainers").glob("args_mixin.py"), swift / "trainers/arguments.py"]
    swift_files += [*(swift / "arguments/base_args").glob("*.py"), *(swift / "arguments").glob("*.py")]
    swift_classes = classes_of(swift_files)
    swift_classes["TrainingArguments"] = swift_classes["HfSeq2SeqTrainingArguments"] = arguments["TrainingArguments"]
    areal = classes_of([wheels / "areal/areal/api/cli_args.py"])
    skyrl = classes_of([wheels / "skyrl/skyrl/train/config/config.py"])
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=nemo, capture_output=True, text=True, check=True).stdout
    found = (nemo / "examples/configs").glob("grpo_*.yaml")
    wanted = sorted(found, key=lambda file: (file.name != "grpo_math_1B.yaml", file.name))
    return {
        "trl": (version(wheels, "trl"), trl_fields),
        "ms-swift": (version(wheels, "ms_swift"), fields_of("RLHFArguments", swift_classes, flat=True)),
        "verl": (version(wheels, "verl"), of_yaml([wheels / "verl/verl/trainer/config/_generated_ppo_trainer.yaml"])),
        "skyrl": (version(wheels, "skyrl"), fields_of("SkyRLTrainConfig", skyrl)),
        "areal": (version(wheels, "areal"), fields_of("GRPOConfig", areal)),
        "nemo-rl": (f"commit {commit[:12]}", of_yaml(wanted)),
    }


def version(wheels: Path, name: str) -> str:
    """Return the version of an unpacked wheel."""
    (info,) = (wheels / name).glob("*.dist-info")
    return info.name.removesuffix(".dist-info").rpartition("-")[2]


def main() -> None:
    """Write the files."""
    HERE.mkdir(exist_ok=True)
    for system, (which, fields) in read(Path(sys.argv[1]), Path(sys.argv[2])).items():
        text = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(fields.items()))
        (HERE / f"{system}.json").write_text(f'{{"version": {json.dumps(which)}, "fields": {{\n{text}\n}}}}\n')
        print(f"{system} {which}: {len(fields)} fields")


if __name__ == "__main__":
    main()
