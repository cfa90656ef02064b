"""Converts VECO's original checkpoints into folders of this zoo, and back: the command line.

python -m modeling.convert_veco from-fairseq model.pt runs/veco --tokenizer FacebookAI/xlm-roberta-large
"""

import argparse

from .convert_command import add_reading_options, run

DESCRIPTION = """Convert VECO's original checkpoints into folders of this zoo, and back.

  from-native    BERT-style names (encoder.layer.0.cross_attention.self.query.weight, ...) -> folder of an encoder
  from-fairseq   fairseq's translation layout (encoder.layers.0.self_attn.q_proj.weight, ...) -> folder of a
                 translation model, or of an encoder
  to-native      folder -> BERT-style names
  to-fairseq     folder -> fairseq's layout

A folder is a checkpoint that every Auto class loads (with trust_remote_code=True), that pre-training and fine-tuning
start from, and that can be pushed to the Hub. Files are read without running code in them. Keys that are missing, left
over or of the wrong shape are all listed, and nothing is written then; an output that exists is never touched. What was
found and done is printed, a line each."""

FROM_NATIVE = """Convert a native checkpoint: BERT's names behind any prefix, with or without cross-attention.

  python -m modeling.convert_veco from-native pytorch_model.bin runs/veco --tokenizer FacebookAI/xlm-roberta-large

The folder is a VecoForMaskedLM, with XLM-R's LM head where the file has it (lm_head.dense, ...). A pooler has no place
in it: --ignore_keys 'bert\\.pooler\\..*'.

Word embeddings are kept as they are. With --reference, rows of another scale, or of other tokens, are an error."""

FROM_FAIRSEQ = """Convert a fairseq checkpoint.

  python -m modeling.convert_veco from-fairseq model.pt runs/veco --model encoder \\
      --tokenizer FacebookAI/xlm-roberta-large

The released pre-trained file has all layers in encoder and decoder: with --model encoder it becomes an encoder with
cross-attention, which VecoForConditionalGeneration.from_encoder makes translation models of, of any depth. With
--model translation it becomes a translation model of just these layers.

fairseq multiplies word embeddings by sqrt(hidden size) when it looks them up, XLM-R and this zoo do not. A decoder that
was trained in fairseq (any but all encoder layers again) is converted as the file's args say, and keeps its logits. The
rows of the pre-trained file are examined for which of the two they are made for; --reference makes that certain. Where
a file may be either, say --embedding_scale."""

TO_NATIVE = """Write the encoder of a folder (and XLM-R's LM head, if it has one) under native names.

  python -m modeling.convert_veco to-native runs/veco/model pytorch_model.bin"""

TO_FAIRSEQ = """Write a folder as a fairseq checkpoint, {"model": ..., "args": ...}.

  python -m modeling.convert_veco to-fairseq runs/veco/model model.pt

An encoder with cross-attention becomes a translation model with all layers in encoder and decoder, as the released one.
fairseq itself was not run on what is written."""


def make_parser() -> argparse.ArgumentParser:
    """The four commands and their options."""
    parser = argparse.ArgumentParser(
        prog="python -m modeling.convert_veco",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, description: str, source: str, target: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=description.splitlines()[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.add_argument("source", metavar=source, help="what to convert")
        added.add_argument("output", metavar=target, help="what to write; must not exist")
        return added

    native, fairseq = (
        command(name, description, "FILE", "FOLDER")
        for name, description in (("from-native", FROM_NATIVE), ("from-fairseq", FROM_FAIRSEQ))
    )
    for reader in (native, fairseq):
        reader.add_argument(
            "--tokenizer", required=True, metavar="DIR|ID", help="XLM-R's tokenizer, copied into the folder"
        )
        reader.add_argument(
            "--reference",
            metavar="DIR|ID",
            help="XLM-R or VECO checkpoint to compare word embeddings with, and to fill missing rows from",
        )
        reader.add_argument(
            "--vocabulary_map",
            metavar="FILE",
            help="of a pruned vocabulary: 0 or 1 a line, for all tokens or for those of fairseq's dict.txt. The folder "
            "gets the tokens that are kept, and a tokenizer of these",
        )
        reader.add_argument(
            "--fill_vocabulary",
            action="store_true",
            help="write the full vocabulary: rows that the file lacks are those of --reference",
        )
        add_reading_options(reader)
    model_help = "what the result is (default: translation where there is a decoder or cross-attention for one)"
    fairseq.add_argument("--model", choices=["translation", "encoder"], help=model_help)
    fairseq.add_argument(
        "--embedding_scale",
        choices=["auto", "keep", "multiply", "divide"],
        default="auto",
        help="what to do to the word embeddings, by sqrt(hidden size); auto: as the file shows, or an error where it "
        "does not (default: auto)",
    )
    writer = command("to-native", TO_NATIVE, "FOLDER", "FILE")
    writer.add_argument("--prefix", default="bert.", help="what the names begin with, '' for nothing (default: bert.)")
    writer = command("to-fairseq", TO_FAIRSEQ, "FOLDER", "FILE")
    writer.add_argument("--model", choices=["translation", "encoder"], help=model_help)
    writer.add_argument(
        "--embedding_scale",
        choices=["keep", "divide"],
        default="keep",
        help="keep: for fairseq with --no-scale-embedding. divide: by sqrt(hidden size), for fairseq without "
        "(default: keep)",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    arguments = vars(make_parser().parse_args(argv))
    command, source, output = (arguments.pop(name) for name in ("command", "source", "output"))

    def convert() -> list[str]:
        # torch and transformers take seconds to import: after --help and the parser's errors
        from .convert_veco_checkpoints import Vocabulary, from_fairseq, from_native, to_fairseq, to_native

        converters = {
            "from-native": from_native,
            "from-fairseq": from_fairseq,
            "to-native": to_native,
            "to-fairseq": to_fairseq,
        }
        if command.startswith("from-"):
            names = {"tokenizer": "tokenizer", "reference": "reference", "map": "vocabulary_map"}
            names["fill"] = "fill_vocabulary"
            arguments["vocabulary"] = Vocabulary(**{field: arguments.pop(name) for field, name in names.items()})
        return converters[command](source, output, **arguments)

    run(f"convert_veco {command}", convert)


if __name__ == "__main__":
    main()
