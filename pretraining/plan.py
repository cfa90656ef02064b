"""`--dry_run`: shows what a recipe would do, without training."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from modeling.masked_lm import LOGITS_AT_ONCE
from pretraining.data.batches import Feed
from pretraining.data.languages import Languages
from pretraining.data.sampling import corpus_probabilities
from pretraining.data.stored import Corpus
from pretraining.objectives import Objective
from pretraining.recipe import Phase, Recipe, scheduled_together
from pretraining.rows import inputs_of
from pretraining.start.initialization import Start
from pretraining.start.teacher import TeacherModel
from pretraining.trainable import check_trainable, is_trainable

EXAMPLES_SHOWN = 2
ROWS_READ = 1000  # of a corpus with `max_rows`, which may be large
KEPT = ("rows", "examples", "held_out")  # counts that are not of dropped or cut text


def with_few_rows(recipe: Recipe) -> Recipe:
    """Returns the recipe with at most `ROWS_READ` rows of each corpus that has `max_rows`, for `print_plan`."""

    def cut(corpora: list) -> list:
        return [c if c.max_rows is None else replace(c, max_rows=min(c.max_rows, ROWS_READ)) for c in corpora]

    return replace(recipe, monolingual=cut(recipe.monolingual), bitext=cut(recipe.bitext))


def print_plan(
    recipe: Recipe,
    start: Start,
    config,
    feed: Feed,
    teacher: TeacherModel | None = None,
) -> None:
    """Prints the plan of a run: parameters by part, corpora with their tokens on disk and their sampling, phases with
    tokens and predictions per step, a memory estimate, and the first batch with its masks. `feed` has the corpora of
    `with_few_rows`."""
    feed = replace(feed, num_workers=0)
    console = Console(soft_wrap=True, highlight=False)
    with torch.device("meta"):  # shapes without storage: a large model costs nothing here
        options = {"device_map": "meta"} if start.start_from else {}
        model = start.load(config, attn_implementation="eager", **options)
    check_trainable(model, recipe.phases)
    parts = parameters_by_part(model)
    total, taught = sum(parts.values()), teacher.model.num_parameters() if teacher else 0
    rows = [(part, f"{count:,}") for part, count in (parts | {"all": total}).items()]
    console.print(_table(f"{recipe.model.type}: parameters", ("part", "parameters"), rows))
    if source := start.source:
        _, filled = source.tokenizer, "random"  # read to raise its errors
        if source.carries_rows:
            routes = Counter(source.match(feed.tokenizer).routes).most_common()
            filled = ", ".join(f"{route} {count:,}" for route, count in routes)
            filled += "\n(in full: python -m pretraining.tools.match_vocabularies)"
        console.print(f"start: {source.settings.initialize} of {source.name}; rows of the vocabulary: {filled}")
    console.print(_corpora_table(feed.corpora, recipe))
    for index, phase in enumerate(recipe.phases):
        loader = iter(feed.training(phase, index))
        micro_batches = [next(loader) for _ in range(recipe.gradient_accumulation_steps)]
        console.print(_phase_table(recipe.phases, index, micro_batches, feed.num_processes))
        trainable = sum(p.numel() for name, p in model.named_parameters() if is_trainable(name, phase))
        console.print(_memory_table(config, recipe, phase, total, trainable, micro_batches[0], taught))
        if index == 0:
            _print_first_batch(console, micro_batches[0], phase.objectives, feed.tokenizer, feed.languages)
    often = f"every {every:,} steps and " if (every := recipe.checkpoint_steps) else ""
    kept = f"the newest {recipe.keep_checkpoints}" if recipe.keep_checkpoints else "all"
    console.print(f"checkpoints: {often}at the end of each phase; the run keeps {kept}")
    console.print("Dry run: nothing was trained or written.")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str | None = None) -> Table:
    """Makes a table: the first column is aligned left, numbers right; a row called `all` is bold."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == "all" else None)
    return table


def parameters_by_part(model: torch.nn.Module) -> dict[str, int]:
    """Counts parameters of embeddings, layers, cross-attention, head and other parts; tied ones count once."""
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if ".crossattention." in name:
            part = "cross-attention"
        elif "embeddings." in name or ".embed_tokens." in name:
            part = "embeddings"
        elif ".encoder." in name or ".backbone." in name:
            part = "layers"
        elif name.startswith("lm_head."):
            part = "masked-LM head (its decoder is the embeddings)"
        else:
            part = name.split(".")[0]
        parts[part] += parameter.numel()
    return dict(parts)


def _corpora_table(corpora: list[Corpus], recipe: Recipe) -> Table:
    rows, given = [], recipe.named_corpora()
    for sides in (1, 2):
        group = [corpus for corpus in corpora if len(corpus.languages) == sides]
        scales = []
        for corpus in group:
            max_rows, read = getattr(given[corpus.name], "max_rows", None), len(corpus.columns[0].lengths)
            scales.append(max_rows / read if max_rows and read == ROWS_READ else 1)
            corpus.size = given[corpus.name].size or int(corpus.size * scales[-1])
        shares = corpus_probabilities(group, recipe.alpha) if group else []
        for corpus, scale, share in zip(group, scales, shares, strict=True):
            lost = [f"{name} {count:,}" for name, count in corpus.counts.items() if count and name not in KEPT]
            read, tokens = int(scale * corpus.counts["rows"]), int(scale * corpus.tokens)
            facts = (f"{read:,}", f"{tokens:,}", f"{4 * tokens / 2**30:.3f}", f"{corpus.size:,}", f"{share:.1%}")
            rows.append((corpus.name, *facts, f"{len(corpus.held_out):,}", ", ".join(lost)))
    columns = ("corpus", "rows", "tokens", "GiB of ids", "size", "drawn", "held out", "dropped, cut")
    note = f"with max_rows: estimated from the first {ROWS_READ:,} rows; the text takes about as much as the ids again"
    return _table(f"corpora, drawn with alpha {recipe.alpha}", columns, rows, note)


def _phase_table(phases: list[Phase], index: int, micro_batches: list[dict], num_processes: int) -> Table:
    phase, together = phases[index], scheduled_together(phases, index)
    rate = f"in the schedule of phase {together[0].name!r}"
    if phase is together[0]:
        rate = f"learning rate {phase.learning_rate:g}, {phase.warmup_steps:,} warm-up, {phase.schedule}"
        rate += f" over {sum(other.steps for other in together):,} steps" if len(together) > 1 else ""
    trainable = ", ".join(phase.trainable) + (", without the body" if phase.freeze_body else "")
    rows = []
    for name, objective in phase.with_examples.items():
        fields = [inputs for batch in micro_batches for inputs in inputs_of(batch[name])]
        # this process's share of the first step, times the processes
        tokens = sum(int((batch["segment_ids"] >= 0).sum()) for batch in fields) * num_processes
        places = sum(batch["input_ids"].numel() for batch in fields) * num_processes
        terms = objective.learned_terms
        # every term predicts the same tokens
        predictions = sum(map(objective.predictions, fields)) * num_processes * (len(terms) or 1)
        shown = name + (f" ({' + '.join(terms)})" if terms else "")
        counts = (f"{objective.batch_size:,}", f"{tokens:,}", f"{1 - tokens / places:.0%}", f"{predictions:,}")
        rows.append((shown, f"{objective.weight:g}", *counts))
    for name, objective in phase.objectives.items():
        if objective.reads:
            examples = f"those of {objective.sub_batch()}"
            rows.append(
                (
                    name,
                    f"{objective.weight:g}",
                    examples,
                    "",
                    "",
                    "labels of the teacher" if objective.has_teacher else "labels of the model",
                )
            )
    title = f"phase {index}, {phase.name!r}: {phase.steps:,} steps, {rate}; trainable: {trainable}"
    columns = ("objective", "weight", "examples", "tokens", "padding", "predictions")
    return _table(title, columns, rows, "examples, tokens and predictions of one step, over all processes")


def _memory_table(
    config, recipe: Recipe, phase: Phase, total: int, trainable: int, batch: dict, of_teachers: int
) -> Table:
    """Estimates the memory of a process from the shapes of its first micro-batch, as a help to choose hardware."""
    width = 4 if recipe.precision == "fp32" else 2
    # one forward pass for each set of inputs and each term; an objective without terms has one
    inputs = [
        fields
        for name, sub_batch in batch.items()
        for _ in phase.objectives[name].learned_terms or (None,)
        for fields in inputs_of(sub_batch)
    ]
    tokens = sum(fields["input_ids"].numel() for fields in inputs)
    longest = max(fields["input_ids"].shape[1] for fields in inputs)
    rows = sum(fields["input_ids"].shape[0] for fields in inputs)
    predictions = sum(int(fields["labels"].ne(-100).sum()) for fields in inputs)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    # states that a layer keeps for the backward pass: query, key, value, context, two residual sums and their norms
    # (8 H), and the feed-forward block before and after its activation (2 I)
    per_token = (8 * hidden + 2 * config.intermediate_size) * width
    if recipe.model.attention == "eager":
        per_token += 2 * config.num_attention_heads * longest * width
    kept = (hidden * width * layers + per_token) if recipe.model.gradient_checkpointing else per_token * layers
    logits = min(predictions * config.vocab_size, max(LOGITS_AT_ONCE, config.vocab_size))
    lines = {
        "weights (fp32)": 4 * total,
        "gradients (fp32)": 4 * trainable,
        "Adam's two moments (fp32)": 8 * trainable,
        f"activations of {rows} rows, up to {longest} positions ({recipe.precision})": tokens * kept,
        f"logits of {predictions:,} predictions, at most {LOGITS_AT_ONCE:,} at once": 4 * logits,
        "gradient of the head, before it is added to that of the embeddings": 4 * config.vocab_size * hidden,
    }
    if of_teachers:
        lines["weights of the teacher (fp32)"] = 4 * of_teachers
    lines["all"] = sum(lines.values())
    title = "memory of one process, estimated from the shapes of its first micro-batch"
    return _table(title, ("what", "GiB"), [(what, f"{size / 2**30:.3f}") for what, size in lines.items()])


def _print_first_batch(
    console: Console, batch: dict, objectives: dict[str, Objective], tokenizer, languages: Languages | None
) -> None:
    for objective, sub_batch in batch.items():
        legend = "[bold]gold[/bold][reverse]→shown[/reverse] where a token is predicted"
        console.print(f"first batch, {objective}: {legend}")
        for row, name in enumerate(sub_batch["languages"][:EXAMPLES_SHOWN]):
            if languages and objectives[objective].needs_languages:  # the direction of the translation
                of_sides = [sub_batch["language_ids"][row][sub_batch["segment_ids"][row] == side] for side in (0, 1)]
                name = " → ".join(list(languages.rows)[int(ids[0])] for ids in of_sides)
            for fields in inputs_of(sub_batch):
                console.print(_masked_text(Text(f"  [{name}] "), fields, row, tokenizer))


def _masked_text(line: Text, fields: dict, row: int, tokenizer) -> Text:
    """Appends the tokens of a row to `line`, predicted ones as gold→shown."""
    length = int((fields["segment_ids"][row] >= 0).sum())
    shown = tokenizer.convert_ids_to_tokens(fields["input_ids"][row, :length].tolist())
    labels = fields["labels"][row, :length].tolist()
    for token, label in zip(shown, labels, strict=True):
        if label != -100:
            line.append(tokenizer.convert_ids_to_tokens(label), style="bold")
        line.append(f"→{token} " if label != -100 else f"{token} ", style=None if label == -100 else "reverse")
    return line
