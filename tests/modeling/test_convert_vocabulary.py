"""Which token a word embedding stands for, how long it is, and what is done where one is missing."""

import json

import pytest
import safetensors.torch
import torch
from transformers import AutoTokenizer

from modeling.convert_veco_checkpoints import Vocabulary, from_fairseq, from_native
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
        vocabulary.reference = str(originals.xlmr_folder(tmp_path, reference + noise))
    path = originals.saved(tmp_path, state)
    notes = from_fairseq(path, str(tmp_path / "veco"), vocabulary, "encoder", num_attention_heads=originals.HEADS)
    done = {1: "kept", 4: "multiplied by 4", 1 / 4: "divided by 4"}[factor]
    assert any(done in note and "by the lengths" in note for note in notes), notes
    model = VecoModel.from_pretrained(tmp_path / "veco")
    assert torch.equal(model.embeddings.word_embeddings.weight, factor * state["encoder.embed_tokens.weight"])


@pytest.mark.parametrize("words", [0.3 / 4**0.5, 0.3 * 4**2])
def test_a_scale_that_cannot_be_told_is_refused(originals, words, vocabulary, tmp_path):
    path = originals.saved(tmp_path, originals.fairseq_state(words=words))
    with pytest.raises(ValueError, match=r"cannot be told \(median length of the word rows .*--reference"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    notes = from_fairseq(path, str(tmp_path / "veco"), vocabulary, None, "multiply", originals.HEADS)
    assert any("multiplied by 4, as asked for" in note for note in notes)
    assert any("logits: 4 times fairseq's" in note for note in notes)  # tied: one LayerNorm serves both sides


def test_a_reference_of_other_rows_is_refused(originals, vocabulary, tmp_path):
    path = originals.saved(tmp_path, originals.fairseq_state())
    vocabulary.reference = str(originals.xlmr_folder(tmp_path, originals.Maker(9)(originals.TOKENS, originals.HIDDEN)))
    with pytest.raises(ValueError, match="the rows do not come from the reference's"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    smaller = originals.Maker(9)(originals.TOKENS - 1, originals.HIDDEN)
    vocabulary.reference = str(originals.xlmr_folder(tmp_path, smaller))
    with pytest.raises(ValueError, match=r"word embeddings \(1999, 16\), and tokenizer and checkpoint \(2000, 16\)"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    weights = safetensors.torch.load_file(tmp_path / "xlmr" / "model.safetensors")
    del weights["roberta.embeddings.word_embeddings.weight"]
    safetensors.torch.save_file(weights, tmp_path / "xlmr" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="xlmr' lacks embeddings.word_embeddings.weight"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    (tmp_path / "xlmr" / "model.safetensors").write_text("hello")
    with pytest.raises(ValueError, match="the reference .*xlmr' cannot be loaded"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)
    vocabulary.reference = str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the reference .*nowhere' cannot be loaded"):
        from_fairseq(path, str(tmp_path / "veco"), vocabulary, num_attention_heads=originals.HEADS)


@pytest.mark.parametrize("factor", [1, 1.5, 4, 1 / 4, 1000])
def test_native_rows_are_compared_with_a_reference(originals, factor, vocabulary, tmp_path):
    """Rows of XLM-R that pre-training moved: kept as they are where they are as long, refused where not."""
    state = originals.native_state()
    rows = state["bert.embeddings.word_embeddings.weight"]
    path = originals.saved(tmp_path, state)
    noise = originals.Maker(5)(originals.TOKENS, originals.HIDDEN, scale=0.05)
    vocabulary.reference = str(originals.xlmr_folder(tmp_path, (rows + noise) / factor))
    if factor in (1, 1.5):
        notes = from_native(path, str(tmp_path / "veco"), vocabulary, originals.HEADS)
        [note] = [note for note in notes if note.startswith("embedding scale: ")]
        assert "of the reference's rows" in note and note.endswith("stored as in XLM-R; kept")
        assert torch.equal(VecoModel.from_pretrained(tmp_path / "veco").embeddings.word_embeddings.weight, rows)
    else:
        found = {4: "stored 4 times longer", 1 / 4: "stored 4 times shorter", 1000: "undecided"}[factor]
        with pytest.raises(ValueError, match=rf"do not fit the reference \(.*{found}\).*leave --reference out"):
            from_native(path, str(tmp_path / "veco"), vocabulary, originals.HEADS)
        assert not (tmp_path / "veco").exists()


def test_native_rows_of_other_tokens_than_the_references_are_refused(originals, vocabulary, tmp_path):
    path = originals.saved(tmp_path, originals.native_state())
    vocabulary.reference = str(originals.xlmr_folder(tmp_path, originals.Maker(9)(originals.TOKENS, originals.HIDDEN)))
    with pytest.raises(ValueError, match="the rows do not come from the reference's.*--tokenizer its tokenizer"):
        from_native(path, str(tmp_path / "veco"), vocabulary, originals.HEADS)
    vocabulary.reference = None
    notes = from_native(path, str(tmp_path / "veco"), vocabulary, originals.HEADS)
    assert any("of the position rows" in note and note.endswith("; kept") for note in notes)


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


@pytest.mark.parametrize("lines", [2000, 1995])
@pytest.mark.parametrize("has_mask", [True, False])
@torch.no_grad()
def test_a_pruned_vocabulary_gets_a_tokenizer_of_its_own(
    originals, lines, has_mask, vocabulary, sample_corpus_dir, tmp_path
):
    import datasets

    kept = kept_tokens(originals)
    state = originals.fairseq_state(rows=len(kept) + has_mask)
    vocabulary.map = write_map(originals, tmp_path, kept, lines)
    notes = from_fairseq(
        originals.saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, None, "keep", originals.HEADS
    )
    assert any(f"{len(kept) + 1:,} of {originals.TOKENS:,} tokens" in note for note in notes)
    assert any("it is fresh" in note for note in notes) == (not has_mask)

    model = VecoForConditionalGeneration.from_pretrained(tmp_path / "veco").eval()
    rows = model.roberta.embeddings.word_embeddings.weight
    assert model.config.vocab_size == len(rows) == len(kept) + 1
    assert torch.equal(rows[: len(state["encoder.embed_tokens.weight"])], state["encoder.embed_tokens.weight"])
    assert 0.5 < rows[-1].std() / rows.std() < 2

    full = AutoTokenizer.from_pretrained(vocabulary.tokenizer)
    pruned = AutoTokenizer.from_pretrained(tmp_path / "veco")
    assert type(pruned) is type(full) and len(pruned) == len(kept) + 1
    assert (pruned.mask_token_id, pruned.pad_token_id, pruned.eos_token_id) == (len(kept), 1, 2)
    assert [pruned.convert_ids_to_tokens(index) for index in range(len(kept))] == full.convert_ids_to_tokens(
        kept.tolist()
    )
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
    originals.close(
        model(input_ids=sentence, decoder_input_ids=sentence).logits[..., :-1],
        originals.FairseqForward(state | {"encoder.embed_tokens.weight": rows}, 1.0).logits(sentence, sentence)[
            ..., :-1
        ],
    )


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
    vocabulary.map, vocabulary.fill = write_map(originals, tmp_path, kept, originals.TOKENS), True
    path = originals.saved(tmp_path, state)
    with pytest.raises(ValueError, match="--fill_vocabulary was given without --reference"):
        from_native(path, str(tmp_path / "veco"), vocabulary, originals.HEADS)
    vocabulary.reference = str(originals.xlmr_folder(tmp_path, reference))
    notes = from_native(path, str(tmp_path / "veco"), vocabulary, originals.HEADS)
    assert f"vocabulary: {originals.TOKENS - len(kept)} of 2,000 rows are the reference's, with that of <mask>" in notes
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
        vocabulary.reference = str(originals.xlmr_folder(tmp_path, reference))
    notes = from_native(originals.saved(tmp_path, state), str(tmp_path / "veco"), vocabulary, originals.HEADS)
    assert any(("the reference's was taken" if with_reference else "it is fresh") in note for note in notes)
    rows = VecoModel.from_pretrained(tmp_path / "veco").embeddings.word_embeddings.weight.detach()
    assert torch.equal(rows[:-1], state["bert.embeddings.word_embeddings.weight"])
    assert torch.equal(rows[-1], reference[-1]) == with_reference
    assert 0.3 < rows[-1].std() / rows.std() < 3


def test_vocabularies_that_do_not_fit_are_refused(originals, vocabulary, sample_tokenizer, tmp_path):
    output = str(tmp_path / "veco")
    path = originals.saved(tmp_path, originals.native_state(rows=1000))
    with pytest.raises(ValueError, match="1,000 word embeddings and the tokenizer has 2,000 tokens"):
        from_native(path, output, vocabulary, originals.HEADS)
    vocabulary.map = write_map(originals, tmp_path, kept_tokens(originals), originals.TOKENS)
    with pytest.raises(ValueError, match="1,000 word embeddings and the vocabulary map keeps 1,3.. tokens"):
        from_native(path, output, vocabulary, originals.HEADS)
    for text, message in {
        "1\n" * 10: "has 10 lines and the tokenizer 2,000 tokens",
        "1\n1\ntwo\n": "line 3 of .* is 'two'",
        "1\n\n": "line 2 of .* is ''",
        "0\n" + "1\n" * (originals.TOKENS - 1): "leaves out one of <s>",
    }.items():
        (tmp_path / "map.txt").write_text(text)
        with pytest.raises(ValueError, match=message):
            from_native(path, output, vocabulary, originals.HEADS)
    vocabulary.map = str(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="nowhere.txt' cannot be read"):
        from_native(path, output, vocabulary, originals.HEADS)
    with pytest.raises(ValueError, match="no tokenizer could be loaded from .*nowhere'"):
        from_native(path, output, Vocabulary(str(tmp_path / "nowhere")), originals.HEADS)
    sample_tokenizer.save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["vocab"].append(["more", -20.0])
    file.write_text(json.dumps(description))
    with pytest.raises(ValueError, match="the special tokens .*'<mask>': 1999.*Give an XLM-R tokenizer"):
        from_native(path, output, Vocabulary(str(tmp_path / "tokenizer")), originals.HEADS)
    assert not (tmp_path / "veco").exists()


def test_a_tokenizer_that_is_no_list_of_tokens_is_not_pruned(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from modeling.convert_vocabulary import save_tokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "<mask>"]
    words = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    with pytest.raises(ValueError, match="'WordLevel' and cannot be pruned"):
        save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words), torch.tensor([0, 1, 2, 3, 5, 6]), tmp_path)
