"""The word aligner: on encoders whose states make the links known, and on tiny ones of every kind."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from crosslingual_zoo.modeling import pair_aligner
from crosslingual_zoo.modeling.optimal_transport import METHODS
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.modeling.word_tokens import cut_into_tokens
from tests.modeling.tiny import PREFIXES, made

MEANINGS = 200  # of the hand-made language


@pytest.fixture(scope="module")
def tokenizer():
    """Of a language pair in which s7 and t7 mean the same, and s7s8 is two tokens; `Knowing` knows it."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = [*specials, *(f"{side}{number}." for side in "st" for number in range(MEANINGS))]
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(".", "merged_with_previous")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


class Knowing(nn.Module):
    """State of a token: its meaning, in layer 1; in layer 2 the meaning of the next but one. Keeps its inputs."""

    def __init__(self, positions=512, scale=4):
        super().__init__()
        self.config = SimpleNamespace(model_type="bert", num_hidden_layers=2, max_position_embeddings=positions)
        self.table = nn.Parameter(torch.zeros(4 + 2 * MEANINGS, MEANINGS))
        with torch.no_grad():
            self.table[4:] = scale * torch.eye(MEANINGS).repeat(2, 1)
        self.inputs = []

    def forward(self, input_ids, attention_mask, output_hidden_states, return_dict):
        assert input_ids.shape[1] <= (self.config.max_position_embeddings or 10**6)
        self.inputs.append(input_ids)
        states = self.table[input_ids]
        layers = (0 * states, states, states.roll(2, -1))
        return SimpleNamespace(hidden_states=layers, last_hidden_state=layers[-1])


def words(side, *numbers):
    """Words of one token, or of several where a tuple is given."""
    tokens = [word if isinstance(word, tuple) else (word,) for word in numbers]
    return ["".join(f"{side}{token % MEANINGS}." for token in word) for word in tokens]


def links(aligner, pairs):
    return [found.links for found in aligner.align(pairs)]


@pytest.mark.parametrize("method", METHODS)
def test_word_aligner_links_of_known_states(method, tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, method=method, layer=1, batch_size=2)
    pairs = [
        (words("s", (1, 2, 3), 4, 5), words("t", 5, (6, 4), 2)),
        (words("s", 1, 2, 3, 4, 5), words("t", 3, 2, 1, 5, 4)),
        (words("s", 7, 8, 9), words("t", 8, 7, 9)),
        (words("s", 1, 2), words("t", 1, 2)),
    ]
    expected = [
        {(0, 2), (1, 1), (2, 0)},
        {(0, 2), (1, 1), (2, 0), (3, 4), (4, 3)},
        {(0, 1), (1, 0), (2, 2)},
        {(0, 0), (1, 1)},
    ]
    if method not in ("mutual", "ot_words"):
        # 1 and 3 of the first word have no partner, nor has 6 of the second, the only one that has not: all but mutual
        # argmaxes, of which the first of equal cells is another, give it to them
        expected[0].add((0, 1))
    for found, certain, (source, target) in zip(aligner.align(pairs), expected, pairs, strict=True):
        assert found.links == sorted(set(found.links))
        assert set(found.links) == certain
        assert (found.source, found.target) == (source, target)
        assert found.windows == 1 and found.probabilities is None


def test_word_aligner_probability_is_the_highest_of_tokens(tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, method="softmax", layer=1, threshold=0.5)
    pair = words("s", (1, 2), 3), [*words("t", (9, 2), 1), ""]
    found = next(aligner.align([pair], probabilities=True))
    assert found.links == [(0, 0), (0, 1)]
    assert len(found.probabilities) == 2 and all(0.9 < value <= 1 for value in found.probabilities)


def test_word_aligner_words_without_tokens_and_names_of_special_tokens(tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, method="mutual", layer=1)
    model_input = ["", *words("s", 1), "</s>", *words("s", 2), "<pad>", "", *words("s", 3)]
    assert links(aligner, [(model_input, words("t", 3, 2, 1))]) == [[(1, 2), (3, 1), (6, 0)]]
    assert not {1, 2}.intersection(aligner.states.model.inputs[0][0, 1:-1].tolist())
    tokens = cut_into_tokens(tokenizer, [model_input, [], ["x", *words("s", 9)]])
    assert tokens.words_F.tolist() == [1, 2, 3, 4, 6, 0, 1] and tokens.bounds.tolist() == [0, 5, 5, 7]
    # a name of a special token is an unknown word, which may be linked
    assert tokens.ids_F[[1, 3, 5]].tolist() == [tokenizer.unk_token_id] * 3


def test_word_aligner_an_empty_side_gives_no_links(tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, layer=1)
    full = words("t", 1, 2)
    pairs = [("", ""), ([], full), ("  ", full), (full, [""]), (full, full)]
    found = list(aligner.align(pairs, probabilities=True))
    assert [bool(one.links) for one in found] == [False] * 4 + [True]
    assert [one.windows for one in found] == [0, 0, 0, 0, 1]
    assert list(aligner.align([])) == [] and links(aligner, [("", "")]) == [[]]


HEADS = {"veco": "Model", "ernie_m": "ForMaskedLM", "xlm_align": "ForTokenClassification", "metaxlm": "Model"}
SIZES = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, initializer_range=0.5)
OTHERS = {  # distilbert has no list encoder.layer
    "xlm-roberta": SIZES | dict(max_position_embeddings=82),
    "bert": SIZES | dict(max_position_embeddings=80, type_vocab_size=1),
    "distilbert": dict(dim=32, n_layers=3, n_heads=4, hidden_dim=48, initializer_range=0.5, max_position_embeddings=80),
}


def tiny(name, **fields):
    """An encoder of three layers and 80 positions, with the vocabulary of the sample tokenizer."""
    if name in PREFIXES:
        return made(name, HEADS[name], vocab_size=2000, max_position_embeddings=82)
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(name, vocab_size=2000, **fields | OTHERS.get(name, {}))).eval()


@pytest.fixture(scope="module", params=[*HEADS, *OTHERS])
def encoder(request):
    return tiny(request.param)


PAIRS = [
    ("Does a model know which word is which?", "Weiß ein Modell, welches Wort welches ist?"),
    ("One two three", "Eins zwei"),
    ("", "nothing"),
    ("The cat sat on the mat and looked at the other cat for a long time", "Die Katze saß da"),
    ("我喜欢猫", "I like cats a lot"),
] * 3


def test_layer_states_are_the_model_s(encoder, sample_tokenizer):
    inputs = sample_tokenizer(*PAIRS[0], return_tensors="pt")
    expected = encoder(**inputs, output_hidden_states=True).hidden_states
    aligner = WordAligner(encoder, sample_tokenizer)
    for layer in range(4):
        assert torch.equal(aligner.states(dict(inputs), [layer])[layer], expected[layer])
    assert aligner.num_layers == 3 and aligner.layer == 2 and aligner.window == 80


def test_align_layers_at_once_gives_what_one_by_one_gives(encoder, sample_tokenizer):
    methods = {method: {} for method in METHODS} | {"softmax": {"threshold": 0.2}}
    together = list(WordAligner(encoder, sample_tokenizer, batch_size=4).align_layers(PAIRS, [0, 2, 3], methods))
    for layer, method in itertools.product([0, 2, 3], METHODS):
        alone = WordAligner(encoder, sample_tokenizer, layer=layer, method=method, batch_size=4, **methods[method])
        assert [found[layer][method] for found in together] == list(alone.align(PAIRS))
    assert any(found[0]["ot"].links != found[2]["ot"].links for found in together)


def test_word_aligner_of_a_translation_model_reads_its_encoder(sample_tokenizer):
    decoder = dict(decoder_layers=2, decoder_layer_indices=[1, 2])
    model = made("veco", "ForConditionalGeneration", vocab_size=2000, max_position_embeddings=82, **decoder)
    expected = WordAligner(model.get_encoder(), sample_tokenizer)
    assert links(WordAligner(model, sample_tokenizer), PAIRS) == links(expected, PAIRS)


def test_word_aligner_dropout_is_off_and_comes_back(sample_tokenizer):
    model = made("xlm_align", "Model", vocab_size=2000, hidden_dropout_prob=0.5)
    expected = links(WordAligner(model, sample_tokenizer), PAIRS)
    model.train()
    model.encoder.layer[0].eval()
    assert links(WordAligner(model, sample_tokenizer), PAIRS) == expected
    assert model.training and model.encoder.layer[1].training and not model.encoder.layer[0].training


@pytest.mark.parametrize("method", METHODS)
def test_word_aligner_a_very_long_pair_is_linked_all_along(method, tokenizer):
    """1,500 words, 128 positions, in pairs of unequal length, in both directions, ahead and behind."""
    options = {"threshold": 0.4} if method == "softmax" else {}
    aligner = WordAligner(Knowing(128), tokenizer, method, 1, batch_size=8, **options)
    assert aligner.window == 128
    source, target = words("s", *range(1500)), words("t", *range(1500))
    doubled = words("t", *((number, number) for number in range(1500)))
    diagonal = {(i, i) for i in range(1500)}
    cases = [
        (source, target, diagonal),
        (source, target[12:], {(i, i - 12) for i in range(12, 1500)}),
        (doubled, source, diagonal),
        (source, doubled, diagonal),
    ]
    for one, (*_, certain) in zip(aligner.align(case[:2] for case in cases), cases, strict=True):
        assert one.windows > 20 and certain <= set(one.links)
        assert "itermax" in method or certain == set(one.links)


def test_word_aligner_a_sentence_that_just_fits(tokenizer):
    pair = words("s", *range(30)), words("t", *range(20, 0, -1))
    whole, fits, cut = (
        next(WordAligner(Knowing(positions), tokenizer, "ot", 1).align([pair], True)) for positions in (512, 32, 31)
    )
    assert fits == whole and fits.windows == 1
    assert cut.windows == 2 and cut.links


@pytest.mark.parametrize("window", [512, 64])
def test_word_aligner_link_all(window, tokenizer):
    """Every third word has no partner, and the first word no token."""

    numbers = [(number, number + 1) if number % 3 else number + 90 for number in range(90)]
    pairs = [
        (["", *words("s", *numbers)], words("t", *range(88, 8, -1), *range(90))),
        (words("s", *numbers), words("t", *range(90))),
        (words("s", 1, 2), [""]),
        (words("s", 1, 2), words("t", 9)),
    ]
    plain, every, linked = (
        list(WordAligner(Knowing(window), tokenizer, layer=1, batch_size=2, **more).align(pairs, probabilities=True))
        for more in ({}, {"threshold": 1e-9}, {"link_all": True})
    )
    assert max(one.windows for one in plain) == (1 if window == 512 else 5)
    for one, of_every, found in zip(plain, every, linked, strict=True):
        expected, likeliest = dict(zip(one.links, one.probabilities, strict=True)), {}
        for link, probability in zip(of_every.links, of_every.probabilities, strict=True):
            if link[0] not in {i for i, _ in one.links} and probability > likeliest.get(link[0], (0, 0))[1]:
                likeliest[link[0]] = link, probability
        expected |= dict(likeliest.values())
        assert found.links == sorted(expected) and all(probability < 0.5 for _, probability in likeliest.values())
        assert found.probabilities == pytest.approx([expected[link] for link in found.links])
        if found.windows:
            assert {i for i, _ in found.links} == {i for i, word in enumerate(found.source) if word}


def test_word_aligner_a_word_longer_than_the_positions(tokenizer):
    aligner = WordAligner(Knowing(64), tokenizer, "mutual", layer=1)
    pair = words("s", 199, tuple(range(150)), 198), words("t", tuple(range(150)), 198)
    found = next(aligner.align([pair]))
    assert found.windows > 3 and found.links == [(1, 0), (2, 1)]


def test_word_aligner_reads_an_endless_input_a_chunk_at_a_time(tokenizer, monkeypatch):
    monkeypatch.setattr(pair_aligner, "BATCHES_PER_CHUNK", 3)
    numbers = itertools.count()
    endless = ((words("s", number, number + 1), words("t", number, number + 1)) for number in numbers)
    aligner = WordAligner(Knowing(), tokenizer, "mutual", layer=1, batch_size=2)
    found = [alignment.links for alignment in itertools.islice(aligner.align(endless), 7)]
    assert found == [[(0, 0), (1, 1)]] * 7 and next(numbers) == 12


@pytest.mark.parametrize(
    ("options", "pair", "named"),
    [
        ({"method": "mutual", "threshold": 0.1}, None, "threshold"),
        ({"layer": 3}, None, "layer"),
        ({"model": tiny("t5", d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=3)}, None, "T5Model"),
        ({"model": tiny("gpt2", n_embd=32, n_layer=2, n_head=4)}, None, "GPT2Model"),
        ({"model": Knowing(scale=torch.nan)}, (["s1."], ["t1."]), "layer 1 are not finite"),
        ({}, ("a", [1]), "input 0"),
    ],
)
def test_word_aligner_refuses(options, pair, named, tokenizer):
    with pytest.raises(ValueError, match=named):
        list(WordAligner(**{"model": Knowing(), "tokenizer": tokenizer, "layer": 1} | options).align([pair]))
