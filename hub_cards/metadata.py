"""The metadata at the top of a card, which the Hub reads. `model-index` has the scores, an entry per language.

Unknown values are left out.
"""

import re
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from crosslingual_zoo.finetuning.results import Results
from crosslingual_zoo.finetuning.tasks.registry import KINDS
from crosslingual_zoo.hub_cards.record import Record, hub_id
from crosslingual_zoo.modeling.checkpoints import split_revision
from crosslingual_zoo.modeling.pair_aligner import DEFAULT_METHOD
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.recipe_corpora import is_selected

FINE_TUNED = {  # the classes that are fine-tuned, by their endings
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "translation",
}
LM_HEADS = ("ForMaskedLM", "ForPreTraining")  # the ends of the classes that predict masked words
MASKED = ("mlm/", "ca_mlm_segments.inner/")  # losses of words that are predicted from their own text
LANGUAGE = re.compile(r"[a-z]{2,3}")  # ISO 639, as the Hub wants it


def card_data(folder: Path, record: Record) -> ModelCardData:
    """The metadata at the head of the card of a model folder."""
    config, head, base = record.config, head_of(record.config), record.base_model or start_of(record)
    tuned = [name for content in record.own for name in [*trained_in(content), *content.names]]
    tags = [config["model_type"], "cross-lingual"]
    tags += ["word-alignment"] if "word-alignment" in config.get("custom_pipelines", {}) and not head else []
    tags += ["sentence-transformers"] if (folder / "modules.json").is_file() else []
    return ModelCardData(
        model_name=record.name,
        language=_codes([code for name in tuned for code in languages_in(name)]) or languages_of(record) or None,
        license=record.license,
        library_name="transformers",
        tags=tags,
        base_model=base if hub_id(base) else None,
        base_model_relation="finetune" if head and hub_id(base) else None,
        pipeline_tag=pipeline_of(record),
        datasets=[path for path in learned_data(record) if hub_id(path)] or None,
        metrics=list(dict.fromkeys(content.metric for content in record.results)) or None,
        eval_results=[entry for content in record.results for entry in _index_entries(reported(content))] or None,
    )


def pipeline_of(record: Record) -> str:
    """The Hub's name for what the model does. Masked words are named if it is known that the model has learned them."""
    if head := head_of(record.config):
        return FINE_TUNED[head]
    is_masked_lm = saved_class(record.config).endswith(LM_HEADS)
    return "fill-mask" if is_masked_lm and predicts_masked_words(record) else "feature-extraction"


def predicts_masked_words(record: Record) -> bool | None:
    """Whether the mean loss of masked words is below what the frequencies of tokens give; None where it is unknown."""
    losses = masked_losses(record).values()
    if not losses:
        return None
    return sum(loss for loss, _ in losses) < sum(entropy for _, entropy in losses)


def masked_losses(record: Record) -> dict[str, tuple[float, float]]:
    """Held-out loss of masked words and entropy of single tokens of the same text, in nats, of each corpus."""
    entropies = {key.partition("/")[2]: value for key, value in record.held_out.items() if key.startswith("unigram_")}
    names = [name for name in entropies if name.startswith(MASKED)]
    return {name.partition("/")[2]: (record.held_out[f"held_out/{name}"], entropies[name]) for name in names}


def reported(content: Results) -> Results:
    """The results as cards show them: word alignment by the pipeline's default rule, where that was scored."""
    if DEFAULT_METHOD not in content.methods:
        return content
    return Results({**content, "protocol": content["protocol"] | {"method": DEFAULT_METHOD}})


def languages_of(record: Record) -> list[str]:
    """ISO 639 codes of the languages that the model learned from, in their order; not those of evaluation alone."""
    tuned = [code for content in record.own for name in trained_in(content) for code in languages_in(name)]
    return _codes([*tuned, *pretrained_in(record)])


def pretrained_in(record: Record) -> list[str]:
    """The same of pre-training alone."""
    return _codes([code for corpus in learned_corpora(record) for code in corpus["languages"]])


def trained_in(content: Results) -> list[str]:
    """The languages, or pairs, of a task's training rows."""
    tables = content["protocol"]["training_data"]
    return list(dict.fromkeys(name for table in tables for name in table.get("languages") or []))


def saved_class(config: dict[str, Any]) -> str:
    """The class whose save_pretrained wrote the folder; empty where config.json does not say it."""
    return (config.get("architectures") or [""])[0]


def head_of(config: dict[str, Any]) -> str:
    """The ending of the saved class, of FINE_TUNED; empty for an encoder or a masked LM."""
    return next((head for head in FINE_TUNED if saved_class(config).endswith(head)), "")


def _codes(names: list[str]) -> list[str]:
    plain = [re.split("[-_]", name)[0] for name in names]  # without script or region: pt-BR, zh_Hant
    return list(dict.fromkeys(code for code in plain if LANGUAGE.fullmatch(code)))


def languages_in(name: str) -> list[str]:
    """The languages of a pair, such as de-en; a language by itself. A region in small letters (pt-br) makes a pair."""
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
    tables += [table for content in record.own for table in content["protocol"]["training_data"]]
    return list(dict.fromkeys(table["path"] for table in tables))


def start_of(record: Record) -> str:
    """The checkpoint that the weights started from, as the recipe names it, without a revision; empty if random or
    unknown. Of a fine-tuned model, what it was fine-tuned from. A folder that could be a Hub id begins with `./`."""
    return _marked(record.own[0]["model"]["folder"], record.own[0]["model"]) if record.own else start_of_run(record)


def start_of_run(record: Record) -> str:
    """The same of the pre-training run, which may be that of the base."""
    model = record.recipe.get("model", {})
    source = model.get("meta_pretrained") or {}
    path = None if source.get("initialize") == "none" else source.get("path")  # the baseline takes its shape alone
    return _marked(model.get("start_from") or path or "", record.run.get("meta_pretrained") or {})


def _marked(name: str, facts: dict[str, Any]) -> str:
    """A model without its revision; `./` before a folder, which the run's facts tell by their fingerprint."""
    is_folder = str(facts.get("fingerprint")).startswith("sha256:") and hub_id(name)
    return f"./{name}" if is_folder else split_revision(name)[0]


def plain_name(path: str) -> str:
    """A data set or model as a card names it: without `./`, `.../` and a mirror's `local/`, and without `/model`."""
    bare = re.sub(r"^(\.+|local)/", "", path)
    return path if hub_id(path) else bare.removesuffix("/model")


def _index_entries(content: Results) -> list[EvalResult]:
    """One entry a language, and the average of several: means over seeds, in percent.

    The Hub groups entries by task, dataset, configuration and split, so the language is in the metric's name.
    """
    tables = {code: table for table in content["protocol"]["evaluation_data"] for code in table["languages"]}
    first = tables[content.names[0]]
    is_one = all(tables[name]["config"] == first["config"] for name in content.names)
    tables["average"] = {**first, "config": first["config"] if is_one else None}
    several = {"average": content.average} if content.names[1:] else {}
    protocol, seeds = content["protocol"], f"{len(content['seeds'])} seed{'s' if content['seeds'][1:] else ''}"
    differs = f" ({', '.join(protocol['differs'])})" if protocol.get("differs") else ""
    is_of_layer = "layer" in protocol
    how = "{method} at layer {layer}".format(**protocol) if is_of_layer else content.setting.replace("_", "-")
    return [
        EvalResult(
            task_type=KINDS[content["kind"]].task_type,
            dataset_type=plain_name(tables[language]["path"]),
            dataset_name=content["task"],
            dataset_config=tables[language]["config"],
            dataset_split=tables[language]["split"],
            metric_type=content.metric,
            metric_name=f"{content.metric}, {language}, {how}{differs}, {seeds}",
            metric_value=round(entry["mean"], 2),
        )
        for language, entry in {**content.languages, **several}.items()
    ]
