"""Conversions that several trainers need: minibatches, caps, masks, references, evaluation, data."""

from __future__ import annotations

import re
from typing import Any

from dapo.config.checks import OF_THE_ENGINE
from dapo.config.schema.run import TRACKERS
from dapo.importing.arithmetic import shown
from dapo.importing.reading import Reading, SourceValue

DS = "algorithm.dynamic_sampling"
LEN = "algorithm.overlong_punishment"
LOSS = "algorithm.loss"
FIX = "algorithm.correction"
MOST_STALE = 64


def minibatch_of_prompts(r: Reading, prompts: SourceValue, mini: SourceValue) -> None:
    """Write a minibatch in prompts; P divided by it is the number of optimizer steps."""
    _minibatch(r, prompts, mini, mini.value, "prompts in both")


def minibatch_of_responses(r: Reading, prompts: SourceValue, group: SourceValue, mini: SourceValue) -> None:
    """Write a minibatch that is given in responses: divided by G it is one in prompts."""
    if mini.value % group.value and not mini.unread:
        r.put("learner.minibatch_prompts", prompts.value, prompts, note="one optimiser step")
        said = f"{mini.said.removeprefix('from ')} responses are no whole groups of {group.value}"
        r.say(f"{said}: an optimiser step here takes whole groups, so all of P are one; set learner.minibatch_prompts")
        return
    _minibatch(
        r, prompts, mini, max(1, mini.value // group.value), f"{mini.value} responses / {group.value} of each prompt"
    )


def _minibatch(r: Reading, prompts: SourceValue, mini: SourceValue, size: int, how: str) -> None:
    total = prompts.value
    if prompts.unread:
        r.put("learner.minibatch_prompts", size, prompts, mini)
    elif size >= total:
        r.put("learner.minibatch_prompts", total, mini, note=f"{how}; all P: 1 optimiser step")
        if size > total:
            r.say(f"{mini.said.removeprefix('from ')} is more than the {total} prompts of a step: one optimiser step")
    elif total % size:
        fits = max(n for n in range(1, size + 1) if total % n == 0)
        r.put("learner.minibatch_prompts", fits, mini, note=f"{how}; the largest divisor of P = {total} up to {size}")
        r.say(f"minibatches of {size} prompts do not divide P = {total}; the nearest that do, {fits}, are taken")
    else:
        r.put("learner.minibatch_prompts", size, mini, note=f"{how}; {total // size} optimiser steps")


def filter_rounds(
    r: Reading, rounds: SourceValue, oversample: float, founds: tuple[SourceValue | None, ...], limit: str
) -> None:
    """Write rounds of ``oversample`` x P groups as a cap on groups, in multiples of P."""
    r.put(f"{DS}.oversample", float(oversample), *founds, note="groups of a first round, in multiples of P")
    if rounds.value > 0:
        cap = float(rounds.value * oversample)
        how = f"{rounds.value} rounds of {oversample:g} x P groups"
        r.put(f"{DS}.cap.groups", max(cap, float(oversample)), rounds, note=f"{how}, in multiples of P")
        r.put(f"{DS}.cap.then", "stop", note=limit)
    else:
        r.put(f"{DS}.cap.groups", None, rounds, note="no limit; `dapo check` warns of it")
    whole_rounds(r)
    if oversample > 1:
        r.say(
            f"a first round is {oversample:g} x P groups in both; a later one {oversample:g} x what is missing here, "
            f"and a whole round again in {r.title}"
        )


def estimator(r: Reading, found: SourceValue, scale: str, *founds: SourceValue | None) -> None:
    """Write the advantage by its name there; ``scale``: what divides it where the name does not decide."""
    name = str(found.value).lower().removesuffix("_vectorized")
    if found.unread:
        r.put("algorithm.advantage.kind", "group", found)
    elif name == "rloo":
        r.put("algorithm.advantage.baseline", "leave_one_out", found)
        r.put("algorithm.advantage.scale", "none", found)
    elif name.startswith(("reinforce_plus_plus", "reinforce++")) and r.title in ("verl", "SkyRL"):
        whitened(r, "mean" if name.endswith("baseline") else "none", 1, found)
    elif name == "gdpo":
        r.put("algorithm.advantage.kind", "gdpo", found)
    else:
        r.put("algorithm.advantage.scale", scale, found, *founds)
        why = f"{name}: advantages are relative to the group here (GRPO, DAPO)"
        if name not in ("grpo", "group", "") and not found.given and r.source.form == "YAML":
            r.say(f"{found.said} is {why}")  # of a file that may lie on others
        elif name not in ("grpo", "group", ""):
            r.replace(found, why)


def whitened(r: Reading, baseline: str, ddof: int, *founds: SourceValue) -> None:
    """Write REINFORCE++: rewards less a baseline, then normalised over all tokens of the batch."""
    r.put("algorithm.advantage.baseline", baseline, *founds)
    r.put("algorithm.advantage.scale", "none", *founds)
    r.put("algorithm.advantage_norm.mean", "batch", *founds)
    r.put("algorithm.advantage_norm.std", "batch", *founds)
    r.put("algorithm.advantage_norm.ddof", ddof, *founds)
    r.put("algorithm.advantage_norm.eps", 1e-8, *founds, note=f"{r.title} bounds the variance by it")


def whole_rounds(r: Reading) -> None:
    """Write that rounds are waited for and their surplus is dropped."""
    r.put(f"{DS}.surplus", "discard", note=f"{r.title} drops kept groups beyond P; `carry`, the default here, does not")
    r.put(f"{DS}.unfinished", "drain", note=f"{r.title} waits for whole rounds")
    r.say(
        "groups are kept here by the raw accuracy, as in the paper, before any length penalty, and each whole group is "
        "judged once"
    )


def no_filter(r: Reading, *founds: SourceValue | None) -> None:
    """Write that groups without variance train."""
    r.put(f"{DS}.mode", "off", *founds, note="groups without variance train, too")


def penalty(
    r: Reading, longest: SourceValue | None, cache: SourceValue, factor: Any, *founds: SourceValue | None
) -> None:
    """Write the soft overlong punishment; ``longest`` None: the response limit."""
    r.put(f"{LEN}.enabled", True, *(founds or (cache,)))
    r.put(f"{LEN}.cache_length", cache.value, cache)
    if longest is not None:
        start = f"the penalty grows from {longest.value - cache.value} to {longest.value} tokens"
        r.put(f"{LEN}.max_length", longest.value, longest, note=start)
    if isinstance(factor, SourceValue):
        r.put(f"{LEN}.factor", factor.value, factor)
    limit = r.lines.get("rollout.max_response_tokens")
    if longest is not None and limit is not None and longest.value < limit.value:
        worst = (limit.value - longest.value + cache.value) / max(1, cache.value)
        beyond = "is 0" if r.title == "SkyRL" else f"goes on growing, to -{worst:g} x factor at {limit.value} tokens"
        r.say(f"beyond {longest.value} tokens the penalty {beyond} in {r.title}; here it stays at -1 x factor (eq. 13)")


def no_penalty(r: Reading, *founds: SourceValue | None) -> None:
    """Write that there is no length penalty, which is on by default."""
    r.put(f"{LEN}.enabled", False, *founds, note="" if any(f and f.given for f in founds) else "on by default here")


def overlong_filtering(r: Reading, found: SourceValue) -> None:
    """Write overlong filtering; in the other trainers truncated responses still count in mean and deviation."""
    r.put("algorithm.overlong_filtering", found.value, found)
    if found.value:
        note = f"in {r.title} truncated responses count in the group's mean and std; null: they do not vote"
        r.put("algorithm.truncated_vote", True, note=note)


def plain_learner_ratio(r: Reading) -> None:
    """Write old log-probabilities from the learner, without a correction of the sampler's."""
    r.put("algorithm.old_logprobs", "learner", note=f"{r.title} recomputes them before it learns")
    r.put(f"{FIX}.kind", "none", note=f"off in {r.title} unless set; `auto` here would truncate")


def kl(
    r: Reading,
    coefficient: SourceValue,
    estimator: SourceValue | None,
    *,
    in_reward: SourceValue | bool,
    switch: SourceValue | None = None,
) -> None:
    """Write a KL term, or none; ``switch``: the setting that turned it on."""
    names = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    on = in_reward.value if isinstance(in_reward, SourceValue) else in_reward
    r.put("algorithm.kl_coefficient", coefficient.value, coefficient, switch)
    if coefficient.value == 0:
        return
    if on:
        founds = (in_reward,) if isinstance(in_reward, SourceValue) else ()
        r.put("algorithm.kl_in_reward", True, *founds, note="k1, summed over the response's tokens")
    elif estimator is not None:
        straight = SourceValue(str(estimator.value).removesuffix("+"), estimator.said, estimator.given)
        r.choose("algorithm.kl_estimator", straight, names)
    r.say("a reference model is kept for the KL term (memory for one more model); DAPO has none")


def lora(
    r: Reading,
    where: str,
    names: str,
    *,
    on: SourceValue | None,
    rank: int,
    alpha: float,
    dropped: float = 0.0,
    every: SourceValue | None = None,
) -> None:
    """Write an adapter.

    Args:
        r: what is read.
        where: the section of its keys, with the dot.
        names: of its rank, alpha, dropout and adapted layers.
        on: the switch; None: a rank above 0 is one.
        rank: the trainer's default.
        alpha: likewise.
        dropped: likewise, of the dropout.
        every: whether all linear layers are adapted, whatever ``targets`` says.
    """
    keys = [where + name for name in names.split()]
    size, scale = r.need(keys[0], default=rank), r.need(keys[1], default=alpha)
    dropout, targets = r.number(keys[2]), r.find(keys[3])
    if size.value < 1 or (on is not None and not on.value):
        r.drop(targets, "of an adapter, which is off", idle=True)
        return
    r.put("model.lora.rank", int(size.value), size, on)
    r.put("model.lora.lora_alpha", float(scale.value), scale)
    why = "an adapter has no dropout here: the sampler has none, and the ratio would take it for a change"
    if dropout is not None and dropout.value:
        r.drop(dropout, why)
    elif dropout is None and dropped:
        r.say(f"{keys[2]} is {dropped:g} in {r.title} unless set: {why}")
    if every is not None and every.value:
        r.put("model.lora.target_modules", "all-linear", every, note="it goes before target_modules" if targets else "")
    elif targets is not None:
        words = targets.value if isinstance(targets.value, list) else [targets.value]
        whole = [str(word).replace("_", "-") for word in words] in ([], ["all-linear"])
        r.put("model.lora.target_modules", "all-linear" if whole else targets.value, targets)


def schedule(
    r: Reading,
    kind: SourceValue,
    *,
    unit: str,
    warmup: SourceValue | None = None,
    share: SourceValue | None = None,
    note: str = "",
) -> None:
    """Write the learning-rate schedule and its warm-up; ``share``: the warm-up as a share of the run's steps."""
    names = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "cosine": "cosine"}
    names |= {"cosine_with_min_lr": "cosine", "cosine_warmup_with_min_lr": "cosine"}
    if not r.choose("learner.schedule", kind, names):
        r.put("learner.schedule", "constant", note=f"{kind.value} has no counterpart")
    r.put("learner.schedule_unit", unit, note=note or f"what {r.title}'s scheduler counts")
    if (warmup is None or warmup.value <= 0) and share is not None and share.value:
        steps = r.lines["trainer.steps"]
        count = 0 if steps.fill_in else steps.value * (optimizer_steps(r) if unit == "optimizer" else 1)
        unknown = f"{brief(share)}, times {unit} steps" if steps.fill_in and share.given else ""
        warmup = SourceValue(share.value * count, share.said, share.given, share.unread or unknown)
    warmup = warmup or SourceValue(0, f"{r.title} has no warm-up unless set", False)
    r.put("learner.warmup", max(0, round(warmup.value)), warmup)


def optimizer_steps(r: Reading) -> int:
    """Return the number of optimizer steps in a training step."""
    prompts, mini = r.lines["rollout.prompts_per_step"].value, r.lines["learner.minibatch_prompts"].value
    epochs = r.lines.get("learner.epochs_per_rollout")
    return max(1, int(prompts) // int(mini)) * (1 if epochs is None else int(epochs.value))


def end(r: Reading, steps: SourceValue | None, epochs: SourceValue | None, *, per: int = 1) -> None:
    """Write when a run ends: after so many steps, or with the data; ``per``: steps there for each step here."""
    if epochs is not None:
        whole = max(1, round(epochs.value))
        r.put("data.epochs", whole, epochs, note="" if whole == epochs.value else "rounded: whole passes here")
    if steps is not None and steps.value > 0:
        note = f"{steps.value} optimiser steps / {per} of each training step" if per > 1 else ""
        r.put("trainer.steps", -(-int(steps.value) // per), steps, note=note)
        return
    problems, passes, prompts = problems_of(r), r.lines["data.epochs"], r.lines["rollout.prompts_per_step"]
    if problems and not passes.fill_in and not prompts.fill_in:
        count = max(1, problems * passes.value // prompts.value)
        r.put("trainer.steps", count, epochs, note=f"{problems} problems, {prompts.value} in each step")
    else:
        unknown = f"passes x problems / prompts_per_step ({brief(epochs)})" if epochs else "the number of steps"
        r.put("trainer.steps", 1, SourceValue(1, "", True, unknown))


def problems_of(r: Reading) -> int:
    """Return the number of training problems, where the files are here and say it; else 0."""
    line, count = r.lines.get("data.train"), 0
    for source in [] if line is None or line.fill_in else line.value:
        rows = r.source.rows_of(str(source["path"])) if "size" not in source else source["size"]
        if not rows:
            return 0
        count += rows
    return count


def epochs_per_rollout(r: Reading, key: str) -> None:
    """Write how many passes each rollout serves, where the source says it."""
    passes = r.count(key, default=1)
    if passes.given:
        r.put("learner.epochs_per_rollout", passes.value, passes)
    if passes.value > 1:
        r.say(f"{passes.said.removeprefix('from ')}: later passes draw their minibatches again here")


def staleness(r: Reading, found: SourceValue, *founds: SourceValue | None, note: str = "") -> None:
    """Write how stale the groups of a step may be; without a limit there it is the longest that dapo takes."""
    if found.value > MOST_STALE:
        r.say(f"{found.said.removeprefix('from ')} is no limit; the longest here is {MOST_STALE} versions")
    r.put("rollout.max_staleness", min(MOST_STALE, max(0, int(found.value))), found, *founds, note=note)


def staleness_if(r: Reading, switch: str, key: str, *, default: int, entry: SourceValue | None = None) -> None:
    """Write the staleness where a switch of the trainer is on; ``entry``: the program that stands for the switch."""
    on, found = r.flag(switch, default=False), r.need(key, default=default)
    on = entry if entry is not None and not on.given else on
    if on.value:
        staleness(r, found, on)
    else:
        r.drop(found, f"training is synchronous without {switch}", idle=True)


def run_name(r: Reading, *founds: SourceValue | None) -> None:
    """Write the run's name from the words that are given."""
    words = [str(found.value) for found in founds if found is not None]
    if words:
        r.put("run.name", "-".join(words).replace("/", "-"), *founds)


def trackers(r: Reading, found: SourceValue | None, project: SourceValue | None = None, *, otherwise: str = "") -> None:
    """Write trackers by the words of a setting or of a list.

    Args:
        r: what is read.
        found: the setting, with its place in the source.
        project: of W&B.
        otherwise: the trainer's project where none is given.
    """
    if found is None:
        return
    words = re.findall(r"\w+", str(found.value).lower())
    named: list[str | dict[str, str]] = [name for name in TRACKERS if name in words and name != "wandb"]
    if "wandb" in words:
        named.append({"kind": "wandb", "project": otherwise if project is None else str(project.value)})
    if named:
        r.put("logging.trackers", named, found, project if "wandb" in words else None)
    if unknown := [word for word in words if word not in {*TRACKERS, "console", "file", "none"}]:
        by_name = f"logging.trackers takes {', '.join(TRACKERS)} by name"
        r.drop(found, f"{', '.join(unknown)}: {by_name}", idle=True)


def evaluation(r: Reading, samples: SourceValue, temperature: SourceValue, top_p: SourceValue | None) -> None:
    """Write a sampled evaluation; temperature 0 is a greedy response."""
    r.take("validation.samples", samples)
    if temperature.value == 0:
        r.put("validation.greedy", True, temperature, note="temperature 0 is a greedy response")
        return
    r.put("validation.greedy", False, note=f"none in {r.title}")
    r.take("validation.temperature", temperature, float)
    r.take("validation.top_p", top_p, float)


def top_k(r: Reading, key: str) -> None:
    """Write top_k; -1 and the like switch it off."""
    found = r.number(key)
    if found is not None:
        off = found.value <= 0 or found.value >= 10_000_000
        r.put("rollout.top_k", 0 if off else int(found.value), found, note="0: off" if off else "")


def engine(r: Reading, name: SourceValue) -> None:
    """Write the engine; vLLM takes the place of any other."""
    kind = str(name.value).lower()
    note = "" if kind == "vllm" else f"{kind} is not among the engines here; vLLM takes its place"
    r.put("rollout.engine", "vllm", name, note=note)


def generation(r: Reading, params: str, name: SourceValue, arguments: str) -> None:
    """Write top_k of the section ``params``, the engine ``name``, and the arguments of the section ``arguments``."""
    top_k(r, f"{params}.top_k")
    engine(r, name)
    engine_args(r, arguments)


def engine_args(r: Reading, section: str) -> None:
    """Collect the arguments of vLLM that a source passes on: as one dictionary, or as keys of a section."""
    whole, given, founds = r.find(section), dict[str, Any](), list[SourceValue]()
    if whole is not None and isinstance(whole.value, dict):
        given = dict(whole.value)
        founds = [SourceValue(value, f"from {section}.{name} = {shown(value)}", True) for name, value in given.items()]
    for key in [key for key in r.source.settings if key.startswith(f"{section}.")]:
        found = r.find(key)
        if found is not None:
            given[key.removeprefix(f"{section}.")] = found.value
            founds.append(found)
    for found, name in [(found, name) for found, name in zip(founds, given, strict=False) if name in OF_THE_ENGINE]:
        if name == "max_num_seqs":
            r.put("rollout.slots", given[name], found)
        elif name == "enforce_eager":
            r.put("rollout.vllm.enforce_eager", given[name], found)
        else:
            r.drop(found, f"{OF_THE_ENGINE[name]} decides it here", idle=name != "dtype")
        del given[name]
        founds.remove(found)
    if given and r.lines["rollout.engine"].value == "vllm":
        r.put("rollout.vllm.engine_args", given, *founds)
    else:
        for other in founds or ([] if whole is None else [whole]):
            r.drop(other, "arguments of vLLM: rollout.vllm.engine_args takes a dictionary", idle=True)


def data(r: Reading, part: str, found: SourceValue | None, split: SourceValue | None = None, **fields: Any) -> None:
    """Write files or hub names as ``data.train`` or ``data.validation``."""
    if found is None:
        return
    if found.unread:
        r.put(f"data.{part}", [], found)
        return
    if split is not None:
        fields["split"] = str(split.value)
    paths = found.value if isinstance(found.value, list) else [found.value]
    if len(paths) == 1 and isinstance(paths[0], str) and re.fullmatch(r"\[.*\]", paths[0]):
        paths = [p.strip(" '\"") for p in paths[0][1:-1].split(",")]
    sources = []
    for path in paths:
        if not isinstance(path, str) or not path:
            r.drop(found, f"files or names of data sets are expected; set data.{part}")
            return
        local = path.startswith(("/", ".", "~")) or re.search(r"\.(jsonl?|parquet|csv|arrow)$", path)
        name, _, taken = path.partition("#")  # `AI-MO/NuminaMath:subset#500`
        named = path if local else f"hub:{name}"
        sources.append({"path": named, **fields, **({"size": int(taken)} if taken.isdigit() and int(taken) else {})})
    r.put(f"data.{part}", sources, found, split)


def optimizer(r: Reading, *keys: str) -> None:
    """Write AdamW with moments in 8 bits, and list any other optimizer than plain AdamW."""
    found = r.find(*keys)
    if found is None:
        return
    name = str(found.value).lower().removeprefix("torch.optim.").removeprefix("paged_")
    if re.fullmatch(r"adamw_?(bnb_|torch_)?8bit", name):
        r.put("learner.optimizer", "adamw_8bit", found)
    elif re.fullmatch(r"adamw?(_torch|_torch_fused|_hf|_32bit)?", name):
        r.put("learner.optimizer", "adamw", found)
    else:
        r.drop(found, "AdamW, with moments in float32 or in 8 bits, is the only optimizer here")


def reward(r: Reading, *founds: SourceValue | None, note: str = "") -> None:
    """Write the reward: the rule of another trainer is a program, so this is ``math``."""
    r.put("rewards", [{"name": "accuracy", "kind": "math"}], *founds, note=note or f"{r.title}'s rule is a program")


def brief(found: SourceValue) -> str:
    """Return ``key = value`` of a setting."""
    return found.said.removeprefix("from ") if found.given else f"{found.said} ({shown(found.value)})"


def own_program(r: Reading, known: str, named: str) -> None:
    """Warn of a program that is not the trainer's own: it may change the loss, the advantage or the rewards."""
    for word in sorted(r.source.words):
        if re.fullmatch(named, word) and not re.fullmatch(known, word):
            r.cautions.append(f"the program {word} is not {r.title}'s own: what its code changes is not in this recipe")
            return


def other_loss(r: Reading, kind: SourceValue) -> bool:
    """Write a loss that both call the same, and return whether it is one; only the clipped loss has a dual clip."""
    name = str(kind.value).replace("-", "_")
    if name not in ("sapo", "clip_cov", "kl_cov", "cispo"):
        return False
    r.put(f"{LOSS}.kind", name, kind)
    r.lines.pop("algorithm.clip.dual", None)
    return True
