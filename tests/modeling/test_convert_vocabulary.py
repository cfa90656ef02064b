"""Which token a word embedding stands for, how long it is, and what is done where one is missing."""

import json

import pytest
import safetensors.torch
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from modeling.convert_veco import from_fairseq, from_native
from modeling.convert_vocabulary import save_tokenizer, times
from modeling.modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM, VecoModel

# the scale of the words


@pytest.mark.parametrize("words, factor", [(0.3, 1), (0.3 / 4, 4), (0.3 * 4, 1 / 4)])
@pytest.mark.parametrize("with_reference", [False, True])
def test_the_scale_is_told_by_the_rows(originals, words, factor, with_reference, vocabulary, tmp_path):
    state = originals.fairseq_state(words=words)
    if with_reference:
        # the rows of XLM-R, which pre-training moved a little; its own positions say nothing
        reference = originals.fairseq_state(words=0.3)["encoder.embed_tokens.weight"]
        positions = originals.Maker()(originals.POSITIONS, originals.HIDDEN, scale=2.0)
        state["encoder.embed_positions.weight"] = state["decoder.embed_positions.weight"] = positions
        noise = originals.Maker(5)(originals.TOKENS, originals.HIDDEN, scale=0.05)
        vocabulary["reference"] = str(originals.xlmr_folder(tmp_path, reference + noise))
    path = originals.saved(tmp_path, state)
    from_fairseq(path, str(tmp_path / "veco"), "encoder", num_attention_heads=originals.HEADS, **vocabulary)
    model = VecoModel.from_pretrained(tmp_path / "veco")
    assert torch.equal(model.embeddings.word_embeddings.weight, factor * state["encoder.embed_tokens.weight"])


@pytest.mark.parametrize("words", [0.3 / 4**0.5, 0.3 * 4**2])
def test_a_scale_that_cannot_be_told_is_refused(originals, words, vocabulary, tmp_path):
    path = originals.saved(tmp_path, originals.fairseq_state(words=words))
    with pytest.raises(ValueError, match="--embedding_scale"):
        from_fairseq(path, str(tmp_path / "veco"), num_attention_heads=originals.HEADS, **vocabulary)
    notes = from_fairseq(path, str(tmp_path / "veco"), None, "multiply", originals.HEADS, **vocabulary)
    assert any("logits: 4 times fairseq's" in note for note in notes)  # tied: one LayerNorm serves both sides


@pytest.mark.parametrize("factor, fits", [(1, True), (1.5, True), (4, False), (1 / 4, False), (1000, False)])
def test_native_rows_are_compared_with_a_reference(originals, factor, fits, vocabulary, tmp_path):
    """Rows of XLM-R that pre-training moved: kept as they are where they are as long, refused where not."""
    state = originals.native_state()
    rows = state["bert.embeddings.word_embeddings.weight"]
    path = originals.saved(tmp_path, state)
    noise = originals.Maker(5)(originals.TOKENS, originals.HIDDEN, scale=0.05)
    vocabulary["reference"] = str(originals.xlmr_folder(tmp_path, (rows + noise) / factor))
    if fits:
        from_native(path, str(tmp_path / "veco"), originals.HEADS, **vocabulary)
        assert torch.equal(VecoModel.from_pretrained(tmp_path / "veco").embeddings.word_embeddings.weight, rows)
    else:
        with pytest.raises(ValueError, match="--reference"):
            from_native(path, str(tmp_path / "veco"), originals.HEADS, **vocabulary)
        assert not (tmp_path / "veco").exists()


def test_a_reference_of_other_rows_is_refused(originals, vocabulary, tmp_path):
    fairseq = originals.saved(tmp_path, originals.fairseq_state(), name="fairseq.pt")
    native = originals.saved(tmp_path, originals.native_state(), name="native.pt")
    other = originals.Maker(9)(originals.TOKENS, originals.HIDDEN)
    folder = originals.xlmr_folder(tmp_path, other)
    vocabulary["reference"] = str(folder)

    def refused(*named):
        for convert, path in ((from_fairseq, fairseq), (from_native, native)):
            with pytest.raises(ValueError) as error:
                convert(path, str(tmp_path / "veco"), num_attention_heads=originals.HEADS, **vocabulary)
            assert all(name in str(error.value) for name in named)

    refused("--reference")  # unrelated rows
    originals.xlmr_folder(tmp_path, other[:-1])
    refused("xlmr", "(1999, 16)", "(2000, 16)")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["roberta.embeddings.word_embeddings.weight"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused("xlmr", "embeddings.word_embeddings.weight")
    (folder / "model.safetensors").write_text("hello")
    refused("xlmr")
    vocabulary["reference"] = str(tmp_path / "nowhere")
    refused("nowhere")


def test_scaling_and_back_by_another_size_costs_one_unit_in_the_last_place(originals):
    rows = originals.Maker()(500, 48)
    back = times(times(rows, 1 / 48**0.5), 48**0.5)
    unit = torch.finfo(torch.float32).eps * rows.abs()
    assert 0 < (back - rows).abs().max() and ((back - rows).abs() <= unit).all()


# vocabularies


def kept_tokens(originals):
    """Every special token, and two of three others; <mask> aside."""
    return torch.tensor([index for index in range(originals.TOKENS - 1) if index < 4 or index % 3])


def write_map(originals, tmp_path, kept, lines):
    """A map for all ids, or for those of fairseq's dict.txt."""
    flags = torch.zeros(originals.TOKENS, dtype=torch.long)
    flags[kept] = 1
    flags = flags if lines == originals.TOKENS else flags[4:-1]
    assert len(flags) == lines
    (tmp_path / "map.txt").write_text("\n".join(str(flag) for flag in flags.tolist()) + "\n")
    return str(tmp_path / "map.txt")


@pytest.mark.parametrize("lines, has_mask", [(2000, True), (1995, False)])
@torch.no_grad()
def test_a_pruned_vocabulary_gets_a_tokenizer_of_its_own(
    originals, lines, has_mask, vocabulary, sample_corpus_dir, tmp_path
):
    import datasets

    kept = kept_tokens(originals)
    state = originals.fairseq_state(rows=len(kept) + has_mask)
    vocabulary["vocabulary_map"] = write_map(originals, tmp_path, kept, lines)
    path = originals.saved(tmp_path, state)
    from_fairseq(path, str(tmp_path / "veco"), None, "keep", originals.HEADS, **vocabulary)
    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    rows = model.roberta.embeddings.word_embeddings.weight
    assert model.config.vocab_size == len(rows) == len(kept) + 1
    assert torch.equal(rows[: len(state["encoder.embed_tokens.weight"])], state["encoder.embed_tokens.weight"])
    assert 0.5 < rows[-1].std() / rows.std() < 2

    full = AutoTokenizer.from_pretrained(vocabulary["tokenizer"])
    pruned = AutoTokenizer.from_pretrained(tmp_path / "veco")
    assert type(pruned) is type(full) and len(pruned) == len(kept) + 1
    assert (pruned.mask_token_id, pruned.pad_token_id, pruned.eos_token_id) == (len(kept), 1, 2)
    assert pruned.convert_ids_to_tokens(list(range(len(kept)))) == full.convert_ids_to_tokens(kept.tolist())
    new_ids = {old: new for new, old in enumerate([*kept.tolist(), originals.TOKENS - 1])}
    texts = datasets.load_dataset(str(sample_corpus_dir), "en", split="train")["text"]
    words = sorted({word for text in texts for word in text.split()})
    as_before = 0
    for word in words:
        before, after = full(word)["input_ids"], pruned(word)["input_ids"]
        if set(before) <= new_ids.keys():
            as_before += 1
            assert after == [new_ids[index] for index in before]
    assert 50 < as_before < len(words)
    sentence = pruned("a <mask>", return_tensors="pt")["input_ids"]
    reference = originals.FairseqForward(state | {"encoder.embed_tokens.weight": rows}, 1.0)
    logits = model(input_ids=sentence, decoder_input_ids=sentence).logits
    originals.close(logits[..., :-1], reference.logits(sentence, sentence)[..., :-1])


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_a_pruned_vocabulary_is_filled_from_a_reference(originals, prefix, vocabulary, tmp_path):
    kept = kept_tokens(originals)
    state = originals.native_state(prefix, rows=len(kept))
    make = originals.Maker(1)
    make.linear(state, "lm_head.dense")
    make.norm(state, "lm_head.layer_norm")
    state["lm_head.bias"] = make(len(kept))
    reference = originals.Maker(2)(originals.TOKENS, originals.HIDDEN)
    reference[kept] = 0.5 * reference[kept] + state[f"{prefix}embeddings.word_embeddings.weight"]
    vocabulary |= {"vocabulary_map": write_map(originals, tmp_path, kept, originals.TOKENS), "fill_vocabulary": True}
    path = originals.saved(tmp_path, state)
    with pytest.raises(ValueError, match="--reference"):
        from_native(path, str(tmp_path / "veco"), originals.HEADS, **vocabulary)
    vocabulary["reference"] = str(originals.xlmr_folder(tmp_path, reference))
    from_native(path, str(tmp_path / "veco"), originals.HEADS, **vocabulary)
    model = VecoForMaskedLM.from_pretrained(tmp_path / "veco")
    reference[kept] = state[f"{prefix}embeddings.word_embeddings.weight"]
    assert torch.equal(model.roberta.embeddings.word_embeddings.weight, reference)
    assert torch.equal(model.lm_head.bias[kept], state["lm_head.bias"])
    assert model.lm_head.bias.count_nonzero() == len(kept)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "veco")) == originals.TOKENS


@pytest.mark.parametrize("with_reference", [False, True])
def test_an_absent_mask_row_is_added(originals, with_reference, vocabulary, tmp_path):
    state = originals.native_state(rows=originals.TOKENS - 1)
    reference = originals.Maker(2)(originals.TOKENS, originals.HIDDEN)
    reference[:-1] = 0.5 * reference[:-1] + state["bert.embeddings.word_embeddings.weight"]
    if with_reference:
        vocabulary["reference"] = str(originals.xlmr_folder(tmp_path, reference))
    notes = from_native(originals.saved(tmp_path, state), str(tmp_path / "veco"), originals.HEADS, **vocabulary)
    assert any(note.startswith("<mask>") for note in notes)
    rows = VecoModel.from_pretrained(tmp_path / "veco").embeddings.word_embeddings.weight.detach()
    assert torch.equal(rows[:-1], state["bert.embeddings.word_embeddings.weight"])
    assert torch.equal(rows[-1], reference[-1]) == with_reference
    assert 0.3 < rows[-1].std() / rows.std() < 3


def test_vocabularies_that_do_not_fit_are_refused(originals, vocabulary, sample_tokenizer, tmp_path):
    path = originals.saved(tmp_path, originals.native_state(rows=1000))

    def refused(*named, **options):
        with pytest.raises(ValueError) as error:
            from_native(path, str(tmp_path / "veco"), originals.HEADS, **(vocabulary | options))
        assert all(name in str(error.value) for name in named)

    refused("1,000", "1,999", "--vocabulary_map")
    refused("1,000", "--vocabulary_map", vocabulary_map=write_map(originals, tmp_path, kept_tokens(originals), 2000))
    for text, named in {
        "1\n" * 10: "10 lines",
        "1\n1\ntwo\n": "'two'",
        "0\n" + "1\n" * (originals.TOKENS - 1): "<s>",
    }.items():
        (tmp_path / "map.txt").write_text(text)
        refused("map.txt", named, vocabulary_map=str(tmp_path / "map.txt"))
    refused("nowhere.txt", vocabulary_map=str(tmp_path / "nowhere.txt"))
    refused("nowhere", tokenizer=str(tmp_path / "nowhere"))
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    refused("'<mask>': 1999", tokenizer=str(tmp_path / "tokenizer"))
    assert not (tmp_path / "veco").exists()


def test_a_tokenizer_that_is_no_list_of_tokens_is_not_pruned(tmp_path):
    from tokenizers import Tokenizer, models

    tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "<mask>"]
    words = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="WordLevel"):
        save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words), torch.tensor([0, 1, 2, 3, 5, 6]), tmp_path)
