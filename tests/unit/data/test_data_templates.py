"""Ten public chat formats: what the model sees, against texts written by hand and transformers' own rendering."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dapo.config.schema import Data, TrainSource
from dapo.data import prepare
from dapo.errors import DataError

FOLDER = Path(__file__).parents[2] / "data" / "chat_templates"
SPECIAL = {  # beginning and end of a sequence, and what else a template writes as one token
    "chatml": (None, "<|im_end|>", ["<|im_start|>"]),
    "qwen2.5": (None, "<|im_end|>", ["<|im_start|>"]),
    "qwen3": (None, "<|im_end|>", ["<|im_start|>"]),
    "llama3.2": ("<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "mistral-v0.3": ("<s>", "</s>", ["[INST]", "[/INST]"]),
    "gemma2": ("<bos>", "<end_of_turn>", ["<start_of_turn>"]),
    "phi4": (None, "<|im_end|>", ["<|im_start|>", "<|im_sep|>"]),
    "deepseek-r1-distill": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ["<｜User｜>", "<｜Assistant｜>"]),
    "smollm2": ("<|im_start|>", "<|im_end|>", []),
    "olmo2": ("<|endoftext|>", "<|endoftext|>", []),
}
DATE = {"date_string": "26 Jul 2024"}
KWARGS: dict[str, dict[str, Any]] = {"llama3.2": DATE}


@cache
def tokenizer(name: str) -> Any:
    """Bytes as tokens, and the format's special tokens; it adds the beginning of a sequence itself, as Llama's."""
    bos, eos, others = SPECIAL[name]
    raw = Tokenizer(models.BPE({c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token=eos, additional_special_tokens=others)
    if bos is not None:
        from tokenizers.processors import TemplateProcessing

        made.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, made.bos_token_id)]
        )
    made.chat_template = (FOLDER / f"{name}.jinja").read_text()
    return made


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


ONE = [turn("user", "Find x.")]
SYSTEM = [turn("system", "Be brief."), *ONE]
TURNS = [turn("user", "1+1?"), turn("assistant", "2"), turn("user", "And 2+2?")]
THOUGHT = [turn("user", "1+1?"), turn("assistant", "<think>\nEasy.\n</think>\n\n2"), turn("user", "And 2+2?")]

IM = "<|im_start|>{}\n{}<|im_end|>\n"
QWEN = IM.format("system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
SMOL = IM.format("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
ASSISTANT = "<|im_start|>assistant\n"
IM_ONE, IM_SYSTEM = IM.format("user", "Find x."), IM.format("system", "Be brief.")
IM_TURNS = IM.format("user", "1+1?") + IM.format("assistant", "2") + IM.format("user", "And 2+2?")
LLAMA = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
LLAMA_END = "<|start_header_id|>assistant<|end_header_id|>\n\n"

EXPECTED: dict[str, tuple[str, str | None, str]] = {  # one question, with a system message, several turns
    "chatml": (IM_ONE + ASSISTANT, IM_SYSTEM + IM_ONE + ASSISTANT, IM_TURNS + ASSISTANT),
    "qwen2.5": (QWEN + IM_ONE + ASSISTANT, IM_SYSTEM + IM_ONE + ASSISTANT, QWEN + IM_TURNS + ASSISTANT),
    "qwen3": (IM_ONE + ASSISTANT, IM_SYSTEM + IM_ONE + ASSISTANT, IM_TURNS + ASSISTANT),
    "llama3.2": (
        "<|begin_of_text|>" + LLAMA.format("system", DATES) + LLAMA.format("user", "Find x.") + LLAMA_END,
        "<|begin_of_text|>" + LLAMA.format("system", DATES + "Be brief.") + LLAMA.format("user", "Find x.") + LLAMA_END,
        "<|begin_of_text|>" + LLAMA.format("system", DATES) + LLAMA.format("user", "1+1?")
        + LLAMA.format("assistant", "2") + LLAMA.format("user", "And 2+2?") + LLAMA_END,
    ),
    "mistral-v0.3": (
        "<s>[INST] Find x.[/INST]",
        "<s>[INST] Be brief.\n\nFind x.[/INST]",
        "<s>[INST] 1+1?[/INST] 2</s>[INST] And 2+2?[/INST]",
    ),
    "gemma2": (
        "<bos><start_of_turn>user\nFind x.<end_of_turn>\n<start_of_turn>model\n",
        None,
        "<bos><start_of_turn>user\n1+1?<end_of_turn>\n<start_of_turn>model\n2<end_of_turn>\n"
        "<start_of_turn>user\nAnd 2+2?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "phi4": (
        "<|im_start|>user<|im_sep|>Find x.<|im_end|><|im_start|>assistant<|im_sep|>",
        "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Find x.<|im_end|>"
        "<|im_start|>assistant<|im_sep|>",
        "<|im_start|>user<|im_sep|>1+1?<|im_end|><|im_start|>assistant<|im_sep|>2<|im_end|>"
        "<|im_start|>user<|im_sep|>And 2+2?<|im_end|><|im_start|>assistant<|im_sep|>",
    ),
    "deepseek-r1-distill": (
        "<｜begin▁of▁sentence｜><｜User｜>Find x.<｜Assistant｜><think>\n",
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Find x.<｜Assistant｜><think>\n",
        "<｜begin▁of▁sentence｜><｜User｜>1+1?<｜Assistant｜>2<｜end▁of▁sentence｜>"
        "<｜User｜>And 2+2?<｜Assistant｜><think>\n",
    ),
    "smollm2": (SMOL + IM_ONE + ASSISTANT, IM_SYSTEM + IM_ONE + ASSISTANT, SMOL + IM_TURNS + ASSISTANT),
    "olmo2": (
        "<|endoftext|><|user|>\nFind x.\n<|assistant|>\n",
        "<|endoftext|><|system|>\nBe brief.\n<|user|>\nFind x.\n<|assistant|>\n",
        "<|endoftext|><|user|>\n1+1?\n<|assistant|>\n2<|endoftext|>\n<|user|>\nAnd 2+2?\n<|assistant|>\n",
    ),
}  # fmt: skip


def see(tmp_path: Path, name: str, messages: list[dict[str, str]], **data: Any) -> Any:
    """The prompt of a conversation, made as a run makes it."""
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": messages, "answer": "4"}) + "\n")
    data = {"chat_template_kwargs": KWARGS.get(name, {}), **data}
    (prompt,) = prepare(Data(train=[TrainSource(path=str(file))], **data), tokenizer(name)).train
    return prompt


def test_there_is_a_text_for_every_file() -> None:
    assert {file.stem for file in FOLDER.glob("*.jinja")} == set(EXPECTED) == set(SPECIAL)
    assert len(EXPECTED) == 10
    readme = (FOLDER / "README.md").read_text()
    assert all(f"| {name}.jinja |" in readme for name in EXPECTED)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["one", "system", "turns"])
@pytest.mark.parametrize("name", EXPECTED)
def test_the_model_sees_the_published_format(tmp_path: Path, name: str, which: int) -> None:
    messages, expected = (ONE, SYSTEM, TURNS)[which], EXPECTED[name][which]
    if expected is None:
        with pytest.raises(DataError, match=r"line 1: the tokenizer's chat template failed .*System role not support"):
            see(tmp_path, name, messages)
        return
    prompt, own = see(tmp_path, name, messages), tokenizer(name)
    assert prompt.text == expected
    options = {"add_generation_prompt": True, **KWARGS.get(name, {})}
    assert prompt.text == own.apply_chat_template(messages, tokenize=False, **options)
    ids = own.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    assert prompt.token_ids.tolist() == ids
    bos = own.bos_token_id
    if bos is not None and name not in ("smollm2", "olmo2"):  # whose other tokens are the same
        assert prompt.token_ids.tolist().count(bos) == 1
    assert prompt.problem == messages[-1]["content"]


@pytest.mark.parametrize("name", EXPECTED)
def test_what_the_recipe_adds_is_the_same_as_messages_of_the_record(tmp_path: Path, name: str) -> None:
    """A system message and examples of the recipe, beside a conversation that holds them itself."""
    shots = [{"problem": "1+1?", "response": "2"}]
    assert see(tmp_path, name, TURNS[-1:], few_shot=shots).text == EXPECTED[name][2]
    assert see(tmp_path, name, ONE, response_prefix="So").text == EXPECTED[name][0] + "So"
    if EXPECTED[name][1] is None:
        with pytest.raises(DataError, match=r"System role not supported; remove `data\.system_prompt`"):
            see(tmp_path, name, ONE, system_prompt="Be brief.")
    else:
        assert see(tmp_path, name, ONE, system_prompt="Be brief.").text == EXPECTED[name][1]


@pytest.mark.parametrize(
    ("given", "end"),
    [({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, "<think>\n\n</think>\n\n")],
)
def test_thinking_is_switched_off_by_a_variable(tmp_path: Path, given: dict[str, bool], end: str) -> None:
    assert see(tmp_path, "qwen3", ONE, chat_template_kwargs=given).text == IM_ONE + ASSISTANT + end


@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1-distill"])
def test_thoughts_of_earlier_turns_are_left_out(tmp_path: Path, name: str) -> None:
    expected = EXPECTED[name][2].replace("<｜Assistant｜>2", "<｜Assistant｜>\n\n2")
    assert see(tmp_path, name, THOUGHT).text == expected


def test_tools_stand_in_the_system_turn(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    assert see(tmp_path, "qwen2.5", ONE, tools=[tool]).text == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n# Tools\n\nYou "
        "may call one or more functions to assist with the user query.\n\nYou are provided with function signatures "
        "within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}\n'
        "</tools>\n\nFor each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' + IM_ONE + ASSISTANT
    )


def test_roles_that_a_template_refuses_are_told_with_their_record(tmp_path: Path) -> None:
    twice = [turn("user", "a"), turn("user", "b")]
    for name in ("gemma2", "mistral-v0.3"):
        with pytest.raises(
            DataError, match=r"rows\.jsonl, line 1: .*failed on messages of \['user', 'user'\].*alternate"
        ):
            see(tmp_path, name, twice)


def test_a_template_that_writes_the_day_s_date_wants_it_fixed(tmp_path: Path) -> None:
    """Else a run would see other prompts tomorrow, and could not be resumed."""
    with pytest.raises(DataError, match=r"the day's date.*chat_template_kwargs: \{date_string: '26 Jul 2024'\}"):
        see(tmp_path, "llama3.2", ONE, chat_template_kwargs={})
