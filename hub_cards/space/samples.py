"""What the page offers to try: sentences in the languages that a model knows."""

import itertools
import json
from pathlib import Path

from loading import Model

SHOWN = 6  # samples of a tab
# `languages`: English first, then so that the next few are written differently; `parallel`: sentences by language;
# `masked`: a word of the first; `questions`: about the first
_file = json.loads((Path(__file__).parent / "sentences.json").read_text(encoding="utf-8"))
LANGUAGES, SENTENCES, MASKED, ASKED = (_file[key] for key in ("languages", "parallel", "masked", "questions"))
LANGUAGE_OF = {text: LANGUAGES[code] for group in SENTENCES for code, text in group.items()}


def known_languages(model: Model | None) -> list[str]:
    """Codes of LANGUAGES, in their order: those that the model is recorded to know, all where that says too little."""
    known = [code for code in LANGUAGES if model and code in model.languages]
    return known if len(known) > 1 else list(LANGUAGES)


def samples(model: Model | None) -> dict[str, dict[str, list[str]]]:
    """By tab and name of the sample: what it puts into the boxes of the tab."""
    codes = known_languages(model)
    first, task = codes[0], model.head if model else ""
    turns = list(zip(codes, itertools.cycle(SENTENCES)))
    pairs = {
        f"{LANGUAGES[first]} – {LANGUAGES[code]}": [group[first], group[code]]
        for code, group in zip(codes[1:], itertools.cycle(SENTENCES))
    }
    singles = {LANGUAGES[code]: [group[code]] for code, group in turns}
    if task == "text-classification" and model.reads_pairs:  # translations, and what says something else
        own = pairs | {LANGUAGES[code]: [group[code], SENTENCES[-1][code]] for code, group in turns[:2]}
    elif task == "token-classification":
        own = {LANGUAGES[code]: [SENTENCES[-1][code], ""] for code in codes}  # with names in it
    elif task == "question-answering":
        own = {LANGUAGES[code]: [ASKED[code], " ".join(group[code] for group in SENTENCES)] for code in codes}
    else:
        own = {name: [text, ""] for name, [text] in singles.items()}
    masked = {LANGUAGES[code]: [SENTENCES[0][code].replace(MASKED[code], "<mask>")] for code in codes}
    found = {"align": pairs, "fill": masked, "nearest": singles, "head": own}
    return {tab: dict(list(of.items())[:SHOWN]) for tab, of in found.items()}


def pool(model: Model | None) -> str:
    """All sentences in the model's languages, one a line."""
    codes = known_languages(model)
    return "\n".join(group[code] for group in SENTENCES for code in codes)
