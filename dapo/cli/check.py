"""``dapo check``: what a run will do, need and write, and what is odd about its data. Trains nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.cli.check_hooks import import_hooks, try_hooks
from dapo.cli.check_machine import (
    WORTH_MEASURING,
    Fit,
    Looked,
    Needs,
    Prompts,
    evaluations,
    judge,
    needs_here,
    no_gpu,
    on_cpu,
    runs_on_gpu,
)
from dapo.cli.check_memory import (
    LARGE,
    estimate_memory,
    load_tokenizer_and_facts,
    memory_lines,
    size_text,
    to_stderr,
)
from dapo.cli.check_ranks import publish_lines
from dapo.cli.check_rows import row_lines
from dapo.cli.check_screen import DOUBTS, GRAVE, HERE, LEFT_OUT, NOT_HERE_TITLE, WARNINGS, WRITTEN, Sections, hidden
from dapo.cli.check_sft import look_at_examples
from dapo.cli.check_time import time_lines
from dapo.config import LoadedRecipe, Recipe
from dapo.config.check_teacher import on_server, taught_alone, teachers
from dapo.config.checks import penalty_interval, ratio_against
from dapo.config.deployment import Deployment, deployment_of
from dapo.config.faults import brief
from dapo.errors import ModelError, RewardError, Unreachable
from dapo.loop.sampling.prompts import least_kept
from dapo.observe.report_extra import PICTURES, missing
from dapo.observe.text import span
from dapo.types.model import ModelFacts
from dapo.words import counted, in_a_row

if TYPE_CHECKING:
    from dapo.data import PreparedData

_TEACHER_SECONDS = 30.0  # for an answer of a teacher's server; a run waits for algorithm.teacher.patience


def look_at_run(loaded: LoadedRecipe, sections: Sections, *, tries: int = 0) -> None:
    """Add what a run of the recipe will do, need and write, and why it would not start on this machine.

    Args:
        loaded: the recipe, supervised or by reward.
        sections: takes the lines.
        tries: groups to generate and score with the model itself; 0: its weights are not loaded.

    Raises:
        DapoError: what is refused, as ``look_at_rewards`` and ``look_at_examples`` say.
    """
    from dapo.cli.check_try import try_groups
    from dapo.observe.run_name import with_free_name
    from dapo.run.here import lacking, without_place

    loaded = with_free_name(loaded)
    recipe, add = loaded.recipe, sections.add
    supervised = recipe.run.stage == "sft"
    add("different from the preset", [f"preset {recipe.preset}", *difference_lines(loaded)], shown=hidden)
    add(WARNINGS, loaded.warnings)
    lacks = list(lacking(recipe))
    try:
        looked = (look_at_examples if supervised else look_at_rewards)(recipe, sections)
    except (ModelError, Unreachable) as error:
        _add_without_model(recipe, sections)
        if not isinstance(error, Unreachable):
            raise
        lacks = [*(line for line in lacks if line != str(error)), str(error)]
    else:
        add("files", files(recipe, looked.facts), shown=lambda line: "/rollouts/: " not in line)
        lacks += looked.fit.refusals
        _add_fit(sections, looked.fit)
        if tries and not supervised and not lacks:
            lines, fit = try_groups(recipe, looked, tries)
            add(f"{tries} groups, generated and scored", lines)
            if fit.refusals:
                raise RewardError("; ".join(fit.refusals))
            _add_fit(sections, fit)
        elif tries:
            add(LEFT_OUT, ["what the model writes (--try), for what this machine lacks"] if lacks else [WRITTEN])
    add(NOT_HERE_TITLE, [*lacks, *without_place(recipe)])


def _add_fit(sections: Sections, fit: Fit) -> None:
    sections.numbers |= fit.numbers
    for title, lines in ((HERE, fit.lines), (GRAVE, fit.grave), (DOUBTS, fit.doubts)):
        sections.add(title, lines)


def look_at_rewards(recipe: Recipe, sections: Sections) -> Looked:
    """Load tokenizer and data, try the rewards, and add the run's arithmetic, memory and doubts. Return what it found.

    Raises:
        RecipeError: a hook cannot be imported, or a limit or stop token does not fit the model.
        ModelError: model configuration or tokenizer cannot be loaded.
        EngineError: the engine would refuse the model.
        DataError: the data cannot be read, or nothing is left to train on.
        RewardError: the rewards fail on gold answers, or call them wrong.
        EpisodeError: an episode of the environment fails.
        HookError: a function of the algorithm raises, or returns something else than it must.
    """
    from dapo.cli.check_episodes import play_episode
    from dapo.cli.check_overlap import overlap_lines
    from dapo.cli.check_rewards import try_rewards
    from dapo.data import prepare
    from dapo.data.answers import answers_read
    from dapo.data.render import seen_lines
    from dapo.data.unknown import unknown_in_prompts
    from dapo.run.episodes import start_environment
    from dapo.run.fits import check_engine_fits, check_fits
    from dapo.run.reinforcement import longest_sequence
    from dapo.run.teachers import read_teachers

    add = sections.add
    algorithm = import_hooks(recipe)
    tokenizer, facts = load_tokenizer_and_facts(recipe)
    judges = read_teachers(recipe, tokenizer, to_stderr, weights=False)
    playing = start_environment(recipe, tokenizer, workers=1, output=None)
    try:
        if playing is None:
            data = prepare(recipe.data, tokenizer, answers=answers_read(recipe))
        else:
            data = playing.prepared(tokenizer)
            add("one episode, with canned turns", play_episode(recipe, playing, tokenizer, facts, data.train[0]))
    finally:
        if playing is not None:
            playing.close()
    for each, of_each in ((recipe, facts), *judges):
        check_fits(each, of_each, data)
    longest = longest_sequence(recipe, data)
    unasked = check_engine_fits(recipe, facts, tokenizer, longest)
    away = _ask_teachers(recipe, tokenizer, longest_sequence(recipe, data, validation=False), sections)
    add("data", data.report.lines(), shown=lambda line: not line.startswith("overlap"))
    add("first prompt", seen_lines(data.train[0], tokenizer), shown=lambda line: line.startswith("the model sees"))
    trial = try_rewards(recipe, data, tokenizer)
    add("rewards, tried", trial.lines, shown=hidden, instead=trial.brief)
    hooks = try_hooks(recipe, algorithm, trial.recorded)
    add("your functions, on made-up groups", hooks.lines)
    notes = () if playing is None else playing.notes
    odd = [*data.report.doubts(), *_few_problems(recipe, data), *unknown_in_prompts(data, tokenizer)]
    add(DOUBTS, [*notes, *odd, *trial.doubts, *hooks.doubts])
    trial.refuse()
    deployment, prompts = deployment_of(recipe), _prompts(recipe, data)
    needs, fit = look_at_machine(recipe, facts, prompts)
    fit.refusals.extend(away)
    add(LEFT_OUT, [*unasked, *_elsewhere(recipe, deployment)])
    shown_for = recipe if _for_gpus(recipe, needs, fit) else on_cpu(recipe)
    small = facts.parameters < LARGE and deployment.ranks == 1
    ends = ("longest sequence", "length penalty", "the ratio")
    add("arithmetic", arithmetic(recipe, data), shown=lambda line: not line.startswith(ends))
    parts = f"{facts.parameters:,} parameters", "together", "of them frozen"
    memory = [*memory_lines(shown_for, facts, prompts.longest), *row_lines(shown_for, facts)]
    add("memory, estimated", memory, shown=lambda line: not small or line.startswith(parts))
    estimate = estimate_memory(shown_for, facts, prompts.longest)
    publishing = publish_lines(recipe, facts, 4 if recipe.model.dtype == "float32" else 2)
    add("publishing weights, by arithmetic", publishing, shown=lambda line: "moves nothing" not in line)
    add("time on a GPU, by arithmetic", time_lines(shown_for, facts, estimate, prompts.mean))
    placed = [*deployment.lines(), *_cluster_lines(recipe, deployment)]
    add("who runs where", placed, shown=lambda line: deployment.route != "shared")
    engine = _engine_lines(shown_for, facts)
    add("engine", engine, shown=lambda line: not small and not line.startswith("known, on a CPU"))
    add("precision, measured", precision_lines(recipe, facts, prompts), shown=lambda line: " times as fast" in line)
    beside = deployment.overlaps or not small
    add("generation beside learning", overlap_lines(recipe), shown=lambda line: beside)
    return Looked(facts, fit, prompts.held_out, trial.forms)


def _ask_teachers(recipe: Recipe, tokenizer: Any, longest: int, sections: Sections) -> list[str]:
    """Add what the servers of teachers say of themselves, and return why one cannot be asked."""
    from dapo.engines.vllm_teacher import TeacherAway
    from dapo.run.served import served_teachers

    said: list[str] = []
    try:
        with served_teachers(recipe, tokenizer, longest, said.append, most=_TEACHER_SECONDS):
            sections.add("teachers, asked", said)
    except TeacherAway as error:
        return [str(error)]
    return []


def look_at_machine(recipe: Recipe, facts: ModelFacts, prompts: Prompts) -> tuple[Needs | None, Fit]:
    """Return what the run takes here, and whether that fits. None: the run is not on this machine."""
    if no_gpu(recipe) or deployment_of(recipe).on_ray:
        return None, Fit()
    needs = needs_here(recipe, facts, prompts)
    return needs, judge(recipe, needs)


def _for_gpus(recipe: Recipe, needs: Needs | None, fit: Fit) -> bool:
    """Return whether GPUs are of interest: the run has one, or may have one and is too much for this processor."""
    if recipe.model.device == "cpu":
        return False
    return needs is None or needs.device != "cpu" or bool(fit.refusals or fit.grave)


def _elsewhere(recipe: Recipe, deployment: Deployment) -> Iterator[str]:
    """Yield what a run needs and a check asks nothing of."""
    if deployment.urls:
        yield f"the servers {', '.join(deployment.urls)}"
    if deployment.on_ray:
        yield "the Ray cluster, and the memory of its machines"
    elif no_gpu(recipe):
        yield "the memory of a GPU, which this machine lacks"


def _add_without_model(recipe: Recipe, sections: Sections) -> None:
    """Add what needs neither model nor data, which could not be read."""
    deployment = deployment_of(recipe)
    if recipe.run.stage != "sft":
        sections.add("arithmetic, without model and data", arithmetic(recipe, None))
    sections.add("who runs where", [*deployment.lines(), *_cluster_lines(recipe, deployment)])
    sections.add(LEFT_OUT, ["the model, the data, the rewards, memory and hours"])


def _few_problems(recipe: Recipe, data: PreparedData) -> Iterator[str]:
    """Yield doubts about how few problems there are, to train on and to evaluate on."""
    from dapo.data.load import few_held_out, many_passes

    if said := many_passes(recipe.trainer.steps, recipe.rollout.prompts_per_step, len(data.train)):
        yield f"{said}: add problems, or lower trainer.steps"
    limit = recipe.validation.limit
    asked = {name: min(len(prompts), limit or len(prompts)) for name, prompts in data.validation.items()}
    if recipe.validation.every and (said := few_held_out(asked)):
        yield f"{said}. Hold out more (data.validation, validation.limit)"


def difference_lines(loaded: LoadedRecipe) -> Iterator[str]:
    width = max(map(len, loaded.difference), default=0)
    for path, (before, after) in loaded.difference.items():
        yield f"{path:<{width}}  {brief(before)} -> {brief(after)}"


def _cluster_lines(recipe: Recipe, deployment: Deployment) -> Iterator[str]:
    """Yield what a run takes of a Ray cluster."""
    if deployment.on_ray:
        from dapo.run.places import describe_place, describe_plan, plan_of

        plan = plan_of(recipe, deployment, cuda=recipe.model.device.startswith("cuda"))
        yield f"{describe_place(recipe)}: {describe_plan(plan)}; nothing was asked of it yet"


def _engine_lines(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    from dapo.run.engines import describe_engine

    yield describe_engine(recipe).removeprefix("engine: ")
    yield from engine_advice(recipe, facts)
    if Deployment(recipe).engine == "vllm_server":
        yield "no server was asked anything; a run asks first of all"


EMBEDDED_AHEAD = 120_000_000
"""Parameters up to which the embedded engine was faster than vLLM on a CPU thread (benchmarks/results/engines.md and
processor.md)."""


def engine_advice(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield what is known of the embedded engine's speed compared with vLLM's at this size, and what is not."""
    engine, size = Deployment(recipe).engine, facts.parameters
    if engine not in ("embedded", "vllm"):
        return
    cpu = "the embedded engine was faster" if size <= EMBEDDED_AHEAD else "nothing as large was measured"
    yield f"known, on a CPU thread, {size:,} parameters: {cpu} (docs/engines.md)"
    if recipe.model.device == "cpu":
        return
    move = "; take rollout.engine=vllm first at this size" if engine == "embedded" and size > EMBEDDED_AHEAD else ""
    yield f"not known: which is faster on a GPU at any size; `make gpu` measures both and the GPU's bound{move}"


NOTEWORTHY = 1.3  # times as fast: less is within the noise of half a second


def precision_lines(recipe: Recipe, facts: ModelFacts, prompts: Prompts) -> Iterator[str]:
    """Yield how long a step takes on this processor in each precision, and which one is fastest."""
    model = recipe.model
    if facts.parameters < WORTH_MEASURING or runs_on_gpu(recipe) or model.device.startswith("cuda"):
        return
    from dapo.models.precision import PRECISIONS, precision_of

    own = precision_of(model.dtype, model.matmul_precision)
    seconds = {}
    for name, (dtype, products) in PRECISIONS.items():
        changed = model.model_copy(update={"dtype": dtype, "matmul_precision": products, "device": "cpu"})
        seconds[name] = needs_here(recipe.model_copy(update={"model": changed}), facts, prompts).step or math.inf
    best = "float32"  # of two that are alike, the one that rounds less
    for name in ("medium", "bfloat16"):
        best = name if seconds[best] >= NOTEWORTHY * seconds[name] else best
    listed = ", ".join(f"{name} {span(each)}" for name, each in seconds.items())
    yield f"a step on this processor, estimated by its own products of matrices: {listed}"
    if own not in seconds or seconds[own] < NOTEWORTHY * seconds[best]:
        yield f"{own}, the recipe's precision, is as fast as any here"
        return
    dtype, products = PRECISIONS[best]
    rounds = "" if best == "float32" else "; it rounds the factors of each product to 8 bits"
    yield (
        f"a step in {best} is about {seconds[own] / seconds[best]:.1f} times as fast as in {own}, the recipe's "
        f"precision: model.dtype={dtype} model.matmul_precision={products}{rounds}"
    )


def arithmetic(recipe: Recipe, data: PreparedData | None) -> list[str]:
    """Prompts, responses, optimiser steps, passes over the data and largest token counts, in sentences.

    Args:
        recipe: the recipe.
        data: its prompts; None if they could not be prepared: the sentences on them are left out.
    """
    rollout, steps = recipe.rollout, recipe.trainer.steps
    prompts, group, limit = rollout.prompts_per_step, rollout.group_size, rollout.max_response_tokens
    mini = recipe.learner.minibatch_prompts or prompts
    epochs = recipe.learner.epochs_per_rollout
    updates = epochs * (prompts // mini)
    lines = [
        f"a training step: {prompts} prompts x {group} responses = {prompts * group} responses, at most "
        f"{prompts * group * limit:,} response tokens",
        f"optimiser steps: {updates} per training step{f' in {epochs} passes' * (epochs > 1)}, "
        f"each on {mini} prompts = {mini * group} responses; "
        f"{updates * steps:,} in {counted(steps, 'training step')}",
    ]
    if data is not None:
        longest = _prompts(recipe, data).longest
        lines += [
            f"longest sequence: {longest} prompt + {limit} response = {longest + limit} tokens; micro-batches hold "
            f"{recipe.learner.microbatch_tokens:,}",
            f"the data: {counted(len(data.train), 'prompt')}, so {counted(steps, 'step')} of {prompts} "
            f"{'passes' if steps == 1 else 'pass'} over it {steps * prompts / len(data.train):.2f} times, rejected "
            "groups not counted",
            *_mixture(recipe, data),
        ]
    sampling = recipe.algorithm.dynamic_sampling
    if sampling.mode == "filter":
        cap = f"{math.ceil(sampling.cap.groups * prompts):,} groups" if sampling.cap.groups else "no cap"
        lines.append(
            f"dynamic sampling: refilled until {prompts} groups are kept, at most {cap} a step, then "
            f"{sampling.cap.then}"
        )
    elif sampling.mode == "replace":
        enough = least_kept(sampling, prompts)
        lines.append(f"dynamic sampling: with {enough} of {prompts} groups kept, copies of them replace the rest")
    elif sampling.mode == "mask":
        lines.append(f"dynamic sampling: {prompts} groups are dispatched, those without variance are dropped")
    retire, greso = sampling.selection.retire, sampling.selection.greso
    if retire is not None:
        lines.append(
            f"prompts retire at a pass rate of {retire.at:g} and are reviewed {retire.review:.0%} of "
            "the times that their turn comes"
        )
    if greso is not None:
        lines.append(f"GRESO skips prompts without variance, towards {greso.target:.0%} of such groups")
    if recipe.algorithm.overlong_punishment.enabled and recipe.algorithm.shaping is None:
        end, cache = penalty_interval(recipe)
        lines.append(
            f"length penalty: from {end - cache} tokens (0) to {end} (-{recipe.algorithm.overlong_punishment.factor:g})"
        )
    old = {
        "sampler": "the sampler's log-probabilities",
        "learner": "the learner's, computed once more",
        "interpolated": "the sampler's at ages 0 and 1, beyond that between the sampler's and the learner's (A-3PO)",
    }
    lines.append(f"the ratio runs against {old[ratio_against(recipe)]}")
    lines += [*_terms(recipe), *_ending(recipe)]
    return lines if data is None else [*lines, _evaluations(recipe, data)]


def _mixture(recipe: Recipe, data: PreparedData) -> Iterator[str]:
    """Yield sources with weights or levels, and prompts that are taken less often."""
    total = sum(part.weight for part in data.parts)
    rule, selection = recipe.data.curriculum, recipe.algorithm.dynamic_sampling.selection
    if len(data.parts) > 1:
        shares = ", ".join(f"{part.name} {part.weight / total:.1%}" for part in data.parts)
        yield f"mixture, of the prompts: {shares}; every source begins again when its prompts have had their turn"
    for part in data.parts:
        if len(part.levels_L) > 1:
            yield (
                f"{part.name} has {len(part.levels_L)} levels: up at an accuracy of {rule.raise_at:g} over "
                f"{rule.window} groups, down at {rule.lower_at:g}"
            )
    for kind, pool, side in (("easy", selection.easy, "from"), ("hard", selection.hard, "up to")):
        if pool is not None:
            yield (
                f"{kind} prompts ({side} a pass rate of {pool.at:g}) are taken {pool.share:.0%} of the times their "
                "turn comes"
            )


def _terms(recipe: Recipe) -> Iterator[str]:
    """KL and entropy, where there are any."""
    a = recipe.algorithm
    refreshed = a.reference.refresh_every
    if a.kl_coefficient:
        what = "k1, off each reward" if a.kl_in_reward else f"{a.kl_estimator}, in the loss"
        adapter = recipe.model.lora.rank is not None
        start = "the model without its adapter" if adapter else "the model that the run begins with"
        since = f"the policy as of every {refreshed} training steps" if refreshed else start
        yield f"KL: {what}, coefficient {a.kl_coefficient:g}; the reference is {since}, one more forward pass a step"
    of_sources: dict[str, list[str]] = {}
    for source, path in teachers(recipe).items():
        of_sources.setdefault(path, []).append(source)
    for path, sources in of_sources.items():
        work = "one request a response and step" if on_server(path) else "one forward pass of the teacher a step"
        what = "an advantage of each token" if a.teacher.term == "advantage" else f"{a.teacher.estimator}, in the loss"
        beside = "alone: no reward has a weight" if taught_alone(recipe) else "beside the rewards"
        yield (
            f"teacher of {', '.join(sources)}: {path}, as {what}, coefficient {a.teacher.coefficient:g}, {beside}; "
            f"{work}"
        )
    control = a.entropy_control
    if control.target is not None:
        yield (
            f"entropy: the coefficient begins at {a.entropy_coefficient:g} and moves by {control.delta:g} a step "
            f"towards a mean entropy of {control.target:g} nats, within {control.min:g} .. {control.max:g}"
        )
    elif a.entropy_coefficient:
        yield f"entropy: coefficient {a.entropy_coefficient:g} in the loss"


def _ending(recipe: Recipe) -> Iterator[str]:
    """Yield settings that end the run before ``trainer.steps``."""
    trainer, early = recipe.trainer, recipe.trainer.early_stop
    if early.metric:
        yield f"early stop: when {early.metric} is not better {in_a_row(early.patience)}"
    if trainer.max_hours:
        yield f"time: saved and ended within {trainer.max_hours:g} hours of its start; a resume has as many again"


def _evaluations(recipe: Recipe, data: PreparedData) -> str:
    validation = recipe.validation
    if not data.validation or not validation.every:
        return "evaluations: none"
    problems = _held_out(recipe, data)
    each = problems * (validation.samples + validation.greedy)
    return f"evaluations: {evaluations(recipe)}, each of {problems} problems = {each:,} responses"


def files(recipe: Recipe, facts: ModelFacts) -> list[str]:
    """Return what the run folder will hold, and whether it exists already."""
    from dapo.run.held import BYTES, learner_holds, trained_parameters

    folder = Path(recipe.run.dir) / recipe.run.name
    one = trained_parameters(recipe, facts) * BYTES[recipe.model.dtype] + learner_holds(recipe, facts).optimiser
    kept = recipe.checkpoint.keep
    every = "at the end"
    if recipe.checkpoint.every:
        every = "every step" if recipe.checkpoint.every == 1 else f"every {recipe.checkpoint.every} steps"
    best = ""
    if recipe.checkpoint.best:
        best = f" and the best by {recipe.checkpoint.best} (of a step: the model before training does not count)"
    elsewhere = f", in {recipe.checkpoint.dir}" if recipe.checkpoint.dir else ""
    curve = "" if missing(PICTURES) else ", curve.png"
    lines = [
        f"{folder}/: recipe.yaml, recipe.resolved.yaml, metrics.jsonl, log.txt{curve}",
        f"{folder}/checkpoints/: {every}, the newest {kept}{best} of about {size_text(one)} each{elsewhere}",
    ]
    if recipe.run.stage == "sft":
        lines += [f"{folder}/export/: the model, for `dapo train`"] if recipe.sft.export else []
    elif recipe.logging.rollouts != "none":
        lines.append(f"{folder}/rollouts/: one Parquet file a step, {recipe.logging.rollouts} groups")
    if folder.exists() and recipe.run.if_exists == "backup":
        lines.append(f"{folder} exists already: it will be moved aside (run.if_exists: backup)")
    return lines


def _prompts(recipe: Recipe, data: PreparedData) -> Prompts:
    """Return the sizes of the prompts."""
    tokens = [len(prompt.token_ids) for prompt in data.train]
    return Prompts(sum(tokens) / max(1, len(tokens)), max(tokens, default=0), _held_out(recipe, data))


def _held_out(recipe: Recipe, data: PreparedData) -> int:
    """Return the problems of one evaluation."""
    return sum(min(len(prompts), recipe.validation.limit or len(prompts)) for prompts in data.validation.values())
