"""The examples of a card: the uses that a model folder supports, and short code for each, which you can paste.

The configuration (its Auto classes) and the record of training and results decide which uses are shown. The code of
each use runs unchanged in a new process.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crosslingual_zoo.finetuning.results import Results
from crosslingual_zoo.hub_cards.example_rows import labeled_words
from crosslingual_zoo.hub_cards.metadata import (
    LM_HEADS,
    head_of,
    predicts_masked_words,
    reported,
    saved_class,
    trained_in,
)
from crosslingual_zoo.hub_cards.record import Record, has_code
from crosslingual_zoo.hub_cards.sections import about
from crosslingual_zoo.modeling.layer_states import default_layer
from crosslingual_zoo.modeling.pair_aligner import DEFAULT_METHOD
from crosslingual_zoo.zoo_core.provenance import read_json

TEMPLATES = Path(__file__).parent / "templates" / "examples"
# the ending of the saved class -> template, title and text of its use
HEADS = {
    "ForSequenceClassification": ("text_classification", "Classification", "Prints labels of texts, or of pairs."),
    "ForTokenClassification": ("token_classification", "Tagging", "Prints the labeled parts of a text."),
    "ForQuestionAnswering": ("question_answering", "Question answering", "Prints the answer, a part of a text."),
    "ForConditionalGeneration": ("translation", "Translation", "Translates by beam search."),
}
PAIR_TASKS = ("xnli", "pawsx", "sick", "mnli", "snli")  # by the beginning of a task's name
SHOWN_LANGUAGES = 3  # of fill-mask and of classifiers


def uses(folder: Path, record: Record, repo: str) -> list[dict[str, str]]:
    """The uses of a model folder, the main one first: `title`, `text` and the `code`, which prints something.

    `repo` is what the code loads, a Hub id or a path.
    """
    environment = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=False)
    # JSON's text is Python's too, and leaves other scripts legible
    environment.filters["literal"] = functools.partial(json.dumps, ensure_ascii=False)
    environment.filters["in_one_line"] = lambda text: " ".join(text.split())
    environment.filters["labeled_words"] = labeled_words
    facts = _facts(folder, record, repo)
    examples = []
    for name, title, text in _supported(folder, record, facts):
        code = environment.get_template(f"{name}.py.jinja").render(**facts).strip()
        examples.append({"title": title, "text": text, "code": code})
    return examples


def _supported(folder: Path, record: Record, facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(template, title, text) of each use; a fine-tuned model has one use, its task."""
    config = record.config
    if head := head_of(config):
        yield _use_of_head(head, facts)
        return
    if predicts_masked_words(record) is not False and saved_class(config).endswith(LM_HEADS):
        yield "masked_lm", "Masked words", f"Prints the likeliest words at `{facts['mask']}`."
    yield "features", "Features", f"The vector of each token at each layer, {facts['width']} numbers."
    if (folder / "modules.json").is_file():
        text = "With sentence-transformers 6.0 or newer. The folder sets layer and pooling."
        yield "sentence_transformers", "Sentence vectors", text
    yield "retrieval", "Nearest sentence across languages", facts["layer_text"]
    impl = config.get("custom_pipelines", {}).get("word-alignment", {}).get("impl", "")
    if impl and (folder / f"{impl.split('.')[0]}.py").is_file():
        yield "word_alignment", "Word alignment", facts["alignment_text"]
    text = "The classification head is new. The example trains it for three steps."
    if about(config["model_type"]):
        recipe = f"finetuning/recipes/{config['model_type']}/paper.yaml#xnli"
        command = f"accelerate launch finetuning/run.py --config {recipe} model={facts['repo']}"
        text += f" To train on a whole task, run in a checkout of crosslingual-zoo: `{command}`."
    yield "fine_tuning", "Classification, after fine-tuning", text
    if "AutoModelForSeq2SeqLM" in config.get("auto_map", {}):
        text = "The decoder is built from the encoder's layers. Fine-tune it on translations before you use it."
        yield "translation_start", "Translation, after fine-tuning", text


def _use_of_head(head: str, facts: dict[str, Any]) -> tuple[str, str, str]:
    """(template, title, text) of the use of a fine-tuned model."""
    template, title, text = HEADS[head]
    if facts["direction_known"]:
        text = f"Translates from `{facts['first_code']}` to `{facts['second_code']}` by beam search."
    if facts["plug_in"]:
        text += " It reads a text together with its translation (plug-in)."
    if facts["rows"]:
        text += (
            " The texts are rows of the evaluation data. The comments at the end are the run's predictions for them."
        )
    wrong = []
    for number, row in enumerate(facts["rows"], start=1):
        if row.get("gold") != row.get("prediction"):
            wrong.append(str(number))
    if wrong:
        text += f" Those that differ from the data's labels: {', '.join(wrong)}."
    return template, title, text


def _facts(folder: Path, record: Record, repo: str) -> dict[str, Any]:
    """The values for the templates."""
    sentences = yaml.safe_load((TEMPLATES / "sentences.yaml").read_text(encoding="utf-8"))
    config = record.config
    depth = config["num_hidden_layers"]
    direction = _direction(record, sentences)
    languages = direction or _languages(record, sentences)
    examples = [sentences[code] for code in languages[:SHOWN_LANGUAGES]]
    first, second, *_ = dict.fromkeys([*languages, "en", "de"])
    mask = _mask(folder)
    layer, pooling, layer_text = _layer(record)
    alignment_layer, alignment_text = _alignment_layer(record)
    plug_in = bool(config.get("plug_in"))
    return {
        "repo": repo,
        "trust": ", trust_remote_code=True" if has_code(folder) else "",
        "languages": examples,
        "direction_known": direction is not None,
        "first": sentences[first],
        "second": sentences[second],
        "first_code": first,
        "second_code": second,
        "mask": mask,
        "masked": [entry["sentences"][1].replace(entry["mask"], mask) for entry in examples],
        "rows": [] if plug_in else record.rows,  # rows of predictions have no translations
        "pairs": _reads_pairs(record),
        "plug_in": plug_in,
        "label_subword": config.get("label_subword"),
        "layer": layer,
        "pooling": pooling,
        "layer_text": layer_text,
        "alignment_layer": alignment_layer,
        "alignment_text": alignment_text,
        "width": config["hidden_size"],
        "layers": depth,
        "decoder_layers": depth if depth < 24 else 6,  # the paper's 24 + 6
    }


def _mask(folder: Path) -> str:
    """The tokenizer's mask token."""
    mask = read_json(folder / "tokenizer_config.json", {}).get("mask_token") or "<mask>"
    return mask["content"] if isinstance(mask, dict) else mask


def _reads_pairs(record: Record) -> bool:
    """Whether a classifier reads two texts: as its run says; else by the names of its task and labels."""
    for content in record.own_results:
        if "texts" in content["protocol"]:
            return content["protocol"]["texts"] == 2
    tuned = (record.config.get("fine_tuned_on") or [""])[-1]
    return tuned.startswith(PAIR_TASKS) or "entailment" in (record.config.get("id2label") or {}).values()


def _layer(record: Record) -> tuple[int, str, str]:
    """Layer of a sentence's vector, how its states are pooled, and a text that says why."""
    for kind in ("retrieval", "mining"):
        for content in record.results:
            if content["kind"] == kind:
                return _scored_layer(content)
    layer = default_layer(record.config["num_hidden_layers"])
    text = f"Uses the mean of the states of layer {layer}, three fifths of the layers."
    return layer, "mean", f"{text} No scores are recorded, so compare layers on your own sentences."


def _scored_layer(content: Results) -> tuple[int, str, str]:
    """The same by the scores of a task, whose best layer the text names where it is another one."""
    layer = content["protocol"]["layer"]
    pooling = content["protocol"]["pooling"]
    states = "state of <s>" if pooling == "cls" else "mean of the states"
    text = f"Uses the {states} of layer {layer}, as in the scores of {content['task']}."
    if len(content.layers) > 1:
        name = content.with_average[-1]
        scores = {number: content.of(name, layer=number)["mean"] for number in content.layers}
        best = max(scores, key=scores.get)
        if best != layer:
            text += f" On these data, layer {best} is best ({scores[best]:.1f}). Compare both on your own sentences."
    return layer, pooling, text


def _alignment_layer(record: Record) -> tuple[int | None, str]:
    """Layer that the example names, None where nothing was measured or the pipeline knows it; the text about it."""
    text = "Prints pairs of words that translate each other."
    layer = record.config.get("word_alignment_layer")
    if layer is not None:
        return None, f"{text} The configuration sets layer {layer}, chosen without links made by people."
    for content in record.results:
        if content["kind"] == "word_alignment":
            protocol = reported(content)["protocol"]
            text += f" Uses layer {protocol['layer']}, as in the scores of {content['task']}"
            if protocol["method"] != DEFAULT_METHOD:
                text += f", but the rule `{DEFAULT_METHOD}`, not scored here"
            return protocol["layer"], f"{text}."
    return None, text


def _direction(record: Record, sentences: dict[str, Any]) -> list[str] | None:
    """Source and target of a translation model that was scored, if both have sentences here."""
    if head_of(record.config) != "ForConditionalGeneration":
        return None
    for content in record.results:
        if content["kind"] == "translation":
            pair = [content.get("source_language"), content.get("target_language")]
            if all(code in sentences for code in pair):
                return pair
    return None


def _languages(record: Record, sentences: dict[str, Any]) -> list[str]:
    """Codes of the example languages.

    Those that a fine-tuned model was trained in, then those that it was scored in; else those of the pre-training and
    of the results, English first. Where none of them has sentences here, English.
    """
    pretrained = [code for corpus in record.run.get("corpora", []) for code in corpus["languages"]]
    trained = [name for content in record.own_results for name in trained_in(content)]
    scored = [name for content in record.results for name in content.names]
    evaluated = [code for name in scored for code in name.split("-")]
    if not head_of(record.config):
        codes = [*pretrained, *evaluated]
    else:
        codes = [*trained, *evaluated] or pretrained
    languages = [code for code in dict.fromkeys(codes) if code in sentences]
    if not trained:
        languages.sort(key=lambda code: code != "en")  # stable: the others keep their order
    return languages or ["en"]
