"""Encoders that people use: every check that a model passes on its way accepts them.

encoders.json has facts of their configurations on the Hub, and the number of tokens and the padding id of their
tokenizers.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

from crosslingual_zoo.finetuning.align import command
from crosslingual_zoo.finetuning.align.adapt import check_encoder
from crosslingual_zoo.finetuning.models import describe_model
from crosslingual_zoo.modeling.checkpoints import check_vocabulary, load_config
from crosslingual_zoo.modeling.configuration_encoder import longest_input
from crosslingual_zoo.pretraining import plan
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.recipe import MetaPretrained, ModelStart, Recipe, Teacher
from crosslingual_zoo.pretraining.recipe_phases import Phase
from crosslingual_zoo.pretraining.start.initialization import Start
from crosslingual_zoo.pretraining.start.meta_pretrained import MetaCheckpoint
from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
from crosslingual_zoo.pretraining.start.teacher import TeacherModel
from crosslingual_zoo.zoo_core.provenance import write_json

ENCODERS = json.loads(Path(__file__).with_name("encoders.json").read_text(encoding="utf-8"))
# their model cards and papers say so, whatever a configuration counts
POSITIONS = dict.fromkeys(ENCODERS, 512)
POSITIONS |= {name: 8192 for name in ENCODERS if "mmBERT" in name or "EuroBERT" in name or "ModernBERT" in name}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIALS = ("pad", "cls", "sep", "unk", "mask")
SMALL = dict(hidden_size=16, num_attention_heads=2, intermediate_size=24)
FEW = 1000  # tokens of the small tokenizers


class SizedTokenizer(SimpleNamespace):
    """What checks of a configuration read of a tokenizer."""

    def __len__(self) -> int:
        return self.tokens


def sized_tokenizer(name: str, **changes: int | None) -> SizedTokenizer:
    """The number of tokens and the padding id are the encoder's; the other ids are made up."""
    facts = {key: value for key, value in ENCODERS[name]["tokenizer"].items() if key != "kind"} | changes
    ids = {"mask_token_id": facts["tokens"] - 1, "cls_token_id": 2, "sep_token_id": 3}
    ids |= {"bos_token_id": 2, "eos_token_id": 3}
    return SizedTokenizer(**ids | facts, all_special_ids=[0, 1, 2, 3])


def recipe_of(path: Path | None, model_type: str = "xlm_align", **fields: object) -> Recipe:
    phase = Phase("mlm", 1, {"mlm": MlmCollator(batch_size=1, max_length=64)}, learning_rate=1e-3)
    start = str(path) if path else None
    return Recipe("unused", ModelStart(type=model_type, start_from=start), phases=[phase], **fields)


@pytest.mark.parametrize("name", ENCODERS)
def test_checks_of_a_configuration_accept_encoders(name, tmp_path):
    write_json(tmp_path / "config.json", ENCODERS[name]["config"])
    tokenizer, config = sized_tokenizer(name), load_config(str(tmp_path))
    check_vocabulary(tokenizer, config, name)
    assert longest_input(config) == POSITIONS[name]
    for model_type in ("xlm_align", "metaxlm", "ernie_m"):
        built = Start(recipe_of(tmp_path, model_type)).build_config(tokenizer)
        assert built.vocab_size == ENCODERS[name]["config"]["vocab_size"] and longest_input(built) == POSITIONS[name]
        check_vocabulary(tokenizer, built, name)  # what was pretrained from it, too
    source = MetaCheckpoint(MetaPretrained(str(tmp_path)))
    fields = source.config_fields({}, tokenizer)
    assert fields.get("hidden_size") or fields["backbone_config"]["vocab_size"] == len(tokenizer)


@pytest.mark.parametrize("name", ENCODERS)
def test_check_vocabulary_refuses_too_few_rows_and_other_positions(name):
    config = AutoConfig.for_model(**ENCODERS[name]["config"])
    more = sized_tokenizer(name, tokens=config.vocab_size + 1)
    with pytest.raises(ValueError, match=str(config.vocab_size)):
        check_vocabulary(more, config, name)
    check_vocabulary(sized_tokenizer(name, tokens=10), config, name)
    check_vocabulary(sized_tokenizer(name, pad_token_id=None), config, name)
    other = sized_tokenizer(name, pad_token_id=config.pad_token_id + 1)
    if config.model_type in ("xlm-roberta", "roberta", "camembert"):  # positions are counted from the padding id
        with pytest.raises(ValueError, match=f"padding id {config.pad_token_id}"):
            check_vocabulary(other, config, name)
    else:
        check_vocabulary(other, config, name)


def small_tokenizer(kind: str, tokens: int, pad_token_id: int) -> PreTrainedTokenizerFast:
    """A tokenizer of this kind: letters, other tokens that do not occur, and special tokens from the padding id on."""
    specials = {f"<{name}>": pad_token_id + number for number, name in enumerate(SPECIALS)}
    if kind == "byte-level bpe":
        written = sorted(pre_tokenizers.ByteLevel.alphabet())
    elif kind == "wordpiece":
        written = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    else:
        written = ["▁", *(f"▁{letter}" for letter in LETTERS), *LETTERS]
    written += [f"unused {number}" for number in range(tokens - len(written) - len(specials))]
    free = [number for number in range(tokens) if number not in specials.values()]
    numbers = dict(zip(written, free, strict=True)) | specials
    spaces = pre_tokenizers.Metaspace()
    if kind == "unigram":
        ordered = sorted(numbers, key=numbers.__getitem__)
        backend = Tokenizer(models.Unigram([(token, -1.0) for token in ordered], unk_id=numbers["<unk>"]))
    elif kind == "wordpiece":
        backend, spaces = Tokenizer(models.WordPiece(numbers, unk_token="<unk>")), pre_tokenizers.BertPreTokenizer()
    else:
        backend = Tokenizer(models.BPE(numbers, [], unk_token="<unk>"))
    if kind == "byte-level bpe":
        spaces, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    backend.pre_tokenizer = spaces
    backend.post_processor = processors.TemplateProcessing(
        single="<cls> $A <sep>", pair="<cls> $A <sep> $B <sep>",
        special_tokens=[(token, specials[token]) for token in ("<cls>", "<sep>")],
    )  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{f"{name}_token": f"<{name}>" for name in SPECIALS})


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_everything_accepts_encoders(name, tmp_path, sample_tokenizer, capsys):
    """With random weights of a small width; of the vocabulary, tokens that never occur are left out."""
    facts, removed = ENCODERS[name]["tokenizer"], ENCODERS[name]["tokenizer"]["tokens"] - FEW
    small = {"vocab_size": ENCODERS[name]["config"]["vocab_size"] - removed}
    for key, value in ENCODERS[name]["config"].items():
        if key.endswith("_token_id") and value >= FEW:
            small[key] = value - removed
    settings = ENCODERS[name]["config"] | SMALL | small
    settings |= {"num_key_value_heads": 2} if "num_key_value_heads" in settings else {}
    pad_token_id = facts["pad_token_id"] - (removed if facts["pad_token_id"] >= FEW else 0)
    tokenizer = small_tokenizer(facts["kind"], FEW, pad_token_id)
    assert len(tokenizer) == FEW and tokenizer.pad_token_id == pad_token_id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_config(AutoConfig.for_model(**settings)).save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", settings)
    tokenizer.save_pretrained(tmp_path)

    assert describe_model(str(tmp_path), max_length=512).config.vocab_size == small["vocab_size"]
    assert check_encoder(str(tmp_path), False) == POSITIONS[name]
    command.main(["the house", "das haus", "--model", str(tmp_path), "--device", "cpu"])
    assert "-" in capsys.readouterr().out
    plan.main([str(tmp_path)])
    assert "mlm, tlm" in capsys.readouterr().out
    teacher = TeacherModel(Teacher(str(tmp_path), language="en"), sample_tokenizer)
    assert teacher.partners and teacher.longest_input == POSITIONS[name]
    source = MetaCheckpoint(MetaPretrained(str(tmp_path)))
    assert source.weights and "exact" in source.match(sample_tokenizer).routes
    for fields in ({}, {"tokenizer": str(tmp_path)}):  # named, it is still the model's own
        start = Start(recipe_of(tmp_path, **fields))
        loaded = tokenizer_of(start.recipe)
        model = start.build_model(start.build_config(loaded))
        loss = model(**MlmCollator(loaded, mask_probability=0.5)([{"text": "the house is small"}])).loss
        assert loss.isfinite() and model.config.pad_token_id == pad_token_id


@pytest.mark.slow
def test_start_takes_the_padding_id_of_a_tokenizer_with_its_own(tmp_path):
    """EuroBERT's padding id is that of the end of a text; a tokenizer of it may have a token for padding."""
    settings = ENCODERS["EuroBERT/EuroBERT-210m"]["config"] | SMALL | {"num_key_value_heads": 2, "vocab_size": FEW}
    settings |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(**settings)).save_pretrained(tmp_path)
    small_tokenizer("byte-level bpe", FEW, 4).save_pretrained(tmp_path)
    start = Start(recipe_of(tmp_path))
    tokenizer = tokenizer_of(start.recipe)
    model = start.build_model(start.build_config(tokenizer))
    assert model.config.pad_token_id == model.get_input_embeddings().padding_idx == 4
    assert describe_model(str(tmp_path)).tokenizer.pad_token_id == 4
