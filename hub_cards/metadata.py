"""What the Hub reads of a model: the metadata at the top of the card, and `.eval_results/`.

Both hold the scores, as the Hub expects: `model-index` in the metadata has an entry per language, and
`.eval_results/*.yaml` (https://huggingface.co/docs/hub/eval-results) has a file per task whose data set is on the Hub.
Unknown values are left out.
"""

import re
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml

from finetuning.results import Results
from finetuning.tasks.registry import KINDS
from hub_cards.record import Record, Result, hub_id
from modeling.checkpoints import split_revision
from pretraining.objectives import OBJECTIVES
from pretraining.recipe_corpora import is_selected

FINE_TUNED = {  # the classes that are fine-tuned, by their endings
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "translation",
}
# ForPreTraining has the same head as ForMaskedLM; what is not here is used for its hidden states
PIPELINES = FINE_TUNED | {"ForMaskedLM": "fill-mask", "ForPreTraining": "fill-mask"}
LANGUAGE = re.compile(r"[a-z]{2,3}")  # ISO 639, as the Hub wants it
COMMIT = re.compile(r"[0-9a-f]{40}")


def card_data(config: dict[str, Any], record: Record, name: str, files: set[str]) -> ModelCardData:
    """The metadata at the head of a card. `files` are the names of the model folder's files."""
    base, head, saved = record.base_model or start_of(record), head_of(config), saved_class(config)
    tuned = [name for content in own_results(record) for name in [*trained_in(content), *content.names]]
    tags = [config["model_type"], "cross-lingual"]
    tags += ["word-alignment"] if "word-alignment" in config.get("custom_pipelines", {}) and not head else []
    tags += ["sentence-transformers"] if "modules.json" in files else []
    return ModelCardData(
        model_name=name,
        language=_codes([code for name in tuned for code in languages_in(name)]) or languages_of(record) or None,
        license=record.license.get("id"),
        license_name=record.license.get("name"),
        license_link=record.license.get("link"),
        library_name="transformers",
        tags=tags,
        base_model=base if hub_id(base) else None,
        base_model_relation="finetune" if head and hub_id(base) else None,
        pipeline_tag=next((tag for end, tag in PIPELINES.items() if saved.endswith(end)), "feature-extraction"),
        datasets=[path for path in learned_data(record) if hub_id(path)] or None,
        metrics=list(dict.fromkeys(r.content.protocol.metric.name for r in record.results)) or None,
        eval_results=[entry for result in record.results for entry in _index_entries(result.shown)] or None,
    )


def eval_files(record: Record) -> dict[str, bytes]:
    """`.eval_results/<task>.yaml` by path: the scores of each task whose data set is on the Hub.

    An entry is of one configuration of the data set, in one language; where several languages are of one, their average
    has an entry too. Values are means over seeds, in percent; the notes say the rest.
    """
    files = {}
    for result in record.results:
        if entries := eval_result_entries_to_yaml(_entries(result, record.repo)):
            content = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120)
            files[f".eval_results/{result.name}.yaml"] = content.encode()
    return files


def languages_of(record: Record) -> list[str]:
    """ISO 639 codes of the languages that the model learned from, in their order; not those of evaluation alone."""
    tuned = [code for content in own_results(record) for name in trained_in(content) for code in languages_in(name)]
    return _codes([*tuned, *pretrained_in(record)])


def pretrained_in(record: Record) -> list[str]:
    """The same of pre-training alone."""
    return _codes([code for corpus in learned_corpora(record) for code in corpus["languages"]])


def trained_in(content: Results) -> list[str]:
    """The languages, or pairs, of a task's training rows."""
    tables = content.protocol.training_data
    return list(dict.fromkeys(name for table in tables for name in table.get("languages") or []))


def own_results(record: Record) -> list[Results]:
    """Those of the run that fine-tuned the model."""
    return [result.content for result in record.results if result.own]


def saved_class(config: dict[str, Any]) -> str:
    """The class whose save_pretrained wrote the folder; empty where config.json does not say it."""
    return (config.get("architectures") or [""])[0]


def head_of(config: dict[str, Any]) -> str:
    """The ending of the saved class, of FINE_TUNED; empty for an encoder or a masked LM."""
    return next((head for head in FINE_TUNED if saved_class(config).endswith(head)), "")


def _codes(names: list[str]) -> list[str]:
    plain = [re.split("[-_]", name)[0] for name in names]  # without script or region: pt-br, zh_Hant
    return list(dict.fromkeys(code for code in plain if LANGUAGE.fullmatch(code)))


def languages_in(name: str) -> list[str]:
    """The languages of a pair, such as de-en; a language by itself."""
    return name.split("-") if re.fullmatch(r"[a-z]{2,3}-[a-z]{2,3}", name) else [name]


def learned_corpora(record: Record) -> list[dict[str, Any]]:
    """The corpora of run.json that an objective of some phase reads; others were only measured on."""
    phases = [(name, phase) for phase in record.recipe.get("phases", []) for name in phase["objectives"]]

    def is_read(corpus: dict[str, Any]) -> bool:
        is_text = len(corpus["languages"]) == 1
        return any(
            (OBJECTIVES[objective].text == "monolingual") == is_text
            and is_selected(corpus["name"], phase.get("corpora") or ["*"])
            for objective, phase in phases
        )

    return [corpus for corpus in record.run.get("corpora", []) if is_read(corpus)]


def learned_data(record: Record) -> list[str]:
    """The paths of all data that the weights learned from."""
    tables = [table for corpus in learned_corpora(record) for table in corpus["tables"]]
    tables += [table for content in own_results(record) for table in content.protocol.training_data]
    return list(dict.fromkeys(table["path"] for table in tables))


def start_of(record: Record) -> str:
    """The checkpoint that the weights started from, as the recipe names it, without a revision; empty if random or
    unknown.

    Of a fine-tuned model, what it was fine-tuned from.
    """
    own = own_results(record)
    return split_revision(own[0]["model"]["folder"])[0] if own else start_of_run(record)


def start_of_run(record: Record) -> str:
    """The same of the pre-training run, which may be that of the base."""
    model = record.recipe.get("model", {})
    meta_pretrained = model.get("meta_pretrained") or {}
    if meta_pretrained.get("initialize") == "none":  # the baseline takes its shape alone
        meta_pretrained = {}
    return split_revision(model.get("start_from") or meta_pretrained.get("path") or "")[0]


def plain_name(path: str) -> str:
    """A data set or model as a card names it: without `./`, `.../` and a mirror's `local/`, and without `/model`."""
    bare = re.sub(r"^(\.+|local)/", "", path)
    return path if hub_id(path) else bare.removesuffix("/model")


def _index_entries(content: Results) -> list[EvalResult]:
    """One entry a language, and the average of several: means over seeds, in percent.

    The Hub groups entries by task, dataset, configuration and split, so the language is in the metric's name.
    """
    tables = _tables(content)
    first = next(iter(tables.values()))
    is_one = all(table["config"] == first["config"] for table in tables.values())
    average = {**first, "config": first["config"] if is_one else None}
    several = {"average": content.average} if len(content.names) > 1 else {}
    metric = content.protocol.metric.name
    return [
        EvalResult(
            task_type=KINDS[content["kind"]].recipe_class.task_type,
            dataset_type=plain_name(table["path"]),
            dataset_name=content["task"],
            dataset_config=table["config"],
            dataset_split=table["split"],
            metric_type=metric,
            metric_name=f"{metric}, {language}, {_how(content)}, {_seeds(content)}",
            metric_value=round(entry["mean"], 2),
        )
        for language, entry in {**content.languages, **several}.items()
        for table in [tables.get(language, average)]
    ]


def _entries(result: Result, repo: str | None) -> list[EvalResultEntry]:
    content = result.shown
    tables = {language: table for language, table in _tables(content).items() if hub_id(table["path"])}
    by_config: dict[tuple, list[str]] = {}
    for language, table in tables.items():
        by_config.setdefault((table["path"], table["config"], table.get("revision")), []).append(language)
    source = f"https://huggingface.co/{repo}/blob/main/provenance/results/{result.name}.json" if repo else None
    rows = content.protocol.evaluated_rows
    metric = content.protocol.metric
    direction = "" if content.is_higher_better else " (lower is better)"

    def entry(path: str, task_id: str, revision: str | None, score: dict[str, Any], languages: list[str]) -> Any:
        number = sum(rows[language] for language in languages)
        notes = [metric.name + direction, " ".join(languages), _how(content), _seeds(content)]
        return EvalResultEntry(
            dataset_id=path,
            task_id=task_id,
            value=round(score["mean"], 2),
            dataset_revision=revision if COMMIT.fullmatch(revision or "") else None,
            date=result.date,
            source_url=source,
            source_name=source and "results.json",
            notes=", ".join([*notes, f"{number} rows"]),
        )

    entries = []
    for (path, config, revision), languages in by_config.items():
        name = config or content["task"]
        several = languages[1:]
        if several and set(languages) == set(content.languages):
            entries.append(entry(path, name, revision, content.average, languages))
        for language in languages:
            task_id = f"{name}.{language}" if several else name
            entries.append(entry(path, task_id, revision, content.languages[language], [language]))
    return entries


def _tables(content: Results) -> dict[str, dict[str, Any]]:
    """The evaluated table of each language, or pair."""
    tables = {code: table for table in content.protocol.evaluation_data for code in table["languages"]}
    return {language: tables[language] for language in content.languages}


def _how(content: Results) -> str:
    """How the model was made to answer, and what differs from published scores.

    `zero-shot (fewer rows)`, or `ot_words at layer 8` without fine-tuning.
    """
    protocol = content.protocol
    differs = f" ({', '.join(protocol.differs)})" if protocol.differs else ""
    if protocol.layer is None:
        return content.setting.replace("_", "-") + differs
    return f"{protocol.method} at layer {protocol.layer}{differs}"


def _seeds(content: Results) -> str:
    return f"{len(content['seeds'])} seed{'s' if content['seeds'][1:] else ''}"
