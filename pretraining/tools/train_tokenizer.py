"""Train a SentencePiece unigram tokenizer of XLM-R's form from the corpora of a recipe.

  python -m crosslingual_zoo.pretraining.tools.train_tokenizer --config RECIPE --vocab_size 8000 --output runs/tokenizer

Held-out rows are left out. A table that several corpora share is read once. Afterwards, set `tokenizer` in the recipe
to the folder.
"""

import io
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.tools import require_empty
from crosslingual_zoo.zoo_core.command_line import parse_command_line, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.provenance import forget_machine

FLAGS = {
    "--vocab_size": {"type": int, "required": True, "metavar": "N", "help": "number of ids, special tokens included"},
    "--output": {"required": True, "metavar": "DIR", "help": "folder to write; AutoTokenizer loads it"},
}

MODEL_FILE = "sentencepiece.bpe.model"  # the name XLMRobertaTokenizer looks for, although the model is a unigram one
SPECIALS_BESIDE_SPM = 2  # XLM-R adds <pad> and <mask> to SentencePiece's <s>, </s> and <unk>
# SentencePiece skips longer texts in silence; its default of 4,192 bytes is less than a paragraph of Chinese
MAX_BYTES = 1 << 24


def train_tokenizer(texts: Iterable[str], output_dir: str | Path, vocab_size: int) -> None:
    """Trains on `texts` and writes a tokenizer that AutoTokenizer loads (XLMRobertaTokenizer, 512 positions).

    The tokenizer is a unigram model like XLM-R's (Conneau et al. 2020, section 3). `vocab_size` counts all ids. A small
    text may give fewer. Equal texts give equal files. The most frequent characters that cover 99.95% of the text get
    tokens. The other characters are unknown.

    Raises ValueError where there is no text, and for a vocabulary smaller than the characters of the text.
    """
    import sentencepiece
    from transformers import XLMRobertaTokenizer

    texts = (text.replace("\n", " ") for text in texts if text and not text.isspace())
    first = next(texts, None)
    if first is None:
        raise ValueError("there is no text: every row is empty or held out. Check the text columns of the corpora.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain([first], texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - SPECIALS_BESIDE_SPM,
            hard_vocab_limit=False,
            character_coverage=0.9995,
            max_sentence_length=MAX_BYTES,
            num_threads=16,  # the same on every machine, because sums depend on how the work is divided
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition("] ")[2] or "it is too small"
        raise ValueError(f"vocab_size is {vocab_size}, which does not work: {reason}") from error
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL_FILE).write_bytes(model.getvalue())
    XLMRobertaTokenizer.from_pretrained(folder, model_max_length=512).save_pretrained(folder)
    forget_machine(folder)


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    recipe, flags = parse_command_line(Recipe, __doc__, FLAGS, argv)
    with user_errors():
        recipe.check()
        require_empty(flags.output)
        say_loading("the corpora")
        from crosslingual_zoo.pretraining.data.sources import open_sources, training_texts
        from crosslingual_zoo.zoo_core.console import quiet_libraries

        quiet_libraries()
        sources = open_sources(recipe.named_corpora(), recipe.hub_root)
        texts = training_texts(sources, recipe.evaluation.held_out_fraction)
        train_tokenizer(texts, flags.output, flags.vocab_size)
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(flags.output)
        line = f"{len(tokenizer):,} ids: {flags.output}"
        if len(tokenizer) < flags.vocab_size:
            line += f" (the text is too small for {flags.vocab_size:,})"
        print(line)


if __name__ == "__main__":
    main()
