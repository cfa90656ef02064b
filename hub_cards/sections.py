"""What the sections of a card say: training, results, limits and licenses, from the record of a model."""

import re
from pathlib import Path
from typing import Any

from finetuning.experiments import benchmark
from finetuning.results.differences import join_seeds
from finetuning.results.files import FIGURE, markdown_table
from finetuning.results.table import Results, with_deviation
from finetuning.tasks.registry import report_of
from hub_cards.licenses import HUB, hub_id
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
from hub_cards.record import RESULTS, Record, Result

DEMONSTRATION_PARAMETERS = 50_000_000  # below (the papers' smallest have 270), a checkpoint shows that the code runs
MANY_TASKS = 3  # of more, the tables of each are folded; of as many, one table shows all
SPECIAL = re.compile(r"[`*<~]|(?<![^\W_])_|_(?![^\W_])|\](?=\()")  # what would be formatting, a tag or a link
LEFT_OUT = ("updates", "initialize", "generation")  # hyperparameters that the protocol of the results has too
Experiment = tuple[list[Result], Results]  # the results of one or more seeds, and what they are together


def one_line(config: dict[str, Any], parameters: int, record: Record) -> str:
    """Type, shape, size and languages of a pre-trained model, or of the base of a fine-tuned one."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    shape = f"{layers} layer{'s' * (layers != 1)} of {config['hidden_size']}, {heads} head{'s' * (heads != 1)}"
    languages = pretrained_in(record)
    of = f", {len(languages)} language{'s' * bool(languages[1:])} ({', '.join(languages)})" if languages else ""
    encoder = f", of {config['backbone_config']['model_type']}'s architecture" if config.get("backbone_config") else ""
    return (
        f"`{config['model_type']}`{encoder}: {shape}, {config['vocab_size']:,} tokens, {parameters:,} parameters{of}."
    )


def task(config: dict[str, Any], record: Record) -> dict[str, Any]:
    """What a fine-tuned model does, and how it was made to; empty for a model that was not fine-tuned."""
    head, own = head_of(config), own_results(record)
    if not head:
        return {}
    names = config.get("fine_tuned_on") or [content["task"] for content in own]
    lines = [f"Task: {FINE_TUNED[head].replace('-', ' ')}" + (f", fine-tuned on {', '.join(names)}" if names else "")]
    if head in ("ForSequenceClassification", "ForTokenClassification"):
        lines.append(f"Labels: {', '.join(map(str, config.get('id2label', {}).values()))}")
    for content in own[:1]:
        lines.append(f"Trained in: {', '.join(trained_in(content))} ({content.protocol.training_rows:,} rows)")
        lines.append(f"Scored in: {', '.join(content.names)} ({_score(content)})")
    path = record.base_model or start_of(record)
    notes = [line for result in record.results if result.own for line in _fine_tuning(result)]
    return {"lines": list(map(plain, lines)), "base": _link(path) if path else "", "notes": notes}


def training(record: Record) -> dict[str, Any]:
    """How a model, or the base of a fine-tuned one, came about: what it started from, phases, data, and facts of the
    run; empty if unknown."""
    recipe, run, corpora = record.recipe, record.run, learned_corpora(record)
    is_of_base = bool(own_results(record))
    if not recipe and (is_of_base or not record.base_model):
        return {}
    path = start_of_run(record) if is_of_base else record.base_model or start_of_run(record)
    unread = [corpus["name"] for corpus in run.get("corpora", []) if corpus not in corpora]
    notes = [f"measured on, not learned from: {', '.join(unread)}"] if unread else []
    carried_over = _carried_over(recipe.get("model", {}))
    start = f"Started from {_link(path)}" + (f" ({carried_over})." if carried_over else ".")
    return {
        "start": start if path else "Started from random weights.",
        "phases": markdown(["phase", "steps", "objectives (examples per step)", "learning rate"], _phases(recipe)),
        "corpora": markdown(["corpus", "languages", "source", "examples", "sha256"], list(map(_corpus, corpora))),
        "notes": notes + _facts(recipe, run),
        "curves": record.curves,
    }


def _link(path: str) -> str:
    """A model of the Hub, or the name of a folder."""
    return f"[{path}]({HUB}/{path})" if hub_id(path) else f"`{Path(plain_name(path)).name}`"


def _carried_over(model: dict[str, Any]) -> str:
    """What a model with a vocabulary of its own took over from another's; empty for other starts."""
    start = model.get("meta_pretrained")
    if not start or start["initialize"] == "none":
        return ""
    parts = {"both": "body and embeddings", "body": "body", "embeddings": "embeddings"}[start["initialize"]]
    if start["initialize"] == "body":
        return parts
    languages = list(dict.fromkeys(dictionary["language"] for dictionary in start["dictionaries"]))
    return f"{parts}, rows {start['rows']}" + (f", with dictionaries of {', '.join(languages)}" if languages else "")


def _phases(recipe: dict[str, Any]) -> list[list[str]]:
    rows = []
    for phase in recipe.get("phases", []):
        sizes = {name: objective.get("batch_size") for name, objective in phase["objectives"].items()}
        objectives = [f"{name} ({size:,})" if size else name for name, size in sizes.items()]  # dwa: the rows of tlm
        only = [] if phase.get("trainable", ["*"]) == ["*"] else [f"only {', '.join(phase['trainable'])} learn"]
        only += ["the body is frozen"] if phase.get("freeze_body") else []
        rate = "goes on in the schedule before"  # a carried phase has none of its own
        if phase["learning_rate"] is not None:
            rate = f"{phase['learning_rate']:g}, {phase['schedule']}, {phase['warmup_steps']:,} warm-up"
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
        seed = f"precision {recipe['precision']}, seed {recipe['seed']}"
        facts.append(f"{seed}, language sampling alpha {recipe['alpha']}")
    sessions = run.get("sessions", [])
    seconds = [session["seconds"] for session in sessions if session.get("seconds") is not None]
    if seconds:
        known = "" if len(seconds) == len(sessions) else "at least "
        parts = f" in {len(sessions)} sessions" if sessions[1:] else ""
        facts.append(f"time: {known}{duration(sum(seconds))}{parts}")
    facts += dict.fromkeys(f"hardware: {_hardware(session['hardware'])}" for session in sessions)
    facts += dict.fromkeys(
        "torch {torch}, transformers {transformers}".format(**session["versions"]) for session in sessions
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
        lines.append(f"these weights are of {of}; the scores above are means over seeds {seeds}")
    return lines


def results(experiments: list[Experiment]) -> list[dict[str, Any]]:
    """What a card shows of each experiment: title, score, table with published figures, protocol, warnings, plots."""
    return [
        {
            "title": f"{content['task']}, {content.setting}",
            "score": _score(content),
            "table": markdown(*report_of(content).table()),
            "protocol": report_of(content).protocol_lines(with_model=False),
            "warnings": content["warnings"],
            "figures": [path for result in group for path in result.figures],
            "files": [f"{RESULTS}/{result.name}.json" for result in group],
        }
        for group, content in experiments
    ]


def _score(content: Results) -> str:
    """The main score in a line: its mean over languages."""
    metric, several = content.protocol.metric, len(content.names)
    of = ("" if metric.greater_is_better else " (lower is better)") + (f", mean of {several}" if several > 1 else "")
    return f"{metric.name} {with_deviation(content.average)}{of}"


def overview(experiments: list[Experiment]) -> dict[str, Any]:
    """All tasks in one table, and their scores by language in another; empty for few of them."""
    if len(experiments) < MANY_TASKS:
        return {}
    tasks = {group[0].name: _of_task(content) for group, content in experiments}
    columns, rows = benchmark.task_table(tasks)
    for row, task in zip(rows, tasks.values(), strict=True):
        row[1] += "".join(task["marks"])
    metrics = [content.protocol.metric for _, content in experiments]
    lower = [f"{metric.name}: lower is better" for metric in metrics if not metric.greater_is_better]
    return {
        "tasks": markdown(columns, rows),
        "notes": [*dict.fromkeys(lower), *benchmark.footnotes((columns, rows))],
        "languages": markdown(*benchmark.language_table(tasks)),
    }


def _of_task(content: Results) -> dict[str, Any]:
    return benchmark.of_task({"name": content["task"], "scores": []}, content)


def experiments_of(record: Record) -> list[Experiment]:
    """The results by experiment: those that differ in their seeds alone are one, which was run in parts."""
    groups: list[list[Result]] = []
    for result in record.results:
        for group in groups:
            if _is_seed_of(result, group):
                group.append(result)
                break
        else:
            groups.append([result])
    return [(group, join_seeds(group[0].name, [result.content for result in group])) for group in groups]


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
    """Tasks at chance and languages evaluated, then what is `known` of the model's type."""
    lines = []
    contents = [content for _, content in experiments]
    poor = [
        f"{content['task']}, {content.setting}"
        for content in contents
        if benchmark.AT_CHANCE in _of_task(content)["marks"]
    ]
    if poor:
        lines.append(
            f"At chance, or at 0, in at least one language: {plain('; '.join(poor))}. The warnings there say in which. "
            "Do not use the model for that."
        )
    names = [name for content in contents for name in content.languages]
    evaluated = dict.fromkeys(code for name in names for code in languages_in(name))
    if evaluated:
        unseen = [code for code in languages_of(record) if code not in evaluated]
        also = f", not even of {', '.join(unseen)}, which it was trained on" if unseen else ""
        lines.append(f"Evaluated in {', '.join(evaluated)} only; nothing is known of other languages{also}.")
    else:
        lines.append("No results are recorded for this checkpoint.")
    return [*lines, *known]


def licenses(record: Record) -> dict[str, str]:
    """The license of the weights, and a table of those of the data, as far as they are known."""
    learned = set(learned_data(record))
    evaluated = {t["path"] for result in record.results for t in result.content.protocol.evaluation_data}
    evaluated |= {t["path"] for corpus in record.run.get("corpora", []) for t in corpus["tables"]} - learned
    rows = []
    for path, license in record.licenses.items():
        name = f"[{path}]({license['url']})" if license["url"] else plain(plain_name(path))
        uses = [use for use, paths in (("training", learned), ("evaluation", evaluated)) if path in paths]
        known = " ".join(filter(None, (license["id"], license["name"]))) or f"not known: {license['note']}"
        rows += [[name, ", ".join(uses), plain(known)]] if uses else []
    stated = record.license
    weights = f"Weights: {stated['id']}." if stated else "Weights: no license is named."
    if stated.get("link"):
        weights = f"Weights: [{plain(stated['name'])}]({stated['link']})."
    data = markdown(["data", "used for", "license"], rows)
    return {"weights": weights, "data": data} if stated or data else {}


def plain(text: str) -> str:
    """Text in one line that Markdown and HTML show as it is: tasks and data have names of their owners' choice."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table without empty columns, those of figures to the right; empty without rows."""
    if not rows:
        return ""
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    names, *cells = [[row[place] for place in kept] for row in (columns, *rows)]
    head, _, *body = markdown_table((names, cells))
    is_figures = [all(FIGURE.fullmatch(cell) for cell in column) for column in zip(*cells, strict=True)]
    rule = "| " + " | ".join("---:" if figures else "---" for figures in is_figures) + " |"
    return "\n".join([head, rule, *body])
