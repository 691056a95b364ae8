"""What of the section ``slurm`` no job script could hold."""

from __future__ import annotations

import pytest
from each import each

from dapo.config.check_slurm import time_limit
from dapo.config.load import recipe_from_dict
from dapo.errors import RecipeError

SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}


@each(
    ("text", "seconds"),
    [
        ("90", 90 * 60),
        ("5:30", 5 * 60 + 30),
        ("1:30:00", 5400),
        ("2-12", 60 * 3600),
        ("1-0:30", 86_400 + 1800),
        ("1-02:03:04", 86_400 + 2 * 3600 + 184),
        ("1h", None),
        ("", None),
        ("UNLIMITED", None),
    ],
)
def test_times_are_read_as_sbatch_reads_them(text, seconds):
    assert time_limit(text) == seconds


@each(
    ("override", "said"),
    [
        ("slurm.options.time=1h", "D-HH:MM:SS"),
        ("slurm.options.time=0", "more than 0"),
        ("slurm.options.time=10", "asked to save 600 s before its end, and has 600 s"),
        ("slurm.nodes=0", "slurm.nodes"),
        ('slurm.options.partition="a\\nb"', "on one line"),
        ('slurm.setup=["a\\nb"]', "one line of shell"),
        ('slurm.container="a\\nb"', "one line"),
        ("slurm.options={--mem: 0}", "did you mean `mem`?"),
        ("slurm.options.array=1-4", "the script sets it itself"),
        ("slurm.node=2", "did you mean"),
        ("slurm.container=[apptainer, exec, /images/dapo.sif]", "slurm.container"),
        ("slurm.container='[apptainer, exec]'", "plain words"),
        ("slurm.container=\"a 'b c'\"", "plain words"),
        ("slurm.container=a $HOME/b", "plain words"),
        ("slurm.container=a; touch b", "plain words"),
        ("slurm.container=a /images/*", "plain words"),
        ("slurm.container=a `b`", "plain words"),
        ("slurm.container=~/wrapper", "plain words"),
        ("slurm.container=''", "plain words"),
    ],
)
def test_what_would_break_the_script_is_refused(override, said):
    with pytest.raises(RecipeError, match="slurm") as refused:
        recipe_from_dict(SMALL, [override])
    assert said in str(refused.value)


def test_a_whole_section_is_taken():
    over = ["slurm.options={time: 1-00, mem: 0, exclusive: true}", "slurm.setup=['module load cuda']"]
    slurm = recipe_from_dict(SMALL, over).recipe.slurm
    assert slurm.options == {"time": "1-00", "mem": 0, "exclusive": True}
    assert slurm.setup == ["module load cuda"]


@pytest.mark.parametrize(
    "command",
    [
        "apptainer exec --nv /images/dapo.sif",
        "srun --container-image=nvcr.io#nvidia/pytorch:24.01-py3 --container-mounts=/a:/b,/c:/d",
        "apptainer exec docker://image@sha256:0123",
    ],
)
def test_commands_of_containers_are_taken(command):
    assert recipe_from_dict({**SMALL, "slurm": {"container": command}}).recipe.slurm.container == command
