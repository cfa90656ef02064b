"""What the sections of a card say: scores, training, results, limits and licenses, from the record of a model."""

import functools
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from crosslingual_zoo.finetuning.facts import setting_in_words, training_in_words
from crosslingual_zoo.finetuning.page import markdown_table, score_table, warnings_of
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
SPECIAL = re.compile(r"[\\`*<~|]|(?<![^\W_])_|_(?![^\W_])|\](?=\()")  # what would be formatting, a tag or a link
SAID = ("setting: not fine-tuned", "layer: ")  # of the protocol, by the table of scores too
FEW_ROWS = 200  # below, chance alone moves an accuracy by 7 points or more


@functools.cache
def about(model_type: str) -> dict[str, Any] | None:
    """What every card of a model type says, from templates/about: method, claims, when to use it, limits, citation.

    A claim names two rows of a published table, and a test checks it there. None for a type that is not of this zoo.
    """
    file = ABOUT / f"{model_type}.yaml"
    if not file.is_file():
        return None
    texts = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(ABOUT / "_shared.yaml"), OmegaConf.load(file)))
    return texts | {"alternatives": [other for other in texts["alternatives"].values() if other]}  # null: not of it


def description(record: Record) -> str:
    """What a pre-trained model is, or the base of a fine-tuned one: size, languages, method, start and shape."""
    config, languages = record.config, metadata.pretrained_in(record)
    layers, heads, texts = config["num_hidden_layers"], config["num_attention_heads"], about(config["model_type"])
    path = metadata.start_of_run(record) if record.own else record.base_model or metadata.start_of_run(record)
    what = "A translation model" if metadata.head_of(config) == "ForConditionalGeneration" else "An encoder"
    of = f" for {len(languages)} language{'s' * bool(languages[1:])} ({', '.join(languages)})" if languages else ""
    method = f"[{texts['name'].partition(' (')[0]}]({HUB}/papers/{texts['arxiv']})" if texts else ""
    how = f"trained with {method}" if method else f"of the type `{config['model_type']}`"
    if steps := sum(phase["steps"] for phase in record.recipe.get("phases", [])):
        how += f" for {steps:,} steps"
    if path or record.recipe:
        note = f" ({plain(record.base_note)})" if record.base_note and not record.own else ""
        how += f", starting from {_link(path) + note if path else 'random weights'}"
    shape = f"{layers} layer{'s' * (layers != 1)} of width {config['hidden_size']}, {heads} head{'s' * (heads != 1)}"
    if config.get("backbone_config"):
        shape += f", the architecture of {config['backbone_config']['model_type']}"
    sentence = f"{what} with {record.parameters:,} parameters{of}, {how}."
    return f"{sentence} It has {shape} and a vocabulary of {config['vocab_size']:,} tokens."


def task(record: Record) -> dict[str, Any]:
    """What a fine-tuned model does, and how it was fine-tuned; empty for another model."""
    config, head = record.config, metadata.head_of(record.config)
    if not head:
        return {}
    names = config.get("fine_tuned_on") or [content["task"] for content in record.own]
    lines = [
        f"Task: {metadata.FINE_TUNED[head].replace('-', ' ')}"
        + (f", fine-tuned on {', '.join(map(_in_words, names))}" if names else "")
    ]
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        lines.append(f"Labels: {', '.join(map(str, config.get('id2label', {}).values()))}")
    for own in record.own:
        lines.append(f"Trained in: {', '.join(metadata.trained_in(own))} ({own['protocol']['training_rows']:,} rows)")
        lines.append(f"Evaluated in: {', '.join(own.names)} ({_score(own)})")
    path = record.base_model or metadata.start_of(record)
    base = _link(path) + (f" ({plain(record.base_note)})" if record.base_note else "") if path else ""
    notes = [line for content in record.own for line in _fine_tuning(content, record.seed)]
    return {"lines": list(map(plain, lines)), "base": base, "notes": notes}


def poor(record: Record) -> list[str]:
    """What a reader must know before anything else: too small, masked words not learned, scores at chance or unsure."""
    lines = []
    if record.parameters < DEMONSTRATION_PARAMETERS:
        lines.append("This small model only demonstrates that the code runs. It is not meant for use.")
    losses = {} if metadata.head_of(record.config) else metadata.masked_losses(record)
    unlearned = [f"{name} {of[0]:.2f} ({of[1]:.2f})" for name, of in losses.items() if of[0] > of[1]]
    if unlearned:
        lines.append(
            "It has not learned to predict masked words: its loss on held-out text, in nats, is above the entropy of "
            f"single tokens (in brackets) in {plain(', '.join(unlearned))}."
        )
    if at_chance := [_title(content) for content in map(metadata.reported, record.results) if content.at_chance()]:
        lines.append(
            f"In at least one language, its scores are no better than guessing, or 0: {plain('; '.join(at_chance))}. "
            "The warnings there name the languages. Do not use the model for these tasks."
        )
    if unsure := list(filter(None, map(_unsure, record.results))):
        lines.append(f"Another seed or other rows may change these scores by some points: {plain('; '.join(unsure))}.")
    return lines


def _unsure(content: Results) -> str:
    """Why chance may have moved a task's scores: one seed of training, few rows; empty if neither."""
    reasons = []
    if KINDS[content["kind"]].is_trained and len(content["seeds"]) == 1:
        reasons.append("one seed")
    counts = sorted(content["protocol"]["evaluated_rows"].values())
    if counts[0] < FEW_ROWS:
        most = f" to {counts[-1]}" if counts[-1] != counts[0] else ""
        each = " in each language" if counts[1:] else ""
        reasons.append(f"only {counts[0]:,}{most} rows{each}")
    return f"{content['task']} ({', '.join(reasons)})" if reasons else ""


def _in_words(tuned_on: str) -> str:
    """`xnli (zero-shot)`: a task and its setting, as configurations name them."""
    name, bracket, setting = tuned_on.rpartition(" (")
    return f"{name}{bracket}{setting_in_words(setting)}" if bracket else tuned_on


def training(record: Record) -> dict[str, Any]:
    """How a model, or the base of a fine-tuned one, was trained: start, phases, data, and facts of the run; empty if
    unknown."""
    recipe, run, corpora = record.recipe, record.run, metadata.learned_corpora(record)
    if not recipe:
        return {}
    unread = [corpus["name"] for corpus in run.get("corpora", []) if corpus not in corpora]
    notes = [f"only for measurements during training: {', '.join(unread)}"] if unread else []
    if carried_over := _carried_over(recipe.get("model", {})):
        notes.append(f"taken from {Path(metadata.plain_name(metadata.start_of_run(record))).name}: {carried_over}")
    used = dict.fromkeys(name for phase in recipe.get("phases", []) for name in phase["objectives"])
    return {
        "objectives": [
            f"**{name}**: {OBJECTIVES[name].__doc__.partition(';')[0].splitlines()[0].rstrip('.')}" for name in used
        ],
        "phases": markdown(["phase", "steps", "objectives (examples per step)", "learning rate"], _phases(recipe)),
        "corpora": markdown(["corpus", "languages", "source", "examples", "sha256"], list(map(_corpus, corpora))),
        "notes": notes + _facts(recipe, run),
    }


def _link(path: str) -> str:
    """A model of the Hub, or the name of the run that left it in a folder."""
    return f"[{path}]({HUB}/{path})" if hub_id(path) else f"`{run_name(path)}`"


def _carried_over(model: dict[str, Any]) -> str:
    """What a model with its own vocabulary took over from another model; empty for other starts."""
    start = model.get("meta_pretrained")
    if not start or start["initialize"] == "none":
        return ""
    parts = {"both": "layers and embeddings", "body": "layers", "embeddings": "embeddings"}[start["initialize"]]
    if start["initialize"] == "body":
        return parts
    languages = list(dict.fromkeys(dictionary["language"] for dictionary in start["dictionaries"]))
    dictionaries = f", with dictionaries of {', '.join(languages)}" if languages else ""
    return f"{parts}{dictionaries}"


def _phases(recipe: dict[str, Any]) -> list[list[str]]:
    rows = []
    for phase in recipe.get("phases", []):
        sizes = {name: objective.get("batch_size") for name, objective in phase["objectives"].items()}
        objectives = [f"{name} ({size:,})" if size else name for name, size in sizes.items()]  # dwa: the rows of tlm
        trainable = phase.get("trainable", ["*"])
        only = [f"trains only {', '.join(f'`{name}`' for name in trainable)}"] if trainable != ["*"] else []
        only += ["the layers are frozen"] if phase.get("freeze_body") else []
        rate = "continues the previous schedule"
        if phase["learning_rate"] is not None:
            rate = f"{phase['learning_rate']:g}, {phase['schedule']}, {phase['warmup_steps']:,} warm-up steps"
        rows.append([phase["name"], f"{phase['steps']:,}", "; ".join([", ".join(objectives), *only]), rate])
    return rows


def _corpus(corpus: dict[str, Any]) -> list[str]:
    sources = [
        " ".join(filter(None, (metadata.plain_name(t["path"]), t.get("config"), t["split"]))) for t in corpus["tables"]
    ]
    size = f"{corpus['size']:,}" if isinstance(corpus.get("size"), int) else ""
    prints = [table.get("fingerprint", "").rpartition(":")[2][:12] for table in corpus["tables"]]
    return [
        corpus["name"],
        ", ".join(corpus["languages"]),
        "; ".join(dict.fromkeys(sources)),
        size,
        ", ".join(dict.fromkeys(f"`{found}`" for found in prints if found)),
    ]


def _facts(recipe: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """Precision, seed, time, hardware and versions of the pre-training run, as far as they are recorded."""
    seed = f"settings: precision {recipe['precision']}, seed {recipe['seed']}"
    facts = [f"{seed}, exponent of language sampling (alpha) {recipe['alpha']}"]
    sessions = run.get("sessions", [])
    seconds = [session["seconds"] for session in sessions if session.get("seconds") is not None]
    if seconds:
        known = "" if len(seconds) == len(sessions) else "at least "
        parts = f" in {len(sessions)} sessions" if sessions[1:] else ""
        facts.append(f"time: {known}{timedelta(seconds=round(sum(seconds)))} (h:min:s){parts}")
    facts += dict.fromkeys(f"hardware: {_hardware(session['hardware'])}" for session in sessions)
    software = "software: torch {torch}, transformers {transformers}"
    facts += dict.fromkeys(software.format(**session["versions"]) for session in sessions)
    if sessions and (git := sessions[-1]["git"]):
        facts.append(f"code: commit {git['commit'][:12]}{' with uncommitted changes' if git['dirty'] else ''}")
    return facts


def _hardware(hardware: dict[str, Any]) -> str:
    cores = f"{hardware['cores']} cores of {hardware['cpu']}"
    devices = ", ".join(gpu["name"] for gpu in hardware["gpus"]) or cores
    return devices + (f"; {hardware['processes']} processes" if hardware["processes"] > 1 else "")


def _fine_tuning(content: Results, seed: str | None) -> list[str]:
    """Hyperparameters of the run that fine-tuned the model, and what its scores are of."""
    setting = setting_in_words(content.setting)
    lines = [plain(f"{content['task']}, {setting}: {training_in_words(content['hyperparameters'])}")]
    if content["seeds"][1:]:
        seeds = ", ".join(map(str, content["seeds"]))
        lines.append(f"these weights are of seed {seed}, and the scores are means over seeds {seeds}")
    return lines


def results(contents: list[Results]) -> list[dict[str, Any]]:
    """What a card shows of each task: title, score, table with published scores, protocol, warnings."""
    return [
        {
            "title": _title(content),
            "score": _score(content),
            "table": markdown(*score_table(content)),
            "protocol": [line for line in content["lines"] if not line.startswith(SAID)],
            "warnings": warnings_of(content),
        }
        for content in contents
    ]


def _title(content: Results) -> str:
    return f"{content['task']}, {setting_in_words(content.setting)}".removesuffix(", feature")


def _score(content: Results) -> str:
    """The main score in a line: its mean over languages."""
    of = "" if content.is_higher_better else " (lower is better)"
    of += f", mean of {len(content.names)}" if content.names[1:] else ""
    return f"{content.metric} {with_deviation(content.average)}{of}"


def scores(contents: list[Results]) -> dict[str, Any]:
    """The main score of each task in a table, what a reader must know of it, and the scores by language in another
    table; empty without results."""
    rows, layers = [], {}
    by_language: dict[str, dict[str, str]] = {}
    names: list[str] = []
    for content in contents:
        protocol, source = content["protocol"], content.get("source_language")
        name = content["task"] + " (lower is better)" * (not content.is_higher_better)
        names.append(name if name not in names else f"{name}, {len(names) + 1}")
        setting = SETTINGS[content["setting"]].format(source) + (", plug-in" if protocol.get("plug_in") else "")
        mark = "†" * bool(content.at_chance())
        rows.append(
            [
                content["task"],
                f"{KINDS[content['kind']].measures}; {setting}",
                f"{content.metric} {with_deviation(content.average)}{mark}",
                "higher" if content.is_higher_better else "lower",
                f"{len(content.names)}, {source} included" if source in content.names else str(len(content.names)),
                f"{sum(protocol['evaluated_rows'].values()):,}",
                str(len(content["seeds"])),
            ]
        )
        if "layer" in protocol:
            layer = "layer {layer} of {depth} ({selection[rule]}), not chosen on these data".format(**protocol)
            rule = f" (links by `{protocol['method']}`)" if content["kind"] == "word_alignment" else ""
            layers.setdefault(layer, []).append(f"`{content['task']}`{rule}")
        for language, entry in content.languages.items():  # a pair with English counts as its other language
            cells = by_language.setdefault(language.removesuffix("-en").removeprefix("en-"), {})
            cells[names[-1]] = f"{entry['mean']:.1f}"
    notes = [f"{', '.join(tasks)}: {layer}" for layer, tasks in layers.items()]
    notes += ["† a seed is at chance, or at 0, in a language: see the warnings"] * any(c.at_chance() for c in contents)
    notes += ["Scores are means over seeds ± standard deviation."] * any(c["seeds"][1:] for c in contents)
    columns = ["task", "what it measures", "score (%)", "better", "languages", "rows", "seeds"]
    cells = [[language, *(of.get(name, "") for name in names)] for language, of in by_language.items()]
    several = any(content.names[1:] for content in contents)
    return {
        "tasks": markdown(columns, rows),
        "notes": notes,
        "languages": markdown(["language", *names], cells) if several else "",
    }


def limits(record: Record) -> list[str]:
    """The languages that were evaluated, then the limits of the training text and of the model's type."""
    config, learned = record.config, metadata.learned_data(record)
    names = [name for content in record.results for name in content.languages]
    evaluated = dict.fromkeys(code for name in names for code in metadata.languages_in(name))
    lines = ["It has no recorded results."]
    if evaluated:
        unseen = [code for code in metadata.languages_of(record) if code not in evaluated]
        also = f" It was also trained on {', '.join(unseen)}, but not evaluated there." if unseen else ""
        lines = [f"It was evaluated in {', '.join(evaluated)} only.{also}"]
    if (texts := about(config["model_type"])) is None:
        return lines
    if religious := [path for path in learned if re.search("bible", path, re.IGNORECASE)]:
        much = "All" if len(religious) == len(learned) else "Part"
        style = "whose vocabulary and style it knows better than everyday text"
        lines.append(f"{much} of its training text is the Bible, {style}.")
    from_zero = config.get("backbone_config") or config.get("positions_from_zero")  # else from behind the padding's
    longest = config["max_position_embeddings"] - (0 if from_zero else config["pad_token_id"] + 1)
    limits = texts["limits"] | ({} if metadata.head_of(config) else texts.get("limits_of_base", {}))
    return [*lines, *(limit.format(longest=longest) for limit in limits.values())]


def licenses(record: Record) -> dict[str, str]:
    """The license of the weights, and a table of those of the data: as recipes name them, else a link."""
    learned = metadata.learned_data(record)
    measured = [
        t["path"] for corpus in record.run.get("corpora", []) for t in corpus["tables"] if t["path"] not in learned
    ]
    measured += [t["path"] for content in record.results for t in content["protocol"]["evaluation_data"]]
    rows = []
    for path in dict.fromkeys([*learned, *measured]):
        name = f"[{path}]({HUB}/datasets/{path})" if hub_id(path) else plain(metadata.plain_name(path))
        uses = [use for use, paths in (("training", learned), ("evaluation", measured)) if path in paths]
        known = record.licenses.get(path, "see its page" if hub_id(path) else "not known")
        rows.append([name, ", ".join(uses), plain(known)])
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
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    names, *cells = [[row[place] for place in kept] for row in (columns, *rows)]
    head, _, *body = markdown_table((names, cells))
    is_figures = [re.fullmatch(r"[*\s\d.,±+/%†()x-]*", "".join(column)) for column in zip(*cells, strict=True)]
    rule = "| " + " | ".join("---:" if figures else "---" for figures in is_figures) + " |"
    return "\n".join([head, rule, *body])
