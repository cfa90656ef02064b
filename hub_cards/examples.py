"""The examples of a card: the uses that a model folder supports, and short code for each, which you can paste.

The configuration (its Auto classes) and the record of training and results decide which uses are shown. The code of
each use runs unchanged in a new process.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from finetuning.page import best_layer
from finetuning.tasks.retrieval.recipe import POOLINGS
from hub_cards.metadata import head_of, own_results, saved_class, trained_in
from hub_cards.record import Record
from hub_cards.sentence_transformer import KINDS, chosen_vectors
from modeling.word_alignment import DEFAULT_METHOD
from zoo_core.provenance import read_json
from zoo_core.recipe_files import or_installed, recipe_names

TEMPLATES = Path(__file__).parent / "templates" / "examples"
# the ending of the saved class -> template, title and text of its use
HEADS = {
    "ForSequenceClassification": ("text_classification", "Classification", "Prints the label of a text, or of a pair."),
    "ForTokenClassification": ("token_classification", "Tagging", "Prints the labeled parts of a text."),
    "ForQuestionAnswering": (
        "question_answering",
        "Question answering",
        "Prints the part of a text that is the answer.",
    ),
    "ForConditionalGeneration": ("translation", "Translation", "Translates by beam search."),
}
PAIR_TASKS = ("xnli", "pawsx", "sick", "mnli", "snli")  # by the beginning of a task's name
SHOWN_LANGUAGES = 3  # of fill-mask and of classifiers


@dataclass(frozen=True)
class Use:
    """One use of a model: a heading, one or two sentences in Markdown, and Python code that prints something."""

    title: str
    text: str
    code: str


def uses(folder: Path, config: dict[str, Any], record: Record, repo: str) -> list[Use]:
    """The uses of a model folder, the main one first; `repo` is what their code loads, a Hub id or a path."""
    facts = _facts(folder, config, record, repo)
    return [
        Use(title, text, _environment().get_template(f"{name}.py.jinja").render(**facts).strip() + "\n")
        for name, title, text in _found(folder, config, facts)
    ]


def _found(folder: Path, config: dict[str, Any], facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(template, title, text) of each use; a fine-tuned model has one use, its task."""
    if head := head_of(config):
        template, title, text = HEADS[head]
        if facts["direction_known"]:
            text = f"Translates from `{facts['first_code']}` to `{facts['second_code']}` by beam search."
        text += " It reads a text together with its translation (plug-in)." if facts["plug_in"] else ""
        yield template, title, text
        return
    if saved_class(config).endswith(("ForMaskedLM", "ForPreTraining")):
        yield "masked_lm", "Masked words", f"Prints the likeliest words at `{facts['mask']}`."
    yield "features", "Features", f"The vector of each token at each layer, {facts['width']} numbers."
    if (folder / "modules.json").is_file():
        text = "With sentence-transformers 6.0 or newer. The folder sets layer and pooling."
        yield "sentence_transformers", "Sentence vectors", text
    yield "retrieval", "Nearest sentence across languages", facts["layer_text"]
    impl = config.get("custom_pipelines", {}).get("word-alignment", {}).get("impl", "")
    if impl and (folder / f"{impl.split('.')[0]}.py").is_file():
        yield "word_alignment", "Word alignment", facts["alignment_text"]
    yield "fine_tuning", "Classification, after fine-tuning", _fine_tuning_text(config, facts["repo"])
    if "AutoModelForSeq2SeqLM" in config.get("auto_map", {}):
        text = "The decoder is built from the encoder's layers. Fine-tune it on translations before you use it."
        yield "translation_start", "Translation, after fine-tuning", text


def _fine_tuning_text(config: dict[str, Any], repo: str) -> str:
    text, folder = "The classification head is new. The example trains it for three steps.", config["model_type"]
    if "xnli.yaml" in recipe_names(or_installed(f"finetuning/recipes/{folder}")):
        command = f"accelerate launch finetuning/run.py --config finetuning/recipes/{folder}/xnli.yaml model={repo}"
        text += f" To train on a whole task, run in a checkout of crosslingual-zoo: `{command}`."
    return text


def _facts(folder: Path, config: dict[str, Any], record: Record, repo: str) -> dict[str, Any]:
    """The values for the templates."""
    languages, direction_known = _languages(record, config)
    known = _sentences()
    mask = _mask(folder)
    depth = config["num_hidden_layers"]
    layer, pooling, layer_text = _layer(record, config)
    alignment_layer, alignment_text = _alignment_layer(record, config)
    shown = [known[code] for code in languages[:SHOWN_LANGUAGES]]
    first, second = [*languages, *(code for code in ("en", "de") if code not in languages)][:2]
    return {
        "repo": repo,
        "mask": mask,
        "masked": [entry["sentences"][1].replace(entry["mask"], mask) for entry in shown],
        "first": known[first],
        "second": known[second],
        "languages": shown,
        "first_code": first,
        "second_code": second,
        "direction_known": direction_known,
        "layer": layer,
        "pooling": pooling,
        "layer_text": layer_text,
        "alignment_layer": alignment_layer,
        "alignment_text": alignment_text,
        "width": config["hidden_size"],
        "layers": depth,
        "decoder_layers": depth if depth < 24 else 6,  # the paper's 24 + 6
        "plug_in": bool(config.get("plug_in")),
        "pairs": _reads_pairs(config, record),
    }


def _layer(record: Record, config: dict[str, Any]) -> tuple[int, str, str]:
    """Layer of a sentence's vector, how its states are pooled, and a text that says why."""
    for kind in KINDS:
        for result in (result.content for result in record.results):
            layer, pooling = result.protocol.layer, result.protocol.pooling
            if result["kind"] == kind and pooling in POOLINGS:
                what = "state of <s>" if pooling == "cls" else "mean of the states"
                text = f"Uses the {what} of layer {layer}, as in the scores of {result['task']}."
                name = result.with_average[-1]
                if result.layers[1:] and (best := best_layer(result, name)) != layer:
                    score = result.of(name, layer=best)["mean"]
                    text += f" On these data, layer {best} is best ({score:.1f}). Compare both on your own sentences."
                return layer, pooling, text
    vectors = chosen_vectors(None, None, config["num_hidden_layers"])
    text = f"Uses the mean of the states of layer {vectors.layer}, three fifths of the layers."
    return vectors.layer, vectors.pooling, f"{text} No scores are recorded, so compare layers on your own sentences."


def _alignment_layer(record: Record, config: dict[str, Any]) -> tuple[int | None, str]:
    """Layer that the example names, None where nothing was measured or the pipeline knows it; the text about it."""
    text = "Prints pairs of words that translate each other."
    if (layer := config.get("word_alignment_layer")) is not None:
        return None, f"{text} The configuration sets layer {layer}, chosen without links made by people."
    for content in (result.shown for result in record.results if result.content["kind"] == "word_alignment"):
        layer = content.protocol.layer
        is_scored = content.protocol.method == DEFAULT_METHOD
        rule = "" if is_scored else f", but the rule `{DEFAULT_METHOD}`, not scored here"
        return layer, f"{text} Uses layer {layer}, as in the scores of {content['task']}{rule}."
    return None, text


def _languages(record: Record, config: dict[str, Any]) -> tuple[list[str], bool]:
    """Codes of the example languages, and whether they are the direction of a translation model.

    Those that a fine-tuned model was trained in, then those that it was scored in; else those of the pre-training and
    of the results, English first. Where none of them has sentences here, English.
    """
    results, known = [result.content for result in record.results], _sentences()
    if head_of(config) == "ForConditionalGeneration":
        for result in results:
            pair = [result.get("source_language"), result.get("target_language")]
            if result.get("kind") == "translation" and all(code in known for code in pair):
                return pair, True
    pretrained = [code for corpus in record.run.get("corpora", []) for code in corpus["languages"]]
    tuned = [name for content in own_results(record) for name in trained_in(content)]
    measured = [code for result in results for name in result.names for code in name.split("-")]
    wanted = [*tuned, *measured] or pretrained if head_of(config) else [*pretrained, *measured]
    found = [code for code in dict.fromkeys(wanted) if code in known]
    if not tuned:
        found.sort(key=lambda code: code != "en")  # stable: the others keep their order
    return found or ["en"], False


def _reads_pairs(config: dict[str, Any], record: Record) -> bool:
    for content in own_results(record):
        if content.protocol.texts:
            return content.protocol.texts == 2
    tuned = config.get("fine_tuned_on") or [""]
    return tuned[-1].startswith(PAIR_TASKS) or "entailment" in (config.get("id2label") or {}).values()


def _mask(folder: Path) -> str:
    """The mask symbol as tokenizer_config.json has it."""
    token = read_json(folder / "tokenizer_config.json", {}).get("mask_token")
    return (token.get("content") if isinstance(token, dict) else token) or "<mask>"


@functools.cache
def _sentences() -> dict[str, dict[str, Any]]:
    return yaml.safe_load((TEMPLATES / "sentences.yaml").read_text(encoding="utf-8"))


@functools.cache
def _environment() -> Environment:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=False)
    # JSON's text is Python's too, and leaves other scripts legible
    environment.filters["literal"] = functools.partial(json.dumps, ensure_ascii=False)
    return environment
