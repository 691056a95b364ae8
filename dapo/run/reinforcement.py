"""Make the parts of a run that trains by reward, from its recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dapo.config.check_data import ENVIRONMENT, source_name
from dapo.config.deployment import Deployment, deployment_of
from dapo.config.schema import Model, Recipe
from dapo.config.secrets import redact
from dapo.data.answers import answers_read
from dapo.data.load import PreparedData, prepare
from dapo.data.mixture import MixtureStream
from dapo.data.render import seen_lines
from dapo.data.stream import EpochStream, content
from dapo.data.unknown import unknown_in_prompts
from dapo.engines.vllm_teacher import ServedTeacher
from dapo.errors import RecipeError
from dapo.loop.evaluation import Evaluator
from dapo.loop.overlap import Overlap
from dapo.loop.reinforcement import Reinforcement
from dapo.loop.sampling.collector import BatchShape, CollectorTiming, StreamingCollector
from dapo.loop.sampling.episodes import Episodes
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.sampling.texts import Texts
from dapo.loop.sync_check import MOST, MOST_OF_8_BITS, MOST_OF_FLOAT32, SyncCheck
from dapo.metrics.phases import Phases
from dapo.models.builtin import is_builtin
from dapo.models.facts import facts_of
from dapo.models.load import find_device
from dapo.models.loaded import LoadedModel
from dapo.observe.console import Console
from dapo.observe.shares import names_answers
from dapo.rewards.compose import CompositeScorer, build_scorer
from dapo.run.algorithm import make_algorithm
from dapo.run.decoding import make_texts
from dapo.run.engines import check_engine, start_engine
from dapo.run.episodes import Playing, longest_conversation, sandbox_of, start_environment
from dapo.run.fits import check_fits
from dapo.run.given import (
    NOTHING_GIVEN,
    Context,
    Given,
    check_beside_engine,
    make_engine_of,
    make_scorer_of,
    make_stream_of,
)
from dapo.run.learners import without_adapter
from dapo.run.model import (
    check_model,
    check_model_path,
    facts_without_weights,
    make_facts,
    make_model,
    make_tokenizer,
    with_folder,
)
from dapo.run.places import open_places
from dapo.run.publishing import make_exchange
from dapo.run.sampling import make_sampling, make_validation_sampling, stop_tokens
from dapo.run.served import served_teachers
from dapo.run.session import Session
from dapo.run.teachers import read_teachers, teacher_models
from dapo.system import core_count
from dapo.types.batch import Of, Prompt
from dapo.types.evaluation import EvaluationProgress
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine, Judge, Learner, PromptStream, Recorder, Scorer

# Engine steps by which verdicts lag that may take a while; quick ones need no lag.
WORKER_VERDICT_LAG = 16
MOST_REWARD_WORKERS = 8  # unless the recipe says otherwise
SECONDS_A_TURN = 0.1
"""With generation beside learning: how long the driver waits for a response before it looks at scores again."""


def make_scorer(recipe: Recipe, output: Path | None = None) -> CompositeScorer:
    """Return the recipe's rewards; what reward functions print is appended to ``output`` (None: dropped)."""
    sources = [*recipe.data.train, *recipe.data.validation]
    return build_scorer(
        recipe.rewards,
        sources={source_name(source) for source in sources},
        tasks={source.task for source in sources if source.task not in (None, ENVIRONMENT)},
        output=output,
        workers=worker_count(recipe),
        memory_mib=recipe.run.reward_memory_mib,
        sandbox=sandbox_of(recipe),
    )


def worker_count(recipe: Recipe) -> int:
    """Return how many processes score responses, or play environments."""
    return recipe.run.reward_workers or max(1, min(MOST_REWARD_WORKERS, core_count() - 1))


@dataclass(slots=True)
class RewardParts:
    """Parts of training by reward besides a model and a learner. Keeps ``dapo.run.session.Parts``."""

    deployment: Deployment
    facts: ModelFacts
    data: PreparedData
    rollouts: Rollouts
    context: Context  # of parts that the caller makes
    given: Given = NOTHING_GIVEN
    teachers: Mapping[Of, Judge] = field(default_factory=dict)  # on servers

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe

    @property
    def engine(self) -> Engine:
        return self.rollouts.engine

    @property
    def prompts(self) -> list[Prompt]:
        return self.data.train

    def saved_facts(self) -> dict[str, Any]:
        return {
            "recipe": redact(self.recipe.model_dump(mode="json")),
            "validation": {name: content(prompts) for name, prompts in self.data.validation.items()},
        }

    def method(self, learner: Learner, recorder: Recorder, phases: Phases) -> Reinforcement:
        """Return the step of training by reward over ``learner``."""
        recipe, rollout, deployment = self.recipe, self.recipe.rollout, self.deployment
        algorithm = make_algorithm(recipe)
        collector = StreamingCollector(
            rollouts=self.rollouts,
            stream=self.stream(),
            algorithm=algorithm,
            sampling=make_sampling(recipe, self.facts),
            settings=recipe.algorithm.dynamic_sampling,
            shape=BatchShape(rollout.prompts_per_step, rollout.group_size),
            run_seed=recipe.run.seed,
            timing=CollectorTiming(
                _verdict_lag(recipe, self.rollouts.scorer),
                deployment.overlaps,
                turn=SECONDS_A_TURN if Deployment(recipe).by_the_clock else None,
                repeats=deployment.repeats and find_device(recipe.model.device).type == "cpu",
            ),
            phases=phases,
            watch=recorder.filling,
        )
        return Reinforcement(
            collector=collector,
            learner=learner,
            algorithm=algorithm,
            evaluator=self.evaluator(recorder.evaluating),
            check_sync=self.sync_check(learner),
            recorder=recorder,
            phases=phases,
            overlap=Overlap(collector, phases, deployment.overlap_turns) if deployment.overlaps else None,
            teachers=self.teachers,
        )

    def evaluator(self, watch: Callable[[EvaluationProgress], None] | None = None) -> Evaluator | None:
        """Return what answers the held-out problems; None: there are none. ``watch`` hears how far it is."""
        validation = self.recipe.validation
        sets: dict[str, list[Prompt]] = {
            name: prompts[: validation.limit] for name, prompts in self.data.validation.items()
        }
        if not any(sets.values()):
            return None
        return Evaluator(
            rollouts=self.rollouts,
            prompts=sets,
            sampling=make_validation_sampling(self.recipe, self.facts),
            samples=validation.samples,
            greedy=validation.greedy,
            seed=self.recipe.run.seed,
            watch=watch,
        )

    def sync_check(self, learner: Learner) -> SyncCheck:
        """Return the check after a publish: has the engine the learner's weights? See ``dapo.loop.sync_check``."""
        validation = [prompt for prompts in self.data.validation.values() for prompt in prompts]
        return SyncCheck(
            self.rollouts,
            learner,
            self.data.train or validation,
            make_sampling(self.recipe, self.facts),
            seed=self.recipe.run.seed,
            tolerance=self.recipe.trainer.sync_check_tolerance,
            most=_most_accepted(self.recipe),
            near_ties=self.facts.has_experts and self.recipe.model.dtype != "float32",
        )

    def stream(self) -> PromptStream:
        """Return the prompts that training takes, from the first one."""
        recipe = self.recipe
        if self.given.stream is not None:
            return make_stream_of(self.given.stream, self.context)
        if self.data.parts:
            return MixtureStream(
                self.data.parts, seed=recipe.run.seed, shuffle=recipe.data.shuffle, curriculum=recipe.data.curriculum
            )
        return EpochStream(
            self.data.train, seed=recipe.run.seed, shuffle=recipe.data.shuffle, epochs=recipe.data.epochs
        )


def _most_accepted(recipe: Recipe) -> float:
    """Return the mean gap, nats, that the first sync check accepts without a look at the model's own rounding."""
    if Deployment(recipe).keeps_8_bits:
        return MOST_OF_8_BITS
    exact = recipe.model.dtype == "float32" and recipe.model.matmul_precision == "highest"
    return MOST_OF_FLOAT32 if Deployment(recipe).engine_facts.ours and exact else MOST


def reward_session(
    recipe: Recipe,
    console: Console,
    folder: Path | None = None,
    *,
    training: bool = True,
    given: Given = NOTHING_GIVEN,
) -> Session[RewardParts]:
    """Make a run that trains by reward, in the order in which a mistake is cheapest to find.

    Args:
        recipe: of the run.
        console: shows what a person should know of the data and the model.
        folder: of the run; None: it leaves no files.
        training: False: the recipe's training data are placeholders, and nothing is said of them.
        given: parts of the caller's own.

    Raises:
        RecipeError: a package that the recipe needs is missing.
        ModelError: a device, name or folder that cannot be; before the data is read. Weights come last.
        ClusterError: the cluster that the recipe names has no free place.
        DataError: the data cannot be read, or a task refuses its options.
    """
    given = given.with_named(recipe)
    deployment = deployment_of(recipe, engine_given=given.engine is not None, training=training)
    _check_here(recipe, deployment)
    on_disk = with_folder(recipe, console.say).model  # the recipe keeps what was given: a resume compares it
    with ExitStack() as undo:  # what is there already, if something after it cannot be made
        if given.scorer is None:
            own = make_scorer(recipe, None if folder is None else folder / "rewards.txt")
            undo.callback(own.close)
            if own.sandbox is not None:
                console.say(own.sandbox)
            scorer: Scorer = own
        tokenizer = make_tokenizer(on_disk, recipe.data.chat_template)
        judges = read_teachers(recipe, tokenizer, console.say) if training else []
        texts = make_texts(recipe, tokenizer)
        printed = None if folder is None else folder / "environment.txt"
        playing = start_environment(recipe, tokenizer, workers=worker_count(recipe), output=printed)
        if playing is not None:
            undo.callback(playing.close)
            if playing.sandbox is not None:
                console.say(playing.sandbox)
            for note in playing.notes:
                console.warn(note)
        data = _prepared(recipe, on_disk, tokenizer, console, training, playing)
        longest, served = longest_sequence(recipe, data), dict[Of, ServedTeacher]()
        if training:
            judged = longest_sequence(recipe, data, validation=False)
            served = undo.enter_context(served_teachers(recipe, tokenizer, judged, console.say))
        context = Context(recipe, tokenizer, data.train, folder)
        if given.scorer is not None:
            scorer = make_scorer_of(given.scorer, context)
            undo.callback(scorer.close)
        places = open_places(recipe, deployment)
        if places is not None:
            undo.callback(places.close)
            undo.enter_context(places.told_if_lost())
            console.say(places.sentence())
            if playing is not None:
                playing = playing.moved(recipe, places.transport(folder), deployment.environment_hosts, printed)
                undo.callback(playing.pool.close)
        loaded, facts = _model_of(recipe.model_copy(update={"model": on_disk}), deployment, console)
        check_fits(recipe, facts, data, training=training)
        for theirs, of_theirs in judges:
            check_fits(theirs, of_theirs, data)
        if training:
            teacher_models(recipe, console)
        exchange = make_exchange(recipe, deployment, facts, folder, places)
        undo.callback(exchange.close)
        context = replace(context, facts=facts, loaded=loaded, longest=longest, weights=exchange.folder)
        if given.engine is not None:
            engine = make_engine_of(given.engine, context)
        else:
            engine = start_engine(recipe, deployment, context, training=training, places=places, exchange=exchange)
        undo.callback(engine.close)
        episodes = _episodes(recipe, playing, texts, facts)
        rollouts = Rollouts(engine, scorer, texts, episodes, names_answers=names_answers(recipe))
        return Session(
            recipe=recipe,
            parts=RewardParts(deployment, facts, data, rollouts, context, given, served),
            loaded=loaded,
            facts=facts,
            tokenizer=tokenizer if loaded is None else loaded.tokenizer,
            exchange=exchange,
            folder=folder,
            say=console.say,
            closing=undo.pop_all(),
            places=places,
        )


def _check_here(recipe: Recipe, deployment: Deployment) -> None:
    """Refuse what this program and this machine lack, before anything is read or started."""
    if deployment.kind == "given":
        check_beside_engine(recipe)
    else:
        check_engine(recipe)
    if deployment.on_ray and deployment.learner_hosts:
        check_model_path(recipe.model.path)  # the devices are those of other machines
    else:
        check_model(recipe.model)


def _model_of(recipe: Recipe, deployment: Deployment, console: Console) -> tuple[LoadedModel | None, ModelFacts]:
    """Return the model, None if this process needs none, and its facts."""
    if not deployment.model_here:
        return None, make_facts(recipe, console)
    # A learner elsewhere sends its adapter merged into the weights.
    loaded = make_model(recipe if deployment.learner == "here" else without_adapter(recipe), console)
    return loaded, facts_of(loaded)


def _episodes(recipe: Recipe, playing: Playing | None, texts: Texts, facts: ModelFacts) -> Episodes | None:
    """Return what plays environments between the parts of a response.

    Raises:
        RecipeError: the end of a turn would not end it.
    """
    if playing is None:
        return None
    check_end_of_turn(recipe, playing, facts)
    return playing.episodes(recipe, texts, waits=not Deployment(recipe).by_the_clock)


def check_end_of_turn(recipe: Recipe, playing: Playing, facts: ModelFacts) -> None:
    """Refuse a chat template whose end-of-turn token ends no response.

    Raises:
        RecipeError: with the token to name.
    """
    end, stops = playing.speech.end_of_turn, stop_tokens(recipe, facts)
    if end and not set(playing.speech.end_ids) & set(stops):
        raise RecipeError(
            f"rollout.stop_token_ids: {end!r} ends a turn in the chat template, and is none of the tokens that end a "
            f"response ({', '.join(map(str, stops))}); name it too: {', '.join(map(str, playing.speech.end_ids))}"
        )


def _prepared(
    recipe: Recipe, model: Model, tokenizer: Any, console: Console, training: bool, playing: Playing | None
) -> PreparedData:
    """Read the data, and print what became of each source and the first prompt.

    Data that are wrong, or too long for the model, are refused before weights are read.
    """
    answers = answers_read(recipe)
    data = prepare(recipe.data, tokenizer, answers=answers) if playing is None else playing.prepared(tokenizer)
    for line in [*data.report.lines(training=training), *(seen_lines(data.train[0], tokenizer) if training else ())]:
        console.say(line)
    for warning in unknown_in_prompts(data, tokenizer) if training else ():
        console.warn(warning)
    if not is_builtin(model.path):
        check_fits(recipe, facts_without_weights(model, tokenizer), data, training=training)
    return data


def _verdict_lag(recipe: Recipe, scorer: Scorer) -> int:
    """Return the number of engine steps after which a verdict takes effect."""
    asked = recipe.algorithm.dynamic_sampling.verdict_lag
    if asked is not None:
        return asked
    return 0 if getattr(scorer, "quick", False) else WORKER_VERDICT_LAG


def longest_sequence(recipe: Recipe, data: PreparedData, *, validation: bool = True) -> int:
    """Return the tokens of the longest sequence that the engine can be asked for; ``validation`` False: in training."""
    held_out = data.validation.values() if validation else ()
    prompts = [*data.train, *(prompt for prompts in held_out for prompt in prompts)]
    if recipe.environment.kind == "agent":
        return longest_conversation(recipe)
    response = recipe.rollout.max_response_tokens
    if validation:
        response = max(response, recipe.validation.max_response_tokens or 0)
    return max((len(prompt.token_ids) for prompt in prompts), default=1) + response
