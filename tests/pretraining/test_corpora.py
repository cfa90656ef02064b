import copy
import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset

from crosslingual_zoo.pretraining.data import example_index
from crosslingual_zoo.pretraining.data.batches import (
    held_out_batches,
    load_corpora,
    phase_collators,
    phase_corpora,
    training_batches,
)
from crosslingual_zoo.pretraining.data.corpora import Corpus, tokens_of_text, unigram_entropy
from crosslingual_zoo.pretraining.data.examples import cut_pair, encode_texts
from crosslingual_zoo.pretraining.data.store import TokenStore
from tests.pretraining.made_texts import Example, texts_of

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

EN_DE = {"source_language": "en", "target_language": "de"}
MLM_AND_TLM = {"mlm": {"batch_size": 8, "max_length": 32}, "tlm": {"batch_size": 8, "max_length": 64}}


def test_load_corpora_windows_keep_every_token(files, corpora_of, sample_tokenizer, examples_of):
    long = " ".join(f"word {number}" for number in range(60))
    texts = ["Short.", "", long, "  ", None, "Last."]
    path = files.jsonl("a.jsonl", [{"text": text} for text in texts])
    objectives = {"mlm": {"batch_size": 8, "max_length": 20}}
    (corpus,) = corpora_of(objectives, monolingual=[{"language": "en", "path": path}])
    assert corpus.counts["rows"] == 6
    assert corpus.counts["empty"] == 3
    assert corpus.counts["windowed"] == 1
    examples = [tokens for (tokens,) in examples_of(corpus)]
    assert [len(tokens) for tokens in examples] == corpus.training.lengths.tolist()
    assert max(corpus.training.lengths) == 18  # and two special tokens
    assert sum(examples[1:-1], []) == encode_texts([long], sample_tokenizer)[0]
    assert set(tokens_of_text([corpus])) == set(sum(examples, []))
    shorter = corpus.with_form(12)
    assert max(shorter.training.lengths) == 10
    assert shorter.training.lengths.sum() == corpus.training.lengths.sum()


LONG_PAIRS = [  # objective, lengths of a pair of 50 words and one, and of 50 and 40
    ("tlm", [(19, 1), (10, 10)]),  # both sides in a row of 24: the longer one first
    ("ca_mlm_pairs", [(22, 1), (22, 22)]),  # each side in a row of its own
]


@pytest.mark.parametrize("objective, cut", LONG_PAIRS)
def test_load_corpora_cuts_long_pairs(objective, cut, files, corpora_of, sample_tokenizer, examples_of):
    assert [len(ids) for ids in encode_texts(["the", "die"], sample_tokenizer)] == [1, 1]
    rows = [
        {"en": "the " * 50, "de": "die"},
        {"en": "the " * 50, "de": "die " * 40},
        {"en": "the", "de": "die"},
        {"en": "", "de": "nichts"},
        {"en": "nothing", "de": None},
    ]
    bitext = [EN_DE | {"table": {"path": files.jsonl("a.jsonl", rows)}}]
    (corpus,) = corpora_of({objective: {"batch_size": 8, "max_length": 24}}, bitext=bitext)
    assert corpus.counts["empty"] == 2
    assert corpus.counts["cut"] == 2
    assert corpus.size == 3
    lengths = [(len(source), len(target)) for source, target in examples_of(corpus)]
    assert lengths == [*cut, (1, 1)]
    assert corpus.training.lengths.tolist() == [sum(pair) for pair in lengths]


def test_cut_pair_removes_token_by_token_from_the_longer_side():
    room = 25
    lengths = np.random.default_rng(0).integers(1, 40, (2, 300))
    cut = cut_pair(lengths, room)
    for expected, result in zip(lengths.T.tolist(), cut.T.tolist(), strict=True):
        while sum(expected) > room:
            longer = expected.index(max(expected))
            expected[longer] -= 1
        assert sorted(result) == sorted(expected)
    assert (cut <= lengths).all()


@pytest.fixture
def recipe(sample, recipe_of):
    """Six steps of MLM and TLM on three languages and a pair of the sample corpus."""
    return recipe_of(
        MLM_AND_TLM,
        monolingual=[{"language": language, **sample(language)} for language in ("en", "de", "zh")],
        bitext=[EN_DE | dict(source=sample("en"), target=sample("de"), join_on="id")],
        evaluation={"held_out_fraction": 0.1},
    )


@pytest.fixture
def corpora(recipe, sample_tokenizer):
    """The corpora of `recipe`."""
    return load_corpora(recipe, sample_tokenizer)


def batches_of(recipe, corpora, tokenizer, start=0, processes=1, process=0):
    """All batches of the first phase, of one process, from a given step."""
    return list(training_batches(recipe, 0, corpora, tokenizer, None, start, processes, process))


def rows_of(batches):
    """Sorted [(objective, corpus, example, input ids, labels)] without padding, the same for any batching."""
    rows = []
    for batch in batches:
        for objective, fields in batch.items():
            examples = fields["examples"].tolist()
            for row, length in enumerate(fields["attention_mask"].sum(1).tolist()):
                input_ids = fields["input_ids"][row, :length].tolist()
                labels = fields["labels"][row, :length].tolist()
                rows.append((objective, fields["corpus_names"][row], examples[row], input_ids, labels))
    return sorted(rows)


def test_feed_gives_a_batch_of_each_objective_and_leaves_torch_s_generator(recipe, corpora, sample_tokenizer):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches = batches_of(recipe, corpora, sample_tokenizer)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(batches) == 6
    for batch in batches:
        assert list(batch) == ["mlm", "tlm"]
        assert len(batch["mlm"]["corpus_names"]) == len(batch["tlm"]["corpus_names"]) == 8


def test_feed_gives_the_same_step_in_any_batching(recipe, corpora, sample_tokenizer):
    """In micro-batches, processes, and resumed."""
    whole = [rows_of([batch]) for batch in batches_of(recipe, corpora, sample_tokenizer)]
    resumed = batches_of(recipe, corpora, sample_tokenizer, start=4)
    assert [rows_of([batch]) for batch in resumed] == whole[4:]
    first_process = batches_of(recipe, corpora, sample_tokenizer, processes=2, process=0)
    second_process = batches_of(recipe, corpora, sample_tokenizer, processes=2, process=1)
    assert [rows_of(step) for step in zip(first_process, second_process, strict=True)] == whole
    recipe.gradient_accumulation_steps = 2
    micro_batches = batches_of(recipe, corpora, sample_tokenizer)
    assert [rows_of(step) for step in zip(micro_batches[::2], micro_batches[1::2], strict=True)] == whole


def test_feed_gives_the_same_batches_with_workers(recipe, corpora, sample_tokenizer):
    expected = batches_of(recipe, corpora, sample_tokenizer)
    recipe.num_workers = 2
    batches = batches_of(recipe, corpora, sample_tokenizer)
    for batch, other in zip(batches, expected, strict=True):
        for objective, fields in batch.items():
            assert fields.pop("corpus_names") == other[objective].pop("corpus_names")
    torch.testing.assert_close(batches, expected, rtol=0, atol=0)


def test_feed_phases_select_corpora_and_lengths(recipe, sample_tokenizer):
    longer = copy.deepcopy(recipe.phases[0])
    longer.objectives["mlm"].max_length = 128
    recipe.phases[0].corpora = ["en*", "zh"]
    recipe.phases[0].objectives["mlm"].max_length = 16
    recipe.phases.append(longer)
    corpora = load_corpora(recipe, sample_tokenizer)
    assert corpora[0].max_length == 128
    assert corpora[3].max_length == 64
    assert [corpus.name for corpus in phase_corpora(corpora, recipe.phases[0])] == ["en", "zh", "en-de"]
    batches = [batch["mlm"] for batch in batches_of(recipe, corpora, sample_tokenizer)]
    assert set(sum([batch["corpus_names"] for batch in batches], [])) == {"en", "zh"}
    assert max(batch["input_ids"].shape[1] for batch in batches) == 16


def test_feed_held_out_batches_are_the_same_for_every_seed(recipe, corpora, sample_tokenizer):
    def batches():
        collator = phase_collators(recipe.phases[0], sample_tokenizer)["mlm"]
        return [batch["mlm"] for batch in held_out_batches(corpora, collator, 7)]

    first = batches()
    held_out = sum(len(corpus.held_out) for corpus in corpora if len(corpus.languages) == 1)
    assert sum(len(batch["corpus_names"]) for batch in first) == held_out
    recipe.seed = 99
    for batch, other in zip(first, batches(), strict=True):
        assert torch.equal(batch["labels"], other["labels"])


@pytest.mark.parametrize("rows_of_block", [1, 7, 50])
def test_examples_are_the_same_in_blocks_of_any_size(rows_of_block, files, recipe_of, sample_tokenizer, monkeypatch):
    """Windows, segments of documents, pairs line by line, and joined pairs, some of them empty or held out."""
    random = np.random.default_rng(0)

    def rows() -> list[dict]:
        lengths = enumerate(random.integers(0, 40, 120).tolist())
        return [{"id": str(id), "doc": str(id // 11), "text": "word " * length} for id, length in lengths]

    english = {"path": files.jsonl("en.jsonl", rows())}
    german = {"path": files.jsonl("de.jsonl", rows()[::-1])}
    pair = EN_DE | {"source": english, "target": german}
    recipe = recipe_of(
        {"mlm": {"batch_size": 8, "max_length": 12}, "tlm": {"batch_size": 8, "max_length": 24}},
        monolingual=[{"language": "en", **english, "document_column": "doc"}],
        bitext=[pair | {"name": "lines"}, pair | {"name": "joined", "join_on": "id"}],
        evaluation={"held_out_fraction": 0.2},
    )

    def read() -> tuple[list, list]:
        corpora = load_corpora(recipe, sample_tokenizer)
        corpora += [corpus.with_form(10, apart=True) for corpus in corpora]
        numbers = []
        for corpus in corpora:
            for index in (corpus.training, corpus.evaluated):
                numbers.append([column.tolist() for column in vars(index).values()])
        return numbers, [corpus.counts for corpus in corpora]

    whole = read()
    monkeypatch.setattr(example_index, "ROWS_OF_BLOCK", rows_of_block)
    assert read() == whole


def test_corpus_holds_few_bytes_for_each_pair(monkeypatch):
    """At 100 million pairs, a byte a pair is 0.1 GB in each process."""
    monkeypatch.setattr(example_index, "ROWS_OF_BLOCK", 1 << 12)
    num_pairs = 1 << 17
    random = np.random.default_rng(0)

    def random_store() -> TokenStore:
        offsets = np.zeros(num_pairs + 1, dtype=np.int32)
        offsets[1:] = random.integers(1, 60, num_pairs).cumsum()
        ids = pa.ListArray.from_arrays(offsets, np.zeros(offsets[-1], dtype=np.int32))
        keys = random.integers(0, 2**63, num_pairs)
        return TokenStore(Dataset(pa.table({"ids": ids, "key": keys})))

    columns = [random_store(), random_store()]
    described = SimpleNamespace(codes=("en", "de"), kind="bitext", size=None)
    source = SimpleNamespace(name="en-de", corpus=described, alignment=None, counts={})
    tracemalloc.start()
    try:
        corpus = Corpus(source, columns, 64, False, 0.01, 100)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    order = 4  # of an epoch
    assert held / len(corpus.training) + order < 28
    assert most / len(corpus.training) < 28 + 40


def test_unigram_entropy_in_nats():
    uniform = [Example([np.arange(8), np.arange(8)], "en-de", 0), Example([np.arange(4), np.arange(4, 8)], "en-de", 1)]
    assert unigram_entropy(texts_of(uniform)) == pytest.approx(math.log(8))
    skewed = [Example([np.array([5, 5, 5, 7])], "en", 0)]
    assert unigram_entropy(texts_of(skewed)) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_load_corpora_trains_on_no_evaluated_side(files, corpora_of, examples_of, held_out_of):
    """Line by line: English has ids, German has none. Each table is held out by what it has itself."""
    rows = [{"id": f"v{number}", "text": f"The number {number} is here."} for number in range(300)]
    english = {"path": files.jsonl("en.jsonl", rows)}
    german = {"path": files.jsonl("de.jsonl", [{"text": f"Die Zahl {number} ist hier."} for number in range(300)])}
    corpora = corpora_of(
        MLM_AND_TLM,
        monolingual=[{"language": "en", **english}, {"language": "de", **german}],
        bitext=[EN_DE | {"source": english, "target": german}],
        evaluation={"held_out_fraction": 0.3},
    )
    trained = set()
    held_out = set()
    for corpus in corpora:
        assert corpus.held_out, corpus.name
        trained |= set(map(tuple, sum(examples_of(corpus), [])))
        held_out |= set(map(tuple, sum(held_out_of(corpus), [])))
    assert trained.isdisjoint(held_out)
