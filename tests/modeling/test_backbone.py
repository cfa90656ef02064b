"""Encoders of other architectures below the zoo's heads and objectives: exactly theirs, masks included."""

import re

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
    """`checkpoint(name)`: a folder of a small masked LM of one of `SETTINGS`, and the model."""
    made = {}

    def of(name):
        if name not in made:
            torch.manual_seed(0)
            config = AutoConfig.for_model(name.split()[0], **SHAPE | SETTINGS[name])
            model = AutoModelForMaskedLM.from_config(config).eval()
            for parameter in model.parameters():
                nn.init.normal_(parameter, std=0.3)
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(folder)
            made[name] = folder, model
        return made[name]

    return of


@pytest.fixture
def batch():
    """Two pairs, the second padded; their last predicted words are in segment 1."""
    rows = [(1, (10, 11), (2, 3, 5, 9, 14, 20)), (2, (9, 6), (1, 4, 8, 13, 15))]
    return batch_of([pair_row(*row, languages=(0, 1)) for row in rows], "padded right")


def inputs_of(batch):
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].clone()}


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_run_backbone_states_and_logits_are_the_library_s(name, skips, checkpoint, batch):
    """Of every layer, with token types and positions or without."""
    folder, theirs = checkpoint(name)
    ours, report = XlmAlignForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    ours.eval().set_skip_padding(skips)
    inputs = inputs_of(batch)
    inputs["attention_mask"][0, -16:] = 0  # so that both rows fit into one
    real, types = inputs["attention_mask"].bool(), torch.arange(25).ge(7).long().expand(2, -1)
    positions, logits = {"position_ids": torch.arange(25)[None].square() % 31}, []
    of_rows = {"position_ids": positions["position_ids"].expand(2, -1)}
    for given in ({}, {"token_type_ids": types}, positions, of_rows):
        with torch.no_grad():
            expected = theirs(**inputs, **given, output_hidden_states=True)
            found = ours(**inputs, **given, output_hidden_states=True)
            second = ours.roberta(**inputs, **given, num_layers=2).last_hidden_state
        logits.append(expected.logits[real])
        torch.testing.assert_close(found.logits[real], logits[-1], atol=1e-5, rtol=1e-5)
        for own, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(own[real], other[real], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(second[real], expected.hidden_states[2][real], atol=1e-5, rtol=1e-5)
    if name == WITH_TYPES:  # far more than what the comparison forgives
        assert min((logits[0] - moved).abs().max() for moved in logits[1:3]) > 1e-4


def reached(model, loss):
    """Whether every matrix of every layer has a gradient."""
    found = gradients(model, loss)
    names = [f"roberta.{name}" for name, _ in model.roberta.named_parameters()]
    return all(name in found and found[name].any() for name in names if "layer" in name and name.endswith("weight"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_for_pretraining_dwa_and_kd_reach_every_layer(name, checkpoint, batch):
    folder, _ = checkpoint(name)
    model = XlmAlignForPreTraining.from_pretrained(folder, pointer_start="identity")
    output = model(tlm=batch, objective_weights={"tlm": 0.0})
    assert len(output.token_losses["dwa"]) and reached(model, output.loss_sum)
    answers = dict(tokens_C=torch.arange(5, 15), log_probabilities_NC=torch.full((3, 10), 0.1).log(), temperature=1.0)
    answers["positions_N"] = batch["labels"].flatten().ne(-100).nonzero()[:3, 0]
    model = MetaXlmForPreTraining.from_pretrained(folder)
    output = model(mlm=batch | {"teacher": answers}, objective_weights={"mlm": 0.0})
    assert set(output.token_losses) == {"kd"} and reached(model, output.loss_sum)


@pytest.mark.parametrize("name", WITH_MASKS)
def test_for_pretraining_camlm_and_btmlm_reach_every_layer(name, checkpoint, batch):
    folder, _ = checkpoint(name)
    model = ErnieMForPreTraining.from_pretrained(folder, mask_token_id=MASK, languages=["en", "de"])
    mask, segments, predicted = batch["attention_mask"], batch["segment_ids"], batch["labels"].ne(-100)
    assert reached(model, model(camlm=batch | {"attention_mask": camlm_mask(mask, segments, predicted)}).loss_sum)
    is_pseudo = segments.eq(1) & batch["special_tokens_mask"].eq(0)
    btmlm = batch | {
        "input_ids": batch["input_ids"].masked_fill(is_pseudo, MASK),
        "labels": batch["labels"].masked_fill(is_pseudo, -100),
        "generation_mask": btmlm_generation_mask(mask, segments),
    }
    assert reached(model, model(btmlm=btmlm).loss_sum)
    assert not model.back_translate(btmlm)[is_pseudo].eq(MASK).any()


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("name", [*WITH_MASKS, None])
def test_block_mask_isolates_exactly(name, attention, checkpoint, batch):
    """Two texts packed into a row, in the zoo's encoder and in both kinds of a ModernBERT's layers: each is as if it
    were alone."""
    if name is None:
        model = made("xlm_align", "Model", attention)
        theirs, first = made("xlm_align", "Model", "eager"), 2
    else:
        folder, theirs = checkpoint(name)
        model, first = XlmAlignModel.from_pretrained(folder, attn_implementation=attention).eval(), 0
    ids, cut = batch["input_ids"][:1], 14
    block = torch.zeros(1, 25, 25, dtype=torch.bool)
    block[:, :cut, :cut] = block[:, cut:, cut:] = True
    positions = torch.cat([torch.arange(cut), torch.arange(25 - cut)])[None] + first
    other = ids.clone()
    other[:, cut:] = ids[:, cut:].flip(1)
    with torch.no_grad():
        packed = model(ids, attention_mask=block, position_ids=positions)[0]
        alone = theirs.base_model(ids[:, :cut])[0], theirs.base_model(ids[:, cut:])[0]
        disturbed = model(other, attention_mask=block, position_ids=positions)[0]
    torch.testing.assert_close(packed, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)
    assert torch.equal(packed[:, :cut], disturbed[:, :cut]) and not torch.equal(packed[:, cut:], disturbed[:, cut:])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_set_skip_padding_gradients_are_those_of_the_padded_batch(name, checkpoint):
    model = XlmAlignForPreTraining.from_pretrained(checkpoint(name)[0]).eval()
    rows = [pair_row(length, (length,), range(1, length, 3)) for length in (22, 7, 12, 2, 8, 21)]
    learned = []
    for skips in (False, True):
        model.set_skip_padding(skips)
        learned.append(gradients(model, model(mlm=batch_of(rows, "padded left")).loss_sum))
    torch.testing.assert_close(*learned, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("size", "multiple"), [(71, None), (45, None), (61, 8)])
@pytest.mark.parametrize("name", [*SETTINGS, None])
def test_resize_token_embeddings_is_saved_and_loaded(name, size, multiple, checkpoint, batch, tmp_path):
    model = XlmAlignForMaskedLM(XlmAlignConfig(**SHAPE)) if name is None else None
    model = model or XlmAlignForMaskedLM.from_pretrained(checkpoint(name)[0])
    model.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    nn.init.normal_(model.get_input_embeddings().weight)
    model.save_pretrained(tmp_path)
    size, ids = 64 if multiple else size, batch["input_ids"][:1] % 45
    with torch.no_grad():
        expected = model.eval()(ids).logits
    assert expected.shape[-1] == size
    for load in (XlmAlignForMaskedLM.from_pretrained, AutoModelForMaskedLM.from_pretrained):
        options = {} if load.__self__ is XlmAlignForMaskedLM else {"trust_remote_code": True}
        again, report = load(tmp_path, output_loading_info=True, **options)
        assert not any(report.values()) and again.config.vocab_size == size
        is_tied = again.get_input_embeddings().weight is again.lm_head.decoder.weight
        assert is_tied == again.config.tie_word_embeddings
        with torch.no_grad():
            assert torch.equal(again.eval()(ids).logits, expected)


def test_run_backbone_refuses_what_it_cannot_honor(checkpoint, batch, tmp_path):
    folder, _ = checkpoint("deberta-v2")
    model, ids = XlmAlignModel.from_pretrained(folder), batch["input_ids"]
    with pytest.raises(ValueError, match="deberta-v2"):
        model(ids, attention_mask=torch.ones(2, 25, 25, dtype=torch.bool))
    with pytest.raises(ValueError, match="modernbert"):  # VECO's module sits inside layers of XLM-R's shape
        VecoConfig.from_pretrained(checkpoint("modernbert")[0])
    AutoConfig.for_model("electra").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="electra"):
        XlmAlignForPreTraining.from_pretrained(tmp_path)


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
    with torch.no_grad():
        plain = model.roberta(ids, num_layers=0)[0]
        told = model.roberta(ids, language_ids=torch.ones_like(ids), num_layers=0)[0]
        silent = model.roberta(ids, language_ids=torch.full_like(ids, -1), num_layers=0)[0]
    assert torch.equal((plain - told).abs().amax(-1) > 1e-4, ids.eq(MASK))
    torch.testing.assert_close(silent, plain)


def test_bert_names_become_xlm_r_s(tmp_path, sample_tokenizer):
    """Also where the configuration has BERT's id of the padding and the tokenizer another, as multilingual-e5."""
    config = AutoConfig.for_model("bert", vocab_size=len(sample_tokenizer) + 35, max_position_embeddings=40, **SIZES)
    theirs = BertForPreTraining(config).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    sample_tokenizer.save_pretrained(tmp_path)
    ours, report = XlmAlignForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and all(
        "pooler" in n or "seq_relationship" in n for n in report["unexpected_keys"]
    )
    assert ours.config.backbone_config is None and ours.config.pad_token_id == sample_tokenizer.pad_token_id != 0
    batch = dict(sample_tokenizer(["A house.", "The small house is warm today."], padding=True, return_tensors="pt"))
    types = torch.randint(0, 2, batch["input_ids"].shape)
    positions = torch.arange(types.shape[1])[None].square() % 31
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        words = theirs.get_input_embeddings()(batch["input_ids"])
        embedded = {"inputs_embeds": words, "attention_mask": batch["attention_mask"]}
        given = batch | {"token_type_ids": types, "position_ids": positions}
        for inputs in (batch | {"token_type_ids": types}, given, embedded):
            found, expected = ours.eval()(**inputs).logits, theirs(**inputs).prediction_logits
            torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
        found = ours(**batch, token_type_ids=types).logits
    # the names of the checkpoints of 2018
    weights, old = load_file(tmp_path / "model.safetensors"), {".weight": ".gamma", ".bias": ".beta"}
    names = {name: re.sub(r"(?<=LayerNorm)\.\w+$", lambda part: old[part[0]], name) for name in weights}
    save_file({names[name]: value for name, value in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.no_grad():
        same = XlmAlignForMaskedLM.from_pretrained(tmp_path).eval()(**batch, token_type_ids=types).logits
    assert torch.equal(same, found)


def test_ids_of_tokenizer_are_those_of_the_loaded_revision(tmp_path, sample_tokenizer):
    """A commit in a cache, a subfolder: where the configuration is, and not where `main` or the root is."""
    commits = {"main": "a" * 40, "old": "b" * 40}
    for name, commit in commits.items():
        folder = tmp_path / "models--own--bert" / "snapshots" / commit / "encoder"
        AutoConfig.for_model("bert", pad_token_id=7).save_pretrained(folder)
        if name == "old":
            sample_tokenizer.save_pretrained(folder)
    where = {"cache_dir": tmp_path, "subfolder": "encoder", "local_files_only": True, "token": False}
    found = {name: XlmAlignConfig.from_pretrained("own/bert", revision=oid, **where) for name, oid in commits.items()}
    ids = {name: (config.pad_token_id, config.bos_token_id, config.eos_token_id) for name, config in found.items()}
    special = sample_tokenizer.pad_token_id, sample_tokenizer.cls_token_id, sample_tokenizer.sep_token_id
    assert ids["old"] == special and ids["main"][0] == 7
