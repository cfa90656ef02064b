"""How sentences become tokens and windows: words with their spaces, plain text, and what several windows show."""

import itertools

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, BertTokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from crosslingual_zoo.modeling.pair_aligner import Windows, is_decided_here
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.modeling.word_tokens import cut_into_tokens, cut_into_windows, split_words
from tests.modeling.tiny import SPECIAL_TOKENS, fast_tokenizer

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
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL_TOKENS, show_progress=False)
    words = " ".join([*TEXTS, "a b"]).split()
    backend.train_from_iterator([*words, *(f" {word}" for word in words)] * 3, trainer)
    return fast_tokenizer(backend)


@pytest.mark.parametrize("kind", ["byte-level", "normalizer", "metaspace never", "metaspace first", "metaspace always"])
def test_cut_into_tokens_with_their_spaces(kind):
    tokenizer = with_spaces_in_tokens(kind)
    tokens = cut_into_tokens(tokenizer, [text.split() for text in TEXTS])
    encoded = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    assert tokens.ids_F.tolist() == list(itertools.chain(*encoded))
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
    texts = ["we </s> x", "<s>"]
    sentences = [["we", "</s>", "x"], ["x", "<unk>"]]
    expected = cut_into_tokens(tokenizer, sentences)
    assert {tokenizer.bos_token_id, tokenizer.eos_token_id}.isdisjoint(expected.ids_F.tolist())
    assert set(expected.words_F.tolist()) == {0, 1, 2}

    def state():
        backend = tokenizer.backend_tokenizer
        return backend.truncation, backend.padding, backend.encode_special_tokens

    cut_and_padded = {"truncation": True, "max_length": 4, "padding": "max_length", "pad_to_multiple_of": 2}
    for options in ({}, {"split_special_tokens": True}, cut_and_padded):
        encoded_before = tokenizer(texts, **options)["input_ids"]
        state_before = state()
        tokens = cut_into_tokens(tokenizer, sentences)
        assert all(map(torch.equal, tokens, expected))
        assert state() == state_before
        assert tokenizer(texts, **options)["input_ids"] == encoded_before


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
    assert words == [expected.split(), ["as", "it is"], expected.split()]
    assert offsets[1] is None
    assert [text[begin:end] for begin, end in offsets[0]] == words[0]


def window_cells(rows):
    """The windows that hold a pair of tokens, and the pairs, (source, target), of all windows one after the other."""
    numbers = []
    cells = []
    for number, (x_start, x_end, y_start, y_end) in enumerate(rows):
        in_window = list(itertools.product(range(x_start, x_end), range(y_start, y_end)))
        numbers += [number] * len(in_window)
        cells += in_window
    return torch.tensor(numbers), torch.tensor(cells).view(-1, 2)


def assert_windows_cover(starts, ends, length):
    """Windows of a side: from its first token to its last, forward, and without gaps."""
    assert starts[0] == 0
    assert ends[-1] == length
    assert (starts < ends).all()
    assert (starts[1:] >= starts[:-1]).all()
    assert (starts[1:] <= ends[:-1]).all()


@pytest.mark.parametrize("room", [4, 10, 33])
@pytest.mark.parametrize("target", [1, 5, 29, 90])
@pytest.mark.parametrize("source", [1, 2, 7, 30, 61])
def test_cut_into_windows_decide_every_pair_of_tokens_once(source, target, room):
    rows = cut_into_windows(source, target, room)
    fits = max(source, target) <= room
    assert (len(rows) == 1) == fits
    starts_R2 = torch.tensor(rows)[:, [0, 2]]
    ends_R2 = torch.tensor(rows)[:, [1, 3]]
    assert_windows_cover(starts_R2[:, 0], ends_R2[:, 0], source)
    assert_windows_cover(starts_R2[:, 1], ends_R2[:, 1], target)
    sizes_R2 = ends_R2 - starts_R2
    assert sizes_R2.max() <= room

    row_L, tokens_L2 = window_cells(rows)
    pairs_R = torch.zeros(len(rows), dtype=torch.long)
    is_decided_L = is_decided_here(row_L, *tokens_L2.T, Windows(pairs_R, starts_R2, ends_R2))
    decided = list(map(tuple, tokens_L2[is_decided_L].tolist()))
    assert len(set(decided)) == len(decided)
    swapped = Windows(pairs_R, starts_R2.flip(1), ends_R2.flip(1))
    assert torch.equal(is_decided_here(row_L, *tokens_L2.flip(1).T, swapped), is_decided_L)
    one_side_is_whole = (ends_R2[0] == ends_R2[-1]).any()
    if fits or one_side_is_whole:
        assert set(decided) == set(map(tuple, tokens_L2.tolist()))
    elif min(sizes_R2[0]) > 4:
        # half a window ahead and behind, less what is lost because tokens are whole
        reach = sizes_R2[0, 1] * (0.5 - 1.5 / sizes_R2[0].min())
        cells = itertools.product(range(source), range(target))
        assert {(x, y) for x, y in cells if abs(y - x * target / source) <= reach} <= set(decided)


def test_word_aligner_of_bert_has_its_own_format(tmp_path):
    """A word is as many tokens as letters."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    path = tmp_path / "vocab.txt"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *alphabet, *(f"##{letter}" for letter in alphabet)]
    path.write_text("\n".join(tokens))
    torch.manual_seed(0)
    tokenizer = BertTokenizer(vocab=str(path))
    sizes = dict(vocab_size=57, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, initializer_range=0.5)
    model = BertModel(BertConfig(intermediate_size=48, max_position_embeddings=40, **sizes)).eval()
    pair = ("abc de fghi", "klm no")
    inputs = []
    model.register_forward_pre_hook(lambda module, args, kwargs: inputs.append(kwargs), with_kwargs=True)
    [alignment] = WordAligner(model, tokenizer).align([pair])
    for side, text in zip(inputs, pair, strict=True):
        expected = tokenizer(text, return_tensors="pt")
        assert torch.equal(side["input_ids"], expected["input_ids"])
        assert torch.equal(side["attention_mask"], expected["attention_mask"])
    # a word without a token has no link
    pair = (["a", "\u200b", "[SEP]", "b"], "c d e")
    [alignment] = WordAligner(model, tokenizer).align([pair])
    linked = {i for i, _ in alignment.links}
    assert linked
    assert linked <= {0, 2, 3}


def test_word_aligner_refuses_a_tokenizer_of_python(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]")
    model = BertModel(BertConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(ValueError, match="Python based"):
        WordAligner(model, BertTokenizerLegacy(path))


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
