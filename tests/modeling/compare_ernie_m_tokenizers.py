"""Compares ERNIE-M's tokenizer with transformers 4's ErnieMTokenizer, text by text, and prints what differs.

    python tests/modeling/compare_ernie_m_tokenizers.py --oracle venv4/bin/python FOLDER ... --per_table 100

FOLDER holds tables (.parquet, every text in every column) and plain texts (.txt, a line each), as deep as may be; so
many are drawn of each. No released vocabulary is needed: a SentencePiece model and a vocab.txt, from which some tokens
are left out, are trained on the texts. The oracle is a Python with transformers 4.57.6 (pip install --no-deps), torch,
tokenizers 0.22.1, huggingface_hub<1 and sentencepiece.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

# What is asked of both: name -> (kind of input, settings of the call, settings of the tokenizer).
# The length is even: of a pair that is cut on both sides and leaves an odd room, the last token is the first text's in
# transformers 4, and the longer text's in every tokenizer of the `tokenizers` library.
CASES = {
    "single": ("text", {}, {}),
    "single, cut to 24": ("text", {"truncation": True, "max_length": 24}, {}),
    "pair": ("pair", {}, {}),
    "pair, cut to 48": ("pair", {"truncation": True, "max_length": 48}, {}),
    "pair, second cut": ("question", {"truncation": "only_second", "max_length": 48}, {}),
    "pair, padded": ("pair", {"padding": "longest"}, {}),
    "single, padded on the left": ("text", {"padding": "longest"}, {"padding_side": "left"}),
    "words": ("words", {"is_split_into_words": True}, {}),
    "lower case": ("text", {}, {"do_lower_case": True}),
    "without vocab.txt": ("text", {}, {"vocab_file": None}),
}
FIELDS = {"return_attention_mask": True, "return_token_type_ids": True, "return_special_tokens_mask": True}


def answers(cls, folder: str, texts: list[str]) -> dict[str, dict[str, list]]:
    """What a tokenizer class gives in every case: field -> a list a text."""
    found = {}
    for name, (kind, call, settings) in CASES.items():
        files = {"sentencepiece_model_ckpt": f"{folder}/sentencepiece.bpe.model", "vocab_file": f"{folder}/vocab.txt"}
        tokenizer = cls(**(files | settings))
        inputs = {
            "text": (texts,),
            "pair": (texts, texts[1:] + texts[:1]),
            "question": ([text[:16] for text in texts], texts),
            "words": ([text.split() for text in texts],),
        }[kind]
        encoded = tokenizer(*inputs, **call, **FIELDS)
        found[name] = {field: encoded[field] for field in encoded}
        if name == "single":
            ids = encoded["input_ids"]
            found[name]["tokens"] = [tokenizer.convert_ids_to_tokens(row) for row in ids]
            # transformers 4 also strips the end, where a token that is left out may have had a space before it
            found[name]["decoded"] = [tokenizer.decode(row, skip_special_tokens=True).rstrip() for row in ids]
        # without vocab.txt, transformers 4 has no id for unknown tokens: None
        unknown = tokenizer.unk_token_id
        ids = found[name]["input_ids"]
        found[name]["input_ids"] = [[unknown if index is None else index for index in row] for row in ids]
    return found


def answer(folder: str) -> None:
    """The oracle's part: texts from texts.json of the folder, answers into answers.json."""
    from transformers import ErnieMTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    texts = json.loads(Path(folder, "texts.json").read_text(encoding="utf-8"))
    found = answers(ErnieMTokenizer, folder, texts)
    Path(folder, "answers.json").write_text(json.dumps(found), encoding="utf-8")


def texts_in(value):
    """All texts in a cell of a table, or in what is nested there; a list of words is one."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        yield " ".join(value)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def is_sentence(text: str) -> bool:
    """Four words, or eight characters where Chinese writes without spaces."""
    return len(text.split()) > 3 or (len(text) > 7 and any("\u4e00" <= character <= "\u9fff" for character in text))


def sample(folders: list[str], per_table: int) -> dict[str, list[str]]:
    """Table -> sentences drawn from it."""
    import pyarrow.parquet

    tables = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix == ".parquet":
                columns = pyarrow.parquet.read_table(path).to_pydict()
                found = {text for column in columns.values() for cell in column for text in texts_in(cell)}
            elif path.suffix == ".txt":
                found = set(path.read_text(encoding="utf-8", errors="replace").split("\n"))
            else:
                continue
            if found := sorted(filter(is_sentence, found)):
                tables[str(path)] = random.Random(0).sample(found, min(per_table, len(found)))
    return tables


def train(texts: list[str], folder: str, tokens: int) -> None:
    """sentencepiece.bpe.model and vocab.txt of a folder; every 40th token is missing in the latter."""
    import sentencepiece

    model = f"{folder}/sentencepiece.bpe"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=model,
        model_type="unigram",
        vocab_size=tokens,
        hard_vocab_limit=False,
        character_coverage=0.9995,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    kept = [processor.id_to_piece(index) for index in range(3, len(processor)) if index % 40]
    lines = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", *kept, "[MASK]"]
    Path(folder, "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="tables and texts to compare on")
    parser.add_argument("--oracle", metavar="PYTHON", help="a Python with transformers 4.57.6")
    parser.add_argument("--per_table", type=int, default=100, metavar="N", help="texts of each table (default: 100)")
    parser.add_argument(
        "--tokens", type=int, default=16000, metavar="N", help="size of the vocabulary (default: 16000)"
    )
    parser.add_argument("--answer", metavar="FOLDER", help=argparse.SUPPRESS)  # this program's call of itself
    flags = parser.parse_args()
    if flags.answer:
        answer(flags.answer)
        return
    if not flags.folders or not flags.oracle:
        parser.error("FOLDER and --oracle are needed")

    from modeling.tokenization_ernie_m import ErnieMTokenizer

    tables = sample(flags.folders, flags.per_table)
    texts = [text for drawn in tables.values() for text in drawn]
    print(f"{len(texts):,} sentences of {len(tables)} tables, {sum(map(len, texts)):,} characters")
    with tempfile.TemporaryDirectory() as folder:
        train(texts, folder, flags.tokens)
        Path(folder, "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        subprocess.run([flags.oracle, __file__, "--answer", folder], check=True)
        expected = json.loads(Path(folder, "answers.json").read_text(encoding="utf-8"))
        actual = answers(ErnieMTokenizer, folder, texts)
    failed = False
    for name, fields in expected.items():
        rows = range(len(texts))
        wrong = [row for row in rows if any(actual[name][field][row] != fields[field][row] for field in fields)]
        tokens = sum(map(sum, fields["attention_mask"]))
        print(
            f"{name:28} {len(texts) - len(wrong):,} of {len(texts):,} equal in {', '.join(fields)}; {tokens:,} tokens"
        )
        for row in wrong[:3]:
            failed = True
            print(f"  {texts[row]!r}")
            for field in fields:
                if actual[name][field][row] != fields[field][row]:
                    print(f"    {field}: {actual[name][field][row]}\n    expected: {fields[field][row]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
