"""The facts of a run in words, for pages and cards. `FACTS` has a title and a text for each that needs its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from crosslingual_zoo.finetuning.results import Results

PHRASED = ("max_steps", "epochs", "batch_size", "learning_rate", "schedule", "warmup_steps")
WITHOUT_EFFECT = {"layerwise_decay": 1, "gradient_accumulation_steps": 1, "gradient_checkpointing": False}
SELECTION = ("rule", "data", "rows", "selected_steps", "scores", "losses")  # what `_selection` has words for
RULES = {
    "last": "the last checkpoint",
    "average": "the mean of the last checkpoints",
    "source_dev": "the best checkpoint in the source language",
    "mean_dev": "the best checkpoint on average over languages",
}


def shown_facts(results: Results) -> dict[str, Any]:
    """Returns how the scores were computed: the setting, the protocol, and three of the hyperparameters."""
    facts = {"setting": results.setting, **results["protocol"]}
    for name in IN_PROTOCOL:
        facts[name] = results["hyperparameters"].get(name)
    return facts


def lines_of(facts: dict[str, Any]) -> list[str]:
    """One fact a line, `title: text`, without empty facts and those that a page shows elsewhere."""
    lines = []
    for name, fact in facts.items():
        entry = FACTS.get(name, Fact())
        text = entry.text(fact)
        if text:
            lines.append(f"{entry.title or plain_name(name)}: {text}")
    return lines


def title_of(name: str) -> str:
    """A fact's or hyperparameter's name in words."""
    return FACTS.get(name, Fact()).title or plain_name(name)


def plain_name(name: str) -> str:
    return name.replace("_", " ")


def total(count: Any) -> int:
    """The sum of a count by part and language."""
    if isinstance(count, dict):
        count = list(count.values())
    return sum(map(total, count)) if isinstance(count, list) else count


def data_lines(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows, and what is cut or left out of them, by part and language: the table of --check_data."""
    rows_by_part = {
        "train": {"all": facts["training_rows"]},
        "dev": facts["selection"].get("rows", {}),
        "evaluation": facts["evaluated_rows"],
    }
    lines = []
    for part, counts in rows_by_part.items():
        for language, count in counts.items():
            line = {"part": part, "language": language, "rows": count}
            for name in BY_PART:
                line[plain_name(name)] = facts.get(name, {}).get(part, {}).get(language, 0)
            if count:
                lines.append(line)
    return lines


def in_words(fact: Any) -> str:
    """A fact of any kind; tables by their names."""
    if fact is None or fact is False:
        return ""
    if fact is True:
        return "yes"
    if isinstance(fact, dict):
        texts = {plain_name(name): in_words(value) for name, value in fact.items()}
        return "; ".join(f"{name} {text}" for name, text in texts.items() if text)
    if isinstance(fact, list):
        if fact and isinstance(fact[0], dict):
            return table_names(fact)
        return ", ".join(filter(None, map(in_words, fact)))
    if isinstance(fact, float):
        return f"{fact:g}"
    return f"{fact:,}" if isinstance(fact, int) else fact


def table_names(entries: list[dict[str, Any]]) -> str:
    """`google/xtreme PAWS-X.de, PAWS-X.en test`: tables of one dataset and split together.

    With translations in another table: `bible en test with bible de test`.
    """
    configs_by_table: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        path = Path(entry["path"])
        name = path.name if path.is_absolute() else str(path)  # without the folders of this machine
        for column, value in entry.get("where", {}).items():
            name += f" [{column}: {value}]"
        split = entry["split"]
        if entry.get("target"):
            split += f" with {table_names([entry['target']])}"
        configs = configs_by_table.setdefault((name, split), [])
        if entry["config"]:
            configs.append(entry["config"])
    texts = []
    for (name, split), configs in configs_by_table.items():
        texts.append(" ".join([name, ", ".join(configs), split] if configs else [name, split]))
    return "; ".join(texts)


def setting_in_words(setting: str) -> str:
    """`zero-shot`, as headings have it."""
    return setting.replace("_", "-")


def _metric(metric: dict[str, Any]) -> str:
    better = "higher" if metric.get("greater_is_better", True) else "lower"
    text = f"{metric['name']} in {metric['unit']}, {better} is better; by {metric['module']} {metric['version']}"
    signatures = in_words(metric.get("signatures"))
    return f"{text}; {signatures}" if signatures else text


def _selection(selection: dict[str, Any]) -> str:
    """Which checkpoint of each seed was evaluated, or which layer is reported, and by what rule."""
    text = RULES.get(selection["rule"], selection["rule"])
    if data := in_words(selection.get("data")):
        text += f", on {data}"
    if rows := selection.get("rows"):
        text += f" ({total(rows):,} rows)"
    if steps := selection.get("selected_steps"):
        text += f": step {in_words(steps)}"
    scores = selection.get("scores") or [None]
    if None not in scores:
        text += f", with score {', '.join(f'{score:.1f}' for score in scores)}"
    losses = selection.get("losses") or [None]
    if None not in losses:
        text += f" and loss {', '.join(f'{loss:.3f}' for loss in losses)}"
    further = in_words({name: value for name, value in selection.items() if name not in SELECTION})
    return f"{text}; {further}" if further else text


def _fresh_parameters(fresh: dict[str, Any]) -> str:
    parts = []
    if fresh["count"]:
        seeds = "seed" if len(fresh["seeds"]) == 1 else "seeds"
        parts.append(f"{fresh['count']:,}, from {seeds} {in_words(fresh['seeds'])}: {in_words(fresh['names'])}")
    if head := fresh.get("head"):
        parts.append(f"head: {head}")
    return "; ".join(parts)


def _methods(methods: dict[str, dict[str, Any]]) -> str:
    """The methods with their options; empty where no method has any, as `method` names it."""
    if not any(methods.values()):
        return ""
    texts = []
    for name, options in methods.items():
        values = {plain_name(option): in_words(value) for option, value in options.items()}
        listed = ", ".join(f"{option} {value}" for option, value in values.items() if value)
        texts.append(f"{name} ({listed})" if listed else name)
    return ", ".join(texts)


def _layers(layers: list[int]) -> str:
    is_range = len(layers) > 2 and layers == list(range(layers[0], layers[-1] + 1))
    return f"{layers[0]} to {layers[-1]}" if is_range else in_words(layers)


def _setting(setting: str) -> str:
    return "not fine-tuned" if setting == "feature" else setting_in_words(setting)


def _count(counts: Any) -> str:
    return f"{total(counts):,}"


def _hidden(fact: Any) -> str:
    """Of a fact that a page shows elsewhere."""
    return ""


class Fact(NamedTuple):
    """How pages and cards show a fact."""

    title: str = ""  # default: its name in words
    text: Callable[[Any], str] = in_words


FACTS = {
    "betas": Fact("Adam betas"),
    "chance": Fact(text=_hidden),
    "counts": Fact(text=_hidden),
    "cut_texts": Fact(text=_count),
    "cut_translations": Fact(text=_count),
    "depth": Fact("layers of the model"),
    "dev_rows": Fact(text=_count),
    "differs": Fact("differences from published data"),
    "empty_pairs": Fact(text=_count),
    "epsilon": Fact("Adam epsilon"),
    "evaluated_rows": Fact(text=_count),
    "evaluated_split": Fact(text=_hidden),
    "fine_tuned_before": Fact(text=_hidden),
    "fresh_parameters": Fact("new parameters", _fresh_parameters),
    "label_subword": Fact("labeled token of a word", plain_name),
    "layers": Fact("scored layers", _layers),
    "left_out_rows": Fact(text=_count),
    "long_pairs": Fact(text=_count),
    "max_grad_norm": Fact("gradients clipped to norm"),
    "methods": Fact(text=_methods),
    "metric": Fact(text=_metric),
    "options": Fact(text=_hidden),
    "selection": Fact(text=_selection),
    "setting": Fact(text=_setting),
    "split_texts": Fact(text=_count),
    "texts": Fact(text=_hidden),
    "training_rows": Fact(text=_count),
    "updates": Fact("training steps"),
}
IN_PROTOCOL = ("updates", "initialize", "generation")  # hyperparameters that pages show with the protocol
BY_PART = ("cut_texts", "split_texts", "cut_translations", "empty_pairs", "long_pairs")  # by part and language


def training_in_words(hyperparameters: dict[str, Any]) -> str:
    """How a model was fine-tuned: length, examples a step, learning rate, then the other options."""
    parts = [_length(hyperparameters)]
    if batch_size := hyperparameters.get("batch_size"):
        parts.append(f"{batch_size:,} examples a step")
    parts.append(f"learning rate {hyperparameters['learning_rate']:g}")
    parts.append(f"{plain_name(hyperparameters['schedule'])} schedule")
    parts.append(_warm_up(hyperparameters["warmup_steps"]))
    for name, value in hyperparameters.items():
        is_shown = name not in (*PHRASED, *IN_PROTOCOL) and value != WITHOUT_EFFECT.get(name)
        if is_shown and value and not isinstance(value, dict):
            text = in_words(value).replace(", ", " and ")
            parts.append(title_of(name) if value is True else f"{title_of(name)} {text}")
    return ", ".join(parts)


def _length(hyperparameters: dict[str, Any]) -> str:
    """The steps of training, or its epochs with the steps of a seed."""
    if max_steps := hyperparameters.get("max_steps"):
        return f"{max_steps:,} steps"
    epochs = hyperparameters["epochs"]
    noun = "epoch" if epochs == 1 else "epochs"
    steps = dict.fromkeys(f"{count:,}" for count in hyperparameters["updates"])
    return f"{epochs:g} {noun} ({' or '.join(steps)} steps)"


def _warm_up(steps: float) -> str:
    """The warm-up; below 1 it is a share of the steps."""
    if not steps:
        return "no warm-up"
    return f"warm-up over {100 * steps:g}% of the steps" if steps < 1 else f"warm-up over {steps:,.0f} steps"
