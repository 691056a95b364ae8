"""What a run says of its recipe: values as a recipe writes them, and the command that comes next."""

from dapo.config import load_recipe
from dapo.config.resume import Change
from dapo.run.telling import _recipe_of, brief_difference_lines, difference_lines, say_changes

TEXT = """
model: {path: builtin/signed-sum}
data: {train: [{task: signed_sum}], instruction: "Say \\"it\\""}
trainer: {max_hours: 2}
algorithm: {overlong_filtering: false}
"""


def test_differences_are_written_as_in_a_recipe_and_whole(tmp_path):
    file = tmp_path / "my recipe.yaml"
    file.write_text(TEXT)
    long = "x" * 200
    lines = difference_lines(load_recipe(file, [f"data.system_prompt={long}"]))
    assert lines[0] == "against preset dapo:"
    assert sorted(line.split(maxsplit=1)[1] for line in lines[1:]) == sorted(
        [f'null -> "{long}"', 'null -> "Say \\"it\\""', "true -> false", "null -> 2.0"]
    )


def test_a_start_shows_what_the_preset_is_about_and_counts_the_rest(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT)
    assert brief_difference_lines(load_recipe(file, ["algorithm.loss.kind=sapo", "learner.warmup=2"])) == [
        "against preset dapo:",
        '  algorithm  loss.kind "clip" -> "sapo", overlong_filtering true -> false',  # not ratio, which sapo has not
        "  learner    warmup 10 -> 2",
        "  2 other settings of data, trainer (recipe.resolved.yaml, difference.txt)",
    ]
    assert brief_difference_lines(load_recipe(file, ["algorithm.overlong_filtering=true"])) == [
        "against preset dapo:",
        "  2 settings of data, trainer (recipe.resolved.yaml, difference.txt)",
    ]


def test_the_next_command_names_the_recipe_that_was_given(tmp_path):
    file = tmp_path / "my recipe.yaml"
    file.write_text(TEXT)
    assert _recipe_of(load_recipe(file)) == f"'{file}'"
    assert _recipe_of(load_recipe("quickstart")) == "quickstart"
    saved = tmp_path / "recipe.resolved.yaml"  # a run's own copy, by which nobody begins another run
    saved.write_text(load_recipe(file).resolved)
    assert _recipe_of(load_recipe(saved)) == "RECIPE"


def test_a_resume_tells_what_changes_and_what_is_wrong_with_it():
    said: list[str] = []

    class Heard:
        say = warn = said.append

    say_changes(Heard(), [Change("trainer.steps", 4, 5, "free")], ["nothing reads it"])  # type: ignore[arg-type]
    assert said == ["changed for this resume:", "  trainer.steps: 4 -> 5 (free)", "nothing reads it"]
