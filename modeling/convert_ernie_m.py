"""Converts ERNIE-M's checkpoints into folders of this zoo, and back to transformers 4: the command line.

python -m modeling.convert_ernie_m saved_by_transformers_4 runs/ernie_m
"""

import argparse

from .convert_command import add_reading_options, run

DESCRIPTION = """Give ERNIE-M checkpoints a home: transformers 5 has dropped ErnieM.

  python -m modeling.convert_ernie_m saved_by_transformers_4 runs/ernie_m

The folder is loaded by AutoModel, AutoModelForSequenceClassification, ... and AutoTokenizer, with
trust_remote_code=True, under transformers 5; pre-training and fine-tuning start from it, and it can be pushed to the
Hub.

Read are: a folder or file of transformers 4's ErnieM (.safetensors, .bin); of PaddleNLP (.pdparams); the variables of
ERNIE's static graph (a folder of one file each); any of their names in .npz or .safetensors. Which it is, and which
head it has, is told by the names and by the configuration beside them. Information extraction becomes question
answering, and multiple choice sequence classification, with the same logits; what to do with these is printed.

Files are read without running code in them. Keys that are missing, left over, of the wrong shape or no finite numbers
are all listed, and nothing is written then; an output that exists is never touched. What was found, assumed and done is
printed, a line each.

Positions: where padding stands on the right, and where position_ids are given (here counted from 2, in transformers 4
from 0), outputs are those of transformers 4. Padding on the left moves positions there and not here: give
position_ids=torch.arange(length)[None] + 2 to have the same."""


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling.convert_ernie_m",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="folder or file to convert")
    parser.add_argument("output", metavar="FOLDER", help="what to write; must not exist")
    parser.add_argument(
        "--to",
        choices=["zoo", "transformers4"],
        default="zoo",
        help="transformers4: write a folder of this zoo as transformers 4's ErnieM saved it (default: zoo)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR|ID",
        help="where the tokenizer is taken from (default: SOURCE for ernie_m, XLM-R's on the Hub for xlm_roberta)",
    )
    parser.add_argument(
        "--tokenizer_type",
        choices=["ernie_m", "xlm_roberta"],
        help="ernie_m: the tokens and ids of transformers 4's ErnieMTokenizer (vocab.txt, sentencepiece.bpe.model). "
        "xlm_roberta: XLM-R's (default: ernie_m where a folder of transformers 4 brings it, else xlm_roberta)",
    )
    parser.add_argument(
        "--head",
        choices=["base", "sequence", "token", "question_answering", "masked_lm"],
        help="what the checkpoint is (default: as its configuration or its names say)",
    )
    add_reading_options(parser)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    parser = make_parser()
    arguments = vars(parser.parse_args(argv))
    source, output, to = (arguments.pop(name) for name in ("source", "output", "to"))
    given = [f"--{name}" for name, value in arguments.items() if value]
    if to == "transformers4" and given:
        parser.error(f"{', '.join(given)}: only for --to zoo; a folder of this zoo says itself what it is")

    def convert() -> list[str]:
        # torch and transformers take seconds to import: after --help and the parser's errors
        from .convert_ernie_m_checkpoints import to_transformers4, to_zoo

        return to_zoo(source, output, **arguments) if to == "zoo" else to_transformers4(source, output)

    run("convert_ernie_m", convert)


if __name__ == "__main__":
    main()
