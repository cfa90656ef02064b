"""Make a controlled pair: a text and its twin in a made-up language, with every token id shifted by a constant.

    python -m pretraining.tools.controlled_pair --dataset local/bible --config en --output runs/pair --vocab_size 4000
    python -m pretraining.tools.controlled_pair --dataset local/sick --text_columns premise hypothesis \\
        --tokenizer runs/pair/tokenizer --output runs/pair_sick

The two languages have the same structure and share no token (after K et al. 2020 and Dufter and Schuetze 2020). Their
translations and word alignments are known exactly. On this pair you see in minutes what an objective does for
alignment.

A column may also hold lists of words, each with a label in another column. Every word then gets its twin.

The command doubles the tokens of the tokenizer. In the twin of a token, the private-use character 0xF0000 + c replaces
every character c. A token and its twin have the same score, so a twin text is cut exactly as its original.
Twin id = id + constant. Both languages share special tokens, the unknown token and the word mark. en-fake.txt is their
dictionary in MUSE's format: every word of the text and its twin, the most frequent first.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from pretraining.tools.train_tokenizer import SPECIALS_BESIDE_SPM, save_tokenizer, train_unigram
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.tables import Table, load_table, require_column, require_empty, split_names

TWIN_PLANE = 0xF0000  # Supplementary Private Use Area-A, and B for what is beyond the basic plane
LAST_CODE_POINT = 0x10FFFF
WORD_MARK = "▁"  # SentencePiece's, for a space
ORIGINAL, TWIN = "en", "fake"  # configurations of the dataset
DICTIONARY = f"{ORIGINAL}-{TWIN}.txt"
WORD = re.compile(r"[^\W\d_]+")


def twin_of(text: str) -> str:
    """Returns the twin of a normalized text: all characters but spaces and word marks, shifted to private-use planes.

    Raises ValueError for a character beyond U+1FFFF, which does not fit there.
    """
    codes = {c: TWIN_PLANE + ord(c) for c in text if not (c.isspace() or c == WORD_MARK)}
    if beyond := [c for c, code in codes.items() if code > LAST_CODE_POINT]:
        raise ValueError(
            f"the character U+{ord(beyond[0]):04X} is beyond U+1FFFF and can have no twin. Remove texts with it."
        )
    return text.translate({ord(c): code for c, code in codes.items()})


def double_tokens(model: bytes) -> bytes:
    """Returns a serialized SentencePiece model with the twins of all ordinary tokens appended, in the same order.

    A token of only the word mark would be its own twin, which both languages would share. It is removed. Instead,
    every character gets a token with the mark before it, as probable as the two tokens that it replaces.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    scores = {token.piece: token.score for token in proto.pieces if token.type == token.NORMAL}
    if WORD_MARK in scores:
        for token, score in scores.items():
            if len(token) == 1 and token != WORD_MARK and WORD_MARK + token not in scores:
                proto.pieces.add(piece=WORD_MARK + token, score=scores[WORD_MARK] + score)
        del proto.pieces[[token.piece for token in proto.pieces].index(WORD_MARK)]
    ordinary = [token for token in proto.pieces if token.type == token.NORMAL]
    for token in ordinary:
        proto.pieces.add(piece=twin_of(token.piece), score=token.score)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString()


def twin_offset(tokenizer: Any) -> int:
    """Returns the constant between the id of a token and the id of its twin.

    Raises ValueError for a tokenizer whose tokens were not doubled by this program.
    """
    ordinary, odd = divmod(len(tokenizer) - len(set(tokenizer.all_special_ids)), 2)
    first = len(tokenizer) - 1 - 2 * ordinary  # <mask> is last
    tokens = tokenizer.convert_ids_to_tokens(list(range(first, len(tokenizer) - 1)))
    if odd or [twin_of(token) for token in tokens[:ordinary]] != tokens[ordinary:]:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path} has no twin tokens. Give the tokenizer/ folder that this command "
            "wrote, or leave --tokenizer out to train one."
        )
    return ordinary


def translator(tokenizer: Any) -> Callable[[Any], Any]:
    """Returns a function from a text to its twin, normalized by the tokenizer, and from a list of words to theirs."""
    normalizer = tokenizer.backend_tokenizer.normalizer

    def translate(text: str | list[str | None] | None) -> str | list[str | None] | None:
        if isinstance(text, list):
            return [translate(word) for word in text]
        return None if text is None else twin_of(normalizer.normalize_str(text))

    return translate


def write_pair(splits: dict[str, Any], text_columns: list[str], tokenizer: Any, output_dir: str | Path) -> None:
    """Writes the configurations `en` and `fake` with all splits as a dataset in the Hub's layout.

    All other columns are copied, with ids and label names. The files are parquet, which keeps types.
    """
    output = Path(output_dir)
    translate = translator(tokenizer)
    for split, rows in splits.items():
        for config in (ORIGINAL, TWIN):
            (output / config).mkdir(parents=True, exist_ok=True)
        rows.to_parquet(output / ORIGINAL / f"{split}.parquet")
        twins = rows.map(
            lambda batch: {column: [translate(text) for text in batch[column]] for column in text_columns},
            batched=True,
            features=rows.features,
            keep_in_memory=True,
        )
        twins.to_parquet(output / TWIN / f"{split}.parquet")
    files = [
        {"config_name": config, "data_files": [{"split": name, "path": f"{config}/{name}.parquet"} for name in splits]}
        for config in (ORIGINAL, TWIN)
    ]
    text = (
        "# Controlled pair\n\nWritten by `python -m pretraining.tools.controlled_pair`; `fake` is the twin of `en`.\n"
    )
    header = yaml.safe_dump({"configs": files}, sort_keys=False)
    (output / "README.md").write_text(f"---\n{header}---\n{text}", encoding="utf-8")


def write_dictionary(texts: Iterable[str], tokenizer: Any, path: Path) -> int:
    """Writes every word of normalized `texts` and its twin, the most frequent first; returns how many there are."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    counts = Counter(word for text in texts for word in WORD.findall(normalizer.normalize_str(text)))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    path.write_text("".join(f"{word}\t{twin_of(word)}\n" for word in words), encoding="utf-8")
    return len(words)


def texts_of(splits: dict[str, Any], text_columns: list[str]) -> Iterable[str]:
    """Yields the texts of the split to learn from (`train`, or the first); a list of words becomes one text."""
    rows = splits.get("train", next(iter(splits.values())))
    for column in text_columns:
        for text in rows[column]:
            if text is not None:
                yield " ".join(word for word in text if word) if isinstance(text, list) else text


def load_splits(path: str, config: str | None, text_columns: list[str]) -> dict[str, Any]:
    """Returns all splits of a dataset. Raises ValueError for a text column that is missing or holds no text."""
    splits = {}
    for name in split_names(Table(path=path, config=config)):
        splits[name] = load_table(Table(path=path, config=config, split=name))
        for column in text_columns:
            feature = require_column(splits[name], column, f"{path}, split {name},")
            kind = getattr(getattr(feature, "feature", feature), "dtype", "a struct")  # of words, where it holds lists
            if column not in splits[name].column_names or kind != "string":
                raise ValueError(f"column {column} of {path} holds {kind}, not text. Give other --text_columns.")
    return splits


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--dataset", required=True, metavar="DIR", help="original text: folder, Hub id or file")
    parser.add_argument("--config", metavar="NAME", help="configuration of the dataset, if it has several")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write: en/, fake/ and tokenizer/")
    parser.add_argument("--vocab_size", type=int, default=4000, metavar="N", help="ids before doubling (default 4000)")
    parser.add_argument("--text_columns", nargs="+", default=["text"], metavar="COLUMN")
    parser.add_argument("--tokenizer", metavar="DIR", help="doubled tokenizer to use (default: train one)")
    flags = parser.parse_args(argv)
    with user_errors():
        from transformers import AutoTokenizer  # slow to import

        require_empty(flags.output)
        splits = load_splits(flags.dataset, flags.config, flags.text_columns)
        folder = flags.tokenizer
        if folder is None:
            folder = str(Path(flags.output) / "tokenizer")
            texts = texts_of(splits, flags.text_columns)
            # every character has a token: the unknown one would be shared by both languages
            model = train_unigram(texts, flags.vocab_size - SPECIALS_BESIDE_SPM, character_coverage=1.0)
            save_tokenizer(double_tokens(model), folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        offset = twin_offset(tokenizer)
        write_pair(splits, flags.text_columns, tokenizer, flags.output)
        path = Path(flags.output) / DICTIONARY
        words = write_dictionary(texts_of(splits, flags.text_columns), tokenizer, path)
        print(f"{len(tokenizer):,} ids, twin id = id + {offset}: {folder}\n{', '.join(splits)}: {flags.output}")
        print(f"{words:,} words and their twins: {path}")


if __name__ == "__main__":
    main()
