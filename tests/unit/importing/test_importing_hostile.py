"""What is brought along is read, never run; what is unclear, unknown or hostile is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from each import each

from dapo.cli.main import main
from dapo.errors import RecipeError
from dapo.importing.convert import import_file, import_text

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=64 "


def apart(text: str, name: str = "a.sh", **more) -> dict[str, str]:
    return {entry.what: entry.reason for entry in import_text(text, name, **more).reading.apart}


def test_nothing_is_executed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = (
        "X=$(touch RAN)\nY=`touch RAN`\n" + LAUNCH + "data.a=$(touch RAN) data.b=$X data.c=${Z:-$(touch RAN)} data.d=$1"
    )
    found = apart(script)
    assert "a command, which is not run" in found["data.a=..."]
    assert "is a command" in found["data.b=..."]
    assert "data.c=..." in found
    assert "an argument of the script" in found["data.d=..."]
    python = "from trl import GRPOConfig\nGRPOConfig(beta=0, seed=__import__('os').system('touch RAN'))"
    assert "could not be read: known only when it runs" in apart(python, "a.py").values()
    with pytest.raises(RecipeError, match=r"\*\*more could not be read"):
        import_text(python.replace("'))", "'), **more)"), "a.py")
    with pytest.raises(RecipeError):
        import_text("a: !!python/object/apply:os.system ['touch RAN']", "a.yaml")
    assert not (tmp_path / "RAN").exists()


def test_constants_of_a_script() -> None:
    script = """
ARGS=(data.train_batch_size=64   # a comment
  "actor_rollout_ref.rollout.n=8")
ARGS+=(data.max_prompt_length=$((2 * 3 * (4 + 1))))
if [ -z "$X" ]; then CLIP=0.3; fi
EXTRA="actor_rollout_ref.actor.clip_ratio_high=0.25 actor_rollout_ref.actor.clip_ratio_low=0.1"
python -m verl.trainer.main_ppo "${ARGS[@]}" $EXTRA \\
  # a comment that somebody left
  actor_rollout_ref.actor.clip_ratio_c=$CLIP \\
  trainer.experiment_name='a b'"${N:-c}" "$@"
cat <<EOF
data.train_batch_size=1
EOF
"""
    made = import_text(script, "a.sh")
    lines = made.reading.lines
    assert lines["rollout.prompts_per_step"].value == 64
    assert lines["rollout.group_size"].value == 8
    assert lines["data.max_prompt_tokens"].value == 30
    assert (lines["algorithm.clip.low"].value, lines["algorithm.clip.high"].value) == (0.1, 0.25)
    assert lines["run.name"].value == "a bc"
    assert any("inside of an if" in entry.reason for entry in made.reading.apart)


def test_unknown_keys_are_listed() -> None:
    found = apart(LAUNCH + "data.frobnicate=3 actor_rollout_ref.actor.optim.lr=abc")
    assert "not known" in found["data.frobnicate = 3"]
    assert "expects a number" in found["actor_rollout_ref.actor.optim.lr = abc"]


@each(
    ("text", "name", "said"),
    [
        ("epsilon_high: 0.28\nnum_generations: 8", "a.yaml", "TRL's or ms-swift's"),
        ("a: 1", "a.yaml", "no known trainer"),
        ("echo hello", "a.sh", "no settings at all; copy a page's YAML block, command or Python into"),
        ("Note: this is: prose\n", "page.txt", "not valid YAML.*Its name does not say what it is.*copy a page's YAML"),
        ("algorithm: {clip: {high: 0.28}}", "a.yaml", "a recipe of dapo already"),
        ("grpo: {x: 1}\nactor_rollout_ref: {y: 1}", "a.yaml", "say which with --from"),
        ("a\0b", "a.sh", "NUL"),
        ("(" * 5000, "a.py", "not Python that can be read"),
        ("GRPOConfig(" + "-" * 60000 + "1)", "a.py", "not Python that can be read"),
        ("a: " + "[" * 5000, "a.yaml", "too deep"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"{c}: &{c} [" + ",".join([f"*{b}"] * 10) + "]\n" for b, c in zip("abcdef", "bcdefg", strict=True)
        ), "a.yaml", "stand for more than"),
        ("A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 9 + LAUNCH, "a.sh", "characters"),
        ("A=${B:-" * 200 + "1" + "}" * 200 + "\n" + LAUNCH, "a.sh", "too deep"),
    ],
)  # fmt: skip
def test_what_is_unclear_or_hostile_is_refused_by_name(text: str, name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        import_text(text, name)


def test_a_page_around_a_command_is_named_as_one() -> None:
    """Its YAML blocks are not read, so a recipe that holds the command alone has to say so."""
    page = "To enable the filter you can set its type to the word filter and then run\n"
    assert not [what for what in apart(page * 2 + LAUNCH, "a.txt") if "prose" in what]
    (found,) = [(what, why) for what, why in apart(page * 3 + LAUNCH, "a.txt").items() if "prose" in what]
    assert found[0] == "3 lines of prose, the first 'To enable the filter you can set its type to the word filter'"
    assert "a.txt is a page: copy a page's YAML block" in found[1]
    assert import_text(page * 3 + LAUNCH, "a.txt").text.startswith("# CAUTION: a.txt is a page")


def test_references_that_go_round_are_listed() -> None:
    found = apart("grpo: {a: '${grpo.b}', b: '${grpo.a}', num_prompts_per_step: 4}", "a.yaml")
    assert len([reason for what, reason in found.items() if "could not be read" in reason]) == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"grpo: \xff\xfe")
    with pytest.raises(RecipeError, match="cannot be read"):
        import_file(path)
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(RecipeError, match="at most"):
        import_file(path)
    with pytest.raises(RecipeError, match="expected one of nemo-rl"):
        import_text("a: 1", "a.yaml", "openrlhf")


def test_a_file_that_is_not_there_is_answered_with_those_that_could_be_meant(tmp_path: Path, monkeypatch) -> None:
    """Never with our own recipes: what is imported is somebody else's."""
    monkeypatch.chdir(tmp_path)
    takes = "`dapo import` takes YAML, a launch script, or Python with config objects"

    def said(path: str) -> str:
        with pytest.raises(RecipeError) as refused:
            import_file(path)
        return str(refused.value)

    assert said("nothing.sh") == f"nothing.sh is not there. {takes}"
    assert said("no/folder.sh") == f"no/folder.sh is not there, nor is the folder no. {takes}"
    Path("notes.txt").touch()
    Path("run_dapo.sh").touch()
    assert said("nothing.yaml") == f"nothing.yaml is not there; in {tmp_path} there is run_dapo.sh. {takes}"
    Path("args.py").touch()
    assert said("run-dapo.sh") == f"run-dapo.sh is not there; did you mean run_dapo.sh? {takes}"
    assert said("zzz") == f"zzz is not there; in {tmp_path} there are args.py, run_dapo.sh. {takes}"
    assert said(".") == f". is a folder; give a file: there are args.py, run_dapo.sh. {takes}"


def test_a_value_cannot_end_its_comment_or_show_a_secret() -> None:
    made = import_text(
        'actor_rollout_ref: {rollout: {n: 8}}\ntrainer: {experiment_name: "x\\nrun: {seed: 7}"}\n'
        "data: {api_key: hunter22, token: hf_abcdefghijklmnopqrstuvwx}\n",
        "a.yaml",
    )
    assert all(not line.startswith("run: {") for line in made.text.splitlines())
    assert "hunter22" not in made.text
    assert "hf_abc" not in made.text


def test_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(LAUNCH)
    assert main(["import", "run.sh", "-o", "mine.yaml"]) == 0
    said = capsys.readouterr().out
    assert "settings of verl" in said
    assert "dapo check mine.yaml model.path=NAME_OR_FOLDER data.train.0.path=FILE" in said
    assert main(["import", "run.sh", "-o", "mine.yaml"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["import", "run.sh", "--from", "verl"]) == 0
    assert capsys.readouterr().out == Path("mine.yaml").read_text()


def test_a_peers_flag_on_our_own_command_line_is_answered(capsys) -> None:
    assert main(["train", "quickstart", "--epsilon_high", "0.28"]) == 2
    said = capsys.readouterr().err
    assert "`algorithm.clip.high`" in said
    assert "KEY=VALUE" in said
