"""``dapo check`` on a tiny model and small files, figures by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from dapo.cli.check_hooks import try_hooks
from dapo.cli.check_memory import estimate_memory, memory_lines
from dapo.cli.main import main
from dapo.config import load_recipe, recipe_from_dict
from dapo.run.algorithm import make_algorithm
from dapo.types.model import ModelFacts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dapo.models.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=16, layers=2, heads=2, ffn=32)


@pytest.fixture
def recipe(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    word = "What is the sum of the first number and the second number"
    rows = [
        (f"{word} 1 2", "3"),
        (f"{word} 1 3", "4"),
        (f"{word} 1 3", "4"),  # repeats
        (f"{word} 1 4", "5"),
        (f"{word} 1 4", "6"),  # contradicts
        (f"{word} 1 5" + " 1" * 40, "6"),  # too long
        (f"{word} 1 6", "7"),  # stands in the test set
    ]
    test = [(f"{word.upper()} 1 6?", "7"), (f"{word} 1 7", "8")]
    for name, records in (("problems", rows), ("held", test)):
        text = "".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in records)
        (tmp_path / f"{name}.jsonl").write_text(text)
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"model: {{path: {model}}}\n"
        "data:\n  train: [{path: problems.jsonl}]\n  validation: [{path: held.jsonl}]\n  max_prompt_tokens: 20\n"
        "  prompt: raw\n"
        "rollout: {prompts_per_step: 4, group_size: 2, max_response_tokens: 50}\n"
        "learner: {minibatch_prompts: 2}\ntrainer: {steps: 10}\nvalidation: {every: 5, samples: 3}\n"
        "rewards: [{name: accuracy, kind: exact}]\n"  # which needs no process, as math does
    )
    return file


def test_what_check_says(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(recipe), "trainer.steps=12", "rewards.0.kind=math", "--verbose"]) == 0
    told = capsys.readouterr().out
    # data: 7 records, 1 repeat, 1 held out, 1 too long, leaves 4
    assert "4 prompts of 7 problems" in told
    assert "1 repeats dropped" in told
    assert "1 taken out because they are in validation" in told
    assert "1 over-long prompts dropped" in told
    assert "5 / 6 for" in told
    assert "overlap     1 problems of held" in told
    # rewards: gold answers in a box are right, others are not
    assert told.count("right ('\\boxed{GOLD}')         accuracy 1\n") == 2
    assert told.count("wrong                          accuracy 0\n") == 2
    assert told.count("empty                          accuracy 0\n") == 2
    # arithmetic
    assert "4 prompts x 2 responses = 8 responses, at most 400 response tokens" in told
    assert "2 per training step, each on 2 prompts = 4 responses; 24 in 12 training steps" in told
    assert "12 steps of 4 pass over it 12.00 times" in told
    assert "at most 80 groups a step, then stop" in told
    assert "from 40 tokens (0) to 50 (-1)" in told
    assert "evaluations: 4, each of 2 problems = 8 responses" in told  # before step 1, after 5, 10 and 12
    # files and the next move
    assert "runs/mine/checkpoints/: every 10 steps, the newest 2" in told
    assert f"dapo train {recipe} trainer.steps=12" in told
    assert not (recipe.parent / "runs").exists()


NOT_HERE = 3


def test_check_of_an_engine_that_is_not_here(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with the recipe, all of it is explained, and this machine would not start it."""
    monkeypatch.setattr("dapo.run.engines.importlib.util.find_spec", lambda name: None)
    settings = ["rollout.engine=vllm", "rewards.0.kind=math"]
    assert main(["check", str(recipe), *settings, "--try", "1", "--verbose"]) == NOT_HERE
    told = capsys.readouterr().out
    first = told.splitlines()[0]
    assert "Not looked at: what the model writes (--try), for what this machine lacks" in told
    assert re.search(r"^  not here: .* needs the package vllm, which is not installed", told, re.MULTILINE)
    assert first.startswith(f"{recipe}: this machine cannot run it, and there are 7 doubts")  # it knows no words
    assert "  doubt: warm-up (learner.warmup = 10) takes 10 of the 10 steps" in told
    assert first.endswith(f"dapo train {recipe} {' '.join(settings)}")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["model.device=cuda"], "torch sees no CUDA device here"),
        (["model.device=cuda:7"], "torch sees no CUDA device here"),
        (["rollout.embedded.cuda_graphs=true"], "rollout.embedded.cuda_graphs is true"),
        (
            ["rollout.engine=vllm_server", "rollout.server={url: 'http://h:1', api_key_variable: NO_SUCH_KEY}"],
            "names NO_SUCH_KEY, which is not set in the environment",
        ),
        (["run.dir=problems.jsonl"], "no run can be made at problems.jsonl/mine: "),
        (["run.dir=problems.jsonl/deep/below"], "no run can be made at problems.jsonl/deep/below/mine: "),
        (["checkpoint.dir=problems.jsonl/there"], "checkpoint.dir = problems.jsonl/there: no folder can be made there"),
        (["run.name=there", "run.dir=."], "there exists already. Continue it with `dapo train --resume there`"),
    ],
)
def test_what_training_would_refuse_here_is_named_and_counted(
    recipe: Path, settings: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lacking` and `without_place` find what `dapo train` says when it is started."""
    import torch

    from dapo.errors import DapoError
    from dapo.run import train
    from dapo.run.here import lacking, without_place

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (recipe.parent / "there").mkdir()
    (recipe.parent / "there" / "metrics.jsonl").touch()
    before = sorted(recipe.parent.iterdir())
    loaded = load_recipe(recipe, [*settings, "model.dtype=float32"])
    (line,) = [*lacking(loaded.recipe), *without_place(loaded.recipe)]
    assert told in line
    assert sorted(recipe.parent.iterdir()) == before
    with pytest.raises(DapoError) as refused:
        train(loaded)
    assert refused.value.exit_code == 2
    assert told.partition(":")[0].split()[-1] in str(refused.value)


def test_an_unfinished_start_and_a_free_name_are_no_obstacle(recipe: Path) -> None:
    """A folder that is empty, or of a run that wrote no recipe, is taken; one that goes on elsewhere is not."""
    from dapo.run.here import without_place

    (recipe.parent / "runs" / "mine").mkdir(parents=True)
    assert list(without_place(load_recipe(recipe).recipe)) == []
    (recipe.parent / "runs" / "mine" / "metrics.jsonl").touch()
    assert len(list(without_place(load_recipe(recipe).recipe))) == 1
    assert list(without_place(load_recipe(recipe, ["run.if_exists=backup"]).recipe)) == []


def test_ranks_want_a_device_each(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from dapo.run.here import lacking

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    settings = ["model.device=cuda", "learner.ranks=4"]
    (line,) = lacking(load_recipe(recipe, settings).recipe)
    assert "learner.ranks is 4, and torch sees 2 CUDA devices here" in line
    assert list(lacking(load_recipe(recipe, [*settings, "launch.backend=ray"]).recipe)) == []  # of other machines
    assert list(lacking(load_recipe(recipe, ["model.device=cuda", "learner.ranks=2"]).recipe)) == []


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("algorithm.shaping=no_such_module:f", "no_such_module"),
        ("algorithm.loss.kind=json:no_such_function", "no_such_function"),
        ("algorithm.dynamic_sampling.keep=json:__doc__", "expected a function"),
        ("data.overlong_prompts=refuse", "longer than"),
        ("data.train.0.fields={problem: question}", "question"),
        ("model.path=builtin/signed-sums", "builtin/signed-sum"),
        ("model.path=.", "model.path"),
    ],
)
def test_check_refuses_what_loading_cannot_see(
    recipe: Path, override: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(recipe), override]) == 2
    assert part in capsys.readouterr().err


def test_hooks_are_found_in_the_working_directory(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "from dapo.types.enums import Verdict\n\ndef keep(values, voters):\n    return Verdict.KEPT\n"
    (recipe.parent / "check_hook_module.py").write_text(rule)
    monkeypatch.syspath_prepend("")
    assert main(["check", str(recipe), "algorithm.dynamic_sampling.keep=check_hook_module:keep"]) == 0


def test_the_quickstart_checks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "quickstart"]) == 0
    told = capsys.readouterr().out
    first, _, second = told.splitlines()[:3]
    assert first == "quickstart: good. Start it with: dapo train quickstart"
    assert second.startswith("Not looked at: the weights, and what the model writes (--try 4 ")
    assert len(told.splitlines()) < 32
    assert "key-value cache" not in told
    assert main(["check", "quickstart", "-v"]) == 0
    assert "key-value cache" in capsys.readouterr().out
    assert "111,936 parameters" in told
    assert "512 responses, at most 16,384 response tokens" in told
    assert "240 in 60 training steps" in told


def test_memory_by_hand() -> None:
    shape = ModelFacts(
        name="", dtype="float32", vocabulary=50, positions=None, exact_positions=None, stop_token_ids=(1,),
        pad_token_id=0, shapes={"a": (50, 8), "b": (600,)}, layers=2, hidden=8, ffn=16, kv_heads=2, head_size=4,
        fingerprint={}, config={},
    )  # fmt: skip
    given = {
        "model": {"path": "a/b"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rollout": {"prompts_per_step": 4, "group_size": 2, "max_response_tokens": 30},
        "learner": {"microbatch_tokens": 100},
    }
    memory = estimate_memory(recipe_from_dict(given).recipe, shape, longest_prompt=10)
    assert (memory.weights, memory.gradients, memory.optimiser) == (4000, 4000, 8000)
    layer = 2 * (8 * 4 + 2 * 8 * 4 + 4) + (4 * 8 * 4 + 2 * 4) + 4 * 16 * 4  # norms, attention, feed-forward
    assert memory.activations == 100 * (3 * layer + 8 * (4 + 2 * 4))
    assert memory.head == 100 * 50 * (4 + 5 * 4)
    assert memory.engine == 2 * 8 * (8 + 2 * 8 + 2 * 16) * 4
    assert memory.cache == 8 * 40 * 2 * 16 * 4
    assert memory.total == 16000 + 187_200 + 120_000 + 3584 + 40960
    low = {**given, "model": {"path": "a/b", "dtype": "bfloat16", "activation_checkpointing": "full"}}
    low["rollout"] = {**given["rollout"], "slots": 3}  # type: ignore[dict-item]
    memory = estimate_memory(recipe_from_dict(low).recipe, shape, longest_prompt=10)
    assert (memory.weights, memory.gradients, memory.optimiser) == (2000, 6000, 12000)
    layer = 2 * (8 * 4 + 2 * 8 * 2 + 4) + (4 * 8 * 2 + 2 * 4) + 4 * 16 * 2
    assert memory.activations == 100 * (2 * 8 * 2 + 2 * layer + 8 * (4 + 2 * 2))
    assert memory.cache == 3 * 40 * 2 * 16 * 2


def memory_of(shapes: dict[str, tuple[int, ...]], **sections: Any) -> tuple[Any, list[str]]:
    shape = ModelFacts(
        name="", dtype="float32", vocabulary=50, positions=None, exact_positions=None, stop_token_ids=(1,),
        pad_token_id=0, shapes=shapes, layers=2, hidden=8, ffn=16, kv_heads=2, head_size=4, fingerprint={}, config={},
    )  # fmt: skip
    recipe = recipe_from_dict(
        {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}, **sections}
    ).recipe
    return estimate_memory(recipe, shape, 10), list(memory_lines(recipe, shape, 10))


def test_memory_of_a_reference_and_of_an_adapter() -> None:
    """1000 parameters; rank 2 on one layer of 30 x 10 trains 2 x (30 + 10) = 80, and needs no copy for a reference."""
    shapes = {"embed_tokens.weight": (50, 8), "q_proj.weight": (30, 10), "norm.weight": (300,)}
    kl = {"kl_coefficient": 0.1}
    memory, lines = memory_of(shapes, algorithm=kl)
    assert (memory.weights, memory.reference, memory.optimiser) == (4000, 4000, 8000)
    assert any("reference for the KL" in line and "3.9 KiB" in line for line in lines)
    memory, lines = memory_of(shapes, algorithm=kl | {"reference": {"offload": True}})
    assert memory.reference == 0
    assert any("in the CPU's memory" in line for line in lines)
    lora = {"path": "a/b", "lora": {"rank": 2}}
    memory, lines = memory_of(shapes, algorithm=kl, model=lora)
    assert (memory.weights, memory.gradients, memory.optimiser) == (4320, 320, 640)
    fused = 2 * 8 * (8 + 2 * 8 + 2 * 16) * 4
    merged = 2 * 8 * (8 + 16) * 4  # two layers' output and down projections, which it otherwise reads in place
    assert (memory.reference, memory.engine) == (0, fused + merged)
    assert any("the adapter trains 80 (8.00%)" in line for line in lines)
    memory, _ = memory_of(shapes, algorithm=kl | {"reference": {"refresh_every": 5}}, model=lora)
    assert memory.reference == 320
    lora["lora"] = {"rank": 2, "target_modules": ["k_proj"], "modules_to_save": ["norm"]}  # type: ignore[assignment]
    assert memory_of(shapes, model=lora)[0].gradients == 1200


def test_memory_of_an_adapter_over_ranks() -> None:
    """Of two ranks each has half of 1000 frozen numbers in 2 bytes and of 80 trained ones in 4; all of them, and 80
    gradients of 4 bytes, while it computes."""
    shapes = {"embed_tokens.weight": (50, 8), "q_proj.weight": (30, 10), "norm.weight": (300,)}
    model = {"path": "a/b", "dtype": "bfloat16", "lora": {"rank": 2}}
    given = {"algorithm": {"kl_coefficient": 0.1}, "model": model, "learner": {"ranks": 2}}
    memory, lines = memory_of(shapes, **given)
    assert (memory.weights, memory.gradients, memory.optimiser) == (1000 + 160, 160, 320)
    assert (memory.gathered, memory.reference) == (1000 * 2 + 80 * (2 + 4), 0)
    assert any("the adapter trains 80 (8.00%)" in line for line in lines)
    assert any("1/2 of the model in bfloat16, and as much of the adapter in float32" in line for line in lines)
    given["algorithm"] = {"kl_coefficient": 0.1, "reference": {"refresh_every": 5}}
    assert memory_of(shapes, **given)[0].reference == 160


HOOKS = {
    "keep": ("algorithm.dynamic_sampling.keep", "def keep(values, voters):\n    return {}\n"),
    "loss": ("algorithm.loss.kind", "def loss(x):\n    return {}, {{}}\n"),
    "advantage": (
        "algorithm.advantage.kind",
        "def advantage(rewards, voters):\n    return [np.where(v, {}, 0.0) for r, v in zip(rewards, voters)]\n",
    ),
    "shaping": ("algorithm.shaping", "def shaping(r, lengths, truncated):\n    return {}, 0 * r\n"),
}


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("keep", "'kept'", "returned str 'kept'"),
        ("loss", "(-x.logprobs * x.advantages).mean()", "shape []"),
        ("loss", "x.logprobs + x.nothing", ", raised AttributeError"),
        ("advantage", "r - r.mean()", "returned nan at response 0 of group 0"),
    ],
)
def test_check_refuses_a_function_that_breaks_its_contract(recipe, capsys, monkeypatch, name, body, said):
    key, source = HOOKS[name]
    module = f"broken_{crc32((name + body).encode())}"
    Path(f"{module}.py").write_text("import numpy as np\n" + source.format(body))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert main(["check", str(recipe), f"{key}={module}:{name}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {key}: {module}:{name}")
    assert said in told


@pytest.mark.parametrize(
    ("name", "body", "doubt"),
    [
        ("keep", "Verdict.KEPT", "keeps groups that are all right or all wrong"),
        ("keep", "Verdict.ALL_WRONG", "drops a group with two right and two wrong"),
        ("loss", "x.logprobs * x.advantages", "is its sign turned round?"),
        ("advantage", "np.nanmean(r) - r", "right answers of a mixed group -"),
        ("loss", "0 * x.logprobs", "has a gradient of 0 at every token"),
        ("shaping", "-r", "the shaping"),
        ("shaping", "0 * r", "gives right answers of a mixed group 0 and wrong ones 0"),
    ],
)
def test_check_doubts_a_function_that_does_the_opposite(recipe, capsys, monkeypatch, name, body, doubt):
    key, source = HOOKS[name]
    module = f"doubtful_{crc32((name + body).encode())}"
    imports = "import numpy as np\nfrom dapo.types.enums import Verdict\n"
    Path(f"{module}.py").write_text(imports + source.format(body))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    main(["check", str(recipe), f"{key}={module}:{name}"])
    told = capsys.readouterr().out
    assert "your functions, on made-up groups" in told
    assert doubt in told.split("your functions")[0]


def test_check_refuses_a_loss_whose_flags_change_their_names(recipe, capsys, monkeypatch):
    source = "names = iter('abcd')\ndef loss(x):\n    return -x.logprobs * x.advantages, {next(names): x.loss_mask}\n"
    Path("flagging_hooks.py").write_text(source)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert main(["check", str(recipe), "algorithm.loss.kind=flagging_hooks:loss"]) == 2
    assert "the flags ['b']; expected ['a']" in capsys.readouterr().err


def test_check_shows_what_a_good_function_does(recipe, capsys, monkeypatch):
    Path("fine_hooks.py").write_text("def loss(x):\n    return -x.logprobs * x.advantages, {'sure': x.logprobs > -1}\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    main(["check", str(recipe), "algorithm.loss.kind=fine_hooks:loss"])
    told = capsys.readouterr().out
    assert "loss fine_hooks:loss: mean gradient by log p -" in told
    assert "flags sure" in told
    assert "the loss fine_hooks:loss" not in told


PARTS = """
import numpy as np

def score(prompt, completion):
    right = float(completion.text.strip() == prompt.answer)
    return {"accuracy": right, "words": float(len(completion.text.split()))}

def advantage(rewards_PG, voters_PG, parts_PG):
    return [np.where(v, r - np.mean(r[v]) - 0 * p[NAME], 0.0) for r, v, p in zip(rewards_PG, voters_PG, parts_PG)]
"""


@pytest.mark.parametrize(("read", "code"), [("words", 0), ("misspelt", 2)])
def test_check_knows_the_values_that_a_reward_records_beside_its_own(recipe, capsys, monkeypatch, read, code):
    Path(f"parts_{read}.py").write_text(PARTS.replace("NAME", repr(read)))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    rewards = f"rewards=[{{name: accuracy, kind: function, function: 'parts_{read}:score'}}]"
    assert main(["check", str(recipe), rewards, f"algorithm.advantage.kind=parts_{read}:advantage"]) == code
    told = capsys.readouterr()
    assert f"advantage parts_{read}:advantage: " in told.out if code == 0 else "raised KeyError" in told.err


def test_values_of_a_scorer_are_not_known_before_it_is_asked_so_reading_one_is_a_doubt(recipe, monkeypatch):
    Path("parts_of_scorer.py").write_text(PARTS.replace("NAME", "'secret'"))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    given = ["scorer=parts_of_scorer:score", "algorithm.advantage.kind=parts_of_scorer:advantage"]
    loaded = load_recipe(recipe, given).recipe
    trial = try_hooks(loaded, make_algorithm(loaded), ())
    (doubt,) = trial.doubts
    assert "raised KeyError: 'secret'" in doubt
    assert not trial.lines
