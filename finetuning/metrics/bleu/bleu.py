"""BLEU in the two forms that translation papers print, and chrF, as an `evaluate` module on sacreBLEU.

Loaded by its path, so that it works without the Hub.
"""

import re
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF

_DESCRIPTION = """
sacrebleu: detokenized, case-sensitive BLEU with sacreBLEU's own tokenizer (Post 2018). The main figure.

bleu: tokenized, case-insensitive BLEU, the nearest that sacreBLEU offers to `multi-bleu.perl -lc` on Moses tokens:
lower case, no smoothing, and `intl` in place of `13a`, which splits hyphens, apostrophes and all Unicode punctuation
off, as `tokenizer.perl -a` does. On 1,997 sentences of NTREX in German, French and Russian, with 10 or 25%
of their words changed, it is at most 0.1 above BLEU of Moses tokens with `-a` and 0.2 to 0.6 above those without.

chrf: character n-gram F-score (Popovic 2015), sacreBLEU's default.

All in percent, over the whole corpus, with one reference.
"""

_INPUTS = """
predictions: list of str, detokenized translations
references: list of str, one reference each
language: the target language, such as de, zh or zho_Hans, which decides the tokenizer: as in sacreBLEU, or char for
    languages without spaces that it does not list
Returns {"sacrebleu", "bleu", "chrf": float in [0, 100], "length_ratio": float, hypothesis over reference in tokens,
"signatures": {"sacrebleu", "bleu", "chrf": sacreBLEU's signature}}. Raises ValueError for no sentence.
"""

NO_SPACES = {  # codes of ISO 639-1 and 639-3; Korean has spaces, and a tokenizer in sacreBLEU
    **dict.fromkeys(("zh", "zho", "cmn", "yue", "wuu", "lzh"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
    **dict.fromkeys(("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"), "char"),
}

# from Thai to Burmese, Khmer, kana, Han
UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def _tokenizer_of(language: str, text: str) -> str:
    """The tokenizer of a language; for a name that is not listed, that of the script of most of the text."""
    code = re.split("[-_]", language.lower())[0]
    if code in NO_SPACES:
        return NO_SPACES[code]
    unspaced = UNSPACED.findall(text)
    if 2 * len(unspaced) <= len(text):
        return "13a"
    if min(unspaced) >= "\u3400":
        return "zh"
    return "char"


class Bleu(evaluate.Metric):
    """Corpus BLEU and chrF; never a mean over sentences."""

    version = "1.1.0"  # of the definition; results carry it

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_INPUTS,
            features=datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("string"))),
        )

    def _compute(self, predictions: list[str], references: list[str], language: str = "") -> dict[str, Any]:
        if len(references) == 0:
            raise ValueError("BLEU of 0 sentences is not defined. Evaluate at least one.")
        text = "".join("".join(references).split())
        tokenize = _tokenizer_of(language, text)
        moses = "intl" if tokenize == "13a" else tokenize
        try:
            # force: sacreBLEU would else warn of references that look tokenized
            sacrebleu = BLEU(tokenize=tokenize, force=True)
            bleu = BLEU(tokenize=moses, lowercase=True, smooth_method="none", force=True)
        except RuntimeError as error:  # the packages of ja-mecab and ko-mecab
            raise ValueError(f"BLEU's {tokenize} needs sacrebleu[ja] or sacrebleu[ko]. Install it.") from error
        scorers = {"sacrebleu": sacrebleu, "bleu": bleu, "chrf": CHRF()}
        scores = {name: scorer.corpus_score(predictions, [references]) for name, scorer in scorers.items()}
        return {
            **{name: score.score for name, score in scores.items()},
            "length_ratio": scores["sacrebleu"].ratio,
            "signatures": {name: str(scorer.get_signature()) for name, scorer in scorers.items()},
        }
