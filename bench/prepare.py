"""`zoo-prepare`'s work against a script of `tokenizers`, as whole commands: `python -m bench.prepare`.

Both tokenize the same text files once, start and loading included: ours into the cache of `datasets`, with the hash of
each row, the script into flat arrays in an .npz file. Without --text, there are six files of made-up paragraphs, each a
few sentences of the sample corpus. Times are processor seconds of one thread, and memory is that of the largest
process.
"""

import random
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import datasets

from bench._common import compare_commands, make_parser, show, write_results
from crosslingual_zoo.finetuning.align.common import DEFAULT_MODEL
from crosslingual_zoo.modeling.checkpoints import load_tokenizer
from crosslingual_zoo.zoo_core.command_line import user_errors

OURS, SCRIPT = "prepare", "script"
LANGUAGES = ("en", "de", "fr", "es", "zh")
SENTENCES = 2  # of a made-up paragraph
SCRIPT_FILE = Path(__file__).parent / "_prepare_script.py"


def write_texts(folder: Path, lines: int) -> list[Path]:
    """Writes a file for each language of the sample corpus, with `lines` paragraphs in all."""
    corpus = str(Path(__file__).parents[1] / "sample_corpus")
    rng = random.Random(0)
    files = []
    for language in LANGUAGES:
        sentences = datasets.load_dataset(corpus, language, split="train")["text"]
        paragraphs = [" ".join(rng.choices(sentences, k=SENTENCES)) for _ in range(lines // len(LANGUAGES))]
        file = folder / f"{language}.txt"
        file.write_text("".join(f"{paragraph}\n" for paragraph in paragraphs), encoding="utf-8")
        files.append(file)
    return files


def command_of(folder: Path, files: list[Path], way: str, number: int) -> list[str]:
    """The command of a way; ours begins without a copy in the cache."""
    tokenizer = folder / "tokenizer"
    if way == SCRIPT:
        return [sys.executable, *map(str, (SCRIPT_FILE, tokenizer / "tokenizer.json", folder / "ids", *files))]
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    corpora = ", ".join(f"{{language: '{file.stem}', path: '{file}'}}" for file in files)
    overrides = [
        f"output_dir={folder / 'run'}",
        "model={type: metaxlm}",
        f"tokenizer={tokenizer}",
        f"monolingual=[{corpora}]",
        "phases=[{name: mlm, steps: 1, learning_rate: 1.0e-3, objectives: {mlm: {batch_size: 32}}}]",
    ]
    module = "crosslingual_zoo.pretraining.tools.prepare"
    return ["env", f"HF_DATASETS_CACHE={cache}", sys.executable, "-m", module, *overrides]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser(__doc__, "prepare")
    parser.add_argument("--lines", type=int, default=100_000, help="made-up paragraphs (default %(default)s)")
    parser.add_argument("--text", nargs="+", metavar="FILE", help="files with a text a line")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--model", metavar="DIR|ID", default=DEFAULT_MODEL, help="its tokenizer (default %(default)s)")
    flags = parser.parse_args(argv)
    with user_errors(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load_tokenizer(flags.model).save_pretrained(folder / "tokenizer")
        if flags.text:
            files = [Path(file).resolve() for file in flags.text]
        else:
            files = write_texts(folder, flags.lines)
        rows = compare_commands([OURS, SCRIPT], partial(command_of, folder, files), flags.rounds, SCRIPT)
        show(f"{len(files)} files of text", rows)
        write_results(flags, {"rows": rows})


if __name__ == "__main__":
    main()
