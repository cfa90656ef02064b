"""What the sections of a card say: scores, training, results, limits and licenses, from the record of a model."""

import re
from pathlib import Path
from typing import Any

from finetuning.page import FIGURE, is_at_chance, language_table, lines_of, markdown_table, score_table, warnings_of
from finetuning.results import Results, join_seeds, with_deviation
from finetuning.tasks.registry import KINDS
from hub_cards.about import about
from hub_cards.metadata import (
    FINE_TUNED,
    head_of,
    languages_in,
    languages_of,
    learned_corpora,
    learned_data,
    own_results,
    plain_name,
    pretrained_in,
    start_of,
    start_of_run,
    trained_in,
)
from hub_cards.record import HUB, RESULTS, Record, Result, hub_id
from pretraining.objectives import OBJECTIVES

DEMONSTRATION_PARAMETERS = 50_000_000  # below (the papers' smallest have 270), a checkpoint shows that the code runs
SETTINGS = {
    "zero_shot": "zero-shot: fine-tuned in {} only",
    "translate_train_all": "fine-tuned in {} and on translations",
    "supervised": "fine-tuned on its training data",
    "feature": "not fine-tuned",
}
SPECIAL = re.compile(r"[`*<~]|(?<![^\W_])_|_(?![^\W_])|\](?=\()")  # what would be formatting, a tag or a link
SAID = ("setting: feature", "layer: ", "seeds: ")  # of the protocol, by the table of scores too
AT_CHANCE, FOOTNOTE = "†", "a seed is at chance, or at 0, in a language: see the warnings"
LEFT_OUT = ("updates", "initialize", "generation")  # hyperparameters that the protocol of the results has too
Experiment = tuple[list[Result], Results]  # the results of one or more seeds, and what they are together


def description(config: dict[str, Any], parameters: int, record: Record) -> str:
    """What a pre-trained model is, or the base of a fine-tuned one: size, languages, method, start and shape."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    texts, path, languages = about(config["model_type"]), _start(record), pretrained_in(record)
    what = "A translation model" if head_of(config) == "ForConditionalGeneration" else "An encoder"
    of = f" for {len(languages)} language{'s' * bool(languages[1:])} ({', '.join(languages)})" if languages else ""
    method = f"[{texts['name'].partition(' (')[0]}]({HUB}/papers/{texts['arxiv']})" if texts else ""
    how = f"trained with {method}" if method else f"of the type `{config['model_type']}`"
    if steps := sum(phase["steps"] for phase in record.recipe.get("phases", [])):
        how += f" for {steps:,} steps"
    if path or record.recipe:
        how += f", starting from {_link(path) if path else 'random weights'}"
    shape = f"{layers} layer{'s' * (layers != 1)} of width {config['hidden_size']}, {heads} head{'s' * (heads != 1)}"
    if config.get("backbone_config"):
        shape += f", the architecture of {config['backbone_config']['model_type']}"
    sentence = f"{what} with {parameters:,} parameters{of}, {how}."
    return f"{sentence} It has {shape} and a vocabulary of {config['vocab_size']:,} tokens."


def task(config: dict[str, Any], record: Record) -> dict[str, Any]:
    """What a fine-tuned model does, and how it was fine-tuned; empty for another model."""
    head, own = head_of(config), own_results(record)
    if not head:
        return {}
    names = config.get("fine_tuned_on") or [content["task"] for content in own]
    lines = [f"Task: {FINE_TUNED[head].replace('-', ' ')}" + (f", fine-tuned on {', '.join(names)}" if names else "")]
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        lines.append(f"Labels: {', '.join(map(str, config.get('id2label', {}).values()))}")
    for content in own[:1]:
        lines.append(f"Trained in: {', '.join(trained_in(content))} ({content.protocol.training_rows:,} rows)")
        lines.append(f"Evaluated in: {', '.join(content.names)} ({_score(content)})")
    path = record.base_model or start_of(record)
    notes = [line for result in record.results if result.own for line in _fine_tuning(result)]
    return {"lines": list(map(plain, lines)), "base": _link(path) if path else "", "notes": notes}


def training(record: Record) -> dict[str, Any]:
    """How a model, or the base of a fine-tuned one, was trained: start, phases, data, and facts of the run; empty if
    unknown."""
    recipe, run, corpora = record.recipe, record.run, learned_corpora(record)
    if not recipe:
        return {}
    unread = [corpus["name"] for corpus in run.get("corpora", []) if corpus not in corpora]
    notes = [f"only for measurements during training: {', '.join(unread)}"] if unread else []
    if carried_over := _carried_over(recipe.get("model", {})):
        notes.append(f"taken from {Path(plain_name(start_of_run(record))).name}: {carried_over}")
    used = dict.fromkeys(name for phase in recipe.get("phases", []) for name in phase["objectives"])
    return {
        "objectives": [
            f"**{name}**: {OBJECTIVES[name].__doc__.partition(';')[0].splitlines()[0].rstrip('.')}" for name in used
        ],
        "phases": markdown(["phase", "steps", "objectives (examples per step)", "learning rate"], _phases(recipe)),
        "corpora": markdown(["corpus", "languages", "source", "examples", "sha256"], list(map(_corpus, corpora))),
        "notes": notes + _facts(recipe, run),
        "curves": record.curves,
    }


def _start(record: Record) -> str:
    """What the pre-training started from; empty for random weights and unknown starts."""
    return start_of_run(record) if own_results(record) else record.base_model or start_of_run(record)


def _link(path: str) -> str:
    """A model of the Hub, or the name of a folder."""
    return f"[{path}]({HUB}/{path})" if hub_id(path) else f"`{Path(plain_name(path)).name}`"


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
    return f"{parts}, rows of embeddings: {start['rows']}{dictionaries}"


def _phases(recipe: dict[str, Any]) -> list[list[str]]:
    rows = []
    for phase in recipe.get("phases", []):
        sizes = {name: objective.get("batch_size") for name, objective in phase["objectives"].items()}
        objectives = [f"{name} ({size:,})" if size else name for name, size in sizes.items()]  # dwa: the rows of tlm
        only = (
            []
            if phase.get("trainable", ["*"]) == ["*"]
            else [f"trains only {', '.join(f'`{name}`' for name in phase['trainable'])}"]
        )
        only += ["the layers are frozen"] if phase.get("freeze_body") else []
        rate = "continues the previous schedule"
        if phase["learning_rate"] is not None:
            rate = f"{phase['learning_rate']:g}, {phase['schedule']}, {phase['warmup_steps']:,} warm-up steps"
        rows.append([phase["name"], f"{phase['steps']:,}", "; ".join([", ".join(objectives), *only]), rate])
    return rows


def _corpus(corpus: dict[str, Any]) -> list[str]:
    sources = [" ".join(filter(None, (plain_name(t["path"]), t.get("config"), t["split"]))) for t in corpus["tables"]]
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
    """Arithmetic, seed, time, hardware and versions of the pre-training run, as far as they are recorded."""
    facts = []
    if recipe:
        seed = f"settings: precision {recipe['precision']}, seed {recipe['seed']}"
        facts.append(f"{seed}, exponent of language sampling (alpha) {recipe['alpha']}")
    sessions = run.get("sessions", [])
    seconds = [session["seconds"] for session in sessions if session.get("seconds") is not None]
    if seconds:
        known = "" if len(seconds) == len(sessions) else "at least "
        parts = f" in {len(sessions)} sessions" if sessions[1:] else ""
        facts.append(f"time: {known}{duration(sum(seconds))}{parts}")
    facts += dict.fromkeys(f"hardware: {_hardware(session['hardware'])}" for session in sessions)
    facts += dict.fromkeys(
        "software: torch {torch}, transformers {transformers}".format(**session["versions"]) for session in sessions
    )
    for session in sessions[-1:]:
        if session["git"]:
            changed = " with uncommitted changes" if session["git"]["dirty"] else ""
            facts.append(f"code: commit {session['git']['commit'][:12]}{changed}")
    return facts


def _hardware(hardware: dict[str, Any]) -> str:
    cores = f"{hardware['cores']} core{'s' * (hardware['cores'] != 1)} of {hardware['cpu']}"
    devices = ", ".join(gpu["name"] for gpu in hardware["gpus"]) or cores
    return devices + (f"; {hardware['processes']} processes" if hardware["processes"] > 1 else "")


def duration(seconds: float) -> str:
    """`2 h 5 min`, `15 min 39 s`, `12 s`: the two largest units."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), 2)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number or first == 2)


def _fine_tuning(result: Result) -> list[str]:
    """Hyperparameters of the run that fine-tuned the model, and what its scores are of."""
    content = result.content
    shown = [
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in content["hyperparameters"].items()
        if value and name not in LEFT_OUT and not isinstance(value, (list, dict))
    ]
    lines = [plain(f"{content['task']}, {content.setting}: {', '.join(shown)}")]
    if content["seeds"][1:]:
        seeds = ", ".join(map(str, content["seeds"]))
        of = "one seed" if result.seed is None else f"seed {result.seed}"
        lines.append(f"these weights are of {of}, and the scores are means over seeds {seeds}")
    return lines


def results(experiments: list[Experiment]) -> list[dict[str, Any]]:
    """What a card shows of each experiment: title, score, table with published scores, protocol, warnings, plots."""
    return [
        {
            "title": _title(content),
            "score": _score(content),
            "table": markdown(*score_table(content)),
            "protocol": [line for line in lines_of(content, with_model=False) if not line.startswith(SAID)],
            "warnings": warnings_of(content),
            "figures": [path for result in group for path in result.figures],
            "files": [f"{RESULTS}/{result.name}.json" for result in group],
        }
        for group, content in experiments
    ]


def _title(content: Results) -> str:
    return f"{content['task']}, {content.setting.replace('_', '-')}".removesuffix(", feature")


def _score(content: Results) -> str:
    """The main score in a line: its mean over languages."""
    metric, several = content.protocol.metric, len(content.names)
    of = ("" if content.is_higher_better else " (lower is better)") + (f", mean of {several}" if several > 1 else "")
    return f"{metric.name} {with_deviation(content.average)}{of}"


def scores(experiments: list[Experiment]) -> dict[str, Any]:
    """The main score of each task in a table, what a reader must know of it, and the scores by language in another
    table; empty without results."""
    if not experiments:
        return {}
    tasks, rows, layers = {}, [], {}
    for group, content in experiments:
        name, protocol = group[0].name, content.protocol
        tasks[name + " (lower is better)" * (not content.is_higher_better)] = content
        source = content.get("source_language")
        setting = SETTINGS[content["setting"]].format(source)
        rows.append(
            [
                name,
                f"{KINDS[content['kind']].recipe_class.measures}; {setting}"
                + (", plug-in" if protocol.plug_in else ""),
                f"{content.metric} {with_deviation(content.average)}{AT_CHANCE * is_at_chance(content)}",
                "higher" if content.is_higher_better else "lower",
                f"{len(content.names)}, {source} included" if source in content.names else str(len(content.names)),
                f"{sum(protocol.evaluated_rows.values()):,}",
                str(len(content["seeds"])),
            ]
        )
        if protocol.layer is not None:
            layer = f"layer {protocol.layer} of {protocol.depth} ({protocol.selection.rule}), not chosen on these data"
            rule = f" (links by `{protocol.method}`)" if content["kind"] == "word_alignment" else ""
            layers.setdefault(layer, []).append(f"`{name}`{rule}")
    columns = ["task", "what it measures", "score (%)", "better", "languages", "rows", "seeds"]
    notes = [f"{', '.join(names)}: {layer}" for layer, names in layers.items()]
    return {
        "tasks": markdown(columns, rows),
        "notes": [*notes, *([f"{AT_CHANCE} {FOOTNOTE}"] if any(AT_CHANCE in row[2] for row in rows) else [])],
        "languages": markdown(*language_table(tasks)) if any(len(c.names) > 1 for _, c in experiments) else "",
    }


def experiments_of(record: Record) -> list[Experiment]:
    """The results by experiment: results that differ only in their seeds are parts of one."""
    groups: list[list[Result]] = []
    for result in record.results:
        for group in groups:
            if _is_seed_of(result, group):
                group.append(result)
                break
        else:
            groups.append([result])
    return [(group, join_seeds(group[0].name, [result.shown for result in group])) for group in groups]


def _is_seed_of(result: Result, group: list[Result]) -> bool:
    contents = [other.content for other in [*group, result]]
    alike = {(c["kind"], c["task"], c.setting, tuple(c.names), result.own) for c in contents}
    if len(alike) > 1:
        return False
    try:
        join_seeds(result.name, contents)
    except ValueError:
        return False
    return True


def limits(record: Record, experiments: list[Experiment], known: list[str]) -> list[str]:
    """Tasks at chance and languages evaluated, then the `known` limits of the model's type."""
    lines = []
    contents = [content for _, content in experiments]
    poor = [_title(content) for content in contents if is_at_chance(content)]
    if poor:
        lines.append(
            f"In at least one language, its scores are no better than guessing, or 0: {plain('; '.join(poor))}. The "
            "warnings there name the languages. Do not use the model for these tasks."
        )
    names = [name for content in contents for name in content.languages]
    evaluated = dict.fromkeys(code for name in names for code in languages_in(name))
    if evaluated:
        unseen = [code for code in languages_of(record) if code not in evaluated]
        also = f" It was also trained on {', '.join(unseen)}, but not evaluated there." if unseen else ""
        lines.append(f"It was evaluated in {', '.join(evaluated)} only.{also}")
    else:
        lines.append("It has no recorded results.")
    return [*lines, *known]


def licenses(record: Record) -> dict[str, str]:
    """The license of the weights, and a table of those of the data: as recipes name them, else a link."""
    learned = learned_data(record)
    measured = [
        t["path"] for corpus in record.run.get("corpora", []) for t in corpus["tables"] if t["path"] not in learned
    ]
    measured += [t["path"] for result in record.results for t in result.content.protocol.evaluation_data]
    rows = []
    for path in dict.fromkeys([*learned, *measured]):
        name = f"[{path}]({HUB}/datasets/{path})" if hub_id(path) else plain(plain_name(path))
        uses = [use for use, paths in (("training", learned), ("evaluation", measured)) if path in paths]
        rows.append(
            [name, ", ".join(uses), plain(record.licenses.get(path, "see its page" if hub_id(path) else "not known"))]
        )
    stated = record.license
    weights = f"Weights: {stated['id']}." if stated else "Weights: no license is named."
    if stated.get("link"):
        weights = f"Weights: [{plain(stated['name'])}]({stated['link']})."
    data = markdown(["data", "used for", "license"], rows)
    return {"weights": weights, "data": data} if stated or data else {}


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
    is_figures = [all(FIGURE.fullmatch(cell) for cell in column) for column in zip(*cells, strict=True)]
    rule = "| " + " | ".join("---:" if figures else "---" for figures in is_figures) + " |"
    return "\n".join([head, rule, *body])
