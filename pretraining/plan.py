"""Lists the models and objectives that work with an encoder: `python -m crosslingual_zoo.pretraining.plan CHECKPOINT`.

  python -m crosslingual_zoo.pretraining.plan jhu-clsp/mmBERT-base
  python -m crosslingual_zoo.pretraining.plan runs/xlm_align-smoke/model

CHECKPOINT is a folder or a Hub id. The command loads its weights and trains nothing. A dry run of a recipe
(`pretraining/run.py --dry_run`) prints the same table for its model.start_from, and the plan of the run.
"""

import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

if __name__ == "__main__":  # before the imports, which take seconds
    print("loading libraries", file=sys.stderr, flush=True)

import pandas
import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.modeling.backbone import honors_block_masks
from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from crosslingual_zoo.pretraining.costs import measure, memory_of, span, state_bytes, tokens_of
from crosslingual_zoo.pretraining.data.batches import training_batches
from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.languages import corpus_probabilities
from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.recipe_phases import Phase, scheduled_together
from crosslingual_zoo.pretraining.rows import inputs_of
from crosslingual_zoo.pretraining.start.initialization import learnable, model_class
from crosslingual_zoo.pretraining.start.pretrained import Pretrained, listed
from crosslingual_zoo.pretraining.start.token_texts import read_vocabulary, script_of
from crosslingual_zoo.pretraining.start.vocabulary_matching import Matching
from crosslingual_zoo.pretraining.training import Training, make_accelerator, read_parts
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import quiet_libraries
from crosslingual_zoo.zoo_core.masking import IGNORED

EXAMPLES_SHOWN = 2
BYTES_OF_ID = 4
KEPT = ("rows", "examples", "held_out")  # counts that are not of dropped or cut text
ROWS_READ = 1000  # of a corpus with `max_rows`, which may be large


def show_plan(recipe: Recipe) -> None:
    """Prints the plan of a run: what its start supports, parameters, matched rows of the vocabulary, corpora with
    their tokens on disk and their sampling, phases with tokens and predictions per step, the first batch, when the run
    saves and evaluates, and the time and memory that it takes.

    It reads at most `ROWS_READ` rows of each corpus that has `max_rows`, and trains a few steps of each phase on the
    spot. Nothing is written.
    """
    quiet_libraries()
    accelerator = make_accelerator(recipe.precision)
    few = with_few_rows(recipe)
    start, config, tokenizer, corpora, teacher = read_parts(few, accelerator)
    limits = {name: corpus.max_rows for name, corpus in recipe.named_corpora().items()}
    corpora = [estimated(corpus, limits[corpus.name]) for corpus in corpora]
    console = Console(soft_wrap=True, highlight=False, markup=False, quiet=not accelerator.is_main_process)
    if start.start_from:
        console.print(supported(start.start_from))
    with torch.device("meta"):  # shapes without storage: a large model costs nothing here
        model = start.model_class(type(config).from_dict(config.to_dict(), attn_implementation="eager"))
    needed = max(state_bytes(model, phase, accelerator.num_processes) for phase in recipe.phases)
    memory = memory_of(accelerator.device)
    is_measured = memory is None or needed < memory / 2  # leaves room for what the layers compute
    matching = start.match(tokenizer)
    if is_measured:
        if accelerator.device.type != "cuda":
            # others may be of a GPU alone, and to compile would take longer than all the rest
            start.model = replace(start.model, attention="sdpa", compile=False)
        model = start.build_model(config, matching)
    elif start.start_from:
        model = start.load(config, attn_implementation="eager", device_map="meta")  # tells whether it lacks a head
    if recipe.head_phase and start.lacks_head:
        recipe = recipe.with_head_phase()
    console.print(f"{recipe.model.type}: {model.num_parameters():,} parameters")
    if matching and start.source:
        _print_matching(console, matching, start.source.name, tokenizer)
    console.print(_corpora_table(corpora, recipe.alpha, any(limits.values())))
    few.phases = recipe.phases
    shares = {"num_processes": accelerator.num_processes, "process_index": accelerator.process_index}
    first_steps = []
    for index, phase in enumerate(recipe.phases):
        phase.check_trainable([name for name, _ in model.named_parameters()])
        loader = iter(training_batches(few, index, corpora, tokenizer, config, **shares))
        micro_batches = [next(loader) for _ in range(recipe.gradient_accumulation_steps)]
        console.print(_phase_table(recipe.phases, index, micro_batches, accelerator.num_processes, model))
        if index == 0:
            _print_first_batch(console, micro_batches[0], tokenizer)
        first_steps.append(micro_batches)
    console.print(_when_it_saves(recipe, corpora))
    if is_measured:
        console.print(_costs(Training(few, model, corpora, tokenizer, accelerator, teacher), first_steps))
    else:
        sizes = f"{needed / 2**30:,.1f} of {memory / 2**30:,.1f} GiB"
        console.print(f"time and memory: not measured, because weights, gradients and Adam take {sizes}")
    console.print("Dry run: nothing was kept or written.")


def _when_it_saves(recipe: Recipe, corpora: list[Corpus]) -> str:
    saves = f"saves a checkpoint {_every(recipe.checkpoint_steps)}"
    if recipe.keep_checkpoints:
        saves += f", keeps the newest {recipe.keep_checkpoints}"
    if any(corpus.held_out for corpus in corpora):
        return f"{saves}; evaluates on held-out text {_every(recipe.evaluation.every_steps)}"
    return f"{saves}; evaluates nothing (evaluation.held_out_fraction is {recipe.evaluation.held_out_fraction:g})"


def _every(steps: int) -> str:
    return f"every {steps:,} steps and after each phase" if steps else "after each phase"


def _costs(training: Training, first_steps: list[list[dict]]) -> str:
    """Returns the line about time and memory."""
    device = training.accelerator.device
    num_processes = training.accelerator.num_processes
    try:
        costs = measure(training, first_steps)
    except torch.OutOfMemoryError:
        if num_processes > 1:  # the others may wait for this one
            raise
        return "memory: a micro-batch does not fit into this GPU. Raise gradient_accumulation_steps."
    name = "GPU" if device.type == "cuda" else device.type.upper()
    hardware = f"on this {name}"
    if num_processes > 1:
        hardware = f"with {num_processes} processes on such a {name}"
    time = f"about {span(costs.fastest, costs.slowest)} {hardware}, without evaluating and saving"
    return f"time: {time}; memory: about {costs.num_bytes / 2**30:.1f} GiB a process"


def with_few_rows(recipe: Recipe) -> Recipe:
    """Returns a recipe of the same run that reads at most `ROWS_READ` rows of each corpus with `max_rows`."""
    few = replace(recipe, num_workers=0)
    for kind in ("monolingual", "bitext", "linked"):
        corpora = []
        for corpus in getattr(recipe, kind):
            max_rows = corpus.max_rows and min(corpus.max_rows, ROWS_READ)
            corpora.append(replace(corpus, max_rows=max_rows))
        setattr(few, kind, corpora)
    return few


def estimated(corpus: Corpus, max_rows: int | None) -> Corpus:
    """Returns a corpus of which the first rows were read, with the size that `max_rows` rows would have."""
    rows_read = len(corpus.columns[0].lengths)
    if not max_rows or rows_read < ROWS_READ:  # it has no more
        return corpus
    return corpus.scaled(max_rows / rows_read)


def supported(checkpoint: Pretrained) -> Table:
    """Makes a table of the objectives that work with a checkpoint, by model type.

    Raises ValueError if no model of the zoo can start from it.
    """
    rows = []
    for model_type in MODEL_TYPES:
        objectives, reason = objectives_of(model_type, checkpoint)
        rows.append((model_type, objectives, reason))
    if not any(objectives for _, objectives, _ in rows):
        raise ValueError(rows[0][2])
    columns = ("model.type", "objectives that work", "objectives that do not")
    return _table(f"{checkpoint.name}: objectives", columns, rows)


def objectives_of(model_type: str, checkpoint: Pretrained) -> tuple[str, str]:
    """Returns the objectives that work for a model of this type from the checkpoint, and why others do not."""
    cls: Any = model_class(model_type, checkpoint)
    try:
        backbone = cls.config_class.from_pretrained(checkpoint.path).backbone_config
    except (OSError, ValueError) as error:
        return "", str(error)
    names = learnable(cls)
    need_masks = [name for name in names if OBJECTIVES[name].own_mask]
    if not need_masks or honors_block_masks(backbone):
        return ", ".join(names), ""
    reason = f"{', '.join(need_masks)}: {backbone.model_type} does not support their attention masks"
    return ", ".join(name for name in names if name not in need_masks), reason


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> Table:
    """Makes a table with a `note` below it."""
    table = Table(*columns, title=title, title_justify="left", caption=note, caption_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _print_matching(console: Console, matching: Matching, source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    console.print(f"rows of the vocabulary, from {source}")
    console.print(_matching_table(matching, tokenizer))
    for dictionary in matching.dictionaries:
        counts = f"{dictionary.pairs:,} pairs, {dictionary.skipped:,} lines skipped"
        console.print(f"{dictionary.path} ({dictionary.language}): {counts}")


def _matching_table(matching: Matching, tokenizer: PreTrainedTokenizerBase) -> str:
    """Counts the rows of the vocabulary by script, that of a token's first letter, and by the way to fill a row."""
    scripts = []
    for subword in read_vocabulary(tokenizer).subwords:
        text = getattr(subword, "text", "")
        letters = [script for script in map(script_of, text) if script]
        scripts.append(letters[0] if letters else "no letter")
    script = pandas.Series(scripts, name="script")
    route = pandas.Series(matching.routes, name="route")
    return pandas.crosstab(script, route, margins=True, margins_name="all").to_string()


def _corpora_table(corpora: list[Corpus], alpha: float, is_estimated: bool) -> Table:
    """`is_estimated`: whether a corpus has `max_rows`, of which only the first were read."""
    rows = []
    for kind in dict.fromkeys(corpus.kind for corpus in corpora):
        group = [corpus for corpus in corpora if corpus.kind == kind]
        for corpus, share in zip(group, corpus_probabilities(group, alpha), strict=True):
            losses = [f"{name} {count:,}" for name, count in corpus.counts.items() if count and name not in KEPT]
            tokens = int(corpus.scale * corpus.num_tokens)
            cells = [
                corpus.name,
                f"{int(corpus.scale * corpus.counts['rows']):,}",
                f"{tokens:,}",
                f"{BYTES_OF_ID * tokens / 2**30:.3f}",
                f"{corpus.size:,}",
                f"{share:.1%}",
                f"{len(corpus.held_out):,}",
                ", ".join(losses),
            ]
            rows.append(cells)
    columns = ("corpus", "rows", "tokens", "GiB of ids", "size", "drawn", "held out", "dropped, cut")
    note = ""
    if is_estimated:
        note = f"estimated from the first {ROWS_READ:,} rows; the text takes about as much as the ids again"
    return _table(f"corpora, drawn with alpha {alpha}", columns, rows, note)


def _phase_table(
    phases: list[Phase], index: int, micro_batches: list[dict], num_processes: int, model: ForPreTraining
) -> Table:
    """`micro_batches`: those of the first step, in this process."""
    phase = phases[index]
    loss_weights = phase.loss_weights(model)
    rows: list[tuple[str, ...]] = []
    for name, objective in phase.objectives.items():
        if not isinstance(objective, Collator):
            rows.append((name, f"{objective.weight:g}", f"those of {objective.reads}"))
            continue
        weights = {loss: weight for loss, weight in loss_weights.items() if loss.partition(".")[0] == name}
        # this process's share of the first step, times the processes
        tokens = num_processes * sum(tokens_of({name: batch[name]}) for batch in micro_batches)
        predictions = num_processes * sum(phase.predictions(batch, weights) for batch in micro_batches)
        counts = (f"{objective.batch_size:,}", f"{tokens:,}", f"{predictions:,}")
        rows.append((name, f"{objective.weight:g}", *counts))
    trainable = ", ".join(phase.trainable)
    if phase.freeze_body:
        trainable += ", without the body"
    schedule = _schedule_text(phase, scheduled_together(phases, index))
    title = f"phase {phase.name!r}: {phase.steps:,} steps, {schedule}; trainable: {trainable}"
    columns = ("objective", "weight", "examples of a step", "tokens", "predictions")
    return _table(title, columns, rows)


def _schedule_text(phase: Phase, together: list[Phase]) -> str:
    """`together`: the phases of its schedule."""
    if phase is not together[0]:
        return f"in the schedule of phase {together[0].name!r}"
    steps = sum(other.steps for other in together)
    return f"learning rate {phase.learning_rate:g}, {phase.warmup_steps:,} warm-up, {phase.schedule} over {steps:,}"


def _print_first_batch(console: Console, batch: dict, tokenizer: PreTrainedTokenizerBase) -> None:
    """Prints the tokens of a few rows."""
    for objective, sub_batch in batch.items():
        console.print(f"first batch, {objective}; gold→shown where a token is predicted:")
        names = sub_batch["corpus_names"][:EXAMPLES_SHOWN]
        for (row, name), fields in itertools.product(enumerate(names), inputs_of(sub_batch)):
            is_token_T = fields["segment_ids"][row] >= 0
            tokens: Any = tokenizer.convert_ids_to_tokens(fields["input_ids"][row][is_token_T].tolist())
            if "labels" in fields:
                for position, label in enumerate(fields["labels"][row][is_token_T].tolist()):
                    if label != IGNORED:
                        tokens[position] = f"{tokenizer.convert_ids_to_tokens(label)}→{tokens[position]}"
            console.print(f"  [{name}]", *tokens)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder or a Hub id")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    parser.add_argument("--hub_root", metavar="DIR", help="folder with copies of Hub repositories")
    flags = parser.parse_args(argv)
    with user_errors():
        quiet_libraries()
        checkpoint = Pretrained(flags.checkpoint, "CHECKPOINT", flags.hub_root, flags.trust_remote_code)
        config = checkpoint.config()
        checkpoint.tokenizer()
        console = Console(soft_wrap=True, highlight=False, markup=False)
        console.print(supported(checkpoint))
        _, fresh = checkpoint.masked_lm(config)
        console.print(f"newly initialized, of encoder and LM head: {listed(fresh)}")


if __name__ == "__main__":
    main()
