"""What one would write by hand with `tokenizers` to tokenize files of text; the peer of bench/prepare.py."""

import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

BATCH = 1000  # lines that are tokenized at once


def main(tokenizer_file: str, output: str, *files: str) -> None:
    """Writes the ids of each file's lines, and where each line begins."""
    tokenizer = Tokenizer.from_file(tokenizer_file)
    for file in files:
        lines = Path(file).read_text(encoding="utf-8").split("\n")[:-1]
        ids = []
        for start in range(0, len(lines), BATCH):
            for encoding in tokenizer.encode_batch(lines[start : start + BATCH], add_special_tokens=False):
                ids.append(np.array(encoding.ids, dtype=np.int32))
        offsets = np.cumsum([0, *map(len, ids)])
        np.savez(f"{output}-{Path(file).stem}.npz", ids=np.concatenate(ids), offsets=offsets)


if __name__ == "__main__":
    main(*sys.argv[1:])
