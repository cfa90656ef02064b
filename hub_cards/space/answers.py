"""What the tabs answer: word links, words for masks, nearest sentences, what a head says. No page in here.

Each function raises ValueError, in words for the page, for texts that are empty or too long and for what the model
cannot do. Legend: `B` sentences, `T` positions, `H` hidden size, `V` vocabulary, `K` masks.
"""

import unicodedata
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from loading import Model
from torch.nn import functional as F
from transformers import pipeline

METHODS = {  # of the zoo's aligner
    "Links that are likely right": "ot_words",
    "Optimal transport (XLM-Align)": "ot",
    "Optimal transport, more links": "ot_itermax",
    "Itermax (SimAlign)": "itermax",
    "Mutual best (SimAlign)": "mutual",
    "Softmax (awesome-align)": "softmax",
}
ENCODINGS = {"each by itself": "separate", "both in one input": "joint"}
MAX_WORDS = 1000
MAX_CHARACTERS = 10_000
MAX_SENTENCES = 200
MAX_MASKS = 20
MAX_ANSWER = 30  # tokens
MASKS = ("<mask>", "[MASK]")  # spellings of a mask that everybody knows
SENTENCES_AT_ONCE = 16
KEPT_VECTORS = 5000
UNKNOWN_SHARE = 0.2  # of a text's subwords, from which on the page says that the model was not made for it


@dataclass
class Aligned:
    """Words, and links between them (numbers from 0) with probabilities."""

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    probabilities: list[float]
    notes: list[str]


@dataclass
class Filled:
    """Of each mask its best words, [(word, subword, probability)], and the text with the first of each put in."""

    masks: list[list[tuple[str, str, float]]]
    text: str
    notes: list[str]


@dataclass
class Ranked:
    """Sentences, the nearest first, with their cosines; `unknown`: those of which the tokenizer knows little."""

    sentences: list[tuple[str, float]]
    unknown: list[str]
    layer: int
    notes: list[str]


@dataclass
class Classified:
    """Labels with their probabilities, the best first."""

    labels: list[tuple[str, float]]
    notes: list[str]


@dataclass
class Marked:
    """A text and its parts that have a label: [(first character, behind the last, label, probability)], in order."""

    text: str
    parts: list[tuple[int, int, str, float]]
    notes: list[str]


def count_words(text: str) -> int:
    """Words between white space; characters of Chinese and Japanese text that has no white space."""
    words = text.split()
    if len(words) != 1:
        return len(words)
    return max(1, sum(unicodedata.east_asian_width(character) in "WF" for character in text))


def checked(text: str | None, what: str, example: str) -> str:
    """The text without white space around it. Raises ValueError for an empty one and for more than MAX_WORDS words."""
    text = (text or "").strip()
    if not text:
        raise ValueError(f"{what} is empty: type something, such as “{example}”")
    words = count_words(text)
    if words > MAX_WORDS or len(text) > MAX_CHARACTERS:
        raise ValueError(f"{what} has {words:,} words: this page takes {MAX_WORDS:,} of {MAX_CHARACTERS:,} characters.")
    return text


def require(model: Model, tab: str) -> None:
    """Raises ValueError where the model cannot serve a tab."""
    if tab in model.lacking:
        raise ValueError(model.lacking[tab])


def align_words(
    model: Model, source: str, target: str, method: str = "ot_words", encoding: str = "separate"
) -> Aligned:
    """Links the words of two sentences by the word-alignment pipeline that the model brings."""
    source = checked(source, "The first sentence", "The children are reading.")
    target = checked(target, "The second sentence", "Die Kinder lesen.")
    require(model, "align")
    options = {"method": method, "layer": model.default_layer, "encoding": encoding}
    found = model.aligner((source, target), probabilities=True, **options)
    notes = unknown_notes(model, {"the first sentence": source, "the second sentence": target})
    if found["windows"] > 1:
        notes.append(f"Aligned in {found['windows']} windows that overlap: the model reads {model.positions} tokens.")
    links = [tuple(link) for link in found["links"]]
    return Aligned(found["source"], found["target"], links, found["probabilities"], notes)


@torch.inference_mode()
def fill_masks(model: Model, text: str, top: int = 5) -> Filled:
    """The `top` most probable subwords of the vocabulary, 1 to 20, at each mask, each mask by itself.

    A mask may be spelled as the model's own, or as <mask> or [MASK].
    """
    require(model, "fill")
    mask = model.tokenizer.mask_token
    text = checked(text, "The sentence", f"The children are {mask} a book.")
    for spelling in MASKS:
        text = text.replace(spelling, mask)
    inputs = encoded(model, text)
    places_K = inputs["input_ids"][0].eq(model.tokenizer.mask_token_id).nonzero()[:, 0]
    if not len(places_K):
        raise ValueError(f"There is no {mask} in the text: put one in place of a word.")
    if len(places_K) > MAX_MASKS:
        raise ValueError(f"There are {len(places_K)} masks in the text: up to {MAX_MASKS} are filled in.")
    logits_KV = model.masked_lm(**inputs).logits[0, places_K].float()
    best = logits_KV.softmax(-1).topk(int(min(max(top, 1), 20, logits_KV.shape[1])))
    masks = [
        [
            (shown_subword(model.tokenizer, subword), model.tokenizer.convert_ids_to_tokens(subword), probability)
            for probability, subword in zip(probabilities, subwords, strict=True)
        ]
        for probabilities, subwords in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    filled = inputs["input_ids"][0].clone()
    filled[places_K] = best.indices[:, 0]
    notes = unknown_notes(model, {"the text": text})
    if len(masks) > 1:
        notes.append("Each mask is filled in by itself: the model does not know what it put at the others.")
    return Filled(masks, model.tokenizer.decode(filled, skip_special_tokens=True), notes)


def encoded(model: Model, *texts: str, **options: Any) -> Any:
    """A text, or a pair, as the model's input. Raises ValueError where it is longer than the model reads."""
    inputs = model.tokenizer(*texts, return_tensors="pt", verbose=False, **options)
    length = inputs["input_ids"].shape[1]
    if length > model.positions:
        raise ValueError(f"The text has {length:,} tokens, and {model.name} reads {model.positions:,}: shorten it.")
    return inputs


def shown_subword(tokenizer: Any, subword: int) -> str:
    """A subword of the vocabulary as text, after "…" where it continues the word before it.

    As the vocabulary spells it where it is white space, or nothing.
    """
    spelled = tokenizer.convert_ids_to_tokens(subword)
    text = tokenizer.decode([subword]).strip() or spelled
    if text.startswith("##"):
        return f"…{text[2:]}"
    marks_starts = any(token[0] in "▁Ġ" for token in tokenizer.tokenize("a b"))
    has_spaces = text[0].isalpha() and unicodedata.east_asian_width(text[0]) not in "WF"
    return f"…{text}" if marks_starts and has_spaces and spelled[0] not in "▁Ġ" else text


def rank_sentences(model: Model, query: str, sentences: str) -> Ranked:
    """Sentences, one a line, by the cosine of their vectors with that of the query."""
    query = checked(query, "The sentence", "It will rain tomorrow.")
    lines = list(dict.fromkeys(line.strip() for line in (sentences or "").splitlines() if line.strip()))
    if not lines:
        raise ValueError("There are no sentences to search: type some, one a line.")
    if len(lines) > MAX_SENTENCES:
        raise ValueError(f"There are {len(lines):,} sentences: this page searches up to {MAX_SENTENCES}.")
    for number, line in enumerate(lines, start=1):
        checked(line, f"Sentence {number}", "")
    require(model, "nearest")
    texts = [query, *lines]
    vectors, cut = sentence_vectors(model, texts, model.default_layer)
    cosines = F.cosine_similarity(vectors[:1], vectors[1:]).tolist()
    ranked = sorted(zip(lines, cosines, strict=True), key=lambda found: -found[1])
    notes = unknown_notes(model, {"the sentence": query})
    if cut:
        notes.append(f"{cut} of {len(texts)} texts were cut at the {model.positions} tokens that the model reads.")
    return Ranked(
        ranked, [line for line in lines if unknown_share(model, line)[0] >= UNKNOWN_SHARE], model.default_layer, notes
    )


@torch.inference_mode()
def sentence_vectors(model: Model, texts: list[str], layer: int) -> tuple[torch.Tensor, int]:
    """(B, H): the mean of the states of a text's tokens at a layer; and how many texts were cut to the model's length.

    As the zoo's retrieval task: special tokens are left out of the mean. A text without a token has a vector of zeros.
    """
    ids = model.tokenizer(texts, verbose=False)["input_ids"]
    missing = {text: len(of) for text, of in zip(texts, ids, strict=True) if (layer, text) not in model.vectors}
    waiting = sorted(missing, key=missing.get, reverse=True)
    special = [token for token in model.tokenizer.all_special_ids if token != model.tokenizer.unk_token_id]
    for start in range(0, len(waiting), SENTENCES_AT_ONCE):
        group = waiting[start : start + SENTENCES_AT_ONCE]
        options = {"truncation": True, "max_length": model.positions, "padding": True, "return_tensors": "pt"}
        batch = model.tokenizer(group, **options)
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        outputs = model.encoder(**inputs, output_hidden_states=True, return_dict=True)
        # some encoders normalize their last states once more, after those that they list
        states_BTH = outputs.last_hidden_state if layer == model.layers else outputs.hidden_states[layer]
        counts_BT1 = ~torch.isin(batch["input_ids"], torch.tensor(special))[..., None]
        means_BH = states_BTH.float().masked_fill(~counts_BT1, 0.0).sum(1) / counts_BT1.sum(1).clamp(min=1)
        model.vectors.update({(layer, text): vector for text, vector in zip(group, means_BH, strict=True)})
    vectors_BH = torch.stack([model.vectors[layer, text] for text in texts])
    if len(model.vectors) > KEPT_VECTORS:
        model.vectors.clear()
    return vectors_BH, sum(len(of) > model.positions for of in ids)


def run_head(model: Model, text: str, second: str = "") -> Classified | Marked:
    """What a fine-tuned model's own head says of a text.

    A classifier gives its labels, of a pair where there is a second text; a tagger the text with its spans; a question
    answerer, whose text is a question, the second text with the answer. A tagger reads no second text.
    """
    if not model.head:
        raise ValueError(f"{model.name} has no head that was fine-tuned for a task.")
    text = checked(text, "The text", "The children are reading.")
    notes = unknown_notes(model, {"the text": text})
    if model.head == "question-answering":
        return answer_question(model, text, checked(second, "The second text", "The children are reading."), notes)
    second = second and second.strip()
    pair = (text, second) if second and model.head == "text-classification" else (text,)
    encoded(model, *pair)
    run = pipeline(model.head, model=model.fine_tuned, tokenizer=model.tokenizer, device="cpu")
    if model.head == "text-classification":
        found = run(dict(zip(("text", "text_pair"), pair, strict=False)), top_k=None)
        return Classified([(one["label"], one["score"]) for one in found], notes)
    # taggers learn the label of a word's first token; without spaces, as in Chinese, each token goes by itself
    strategy = "first" if " " in text else "simple"
    with warnings.catch_warnings(action="ignore"):  # that words are found by spaces: they are
        found = run(text, aggregation_strategy=strategy)
    return Marked(text, [(one["start"], one["end"], one["entity_group"], float(one["score"])) for one in found], notes)


@torch.inference_mode()
def answer_question(model: Model, question: str, context: str, notes: list[str]) -> Marked:
    """The context with its likeliest answer, of MAX_ANSWER tokens at most; the library's pipeline for it is gone."""
    inputs = encoded(model, question, context, return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    in_context = torch.tensor([part == 1 for part in inputs.sequence_ids(0)])
    outputs = model.fine_tuned(**inputs)
    scores_TT = outputs.start_logits[0][:, None] + outputs.end_logits[0]  # of a first and a last token
    spans_TT = (in_context[:, None] & in_context).triu().tril(MAX_ANSWER - 1)
    probabilities = scores_TT.masked_fill(~spans_TT, -torch.inf).flatten().softmax(0)
    first, last = divmod(int(probabilities.argmax()), len(offsets))
    # an offset may begin with the space before a word
    start = offsets[first][0] + len(context[offsets[first][0] :]) - len(context[offsets[first][0] :].lstrip())
    return Marked(context, [(start, offsets[last][1], "answer", float(probabilities.max()))], notes)


def unknown_share(model: Model, text: str) -> tuple[float, int, int]:
    """How much of a text the tokenizer does not know: the share of its subwords, their number, and that of all."""
    ids = model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    unknown = sum(subword == model.tokenizer.unk_token_id for subword in ids)
    return unknown / max(1, len(ids)), unknown, len(ids)


def unknown_notes(model: Model, texts: dict[str, str]) -> list[str]:
    """A note for each text of which the tokenizer knows little: the model was not made for its script."""
    shares = {what: unknown_share(model, text) for what, text in texts.items()}
    return [
        f"{unknown} of {subwords} tokens of {what} are unknown to this model: it was not made for this language."
        for what, (share, unknown, subwords) in shares.items()
        if share >= UNKNOWN_SHARE
    ]
