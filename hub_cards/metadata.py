"""The metadata at the top of a card, which the Hub reads. `model-index` has the scores, an entry per language.

Unknown values are left out.
"""

import re
from collections.abc import Sized
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
    start = record.base_model or start_of(record)
    base = start if hub_id(start) else None
    is_finetune = base and head_of(record.config)
    eval_results: list[EvalResult] = []
    for content in record.results:
        eval_results += _index_entries(reported(content))
    return ModelCardData(
        model_name=record.name,
        language=_task_languages(record) or languages_of(record) or None,
        license=record.license,
        library_name="transformers",
        tags=_tags(folder, record.config),
        base_model=base,
        base_model_relation="finetune" if is_finetune else None,
        pipeline_tag=pipeline_of(record),
        datasets=list(filter(hub_id, learned_data(record))) or None,
        metrics=list(dict.fromkeys(content.metric for content in record.results)) or None,
        eval_results=eval_results or None,
    )


def _task_languages(record: Record) -> list[str]:
    """ISO 639 codes of the languages that a fine-tuned model was trained and scored in."""
    names = [name for content in record.own_results for name in [*trained_in(content), *content.names]]
    return _codes([code for name in names for code in languages_in(name)])


def _tags(folder: Path, config: dict[str, Any]) -> list[str]:
    tags = [config["model_type"], "cross-lingual"]
    if "word-alignment" in config.get("custom_pipelines", {}) and not head_of(config):
        tags.append("word-alignment")
    if (folder / "modules.json").is_file():
        tags.append("sentence-transformers")
    return tags


def pipeline_of(record: Record) -> str:
    """The Hub's name for what the model does. Masked words are named if it is known that the model has learned them."""
    if head := head_of(record.config):
        return FINE_TUNED[head]
    if saved_class(record.config).endswith(LM_HEADS) and predicts_masked_words(record):
        return "fill-mask"
    return "feature-extraction"


def predicts_masked_words(record: Record) -> bool | None:
    """Whether the mean loss of masked words is below what the frequencies of tokens give; None where it is unknown.

    A run that learns links alone, as those of `word-align adapt`, leaves a head behind that does not fit its layers.
    """
    losses = masked_losses(record).values()
    if not losses:
        return None if _predicts_in_training(record) else False
    return sum(loss for loss, _ in losses) < sum(entropy for _, entropy in losses)


def _predicts_in_training(record: Record) -> bool:
    """Whether an objective of the run predicts masked tokens, or no run is known."""
    for phase in record.recipe.get("phases", []):
        for name, options in phase["objectives"].items():
            if getattr(OBJECTIVES[name], "mask_probability", 0.0) and options.get("weight", 1.0):
                return True
    return not record.recipe


def masked_losses(record: Record) -> dict[str, tuple[float, float]]:
    """Held-out loss of masked words and entropy of single tokens of the same text, in nats, of each corpus."""
    losses = {}
    for key, entropy in record.held_out.items():
        kind, _, name = key.partition("/")
        if kind.startswith("unigram_") and name.startswith(MASKED):
            corpus = name.partition("/")[2]
            losses[corpus] = (record.held_out[f"held_out/{name}"], entropy)
    return losses


def reported(content: Results) -> Results:
    """The results as cards show them: word alignment by the pipeline's default rule, where that was scored."""
    if DEFAULT_METHOD not in content.methods:
        return content
    return Results({**content, "protocol": content["protocol"] | {"method": DEFAULT_METHOD}})


def languages_of(record: Record) -> list[str]:
    """ISO 639 codes of the languages that the model learned from, in their order; not those of evaluation alone."""
    names = [name for content in record.own_results for name in trained_in(content)]
    codes = [code for name in names for code in languages_in(name)]
    return _codes([*codes, *pretrained_in(record)])


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


def counted(items: Sized, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"


def _codes(names: list[str]) -> list[str]:
    """The names that are codes of languages, each once, without script or region: pt of pt-BR, zh of zh_Hant."""
    codes = [re.split("[-_]", name)[0] for name in names]
    return list(dict.fromkeys(filter(LANGUAGE.fullmatch, codes)))


def languages_in(name: str) -> list[str]:
    """The languages of a pair, such as de-en; a language by itself. A region in small letters (pt-br) makes a pair."""
    is_pair = re.fullmatch(r"[a-z]{2,3}-[a-z]{2,3}", name)
    return name.split("-") if is_pair else [name]


def learned_corpora(record: Record) -> list[dict[str, Any]]:
    """The corpora of run.json that an objective of some phase reads; others were only measured on."""
    return [corpus for corpus in record.run.get("corpora", []) if _is_learned(corpus, record.recipe.get("phases", []))]


def _is_learned(corpus: dict[str, Any], phases: list[dict[str, Any]]) -> bool:
    is_text = len(corpus["languages"]) == 1
    for phase in phases:
        reads_text = [OBJECTIVES[name].text == "monolingual" for name in phase["objectives"]]
        if is_text in reads_text and is_selected(corpus["name"], phase.get("corpora") or ["*"]):
            return True
    return False


def learned_data(record: Record) -> list[str]:
    """The paths of all data that the weights learned from."""
    tables = [table for corpus in learned_corpora(record) for table in corpus["tables"]]
    for content in record.own_results:
        tables += content["protocol"]["training_data"]
    return list(dict.fromkeys(table["path"] for table in tables))


def start_of(record: Record) -> str:
    """The checkpoint that the weights started from, as the recipe names it, without a revision; empty if random or
    unknown. Of a fine-tuned model, what it was fine-tuned from. A folder that could be a Hub id begins with `./`."""
    if not record.own_results:
        return start_of_run(record)
    model = record.own_results[0]["model"]
    return _marked(model["folder"], model)


def start_of_run(record: Record) -> str:
    """The same of the pre-training run, which may be that of the base."""
    model = record.recipe.get("model", {})
    source = model.get("meta_pretrained") or {}
    start = model.get("start_from")
    if not start and source.get("initialize") != "none":  # with `none`, the baseline takes its shape alone
        start = source.get("path")
    return _marked(start or "", record.run.get("meta_pretrained") or {})


def _marked(name: str, facts: dict[str, Any]) -> str:
    """A model without its revision; `./` before a folder, which the run's facts tell by their fingerprint."""
    is_folder = str(facts.get("fingerprint")).startswith("sha256:")
    if is_folder and hub_id(name):
        return f"./{name}"
    return split_revision(name)[0]


def plain_name(path: str) -> str:
    """A data set or model as a card names it: without `./`, `.../` and a mirror's `local/`, and without `/model`."""
    if hub_id(path):
        return path
    return re.sub(r"^(\.+|local)/", "", path).removesuffix("/model")


def _index_entries(content: Results) -> list[EvalResult]:
    """One entry a language, and the average of several: means over seeds, in percent.

    The Hub groups entries by task, dataset, configuration and split, so the language is in the metric's name.
    """
    protocol = content["protocol"]
    tables = {code: table for table in protocol["evaluation_data"] for code in table["languages"]}
    summaries = content.languages
    if len(content.names) > 1:
        summaries["average"] = content.average
        tables["average"] = _common_table([tables[name] for name in content.names])
    how = _how_scored(content)
    return [
        EvalResult(
            task_type=KINDS[content["kind"]].task_type,
            dataset_type=plain_name(tables[language]["path"]),
            dataset_name=content["task"],
            dataset_config=tables[language]["config"],
            dataset_split=tables[language]["split"],
            metric_type=content.metric,
            metric_name=f"{content.metric}, {language}, {how}",
            metric_value=round(summary["mean"], 2),
        )
        for language, summary in summaries.items()
    ]


def _common_table(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """The first table, without its configuration where the others have another."""
    configs = [table["config"] for table in tables]
    is_same = configs.count(configs[0]) == len(configs)
    return {**tables[0], "config": configs[0] if is_same else None}


def _how_scored(content: Results) -> str:
    """Method and layer, or the setting; what differs from the protocol; the number of seeds."""
    protocol = content["protocol"]
    how = content.setting.replace("_", "-")
    if "layer" in protocol:
        how = f"{protocol['method']} at layer {protocol['layer']}"
    if protocol.get("differs"):
        how += f" ({', '.join(protocol['differs'])})"
    return f"{how}, {counted(content['seeds'], 'seed')}"
