"""Writes ernie_m_oracle.npz: what ErnieM of transformers 4.57.6 gives, for tests that run without it.

    venv4/bin/python tests/modeling/make_ernie_m_oracle.py tests/modeling/ernie_m_oracle.npz

venv4 has transformers 4.57.6 (pip install --no-deps), torch, tokenizers 0.22.1, huggingface_hub<1 and sentencepiece.
In the file, by name:
- `config/<class>`: config.json; `weights/<class>/<key>`: the state dict, rounded to half precision and stored in it, so
  that no generator of random numbers is needed again; classes share the weights of the base model;
- `inputs/<case>/<field>`, `outputs/<class>/<case>/<field>`: a forward pass in evaluation mode, position_ids as
  transformers 4 counts them, from 0;
- `tokenizer/<file>`: a SentencePiece model and a vocab.txt;
- `tokens`: sentences of the sample corpus and their encodings, as JSON.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from transformers import (
    ErnieMConfig,
    ErnieMForQuestionAnswering,
    ErnieMForSequenceClassification,
    ErnieMForTokenClassification,
    ErnieMModel,
    ErnieMTokenizer,
)
from transformers.utils import logging

SAMPLE_CORPUS = Path(__file__).parents[2] / "sample_corpus"
LANGUAGES = ["en", "de", "fr", "es", "zh"]
SENTENCES = 20  # of each language
TOKENS = 600
SIZES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=24,
    layer_norm_eps=1e-6,
    classifier_dropout=0.2,
)
# neither the names nor the number of labels are the default's
LABELS = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
CLASSES = {
    ErnieMModel: {},
    ErnieMForSequenceClassification: LABELS,
    ErnieMForTokenClassification: LABELS,
    ErnieMForQuestionAnswering: {},
}


def cases() -> dict[str, dict[str, torch.Tensor]]:
    """Three texts of 9, 6 and 3 tokens, padded on either side, with positions and without."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(4, 63, (length,), generator=generator) for length in (9, 6, 3)]
    right, left = (torch.full((3, 9), 1) for _ in range(2))
    for row, text in enumerate(texts):
        right[row, : len(text)] = left[row, 9 - len(text) :] = text
    right_mask, left_mask = right.ne(1).long(), left.ne(1).long()
    counted = (left_mask.cumsum(1) - 1).clamp(min=0)
    return {
        "right": {"input_ids": right, "attention_mask": right_mask},
        "right, no mask": {"input_ids": right},
        "right, positions": {
            "input_ids": right,
            "attention_mask": right_mask,
            "position_ids": torch.randint(0, 20, (3, 9), generator=generator),
        },
        "left": {"input_ids": left, "attention_mask": left_mask},
        "left, positions": {"input_ids": left, "attention_mask": left_mask, "position_ids": counted},
    }


def models(found: dict, vocab_size: int) -> None:
    """Weights, inputs and outputs, into `found`."""
    generator = torch.Generator().manual_seed(1)
    body = {}
    for case, inputs in cases().items():
        found |= {f"inputs/{case}/{field}": tensor.numpy() for field, tensor in inputs.items()}
    for cls, fields in CLASSES.items():
        model = cls(ErnieMConfig(vocab_size=vocab_size, **SIZES, **fields, architectures=[cls.__name__])).eval()
        name = cls.__name__
        found[f"config/{name}"] = np.array(model.config.to_json_string())
        for key, tensor in model.state_dict().items():
            shared = key.removeprefix("ernie_m.")
            if shared not in body or shared.startswith(("classifier", "qa_outputs")):
                offset = 1.0 if "norm" in key and key.endswith("weight") else 0.0
                drawn = torch.randn(tensor.shape, generator=generator) * 0.3 + offset
                body[shared] = drawn.half()
                found[f"weights/{name}/{key}"] = body[shared].numpy()
            with torch.no_grad():
                tensor.copy_(body[shared])
        for case, inputs in cases().items():  # anew: transformers 4 adds 2 to position_ids in place
            with torch.no_grad():
                outputs = model(**inputs, output_hidden_states=cls is ErnieMModel)
            if outputs.get("hidden_states") is not None:
                outputs["hidden_states"] = torch.stack(outputs["hidden_states"])
            found |= {f"outputs/{name}/{case}/{field}": tensor.numpy() for field, tensor in outputs.items()}


def sentences() -> list[str]:
    """The first of every language of the sample corpus, and what ERNIE-M's rules are for."""
    drawn = [
        "In 2019 waren es 3,5 Mio. (7%) -- 10km, 12:30 Uhr!",
        "２０１９年,《书》在北京:a1b2c3。？！ ½ ﬁne ①",
        " zwei  Leerzeichen\tund [MASK] ein\nUmbruch ",
        "",
        " ",
    ]
    for language in LANGUAGES:
        with open(SAMPLE_CORPUS / language / "train.jsonl", encoding="utf-8") as file:
            drawn += [json.loads(line)["text"] for line, _ in zip(file, range(SENTENCES), strict=False)]
    return drawn


def tokens(found: dict) -> int:
    """A tokenizer's files and encodings, into `found`. Returns its number of tokens."""
    texts = sentences()
    with tempfile.TemporaryDirectory() as folder:
        model, vocabulary = Path(folder, "sentencepiece.bpe.model"), Path(folder, "vocab.txt")
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts[5:]),
            model_writer=written,
            model_type="unigram",
            vocab_size=TOKENS,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        model.write_bytes(written.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        # some tokens have no line, and are [UNK]
        kept = [processor.id_to_piece(index) for index in range(3, len(processor)) if index % 40]
        lines = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", *kept, "[MASK]"]
        vocabulary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        tokenizer = ErnieMTokenizer(str(model), str(vocabulary))
        found |= {f"tokenizer/{path.name}": np.frombuffer(path.read_bytes(), np.uint8) for path in (model, vocabulary)}
        settings = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "mask", "pad", "sep", "unk")}
        settings |= {"do_lower_case": False, "tokenizer_class": "ErnieMTokenizer"}
        found["tokenizer/tokenizer_config.json"] = np.frombuffer(json.dumps(settings).encode(), np.uint8)
    others = texts[1:] + texts[:1]
    content = {
        "texts": texts,
        "pieces": [tokenizer.tokenize(text) for text in texts],
        "single": tokenizer(texts)["input_ids"],
        "pair": tokenizer(texts, others)["input_ids"],
        "cut": tokenizer(texts, others, truncation=True, max_length=30)["input_ids"],
        # transformers 4 fails on a text without words
        "words": tokenizer([text.split() for text in texts if text.split()], is_split_into_words=True)["input_ids"],
    }
    found["tokens"] = np.array(json.dumps(content))
    return len(tokenizer)


def main() -> None:
    logging.set_verbosity_error()
    found: dict = {}
    models(found, tokens(found))
    np.savez_compressed(sys.argv[1], **found)


if __name__ == "__main__":
    main()
