"""How sentences become tokens and windows: words with their spaces, plain text, and what several windows show."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, BertTokenizer, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from crosslingual_zoo.modeling.pair_aligner import Windows, is_decided_here
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.modeling.word_tokens import cut_into_tokens, cut_into_windows, split_words

TEXTS = ["We do not believe that", "x", "is't so, (1998)? Ünï code"]


def with_spaces_in_tokens(kind):
    """Tokenizers whose tokens hold the space before a word: RoBERTa's kind, Gemma's, and Llama's of today."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind == "byte-level":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "normalizer":
        backend.normalizer = normalizers.Replace(" ", "▁")
    else:
        scheme = kind.removeprefix("metaspace ")
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    seen = [space + word for text in [*TEXTS, "a b"] for word in text.split() for space in ("", " ") for _ in range(3)]
    backend.train_from_iterator(seen, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.mark.parametrize("kind", ["byte-level", "normalizer", "metaspace never", "metaspace first", "metaspace always"])
def test_cut_into_tokens_with_their_spaces(kind):
    tokenizer = with_spaces_in_tokens(kind)
    tokens = cut_into_tokens(tokenizer, [text.split() for text in TEXTS])
    assert tokens.ids_F.tolist() == sum(tokenizer(TEXTS, add_special_tokens=False)["input_ids"], [])
    assert tokens.words_F[: tokens.bounds[1]].unique().tolist() == [0, 1, 2, 3, 4]
    assert not cut_into_tokens(tokenizer, [[], [""]]).ids_F.numel()


def test_cut_into_tokens_spaces_of_words_and_of_the_text():
    tokenizer = with_spaces_in_tokens("byte-level")
    tokens = cut_into_tokens(tokenizer, [["we", "", "</s>", " ", "so,"], ["我", "喜", "欢"]])
    assert set(tokens.words_F[: tokens.bounds[1]].tolist()) == {0, 2, 4}
    together = cut_into_tokens(tokenizer, [["我"], ["喜"], ["欢"]])  # these get no space
    assert torch.equal(tokens.ids_F[tokens.bounds[1] :], together.ids_F)
    tokens = cut_into_tokens(tokenizer, *split_words(["x (x) x,x?", "x"]))
    assert "".join(tokenizer.convert_ids_to_tokens(tokens.ids_F)) == "xĠ(x)Ġx,x?x"


@pytest.mark.parametrize("kind", ["byte-level", "normalizer", "metaspace first"])
def test_cut_into_tokens_reads_names_of_special_tokens_as_text_whatever_was_called_before(kind):
    """And leaves the tokenizer as it was: its truncation, its padding, and how it reads such names."""
    tokenizer = with_spaces_in_tokens(kind)
    texts, words = ["we </s> x", "<s>"], [["we", "</s>", "x"], ["x", "<unk>"]]
    options = {"truncation": True, "max_length": 4, "padding": "max_length", "pad_to_multiple_of": 2}
    found = []
    for before in ({}, {"split_special_tokens": True}, options):
        encoded = tokenizer(texts, **before)["input_ids"]
        backend = tokenizer.backend_tokenizer
        state = backend.truncation, backend.padding, backend.encode_special_tokens
        found.append(cut_into_tokens(tokenizer, words))
        assert (backend.truncation, backend.padding, backend.encode_special_tokens) == state
        assert tokenizer(texts, **before)["input_ids"] == encoded
    special = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    for tokens in found:
        assert all(torch.equal(one, other) for one, other in zip(tokens, found[0], strict=True))
        assert not special.intersection(tokens.ids_F.tolist()) and set(tokens.words_F.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "text, expected",
    [
        (" the  house\u3000is\n", "the house is"),
        ("\ufeffI don't, at 3.5 (1,000) of U.S.", "I don't , at 3.5 ( 1,000 ) of U.S ."),
        ("l’homme – http://x.org/a", "l’homme – http : / / x.org / a"),
        ("我喜欢iPhone 手机，对吗？", "我 喜 欢 iPhone 手 机 ， 对 吗 ？"),
        ("カメラを使います。고양이가", "カメラ を 使 い ま す 。 고양이가"),
        ("มือ\u200bខ្មែ", "มื อ ខ្ មែ"),
        ("\u200fשלום, נסיון\u202c", "שלום , נסיון"),
        ("👩\u200d👩\u200d👧 é e\u0301🇩🇪🇫🇷", "👩\u200d👩\u200d👧 é e\u0301 🇩🇪 🇫🇷"),
        ("a\x00b \x01", "a b"),
    ],
)
def test_split_words_at_unicode_s_word_boundaries(text, expected):
    words, offsets = split_words([text, ["as", "it is"], text])
    assert words == [expected.split(), ["as", "it is"], expected.split()] and offsets[1] is None
    assert [text[begin:end] for begin, end in offsets[0]] == words[0]


@pytest.mark.slow
def test_cut_into_windows_decide_every_pair_of_tokens_once():
    cases = itertools.product([1, 2, 7, 30, 61], [1, 5, 29, 90], [4, 10, 33])
    for source, target, room in cases:
        rows = cut_into_windows(source, target, room)
        fits = max(source, target) <= room
        assert rows == [(0, source, 0, target)] if fits else len(rows) > 1
        rows_R5 = torch.tensor([(0, *row) for row in rows])
        for begin, end, length in ((1, 2, source), (3, 4, target)):
            begins, ends = rows_R5[:, begin], rows_R5[:, end]
            assert begins[0] == 0 and ends[-1] == length and (begins < ends).all()
            assert (begins[1:] >= begins[:-1]).all() and (begins[1:] <= ends[:-1]).all()
        sizes = rows_R5[:, [2, 4]] - rows_R5[:, [1, 3]]
        assert sizes.max() <= room
        row_L, tokens_L2 = [], []
        for number, (_, x, x_end, y, y_end) in enumerate(rows_R5.tolist()):
            cells = torch.cartesian_prod(torch.arange(x, x_end), torch.arange(y, y_end)).view(-1, 2)
            row_L.append(torch.full((len(cells),), number))
            tokens_L2.append(cells)
        row_L, tokens_L2 = torch.cat(row_L), torch.cat(tokens_L2)
        windows = Windows(rows_R5[:, 0], rows_R5[:, [1, 3]], rows_R5[:, [2, 4]])
        decided = is_decided_here(row_L, *tokens_L2.T, windows)
        seen, linked = (list(map(tuple, cells.tolist())) for cells in (tokens_L2, tokens_L2[decided]))
        assert len(set(linked)) == len(linked)
        swapped = is_decided_here(
            row_L, *tokens_L2.flip(1).T, Windows(rows_R5[:, 0], windows.starts_R2.flip(1), windows.ends_R2.flip(1))
        )
        assert torch.equal(decided, swapped)
        if fits or (rows_R5[0, [2, 4]] == rows_R5[-1, [2, 4]]).any():
            assert set(linked) == set(seen)
        elif min(sizes[0]) > 4:
            # half a window ahead and behind, less what is lost because tokens are whole
            reach = sizes[0, 1] * (0.5 - 1.5 / sizes[0].min())
            near = [(x, y) for x in range(source) for y in range(target) if abs(y - x * target / source) <= reach]
            assert set(near) <= set(linked)


def test_word_aligner_of_bert_has_its_own_format(tmp_path):
    """A word is as many tokens as letters."""
    alphabet, path = "abcdefghijklmnopqrstuvwxyz", tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *alphabet, *(f"##{x}" for x in alphabet)]))
    torch.manual_seed(0)
    tokenizer = BertTokenizer(vocab=str(path))
    sizes = dict(vocab_size=57, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, initializer_range=0.5)
    model = BertModel(BertConfig(intermediate_size=48, max_position_embeddings=40, **sizes)).eval()
    pairs = [("abc de fghi", "klm no"), (["a", "\u200b", "[SEP]", "b"], "c d e")]
    seen = []
    model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    list(WordAligner(model, tokenizer).align(pairs[:1]))
    for given, text in zip(seen, pairs[0], strict=True):
        expected = tokenizer(text, return_tensors="pt")
        assert all(torch.equal(given[name], expected[name]) for name in ("input_ids", "attention_mask"))
    with pytest.raises(ValueError, match="Python based"):
        WordAligner(model, BertTokenizerLegacy(path))
    links = [found.links for found in WordAligner(model, tokenizer).align(pairs)]
    assert links[1] and {source for source, _ in links[1]} <= {0, 2, 3}


@pytest.mark.parametrize("kind", ["byte-level", "normalizer", "metaspace first"])
def test_cut_into_tokens_remembers_words_of_earlier_calls(kind):
    tokenizer = with_spaces_in_tokens(kind)
    words = [text.split() for text in TEXTS]
    ids_by_word: dict[str, list[int]] = {}
    for _ in range(2):
        for sentences in (words[::2], words, []):
            plain = cut_into_tokens(tokenizer, sentences)
            remembered = cut_into_tokens(tokenizer, sentences, None, ids_by_word)
            assert all(map(torch.equal, plain, remembered))
