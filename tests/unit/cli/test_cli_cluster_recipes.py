"""The recipes for several cards: valid, and what their comments promise is what `dapo check` computes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dapo.cli.check_memory import Memory, estimate_memory, load_tokenizer_and_facts, memory_lines
from dapo.cli.check_ranks import gathered_numbers, publish_lines
from dapo.cli.check_time import CARDS, needed_memory, time_lines
from dapo.cli.main import main
from dapo.config import load_recipe, recipe_from_dict
from dapo.config.deployment import Deployment
from dapo.config.shipped import FOLDER
from dapo.models.tiny import SIGNED_SUM_WORDS, make_word_tokenizer
from dapo.types.model import ModelFacts

# config.json of the models as published on the hub; no weight is needed
SIZES = {
    "dapo_qwen2.5_7b_8gpu": ("Qwen2", {"vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "max_position_embeddings": 131072}),
    "dapo_qwen3_8b_2nodes": ("Qwen3", {"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288, "head_dim": 128,
        "max_position_embeddings": 32768}),
    "dapo_paper_32b_128gpu": ("Qwen2", {"vocab_size": 152064, "hidden_size": 5120, "num_hidden_layers": 64,
        "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648,
        "max_position_embeddings": 131072}),
    "qwen3_30b_a3b_8gpu": ("Qwen3Moe", {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "max_position_embeddings": 32768}),
}  # fmt: skip
PARAMETERS = dict(zip(SIZES, (7_615_616_512, 8_190_735_360, 32_763_876_352, 30_532_122_624), strict=True))
CARDS_OF = dict(zip(SIZES, (8, 16, 128, 8), strict=True))
PROMPT = 200
UNITS = {"h": 1, "days": 24}


@pytest.fixture(scope="module", params=list(SIZES))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def estimated(name, tmp_path_factory):
    import transformers

    folder = tmp_path_factory.mktemp("model")
    kind, sizes = SIZES[name]
    configuration = getattr(transformers, f"{kind}Config")
    configuration(tie_word_embeddings=False, eos_token_id=1, **sizes).save_pretrained(folder)
    make_word_tokenizer(SIGNED_SUM_WORDS).save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    recipe = load_recipe(name, [f"model.path={folder}"]).recipe
    _, facts = load_tokenizer_and_facts(recipe)
    assert facts.parameters == PARAMETERS[name]
    return recipe, facts, estimate_memory(recipe, facts, recipe.data.max_prompt_tokens)


def comment(name):
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


@pytest.mark.whole
def test_the_comment_says_what_is_computed(name, estimated):
    recipe, facts, memory = estimated
    said, n = comment(name), CARDS_OF[name]
    (learning,) = re.findall(r"on each GPU(?: of a rank)? (\d+) GiB", said)
    assert round(memory.learning / 1024**3) == int(learning)
    assert memory.learning * 1.1 < 80e9
    lines = "\n".join(time_lines(recipe, facts, memory, PROMPT))
    generated, trained = re.search(r"about ([\d,]+) tokens and trains on ([\d,]+)\.", said).groups()
    computed = re.search(r"about ([\d,]+) tokens generated, ([\d,]+) trained", lines).groups()
    for told, exact in zip((generated, trained), computed, strict=True):
        assert int(told.replace(",", "")) == round(int(exact.replace(",", "")), -3)
    shown = re.findall(rf"\n{n} x (\w+)[^\n]*? in about ([\d,.]+) (h|days)", lines)
    hours = {card: (float(number.replace(",", "")), unit) for card, number, unit in shown}
    assert hours.keys() >= {"A100", "H100", "H200"}
    told = re.findall(rf"(\d+) h on {n} x (\w+)", said)
    assert len(told) >= 2
    for number, card in told:
        found, unit = hours[card]
        assert found == pytest.approx(int(number) / UNITS[unit], abs=1 if unit == "h" else 0.6)


def test_its_launch_command_is_one(name, estimated, tmp_path, monkeypatch, capsys):
    recipe, _, _ = estimated
    monkeypatch.chdir(tmp_path)
    (given,) = set(re.findall(rf"dapo launch {re.escape(name)} (slurm\S+(?: slurm\S+)*)", comment(name)))
    assert recipe.slurm.nodes * 8 == CARDS_OF[name]
    assert main(["launch", name, *given.split(), "--dry-run"]) == 0
    assert "#SBATCH --gpus-per-node=8" in capsys.readouterr().out


# ---------------------------------------------------------------------- the arithmetic, by hand


def recipe_with(**sections):
    base = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}
    return recipe_from_dict(base | {key: base.get(key, {}) | value for key, value in sections.items()}).recipe


def facts_with(parameters, *, tied, vocabulary=1000, hidden=100, layers=10):
    return ModelFacts(
        name="", dtype="bfloat16", vocabulary=vocabulary, positions=None, exact_positions=None, stop_token_ids=(1,),
        pad_token_id=0, shapes={"a": (parameters,)}, layers=layers, hidden=hidden, ffn=16, kv_heads=2, head_size=4,
        fingerprint={"num_attention_heads": 2, "tied": tied}, config={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "reshard", "numbers"),
    [
        (facts_with(1_100_000, tied=True), "auto", 1_100_000),  # small: all of it stays gathered
        (facts_with(1_100_000, tied=True), "true", 100_000 + 2 * 100_000),  # the one table, and two layers
        (facts_with(1_200_000, tied=False), "true", 200_000 + 2 * 100_000),
        # tables of 2**26 numbers are groups of their own: one of them is more than two layers of a million
        (facts_with(2 * 2**26 + 10_000_000, tied=False, vocabulary=2**19, hidden=128), "true", 2**26),
        (facts_with(2 * 2**26 + 10 * 2**27, tied=False, vocabulary=2**19, hidden=128), "true", 2**28),
        (facts_with(4 * 10**9, tied=True), "auto", 100_000 + 2 * (4 * 10**9 - 100_000) // 10),
    ],
)
def test_what_a_rank_gathers(facts, reshard, numbers):
    recipe = recipe_with(learner={"ranks": 4, "reshard_after_forward": reshard})
    assert gathered_numbers(recipe, facts) == numbers


def test_a_rank_holds_its_part_and_an_engines_card_its_share():
    facts = facts_with(4 * 10**9, tied=True)
    sections = {"model": {"path": "a/b", "dtype": "bfloat16", "device": "cuda"}, "rollout": {"engine": "vllm"}}
    alone = estimate_memory(recipe_with(**sections), facts, 10)
    sections["rollout"] |= {"engines": 4, "vllm": {"tensor_parallel_size": 2}}
    ranks = estimate_memory(recipe_with(learner={"ranks": 8, "replicas": 2}, **sections), facts, 10)
    assert ranks.weights == ranks.gradients == 4 * 10**9  # float32, a quarter each: two copies of four parts
    assert ranks.optimiser == 8 * 10**9
    assert ranks.gathered == gathered_numbers(recipe_with(learner={"ranks": 8}), facts) * (2 + 4)
    assert (ranks.activations, ranks.head) == (alone.activations, alone.head)
    assert ranks.engine == alone.engine // 2
    assert ranks.cache == alone.cache // 8
    assert (ranks.held, ranks.apart) == (0, False)
    offload = recipe_with(learner={"ranks": 8, "cpu_offload": True}, **sections)
    assert estimate_memory(offload, facts, 10).resident == 0


def test_engines_that_work_beside_the_learner_have_cards_of_their_own():
    facts = facts_with(4 * 10**9, tied=True)
    beside = recipe_with(
        model={"path": "a/b", "dtype": "bfloat16"},
        rollout={"engine": "vllm", "engines": 2, "max_staleness": 2},
        learner={"ranks": 4},
    )
    memory = estimate_memory(beside, facts, 10)
    assert Deployment(beside).engines_apart
    assert memory.held == 0
    assert memory.generating == memory.engine + memory.cache
    assert any(line.startswith("a rank's device about ") for line in memory_lines(beside, facts, 10))
    assert needed_memory(replace(memory, cache=0)) == max(memory.learning, memory.engine) * 1.1
    (line,) = [
        line for line in time_lines(beside, facts, Memory(0, 0, 0, 0, 0, 0, 0, apart=True), 10) if "x H200" in line
    ]
    assert line.startswith("6 x H200")
    assert len(CARDS) == 5


def test_a_publish_by_hand():
    facts = facts_with(10**9, tied=True)
    (nothing,) = publish_lines(recipe_with(), facts, 2)
    assert "moves nothing" in nothing
    for workers, said in (
        (1, "of vLLM, within this process and without a file"),
        (2, "of 2 vLLM workers, by this machine's memory"),
    ):
        own = {"engine": "vllm", "vllm": {"tensor_parallel_size": workers}}
        (copied,) = publish_lines(recipe_with(rollout=own), facts, 2)
        assert copied.startswith("a publish copies 2.0 GB into the weights of ")
        assert copied.endswith(said)
    whole, local = publish_lines(recipe_with(learner={"ranks": 4, "replicas": 2}, rollout={"engines": 3}), facts, 2)
    assert "a set of 2.0 GB, written by 2 ranks at once, for 3 engines" in whole
    assert local.endswith(f"{2 / 1.7 + 2 / 3.3:.1f} s")
    servers = {"engine": "vllm_server", "server": {"url": ["http://a:1", "http://b:1"]}}
    shared = list(publish_lines(recipe_with(rollout=servers), facts, 2))[-1]
    assert f"{2 / 1.5 + 2 * 2 / 1.5:.1f} s" in shared


def test_a_publish_by_another_route_by_hand():
    """2 GB from four ranks, or two copies of two."""
    facts = facts_with(10**9, tied=True)

    def cost(route, **sections):
        rollout = {"engines": 3, "weight_transfer": route}
        size, seconds = publish_lines(
            recipe_with(learner={"ranks": 4, "replicas": 2}, rollout=rollout, **sections), facts, 2
        )
        assert "2.0 GB" in size
        assert "for 3 engines" in size
        return seconds

    broadcast = cost("broadcast")
    assert f"{2 / 40:.1f} s between machines (40 GB/s over NCCL), {2 / 200:.1f} s within one (200)" in broadcast
    assert f"between processors {2 / 0.8:.1f} s" in broadcast
    assert f"rank and engine share: {2 / 200 + 2 * 2 / 1500:.2f} s" in cost("ipc")
    assert f"{1 / 2 + 2 / 1.5:.1f} s, all machines at once" in cost("object_store", launch={"backend": "ray"})
