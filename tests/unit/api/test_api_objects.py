"""A loaded model and its tokenizer, given in place of a path: the same run, or a refusal with the next move."""

import gc
import weakref

import pytest
import torch
from each import each
from transformers import AutoModelForCausalLM, AutoTokenizer

import dapo
from dapo.api.recipe import ask, overrides_of
from dapo.errors import ModelError, RecipeError
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import without_clock

PROBLEMS = [{"problem": f"{n} +2 =", "answer": str(n + 2)} for n in range(24)]
PAGE = {"data": {"train": [{"task": "signed_sum"}]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("objects") / "model", "llama", seed=0)


@pytest.fixture
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def start(model, tokenizer, runs, recipe=PAGE):
    """The section ``model`` of the recipe, and what is said of the model."""
    asked = ask(recipe, tokenizer=tokenizer, settings={"model": model, "run": {"dir": str(runs)}}).loaded
    return asked.recipe.model, [line for line in asked.warnings if "loaded model" in line]


def test_a_loaded_model_trains_as_its_folder_does_and_nothing_keeps_it(folder, tmp_path):
    alive, born = [], []

    def load():
        found = AutoModelForCausalLM.from_pretrained(folder)
        born.append(weakref.ref(found))
        return found

    def watch(event):
        gc.collect()
        alive.extend(one() is not None for one in born)

    recipe = {
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_response_tokens": 12},
        "learner": {"minibatch_prompts": 2, "learning_rate": 1e-2, "warmup": 0},
        "algorithm": {"dynamic_sampling": {"mode": "off"}, "overlong_filtering": False},
        "validation": {"every": 0},
        "trainer": {"steps": 2},
        "logging": {"console": "quiet"},
        "run": {"dir": str(tmp_path / "runs")},
    }
    given = {"train": PROBLEMS, "rewards": ["last_number"]}
    by_path = dapo.train(recipe, model=folder, **{"run.name": "path"}, **given)
    by_object = dapo.train(
        recipe,
        train=PROBLEMS,
        rewards=["last_number"],
        model=load(),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        callbacks=[watch],
    )
    assert not any(alive)
    assert len(alive) >= 4
    assert [without_clock(row) for row in by_object.metrics] == [without_clock(row) for row in by_path.metrics]
    further = [dapo.resume(run, **{"trainer.steps": 3}).metrics[-1] for run in (by_path, by_object)]
    assert without_clock(further[0]) == without_clock(further[1])
    with pytest.raises(RecipeError, match="a loaded model starts a run"):
        dapo.resume(by_object, model=load())
    (tmp_path / "runs/.models").rename(tmp_path / "gone")
    with pytest.raises(RecipeError, match="no such model folder"):
        dapo.resume(by_object, **{"trainer.steps": 4})


def test_the_same_model_is_saved_once_and_another_apart(model, tokenizer, tmp_path):
    first = start(model, tokenizer, tmp_path)[0].path
    assert start({"path": model}, tokenizer, tmp_path)[0].path == first
    with torch.no_grad():
        model.lm_head.weight[3, 0] += 1e-3
    assert start(model, tokenizer, tmp_path)[0].path != first
    assert len(list((tmp_path / ".models").iterdir())) == 2


def test_the_model_stays_as_it_was_given(model, tokenizer, tmp_path):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    model.model.norm.eval()
    drawn = torch.random.get_rng_state()
    start(model, tokenizer, tmp_path)
    assert model.training
    assert not model.model.norm.training
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_ties_and_numbers_are_kept(tied, dtype, tmp_path, tokenizer):
    make_tiny_model(tmp_path / "m", "qwen3", seed=2, tied=tied, dtype=dtype)
    given = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=dtype)
    section, said = start(given, tokenizer, tmp_path)
    kept = AutoModelForCausalLM.from_pretrained(section.path, dtype="auto")
    assert section.dtype == str(dtype).removeprefix("torch.")
    assert not said
    assert {name: tensor.dtype for name, tensor in kept.state_dict().items()} == {
        name: tensor.dtype for name, tensor in given.state_dict().items()
    }
    assert all(torch.equal(kept.state_dict()[name], tensor) for name, tensor in given.state_dict().items())
    assert (kept.lm_head.weight is kept.model.embed_tokens.weight) == tied


def test_a_merged_adapter_is_a_model(model, tokenizer, tmp_path):
    merged = adapted(model).merge_and_unload()  # PEFT leaves every parameter frozen
    assert not any(parameter.requires_grad for parameter in merged.parameters())
    assert start(merged, tokenizer, tmp_path)[0].dtype == "float32"


def test_what_an_earlier_call_left_in_the_tokenizer_is_not_saved(model, tokenizer, tmp_path):
    untouched = start(model, tokenizer, tmp_path)[0].path
    tokenizer(["1 + 2 = 3"], truncation=True, max_length=2, padding="max_length")
    assert start(model, tokenizer, tmp_path)[0].path == untouched
    assert tokenizer.backend_tokenizer.truncation is not None  # the caller's stays as it is


def test_what_is_not_taken_over_is_said(model, tokenizer, tmp_path):
    model.generation_config.update(do_sample=True, temperature=0.6)
    model.gradient_checkpointing_enable()
    _, said = start(model.bfloat16(), tokenizer, tmp_path, {**PAGE, "model": {"dtype": "float32"}})
    assert len(said) == 3
    assert "is bfloat16, and model.dtype of the recipe is float32" in said[0]
    assert "temperature=0.6" in said[1]
    assert "model.activation_checkpointing" in said[2]


def hooked(model):
    model.model.layers[0].register_forward_hook(lambda module, given, made: made * 1.5)
    return model


def patched(model):
    forward = model.forward
    model.forward = lambda **given: (out := forward(**given), setattr(out, "logits", out.logits * 2))[0]
    return model


def untied(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def mixed(model):
    model.model.norm.to(torch.bfloat16)
    return model


def frozen(model):
    model.model.embed_tokens.requires_grad_(False)
    return model


def contradicting(model):
    model.generation_config.update(do_sample=False, temperature=0.6)
    return model


def adapted(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(target_modules="all-linear"))


@each(
    "change, said",
    [
        (hooked, "answers otherwise than its saved copy"),
        (patched, "answers otherwise than its saved copy"),
        (untied, "lm_head.weight is torch.float32, and tied or missing once"),
        (mixed, "model.norm.weight is torch.bfloat16, and torch.float32 once"),
        (frozen, "call model.requires_grad_(True)"),
        (contradicting, "do_sample"),
        (adapted, "give model.merge_and_unload()"),
        (lambda model: model.half(), "give model.float() or model.bfloat16()"),
        (lambda model: model.to("meta"), "cannot be trained whole"),
        (lambda model: model.model, "is LlamaModel, expected"),
        (torch.compile, "is OptimizedModule, expected"),
    ],
)
def test_what_no_folder_can_hold_is_refused(change, said, folder, tokenizer, tmp_path):
    with pytest.raises(RecipeError) as refused:
        start(change(AutoModelForCausalLM.from_pretrained(folder)), tokenizer, tmp_path)
    assert said in str(refused.value)
    assert not list(tmp_path.glob(".models/*"))


def test_weights_that_are_no_numbers_are_named_before_a_run_starts(model, tokenizer, tmp_path):
    with torch.no_grad():
        model.model.embed_tokens.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"1 of [\d,]+ numbers of model.embed_tokens.weight are NaN"):
        dapo.train(PAGE, model=model, tokenizer=tokenizer, **{"run.dir": str(tmp_path), "logging.console": "quiet"})


def test_a_tokenizer_comes_with_a_loaded_model_and_with_nothing_else(model, tokenizer, folder, tmp_path):
    with pytest.raises(RecipeError, match=r"tokenizer=AutoTokenizer.from_pretrained"):
        start(model, None, tmp_path)
    with pytest.raises(RecipeError, match="belongs to a loaded model"):
        start(folder, tokenizer, tmp_path)
    with pytest.raises(RecipeError, match="a loaded model starts a run"):
        ask({**PAGE, "model": {"path": model}}, tokenizer=tokenizer, settings={"run.dir": str(tmp_path)})
    with pytest.raises(RecipeError, match="a loaded model starts a run"):
        overrides_of({"model": model})
    doubled = AutoTokenizer.from_pretrained(folder)
    doubled._encode_plus = lambda text, **more: type(tokenizer)._encode_plus(tokenizer, text + text, **more)
    with pytest.raises(RecipeError, match="gives other tokens"):
        start(model, doubled, tmp_path)
