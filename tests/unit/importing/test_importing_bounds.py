"""Sources that name each other, grow without end or reach out of their folder are refused or named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from each import each

from dapo.errors import RecipeError
from dapo.importing import named_files, yaml_source
from dapo.importing.convert import import_file, import_text

LAUNCH = "python3 -m verl.trainer.main_ppo "


def test_files_that_name_each_other_are_refused_after_a_few_reads(tmp_path: Path, monkeypatch) -> None:
    reads: list[Path] = []
    read = named_files.read_source
    monkeypatch.setattr(named_files, "read_source", lambda path: (reads.append(path), read(path))[1])
    names = [f"f{n}" for n in range(4)]
    for name in names:
        (tmp_path / f"{name}.yaml").write_text(f"defaults: [{', '.join(names)}]\ngrpo: {{num_prompts_per_step: 4}}")
    with pytest.raises(RecipeError, match=r"f0.yaml names itself .*f0.yaml"):
        import_file(tmp_path / "f0.yaml")
    assert len(reads) < 5


def test_a_file_that_is_named_many_times_is_read_once_and_a_limit_holds(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("grpo: {num_prompts_per_step: 4}")
    (tmp_path / "own.yaml").write_text(f"defaults: [{', '.join(['base'] * 500)}]")
    assert import_file(tmp_path / "own.yaml").reading.lines["rollout.prompts_per_step"].value == 4
    for n in range(40):
        (tmp_path / f"b{n}.yaml").write_text(f"defaults: b{n + 1}\ngrpo: {{num_prompts_per_step: 4}}")
    with pytest.raises(RecipeError, match="more than 20 files"):
        import_file(tmp_path / "b0.yaml")


def test_references_are_resolved_once_each(monkeypatch) -> None:
    calls: list[str] = []
    resolve = yaml_source.References._resolve
    monkeypatch.setattr(
        yaml_source.References, "_resolve", lambda self, value: (calls.append(""), resolve(self, value))[1]
    )
    levels = "\n".join(f"  k{n}: '{f'${{grpo.k{n + 1}}}' * 8}'" for n in range(8))
    found = import_text(f"grpo:\n{levels}\n  k8: x", "a.yaml").reading.apart
    assert len(calls) < 500
    assert any("characters" in entry.reason for entry in found)


@each(
    ("text", "said"),
    [
        ("grpo: {a: '${grpo.b}', b: '${grpo.c}', c: '${grpo.a}'}", "names itself"),
        ("grpo: {a: '${grpo.a}'}", "names itself"),
        ("grpo: {a: ['${grpo.a}', 1]}", "names itself"),
        ("grpo: {a: '${grpo.none}'}", "`grpo.none` is not in the file"),
        ("grpo: {a: '${oc.env:HOME}'}", "is not in the file"),
        ("grpo: {a: '${mul:1e999,2}'}", "is not in the file"),
        (
            "grpo:\n"
            + "".join(f"  a{n}: ['${{grpo.a{n + 1}}}', '${{grpo.a{n + 1}}}']\n" for n in range(40))
            + "  a40: 1",
            "characters",
        ),
    ],
)
def test_references_without_end_are_listed(text: str, said: str) -> None:
    reasons = [entry.reason for entry in import_text(f"policy: {{model_name: m}}\n{text}", "a.yaml").reading.apart]
    assert any(said in reason for reason in reasons)


@pytest.mark.parametrize(
    "entry",
    ["/etc/passwd", "../../x.yaml", "../secret.yaml", "link.yaml", "/dev/zero", ".", "x" * 600, "a\\0b", "\\e[2Jx"],
)
def test_a_base_outside_of_the_folder_is_named_and_not_read(entry: str, tmp_path: Path, monkeypatch) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    for place in (tmp_path / "x.yaml", tmp_path / "a" / "secret.yaml"):
        place.write_text("grpo: {num_prompts_per_step: 77}\nsecret: 4711")
    (here / "link.yaml").symlink_to(tmp_path / "x.yaml")
    (here / "own.yaml").write_text(f'defaults: "{entry}"\ngrpo: {{num_generations_per_prompt: 4}}')
    text = import_file("own.yaml").text
    assert "4711" not in text
    assert "root:" not in text
    assert "prompts_per_step: 77" not in text
    assert text.startswith("# CAUTION")
    assert text.replace("\n", "").isprintable()


def test_a_base_further_up_is_read_from_a_working_directory_that_holds_both(tmp_path: Path, monkeypatch) -> None:
    """So the files of a clone are complete where the command runs at its root; which were read is said."""
    here = tmp_path / "configs" / "recipes"
    here.mkdir(parents=True)
    (tmp_path / "configs" / "base.yaml").write_text("grpo: {num_prompts_per_step: 77}")
    (here / "own.yaml").write_text("defaults: ../base.yaml\ngrpo: {num_generations_per_prompt: 4}")
    monkeypatch.chdir(tmp_path)
    text = import_file("configs/recipes/own.yaml").text
    assert "prompts_per_step: 77" in text
    assert "# It also read configs/base.yaml." in text


@pytest.mark.parametrize("path", ["../secret.yaml", "/etc/hostname", "link.yaml"])
def test_a_configuration_outside_of_the_folder_is_not_read_for_a_script(path: str, tmp_path: Path, monkeypatch) -> None:
    here = tmp_path / "a"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "secret.yaml").write_text("data: {train_batch_size: 64, x: 4711}")
    Path("link.yaml").symlink_to(tmp_path / "secret.yaml")
    Path("run.sh").write_text(f"python -m verl.trainer.main_ppo --config {path} actor_rollout_ref.rollout.n=4")
    with pytest.raises(RecipeError) as refused:
        import_file("run.sh")
    assert "4711" not in str(refused.value)
    assert "outside of" in str(refused.value) or "no YAML" in str(refused.value)


HOSTILE = {
    "aliases of a long text": (
        "a.yaml",
        "a: &a " + "x" * 100_000 + "\ngrpo: {b: [" + "*a, " * 20_000 + "1]}",
        "stand for more than",
    ),
    "aliases in defaults": ("a.yaml", "defaults: &d [x, *d]\ngrpo: {a: 1}", "stand for more than"),
    "an array over many lines": (
        "a.sh",
        "A=(\n" + "x\n" * 100_000 + ")\n" + LAUNCH,
        "does not end|more than 20,000 words",
    ),
    "an array that grows": ("a.sh", "A+=(x)\n" * 60_000 + LAUNCH, "grows beyond"),
    "many unknown arguments": ("a.sh", LAUNCH + "a.b=$1 " * 40_000, "more than"),
    "many dollars": ("a.sh", LAUNCH + "$a " * 200_000, "longer than|more than|holds no settings"),
    "many words, then a long one": (
        "a.sh",
        f"A='{'a ' * 40_000}'\n{LAUNCH} ${{A}}{'x' * 40_000} data.x=1",
        "a word of more than",
    ),
    "a sum of many": ("a.py", "from trl import GRPOConfig\nGRPOConfig(seed=" + "1+" * 1900 + "1)", "too deep"),
    "lists of lists by name": (
        "a.py",
        "from trl import GRPOConfig\nx0 = [1, 2]\n"
        + "".join(f"x{n + 1} = [x{n}, x{n}]\n" for n in range(40))
        + "GRPOConfig(beta=0, stop=x40)",
        None,
    ),
    "tags of Python": ("a.yaml", "grpo: !!python/object/new:os.system [id]", "not valid YAML"),
    "a tag of a name": ("a.yaml", "grpo: !!python/name:os.system", "not valid YAML"),
    "binary": ("a.yaml", "grpo: !!binary aGVsbG8=", "binary data"),
    "a date": ("a.yaml", "grpo: 2024-01-01", "a date"),
    "many commands": ("a.sh", (LAUNCH + "data.x=1\n") * 5_000, "more than 1,000 commands"),
    "many arithmetic words": (
        "a.sh",
        "".join(f"A{n}=1\n" for n in range(10_000))
        + (": $((A1+1))\n" * 10_000)
        + LAUNCH
        + "data.train_batch_size=$((A1+7))",
        None,
    ),
    "quotes that do not end": ("a.sh", LAUNCH + "data.x='" + "y" * 200_000, "characters|does not end"),
    "nothing": ("a.yaml", "", "no settings"),
    "a byte order mark": ("a.yaml", "\ufeffgrpo: {num_prompts_per_step: 4}", None),
}


@pytest.mark.whole
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_sources_end_in_words(case: str, tmp_path: Path) -> None:
    name, text, said = HOSTILE[case]
    (tmp_path / name).write_text(text, encoding="utf-8")
    if said is None:
        assert len(import_file(tmp_path / name, "trl" if name.endswith("py") else None).text) < 1_000_000
    else:
        with pytest.raises(RecipeError, match=said):
            import_file(tmp_path / name, "trl" if name.endswith("py") else None)


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "binary.yaml").write_bytes(bytes(range(128, 256)))
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    own = tmp_path / "own.yaml"
    for name in ("folder", "binary", "pipe", "loop", "zero"):
        with pytest.raises(RecipeError):
            import_file(tmp_path / f"{name}.yaml")
    for name in ("folder", "pipe", "loop", "zero"):
        own.write_text(f"defaults: {name}\ngrpo: {{num_prompts_per_step: 4}}")
        assert import_file(own).text.startswith("# CAUTION")
    own.write_text("defaults: binary\ngrpo: {num_prompts_per_step: 4}")
    with pytest.raises(RecipeError, match="not text"):
        import_file(own)
