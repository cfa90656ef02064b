"""What the sections of a card say: scores, training, results, limits and licenses, from the record of a model."""

import functools
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from crosslingual_zoo.finetuning.facts import lines_of, setting_in_words, shown_facts, training_in_words
from crosslingual_zoo.finetuning.page import markdown_table, references_of, score_table, warnings_of
from crosslingual_zoo.finetuning.results import Results, run_name, with_deviation
from crosslingual_zoo.finetuning.tasks.registry import KINDS
from crosslingual_zoo.hub_cards import metadata
from crosslingual_zoo.hub_cards.record import HUB, Record, hub_id
from crosslingual_zoo.pretraining.objectives import OBJECTIVES

ABOUT = Path(__file__).parent / "templates" / "about"
DEMONSTRATION_PARAMETERS = 10_000_000  # below, a checkpoint shows that the code runs; as TOY_PARAMETERS of space/app.py
SETTINGS = {
    "zero_shot": "zero-shot: fine-tuned in {} only",
    "translate_train_all": "fine-tuned in {} and on translations",
    "supervised": "fine-tuned on its training data",
    "feature": "not fine-tuned",
}
CARRIED_OVER = {"both": "layers and embeddings", "body": "layers", "embeddings": "embeddings"}
SPECIAL = re.compile(r"[\\`*<~|]|(?<![^\W_])_|_(?![^\W_])|\](?=\()")  # what would be formatting, a tag or a link
FIGURES = re.compile(r"[*\s\d.,±+/%†()x-]*")  # a column of these is set on the right
FEW_ROWS = 200  # below, chance alone moves an accuracy by 7 points or more


@functools.cache
def about(model_type: str) -> dict[str, Any] | None:
    """What every card of a model type says, from templates/about: method, claims, when to use it, limits, citation.

    A claim names two rows of a published table, and a test checks it there. None for a type that is not of this zoo.
    """
    file = ABOUT / f"{model_type}.yaml"
    if not file.is_file():
        return None
    merged = OmegaConf.merge(OmegaConf.load(ABOUT / "_shared.yaml"), OmegaConf.load(file))
    texts = OmegaConf.to_container(merged)
    texts["alternatives"] = list(filter(None, texts["alternatives"].values()))  # null: not for this type
    return texts


def description(record: Record) -> str:
    """What a pre-trained model is, or the base of a fine-tuned one: size, method, languages, start and shape."""
    config = record.config
    is_translator = metadata.head_of(config) == "ForConditionalGeneration"
    sentence = "A translation model" if is_translator else "An encoder"
    sentence += f" with {record.parameters:,} parameters"
    sentence += f", {_origin(record)}."
    shape = f"{_layers_and_heads(config)} and a vocabulary of {config['vocab_size']:,} tokens"
    return f"{sentence} It has {shape}."


def _origin(record: Record) -> str:
    """Method, number of steps, languages and start of the pre-training; the start may know more languages."""
    model_type = record.config["model_type"]
    texts = about(model_type)
    if texts:
        method = texts["name"].partition(" (")[0]
        origin = f"trained with [{method}]({HUB}/papers/{texts['arxiv']})"
    else:
        origin = f"of the type `{model_type}`"
    steps = sum(phase["steps"] for phase in record.recipe.get("phases", []))
    if steps:
        origin += f" for {steps:,} steps"
    languages = metadata.pretrained_in(record)
    if languages:
        origin += f" on {metadata.counted(languages, 'language')} ({', '.join(languages)})"
    start = metadata.start_of_run(record)
    if not record.own_results:
        start = record.base_model or start
    if start:
        note = "" if record.own_results else _base_note(record)
        origin += f", starting from {_link(start)}{note}"
    elif record.recipe:
        origin += ", starting from random weights"
    return origin


def _layers_and_heads(config: dict[str, Any]) -> str:
    layers = metadata.counted(range(config["num_hidden_layers"]), "layer")
    heads = metadata.counted(range(config["num_attention_heads"]), "head")
    shape = f"{layers} of width {config['hidden_size']}, {heads}"
    if config.get("backbone_config"):
        shape += f", the architecture of {config['backbone_config']['model_type']}"
    return shape


def _base_note(record: Record) -> str:
    """How the start differs from the model that it is named after, in brackets; empty where the owner says nothing."""
    return f" ({plain(record.base_note)})" if record.base_note else ""


def task(record: Record) -> dict[str, Any]:
    """What a fine-tuned model does, and how it was fine-tuned; empty for another model."""
    config = record.config
    head = metadata.head_of(config)
    if not head:
        return {}
    first = f"Task: {metadata.FINE_TUNED[head].replace('-', ' ')}"
    names = config.get("fine_tuned_on") or [content["task"] for content in record.own_results]
    if names:
        first += f", fine-tuned on {', '.join(map(_in_words, names))}"
    lines = [first]
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        labels = config.get("id2label", {}).values()
        lines.append(f"Labels: {', '.join(map(str, labels))}")
    notes: list[str] = []
    for content in record.own_results:
        rows = content["protocol"]["training_rows"]
        lines.append(f"Trained in: {', '.join(metadata.trained_in(content))} ({rows:,} rows)")
        lines.append(f"Evaluated in: {', '.join(content.names)} ({_score(content)})")
        notes += _fine_tuning(content, record.seed)
    start = record.base_model or metadata.start_of(record)
    base = _link(start) + _base_note(record) if start else ""
    return {"lines": list(map(plain, lines)), "base": base, "notes": notes}


def poor(record: Record) -> list[str]:
    """What a reader must know before anything else: too small, masked words not learned, scores at chance or unsure."""
    lines = []
    if record.parameters < DEMONSTRATION_PARAMETERS:
        lines.append("This small model only demonstrates that the code runs. It is not meant for use.")
    if unlearned := _unlearned(record):
        lines.append(
            "It has not learned to predict masked words: its loss on held-out text, in nats, is above the entropy of "
            f"single tokens (in brackets) in {plain(', '.join(unlearned))}."
        )
    reported = map(metadata.reported, record.results)
    if at_chance := [_title(content) for content in reported if content.at_chance()]:
        lines.append(
            f"In at least one language, its scores are no better than guessing, or 0: {plain('; '.join(at_chance))}. "
            "The warnings there name the languages. Do not use the model for these tasks."
        )
    if unsure := list(filter(None, map(_unsure, record.results))):
        lines.append(f"Another seed or other rows may change these scores by some points: {plain('; '.join(unsure))}.")
    return lines


def _unlearned(record: Record) -> list[str]:
    """The corpora on which a pre-trained model predicts masked words worse than the frequencies of tokens do."""
    if metadata.head_of(record.config):
        return []
    losses = metadata.masked_losses(record).items()
    return [f"{name} {loss:.2f} ({entropy:.2f})" for name, (loss, entropy) in losses if loss > entropy]


def _unsure(content: Results) -> str:
    """Why chance may have moved a task's scores: one seed of training, few rows; empty if neither."""
    reasons = []
    if KINDS[content["kind"]].is_trained and len(content["seeds"]) == 1:
        reasons.append("one seed")
    counts = content["protocol"]["evaluated_rows"].values()
    fewest = min(counts)
    most = max(counts)
    if fewest < FEW_ROWS:
        rows = f"only {fewest:,}"
        if most != fewest:
            rows += f" to {most}"
        rows += " rows"
        if len(counts) > 1:
            rows += " in each language"
        reasons.append(rows)
    return f"{content['task']} ({', '.join(reasons)})" if reasons else ""


def _in_words(tuned_on: str) -> str:
    """`xnli (zero-shot)`: a task and its setting, as configurations name them."""
    name, bracket, setting = tuned_on.rpartition(" (")
    return f"{name}{bracket}{setting_in_words(setting)}" if bracket else tuned_on


def training(record: Record) -> dict[str, Any]:
    """How a model, or the base of a fine-tuned one, was trained: start, phases, data, and facts of the run; empty if
    unknown."""
    recipe = record.recipe
    if not recipe:
        return {}
    phases = recipe.get("phases", [])
    objectives = dict.fromkeys(name for phase in phases for name in phase["objectives"])
    corpora = metadata.learned_corpora(record)
    phase_columns = ["phase", "steps", "objectives (examples per step)", "learning rate"]
    corpus_columns = ["corpus", "languages", "source", "examples", "sha256"]
    return {
        "objectives": list(map(_objective, objectives)),
        "phases": markdown(phase_columns, list(map(_phase, phases))),
        "corpora": markdown(corpus_columns, list(map(_corpus, corpora))),
        "notes": _training_notes(record, corpora) + _facts(recipe, record.run),
    }


def _objective(name: str) -> str:
    """Its name, and the first line of its docstring."""
    first_line = OBJECTIVES[name].__doc__.partition(";")[0].splitlines()[0]
    return f"**{name}**: {first_line.rstrip('.')}"


def _training_notes(record: Record, learned: list[dict[str, Any]]) -> list[str]:
    """The corpora that were only measured on, and what was taken over from another model."""
    notes = []
    unread = [corpus["name"] for corpus in record.run.get("corpora", []) if corpus not in learned]
    if unread:
        notes.append(f"only for measurements during training: {', '.join(unread)}")
    if carried_over := _carried_over(record.recipe.get("model", {})):
        start = metadata.plain_name(metadata.start_of_run(record))
        notes.append(f"taken from {Path(start).name}: {carried_over}")
    return notes


def _link(path: str) -> str:
    """A model of the Hub, or the name of the run that left it in a folder."""
    return f"[{path}]({HUB}/{path})" if hub_id(path) else f"`{run_name(path)}`"


def _carried_over(model: dict[str, Any]) -> str:
    """What a model with its own vocabulary took over from another model; empty for other starts."""
    start = model.get("meta_pretrained")
    if not start or start["initialize"] == "none":
        return ""
    parts = CARRIED_OVER[start["initialize"]]
    languages = dict.fromkeys(dictionary["language"] for dictionary in start["dictionaries"])
    if start["initialize"] != "body" and languages:
        parts += f", with dictionaries of {', '.join(languages)}"
    return parts


def _phase(phase: dict[str, Any]) -> list[str]:
    """The row of a phase: name, steps, objectives with what is trained, learning rate."""
    objectives = []
    for name, options in phase["objectives"].items():
        size = options.get("batch_size")
        objectives.append(f"{name} ({size:,})" if size else name)  # dwa: the rows of tlm
    parts = [", ".join(objectives)]
    trainable = phase.get("trainable", ["*"])
    if trainable != ["*"]:
        names = [f"`{name}`" for name in trainable]
        parts.append(f"trains only {', '.join(names)}")
    if phase.get("freeze_body"):
        parts.append("the layers are frozen")
    rate = "continues the previous schedule"
    if phase["learning_rate"] is not None:
        rate = f"{phase['learning_rate']:g}, {phase['schedule']}, {phase['warmup_steps']:,} warm-up steps"
    return [phase["name"], f"{phase['steps']:,}", "; ".join(parts), rate]


def _corpus(corpus: dict[str, Any]) -> list[str]:
    """The row of a corpus: name, languages, sources, examples, beginnings of the fingerprints."""
    sources = []
    fingerprints = []
    for table in corpus["tables"]:
        parts = [metadata.plain_name(table["path"]), table.get("config"), table["split"]]
        sources.append(" ".join(filter(None, parts)))
        digest = table.get("fingerprint", "").rpartition(":")[2]
        if digest:
            fingerprints.append(f"`{digest[:12]}`")
    size = corpus.get("size")
    return [
        corpus["name"],
        ", ".join(corpus["languages"]),
        "; ".join(dict.fromkeys(sources)),
        f"{size:,}" if isinstance(size, int) else "",
        ", ".join(dict.fromkeys(fingerprints)),
    ]


def _facts(recipe: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Precision, seed, time, hardware and versions of the pre-training run, as far as they are recorded."""
    settings = "settings: precision {precision}, seed {seed}, exponent of language sampling (alpha) {alpha}"
    facts = [settings.format(**recipe)]
    sessions = run.get("sessions", [])
    if not sessions:
        return facts
    facts += _time(sessions)
    facts += dict.fromkeys(f"hardware: {_hardware(session['hardware'])}" for session in sessions)
    software = "software: torch {torch}, transformers {transformers}"
    facts += dict.fromkeys(software.format(**session["versions"]) for session in sessions)
    git = sessions[-1]["git"]
    if git:
        changes = " with uncommitted changes" if git["dirty"] else ""
        facts.append(f"code: commit {git['commit'][:12]}{changes}")
    return facts


def _time(sessions: list[dict[str, Any]]) -> list[str]:
    """A line with the time of all sessions; none where no session ended in order."""
    seconds = [session["seconds"] for session in sessions if session.get("seconds") is not None]
    if not seconds:
        return []
    line = "time: "
    if len(seconds) < len(sessions):
        line += "at least "
    line += f"{timedelta(seconds=round(sum(seconds)))} (h:min:s)"
    if len(sessions) > 1:
        line += f" in {len(sessions)} sessions"
    return [line]


def _hardware(hardware: dict[str, Any]) -> str:
    devices = ", ".join(gpu["name"] for gpu in hardware["gpus"])
    if not devices:
        devices = f"{hardware['cores']} cores of {hardware['cpu']}"
    if hardware["processes"] > 1:
        devices += f"; {hardware['processes']} processes"
    return devices


def _fine_tuning(content: Results, seed: str | None) -> list[str]:
    """Hyperparameters of the run that fine-tuned the model, and what its scores are of."""
    setting = setting_in_words(content.setting)
    lines = [plain(f"{content['task']}, {setting}: {training_in_words(content['hyperparameters'])}")]
    if len(content["seeds"]) > 1:
        seeds = ", ".join(map(str, content["seeds"]))
        lines.append(f"these weights are of seed {seed}, and the scores are means over seeds {seeds}")
    return lines


def results(contents: list[Results]) -> list[dict[str, Any]]:
    """What a card shows of each task: title, score, table with published scores, protocol, warnings."""
    return list(map(_result, contents))


def _result(content: Results) -> dict[str, Any]:
    references = references_of(content)
    facts = shown_facts(content)
    facts.pop("layer", None)  # the table of scores has it
    if facts["setting"] == "feature":
        del facts["setting"]
    return {
        "title": _title(content),
        "score": _score(content),
        "table": markdown(*score_table(content, references)),
        "protocol": [*lines_of(facts), *content["notes"]],
        "warnings": warnings_of(content, references),
    }


def _title(content: Results) -> str:
    return f"{content['task']}, {setting_in_words(content.setting)}".removesuffix(", feature")


def _score(content: Results) -> str:
    """The main score in a line: its mean over languages."""
    score = f"{content.metric} {with_deviation(content.average)}"
    if not content.is_higher_better:
        score += " (lower is better)"
    if len(content.names) > 1:
        score += f", mean of {len(content.names)}"
    return score


def scores(contents: list[Results]) -> dict[str, Any]:
    """The main score of each task in a table, what a reader must know of it, and the scores by language in another
    table; empty without results."""
    columns = ["task", "what it measures", "score (%)", "better", "languages", "rows", "seeds"]
    return {
        "tasks": markdown(columns, list(map(_task_row, contents))),
        "notes": _score_notes(contents),
        "languages": _language_table(contents),
    }


def _task_row(content: Results) -> list[str]:
    """The row of a task, with a dagger where a seed's score is at chance."""
    protocol = content["protocol"]
    source = content.get("source_language")
    measures = f"{KINDS[content['kind']].measures}; {SETTINGS[content['setting']].format(source)}"
    if protocol.get("plug_in"):
        measures += ", plug-in"
    score = f"{content.metric} {with_deviation(content.average)}"
    if content.at_chance():
        score += "†"
    languages = str(len(content.names))
    if source in content.names:
        languages += f", {source} included"
    return [
        content["task"],
        measures,
        score,
        "higher" if content.is_higher_better else "lower",
        languages,
        f"{sum(protocol['evaluated_rows'].values()):,}",
        str(len(content["seeds"])),
    ]


def _score_notes(contents: list[Results]) -> list[str]:
    """The layers that scores are of, with their tasks, and what the marks of the table mean."""
    tasks_by_layer: dict[str, list[str]] = {}
    for content in contents:
        protocol = content["protocol"]
        if "layer" in protocol:
            name = f"`{content['task']}`"
            if content["kind"] == "word_alignment":
                name += f" (links by `{protocol['method']}`)"
            layer = "layer {layer} of {depth} ({selection[rule]}), not chosen on these data".format(**protocol)
            tasks_by_layer.setdefault(layer, []).append(name)
    notes = [f"{', '.join(tasks)}: {layer}" for layer, tasks in tasks_by_layer.items()]
    if any(content.at_chance() for content in contents):
        notes.append("† a seed is at chance, or at 0, in a language: see the warnings")
    if any(len(content["seeds"]) > 1 for content in contents):
        notes.append("Scores are means over seeds ± standard deviation.")
    return notes


def _language_table(contents: list[Results]) -> str:
    """The scores of all tasks by language; empty where each task has one language."""
    if all(len(content.names) == 1 for content in contents):
        return ""
    names: list[str] = []
    scores_by_language: dict[str, dict[str, str]] = {}
    for content in contents:
        name = content["task"]
        if not content.is_higher_better:
            name += " (lower is better)"
        if name in names:
            name += f", {len(names) + 1}"
        names.append(name)
        for language, entry in content.languages.items():
            # a pair with English counts as its other language
            row = scores_by_language.setdefault(language.removesuffix("-en").removeprefix("en-"), {})
            row[name] = f"{entry['mean']:.1f}"
    cells = []
    for language, row in scores_by_language.items():
        cells.append([language, *(row.get(name, "") for name in names)])
    return markdown(["language", *names], cells)


def limits(record: Record) -> list[str]:
    """The languages that were evaluated, then the limits of the training text and of the model's type."""
    config = record.config
    lines = [_evaluated_languages(record)]
    texts = about(config["model_type"])
    if texts is None:
        return lines
    learned = metadata.learned_data(record)
    religious = [path for path in learned if re.search("bible", path, re.IGNORECASE)]
    if religious:
        share = "All" if len(religious) == len(learned) else "Part"
        style = "whose vocabulary and style it knows better than everyday text"
        lines.append(f"{share} of its training text is the Bible, {style}.")
    longest = config["max_position_embeddings"]
    if not config.get("backbone_config") and not config.get("positions_from_zero"):
        longest -= config["pad_token_id"] + 1  # positions begin behind the padding's
    sentences = texts["limits"]
    if not metadata.head_of(config):
        sentences = sentences | texts.get("limits_of_base", {})
    lines += [sentence.format(longest=longest) for sentence in sentences.values()]
    return lines


def _evaluated_languages(record: Record) -> str:
    """The languages with scores, and the languages of training without scores."""
    names = [name for content in record.results for name in content.languages]
    evaluated = dict.fromkeys(code for name in names for code in metadata.languages_in(name))
    if not evaluated:
        return "It has no recorded results."
    line = f"It was evaluated in {', '.join(evaluated)} only."
    unseen = [code for code in metadata.languages_of(record) if code not in evaluated]
    if unseen:
        line += f" It was also trained on {', '.join(unseen)}, but not evaluated there."
    return line


def licenses(record: Record) -> dict[str, str]:
    """The license of the weights, and a table of those of the data: as recipes name them, else a link."""
    learned = metadata.learned_data(record)
    tables = [table for corpus in record.run.get("corpora", []) for table in corpus["tables"]]
    evaluated = [table["path"] for table in tables if table["path"] not in learned]
    for content in record.results:
        evaluated += [table["path"] for table in content["protocol"]["evaluation_data"]]
    rows = []
    for path in dict.fromkeys([*learned, *evaluated]):
        uses = []
        if path in learned:
            uses.append("training")
        if path in evaluated:
            uses.append("evaluation")
        if hub_id(path):
            name = f"[{path}]({HUB}/datasets/{path})"
            license = record.licenses.get(path, "see its page")
        else:
            name = plain(metadata.plain_name(path))
            license = record.licenses.get(path, "not known")
        rows.append([name, ", ".join(uses), plain(license)])
    weights = f"Weights: {record.license or 'no license is named'}."
    return {"weights": weights, "data": markdown(["data", "used for", "license"], rows)}


def plain(text: str) -> str:
    """Text in one line that Markdown and HTML show unchanged: users choose the names of tasks and data."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def labeled(line: str) -> str:
    """A line of a protocol, `label: text`, with its label in bold."""
    label, colon, text = plain(line).partition(": ")
    return f"**{label}**{colon}{text}" if colon else label


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table without empty columns, with numbers on the right; empty without rows."""
    if not rows:
        return ""
    names = []
    filled_columns = []
    rules = []
    for name, *cells in zip(columns, *rows, strict=True):
        if any(cells):
            names.append(name)
            filled_columns.append(cells)
            rules.append("---:" if FIGURES.fullmatch("".join(cells)) else "---")
    filled_rows = [list(cells) for cells in zip(*filled_columns, strict=True)]
    head, _, *body = markdown_table((names, filled_rows))
    return "\n".join([head, f"| {' | '.join(rules)} |", *body])
