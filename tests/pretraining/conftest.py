"""What these tests share: small recipes over the sample corpus and over files of their own, and the command itself."""

import json
from pathlib import Path

import pytest
import yaml
from accelerate.state import AcceleratorState, PartialState

from common.recipes import load_recipe
from pretraining import run
from pretraining.recipe import Recipe
from pretraining.recipe_checks import check_recipe

LANGUAGES = ("en", "de", "zh")

BASE = {
    "output_dir": "unused",
    "model": {"type": "veco"},
    "phases": [{"name": "a", "steps": 6, "learning_rate": 1e-3, "objectives": {"mlm": {"batch_size": 8}}}],
}


class Files:
    """Writes small files; gives their paths."""

    def __init__(self, folder: Path):
        self.folder = folder

    def lines(self, name: str, lines: list[str]) -> str:
        (self.folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return str(self.folder / name)

    def jsonl(self, name: str, rows: list[dict]) -> str:
        return self.lines(name, [json.dumps(row, ensure_ascii=False) for row in rows])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def recipe_of(files):
    """A recipe of the given fields over a small one; `objectives` and `corpora` are those of its only phase."""

    def make(objectives=None, corpora=None, **fields) -> Recipe:
        values = json.loads(json.dumps(BASE | fields))
        if objectives:
            values["phases"][0]["objectives"] = objectives
        if corpora:
            values["phases"][0]["corpora"] = corpora
        recipe = load_recipe(Recipe, files.lines("recipe.yaml", [json.dumps(values)]), [])
        check_recipe(recipe)
        return recipe

    return make


@pytest.fixture
def sample(sample_corpus_dir):
    """The fields of a table of the sample corpus, by language."""
    return lambda language: {"path": str(sample_corpus_dir), "config": language}


@pytest.fixture
def recipe_file(tmp_path, sample_tokenizer_dir, pytestconfig):
    """A small recipe on the sample corpus; dropout is off, so that splitting a batch can change nothing."""
    corpus = str(pytestconfig.rootpath / "sample_corpus")
    recipe = {
        "output_dir": str(tmp_path / "run"),
        "model": {
            "type": "xlm_align",
            "config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 130,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
        },
        "tokenizer": str(sample_tokenizer_dir),
        "monolingual": [{"language": name, "path": corpus, "config": name} for name in LANGUAGES],
        "bitext": [
            {
                "source_language": "en",
                "target_language": name,
                "join_on": "id",
                "source": {"path": corpus, "config": "en"},
                "target": {"path": corpus, "config": name},
            }
            for name in LANGUAGES[1:]
        ],
        "phases": [
            {
                "name": "main",
                "steps": 3,
                "learning_rate": 1e-3,
                "schedule": "constant",
                "objectives": {"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 128}},
            }
        ],
        "log_every_steps": 1,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


@pytest.fixture
def train(recipe_file):
    """The command of a user, in this process: `train("phases.0.steps=2", "--resume")`."""

    def command(*arguments):
        AcceleratorState._reset_state()
        PartialState._reset_state()
        run.main(["--config", str(recipe_file), *arguments])

    return command


@pytest.fixture
def fails(train, capsys):
    """The message of a command that stops with an error."""

    def message(*arguments):
        with pytest.raises(SystemExit) as stop:
            train(*arguments)
        assert stop.value.code == 2
        return capsys.readouterr().err

    return message


@pytest.fixture(scope="session")
def teacher_dir(tmp_path_factory, sample_corpus_dir):
    """Folder of a random English BERT with a WordPiece tokenizer of its own, lower case."""
    import datasets
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM, BertTokenizer

    folder = tmp_path_factory.mktemp("teacher")
    wordpiece = BertWordPieceTokenizer(lowercase=True)
    texts = datasets.load_dataset(str(sample_corpus_dir), "en", split="train")["text"]
    wordpiece.train_from_iterator(texts, vocab_size=600, show_progress=False)
    wordpiece.save_model(str(folder))
    tokenizer = BertTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=40,
        initializer_range=0.5,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_of():
    """A tokenizer with these pieces: `wordpiece` with BERT's special tokens in front, `unigram` (SentencePiece) and
    `byte_level` with RoBERTa's in front and <mask> last."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def make(kind: str, pieces: list[str], **specials: str | None) -> PreTrainedTokenizerFast:
        if kind == "wordpiece":
            names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
            vocabulary = {piece: number for number, piece in enumerate([*names.values(), *pieces])}
            backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
            backend.normalizer = normalizers.BertNormalizer(lowercase=False)
            backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            backend.decoder = decoders.WordPiece()
        else:
            names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
            names |= {"cls": "<s>", "sep": "</s>"}
            listed = ["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"]
            if kind == "unigram":
                backend = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(listed)], unk_id=3))
                backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
            else:
                backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(listed)}, []))
                backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
                backend.decoder = decoders.ByteLevel()
        names |= specials
        given = {f"{name}_token": token for name, token in names.items() if token is not None}
        return PreTrainedTokenizerFast(tokenizer_object=backend, **given)

    return make
