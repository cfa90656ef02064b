"""Encoders of other architectures below the zoo's heads and objectives: exactly theirs, masks included."""

import functools
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, BertForPreTraining

from crosslingual_zoo.modeling.attention_masks import btmlm_generation_mask, camlm_mask
from crosslingual_zoo.modeling.backbone import honors_block_masks
from crosslingual_zoo.modeling.configuration_ernie_m import ErnieMConfig
from crosslingual_zoo.modeling.configuration_veco import VecoConfig
from crosslingual_zoo.modeling.configuration_xlm_align import XlmAlignConfig
from crosslingual_zoo.modeling.modeling_ernie_m import ErnieMForPreTraining
from crosslingual_zoo.modeling.modeling_metaxlm import MetaXlmForPreTraining
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignForMaskedLM, XlmAlignForPreTraining, XlmAlignModel
from tests.architectures import ARCHITECTURES
from tests.modeling.tiny import MASK, PAD, batch_of, gradients, made, pair_row

SIZES = dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48)
SHAPE = dict(pad_token_id=PAD, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2, mask_token_id=MASK)
SHAPE |= SIZES | dict(vocab_size=MASK + 1)
WITH_MASKS = [
    name for name in ARCHITECTURES if honors_block_masks(AutoConfig.for_model(name, **SHAPE | ARCHITECTURES[name]))
]


# A DeBERTa of the kind that has what mDeBERTa has not: rows for two token types and for positions.
WITH_TYPES = "deberta-v2 with types"
SETTINGS = ARCHITECTURES | {
    WITH_TYPES: ARCHITECTURES["deberta-v2"] | {"type_vocab_size": 2, "position_biased_input": True}
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """`checkpoint(name)`: a folder of a small masked LM of one of `SETTINGS`, and the model; each is made once."""

    @functools.cache
    def make(name):
        torch.manual_seed(0)
        config = AutoConfig.for_model(name.split()[0], **SHAPE | SETTINGS[name])
        model = AutoModelForMaskedLM.from_config(config).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return folder, model

    return make


@pytest.fixture
def batch():
    """Two pairs, the second padded; their last predicted words are in segment 1."""
    first = pair_row(1, (10, 11), (2, 3, 5, 9, 14, 20), languages=(0, 1))
    second = pair_row(2, (9, 6), (1, 4, 8, 13, 15), languages=(0, 1))
    return batch_of([first, second], "padded right")


POSITIONS_1T = torch.arange(25)[None].square() % 31
FURTHER_INPUTS = {  # of rows of 25 positions
    "nothing": {},
    "types": {"token_type_ids": torch.arange(25).ge(7).long().expand(2, -1)},
    "positions of all rows": {"position_ids": POSITIONS_1T},
    "positions of each row": {"position_ids": POSITIONS_1T.expand(2, -1)},
}


@torch.no_grad()
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_run_backbone_states_and_logits_are_the_library_s(name, skips, checkpoint, batch):
    """Of every layer, with token types and positions or without."""
    folder, theirs = checkpoint(name)
    ours, report = XlmAlignForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    ours.eval().set_skip_padding(skips)
    mask = batch["attention_mask"].clone()
    mask[0, -16:] = 0  # so that both rows fit into one
    is_real = mask.bool()
    logits = {}
    for label, further in FURTHER_INPUTS.items():
        inputs = {"input_ids": batch["input_ids"], "attention_mask": mask, **further}
        expected = theirs(**inputs, output_hidden_states=True)
        output = ours(**inputs, output_hidden_states=True)
        logits[label] = expected.logits[is_real]
        torch.testing.assert_close(output.logits[is_real], logits[label], atol=1e-5, rtol=1e-5)
        for states_BTH, expected_BTH in zip(output.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(states_BTH[is_real], expected_BTH[is_real], atol=1e-5, rtol=1e-5)
        second_BTH = ours.roberta(**inputs, num_layers=2).last_hidden_state
        torch.testing.assert_close(second_BTH[is_real], expected.hidden_states[2][is_real], atol=1e-5, rtol=1e-5)
    if name == WITH_TYPES:  # far more than what the comparison forgives
        assert (logits["types"] - logits["nothing"]).abs().max() > 1e-4
        assert (logits["positions of all rows"] - logits["nothing"]).abs().max() > 1e-4


def assert_reaches_every_layer(model, loss):
    """Every matrix of every layer has a gradient."""
    learned = gradients(model, loss)
    for name, _ in model.roberta.named_parameters(prefix="roberta"):
        if "layer" in name and name.endswith("weight"):
            assert name in learned, name
            assert learned[name].any(), name


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_for_pretraining_dwa_reaches_every_layer(name, checkpoint, batch):
    folder, _ = checkpoint(name)
    model = XlmAlignForPreTraining.from_pretrained(folder, pointer_start="identity")
    output = model(tlm=batch, objective_weights={"tlm": 0.0})
    assert len(output.token_losses["dwa"])
    assert_reaches_every_layer(model, output.loss_sum)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_for_pretraining_kd_reaches_every_layer(name, checkpoint, batch):
    folder, _ = checkpoint(name)
    answers = {
        "tokens_C": torch.arange(5, 15),
        "log_probabilities_NC": torch.full((3, 10), 0.1).log(),
        "temperature": 1.0,
        "positions_N": batch["labels"].flatten().ne(-100).nonzero()[:3, 0],
    }
    model = MetaXlmForPreTraining.from_pretrained(folder)
    output = model(mlm=batch | {"teacher": answers}, objective_weights={"mlm": 0.0})
    assert set(output.token_losses) == {"kd"}
    assert_reaches_every_layer(model, output.loss_sum)


@pytest.mark.parametrize("name", WITH_MASKS)
def test_for_pretraining_camlm_and_btmlm_reach_every_layer(name, checkpoint, batch):
    folder, _ = checkpoint(name)
    model = ErnieMForPreTraining.from_pretrained(folder, mask_token_id=MASK, languages=["en", "de"])
    mask = batch["attention_mask"]
    segments = batch["segment_ids"]
    camlm = batch | {"attention_mask": camlm_mask(mask, segments, batch["labels"].ne(-100))}
    assert_reaches_every_layer(model, model(camlm=camlm).loss_sum)
    is_pseudo = segments.eq(1) & batch["special_tokens_mask"].eq(0)
    btmlm = batch | {
        "input_ids": batch["input_ids"].masked_fill(is_pseudo, MASK),
        "labels": batch["labels"].masked_fill(is_pseudo, -100),
        "generation_mask": btmlm_generation_mask(mask, segments),
    }
    assert_reaches_every_layer(model, model(btmlm=btmlm).loss_sum)
    assert not model.back_translate(btmlm)[is_pseudo].eq(MASK).any()


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("name", [*WITH_MASKS, None])
def test_block_mask_isolates_exactly(name, attention, checkpoint, batch):
    """Two texts packed into a row, in the zoo's encoder and in both kinds of a ModernBERT's layers: each is as if it
    were alone."""
    if name is None:
        model = made("xlm_align", "Model", attention)
        theirs = made("xlm_align", "Model", "eager")
        first_position = 2
    else:
        folder, masked_lm = checkpoint(name)
        theirs = masked_lm.base_model
        model = XlmAlignModel.from_pretrained(folder, attn_implementation=attention).eval()
        first_position = 0
    cut = 14
    first_text, second_text = batch["input_ids"][:1].split([cut, 25 - cut], dim=1)
    block = torch.block_diag(torch.ones(cut, cut), torch.ones(25 - cut, 25 - cut)).bool()[None]
    positions = first_position + torch.cat([torch.arange(cut), torch.arange(25 - cut)])[None]

    def packed(*texts):
        return model(torch.cat(texts, 1), attention_mask=block, position_ids=positions)[0]

    states_1TH = packed(first_text, second_text)
    alone_1TH = torch.cat([theirs(first_text)[0], theirs(second_text)[0]], 1)
    torch.testing.assert_close(states_1TH, alone_1TH, atol=1e-5, rtol=1e-5)
    other_1TH = packed(first_text, second_text.flip(1))
    assert torch.equal(states_1TH[:, :cut], other_1TH[:, :cut])
    assert not torch.equal(states_1TH[:, cut:], other_1TH[:, cut:])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_set_skip_padding_gradients_are_those_of_the_padded_batch(name, checkpoint):
    model = XlmAlignForPreTraining.from_pretrained(checkpoint(name)[0]).eval()
    rows = [pair_row(length, (length,), range(1, length, 3)) for length in (22, 7, 12, 2, 8, 21)]
    batch = batch_of(rows, "padded left")
    expected = gradients(model, model(mlm=batch).loss_sum)
    model.set_skip_padding(True)
    torch.testing.assert_close(gradients(model, model(mlm=batch).loss_sum), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("size", "multiple", "new_size"), [(71, None, 71), (45, None, 45), (61, 8, 64)])
@pytest.mark.parametrize("name", [*SETTINGS, None])
def test_resize_token_embeddings_is_saved_and_loaded(name, size, multiple, new_size, checkpoint, batch, tmp_path):
    if name is None:
        model = XlmAlignForMaskedLM(XlmAlignConfig(**SHAPE))
    else:
        model = XlmAlignForMaskedLM.from_pretrained(checkpoint(name)[0])
    model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    nn.init.normal_(model.get_input_embeddings().weight)
    model.save_pretrained(tmp_path)
    ids = batch["input_ids"][:1] % 45
    expected = model.eval()(ids).logits
    assert expected.shape[-1] == new_size
    for auto_class, options in ((XlmAlignForMaskedLM, {}), (AutoModelForMaskedLM, {"trust_remote_code": True})):
        loaded, report = auto_class.from_pretrained(tmp_path, output_loading_info=True, **options)
        assert not any(report.values())
        assert loaded.config.vocab_size == new_size
        is_tied = loaded.get_input_embeddings().weight is loaded.lm_head.decoder.weight
        assert is_tied == loaded.config.tie_word_embeddings
        assert torch.equal(loaded.eval()(ids).logits, expected)


def test_run_backbone_refuses_what_it_cannot_honor(checkpoint, batch, tmp_path):
    folder, _ = checkpoint("deberta-v2")
    model = XlmAlignModel.from_pretrained(folder)
    with pytest.raises(ValueError, match="deberta-v2"):
        model(batch["input_ids"], attention_mask=torch.ones(2, 25, 25, dtype=torch.bool))
    with pytest.raises(ValueError, match="modernbert"):  # VECO's module sits inside layers of XLM-R's shape
        VecoConfig.from_pretrained(checkpoint("modernbert")[0])
    AutoConfig.for_model("electra").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="electra"):
        XlmAlignForPreTraining.from_pretrained(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("name", [*WITH_MASKS, None])
def test_ernie_m_language_embedding_moves_the_mask_alone(name, checkpoint, batch):
    """Also in the zoo's own encoder; it begins as zero, so that a checkpoint without one gives the same states."""
    options = dict(mask_token_id=MASK, languages=["en", "de"])
    if name is None:
        model = ErnieMForPreTraining(ErnieMConfig(**SHAPE | options)).eval()
    else:
        model = ErnieMForPreTraining.from_pretrained(checkpoint(name)[0], **options).eval()
    assert not model.roberta.language_embeddings.weight.any()
    nn.init.normal_(model.roberta.language_embeddings.weight)
    ids = batch["input_ids"][:1]

    def embedded(**languages):
        return model.roberta(ids, num_layers=0, **languages)[0]

    in_second_language = embedded(language_ids=torch.ones_like(ids))
    is_moved = (embedded() - in_second_language).abs().amax(-1) > 1e-4
    assert torch.equal(is_moved, ids.eq(MASK))
    torch.testing.assert_close(embedded(language_ids=torch.full_like(ids, -1)), embedded())


@pytest.fixture(scope="module")
def bert(tmp_path_factory, sample_tokenizer):
    """A BERT with XLM-R's tokenizer, in a folder as multilingual-e5's: its configuration has BERT's padding id."""
    folder = tmp_path_factory.mktemp("bert")
    config = AutoConfig.for_model("bert", vocab_size=len(sample_tokenizer) + 35, max_position_embeddings=40, **SIZES)
    model = BertForPreTraining(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return folder, model


@pytest.fixture
def bert_inputs(sample_tokenizer):
    """Two texts, padded, with token types."""
    batch = dict(sample_tokenizer(["A house.", "The small house is warm today."], padding=True, return_tensors="pt"))
    torch.manual_seed(0)
    return batch | {"token_type_ids": torch.randint(0, 2, batch["input_ids"].shape)}


@torch.no_grad()
def test_bert_names_become_xlm_r_s(bert, bert_inputs, sample_tokenizer):
    folder, theirs = bert
    ours, report = XlmAlignForMaskedLM.from_pretrained(folder, output_loading_info=True)
    ours.eval()
    assert not report["missing_keys"]
    assert all("pooler" in name or "seq_relationship" in name for name in report["unexpected_keys"])
    assert ours.config.backbone_config is None
    assert ours.config.pad_token_id == sample_tokenizer.pad_token_id != 0
    is_real = bert_inputs["attention_mask"].bool()
    positions = torch.arange(is_real.shape[1])[None].square() % 31
    embeddings = theirs.get_input_embeddings()(bert_inputs["input_ids"])
    for inputs in (
        bert_inputs,
        bert_inputs | {"position_ids": positions},
        {"inputs_embeds": embeddings, "attention_mask": bert_inputs["attention_mask"]},
    ):
        expected = theirs(**inputs).prediction_logits[is_real]
        torch.testing.assert_close(ours(**inputs).logits[is_real], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_bert_names_of_2018_become_xlm_r_s(bert, bert_inputs, tmp_path):
    folder, _ = bert
    expected = XlmAlignForMaskedLM.from_pretrained(folder).eval()(**bert_inputs).logits
    old_folder = shutil.copytree(folder, tmp_path / "old")
    weights = {}
    for name, tensor in load_file(old_folder / "model.safetensors").items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        weights[name] = tensor
    save_file(weights, old_folder / "model.safetensors", {"format": "pt"})
    ours = XlmAlignForMaskedLM.from_pretrained(old_folder).eval()
    assert torch.equal(ours(**bert_inputs).logits, expected)


def test_ids_of_tokenizer_are_those_of_the_loaded_revision(tmp_path, sample_tokenizer):
    """A commit in a cache, a subfolder: where the configuration is, and not where `main` or the root is."""
    main = "a" * 40
    old = "b" * 40
    for commit in (main, old):
        folder = tmp_path / "models--own--bert" / "snapshots" / commit / "encoder"
        AutoConfig.for_model("bert", pad_token_id=7).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)  # of the old commit
    cache = {"cache_dir": tmp_path, "subfolder": "encoder", "local_files_only": True, "token": False}
    assert XlmAlignConfig.from_pretrained("own/bert", revision=main, **cache).pad_token_id == 7
    config = XlmAlignConfig.from_pretrained("own/bert", revision=old, **cache)
    assert config.pad_token_id == sample_tokenizer.pad_token_id
    assert config.bos_token_id == sample_tokenizer.cls_token_id
    assert config.eos_token_id == sample_tokenizer.sep_token_id
