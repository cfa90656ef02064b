"""The store of token ids: text is tokenized once, also by `prepare`, by a killed process, and of a stream."""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from crosslingual_zoo.pretraining.checkpoints import check_same_data, data_facts
from crosslingual_zoo.pretraining.data import readings, sources, store
from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.data.examples import encode_texts
from crosslingual_zoo.pretraining.data.readings import READINGS, reading_fingerprint
from crosslingual_zoo.pretraining.data.sources import open_sources
from crosslingual_zoo.pretraining.data.store import tokenize_column
from crosslingual_zoo.pretraining.tools import prepare
from crosslingual_zoo.zoo_core.provenance import write_json

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

ROOT = Path(__file__).parents[2]
WORDS = "rain sun snow wind cook house onion thin the a over under small water stone bird".split()
EN_DE = {"source_language": "en", "target_language": "de"}
OBJECTIVES = {"tlm": {"batch_size": 8, "max_length": 64}, "ca_mlm_segments": {"batch_size": 8, "max_length": 32}}


def lines_of(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))).capitalize() + "." for _ in range(count)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of `datasets`."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def tokenized_texts(monkeypatch):
    """The texts that are tokenized from now on, in this process."""
    tokenized = []

    def read(texts, tokenizer):
        tokenized.extend(texts)
        return encode_texts(texts, tokenizer)

    monkeypatch.setitem(READINGS, "text", read)
    return tokenized


def test_load_corpora_stream_is_its_first_rows(files, corpora_of, examples_of, held_out_of, monkeypatch):
    """Text with documents, two columns of one table, two tables line by line, and two joined, of one file of rows."""
    german = lines_of(200, 2)
    german[5] = None
    rows = []
    for id, english in enumerate(lines_of(200, 1)):
        rows.append({"id": id, "doc": f"d{id // 9}", "t": {"en": english, "de": german[id]}})

    def read(table, **limit):
        pair = EN_DE | {"source_column": "t.en", "target_column": "t.de"} | limit
        tables = {"source": table, "target": table}
        return corpora_of(
            OBJECTIVES,
            monolingual=[table | {"language": "en", "text_column": "t.en", "document_column": "doc"} | limit],
            bitext=[
                pair | {"name": "columns", "table": table},
                pair | {"name": "lines"} | tables,
                pair | {"name": "joined", "join_on": "id"} | tables,
            ],
            evaluation={"held_out_fraction": 0.2},
        )

    part = {"path": files.jsonl("part.jsonl", rows[:80])}
    stream = {"path": files.jsonl("whole.jsonl", rows), "streaming": True}
    for corpus, expected in zip(read(stream, max_rows=80), read(part), strict=True):
        assert corpus.held_out
        assert examples_of(corpus) == examples_of(expected)
        assert held_out_of(corpus) == held_out_of(expected)
    # from the cache, without a look at the stream
    monkeypatch.setattr(sources, "load_table", lambda *arguments: pytest.fail("read again"))
    corpora = read(stream, max_rows=80)
    assert [corpus.counts["rows"] for corpus in corpora] == [80] * 4
    assert "80" in corpora[0].facts()["tables"][0]["fingerprint"]


def test_load_corpora_tokenizes_a_column_once(files, recipe_of, sample_tokenizer, tokenized_texts):
    def column_of(lines, tokenizer=sample_tokenizer):
        recipe = recipe_of(monolingual=[{"language": "en", "path": files.lines("a.txt", lines)}])
        side = open_sources(recipe.named_corpora())[0].sides[0]
        return tokenize_column(side, tokenizer, reading_fingerprint(tokenizer), "en").rows["ids"][:]

    first = column_of(["Rain.", "Sun and rain."])
    tokenized_texts.clear()
    sample_tokenizer("a", truncation=True, max_length=3)  # leaves traces that change no ids
    assert column_of(["Rain.", "Sun and rain."]) == first
    assert not tokenized_texts
    assert column_of(["Rain.", "Sun and snow."]) != first
    assert tokenized_texts
    other = type(sample_tokenizer)(vocab=[("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁R", -1.0)])
    assert column_of(["Rain.", "Sun and rain."], other) != first


def test_a_changed_rule_gives_new_ids_and_ends_a_resume(
    files, recipe_of, sample_tokenizer, examples_of, tmp_path, monkeypatch
):
    """The number of the rule is in the key of the ids on disk, and among the facts that a resumed run compares."""
    lines = ["Rain and wind.", "Sun and rain."]
    recipe = recipe_of(monolingual=[{"language": "en", "path": files.lines("a.txt", lines)}])

    def read() -> tuple[list, dict]:
        corpora = load_corpora(recipe, sample_tokenizer)
        return examples_of(corpora[0]), data_facts(corpora, sample_tokenizer, None)

    def changed_rule(texts, tokenizer):
        return [[7, *ids] for ids in encode_texts(texts, tokenizer)]

    before, facts = read()
    write_json(tmp_path / "run.json", facts)
    check_same_data(tmp_path, facts)
    monkeypatch.setitem(READINGS, "text", changed_rule)
    monkeypatch.setattr(readings, "READING_VERSION", readings.READING_VERSION + 1)
    after, changed = read()
    assert after == [[[7, *ids]] for (ids,) in before]
    with pytest.raises(ValueError, match="tokenizer"):
        check_same_data(tmp_path, changed)


def test_reading_version_is_raised_with_the_rules(tokenizer_of):
    """These are the ids of version 1. If they change, raise READING_VERSION, and write the new ones here."""
    tokenizer = tokenizer_of("unigram", ["▁", "▁a", "▁b", "b", "c", "▁ab"])
    texts = ["a b ab", "abc  </s> ", None, "a\tb\u200bc <mask>"]
    assert readings.READING_VERSION == 1
    ids = [[5, 6, 9], [9, 8, 4, 3], [], [5, 6, 3, 8, 4, 3]]
    assert READINGS["text"](texts, tokenizer) == READINGS["words"](texts, tokenizer) == ids
    assert READINGS["word numbers"](texts, tokenizer) == [[0, 1, 2], [0, 0, 1, 1], [], [0, 1, 1, 1, 2, 2]]
    assert READINGS["links"](["0-1 2p3", None], tokenizer) == [[0, 1, 1, 2, 3, 0], []]
    assert READINGS["no links"](texts, tokenizer) == [[], [], [], []]
    assert [sources.row_key(value) for value in (0, "a")] == [4761921975702974394, 2340832890917691671]


@pytest.mark.parametrize("processes", [1, 3])
def test_load_corpora_of_processes(files, corpora_of, sample_tokenizer, examples_of, cache, monkeypatch, processes):
    monkeypatch.setattr(store, "ROWS_OF_PROCESS", 20)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(processes))
    lines = lines_of(60, 1)
    (corpus,) = corpora_of(monolingual=[{"language": "en", "path": files.lines("a.txt", lines)}])
    assert examples_of(corpus) == [[ids] for ids in encode_texts(lines, sample_tokenizer)]
    assert corpus.columns[0].keys.tolist() == [sources.row_key(number) for number in range(60)]


# argv: a recipe of more rows than one process tokenizes; the first one kills the main process
KILLED = """
import os, signal, sys, time
from crosslingual_zoo.pretraining.data import store
from crosslingual_zoo.pretraining.tools import prepare
store.ROWS_OF_PROCESS = 20
store.usable_cores = lambda: 3
main_process = os.getpid()
store.READINGS["text"] = lambda texts, tokenizer: os.kill(main_process, signal.SIGKILL) or time.sleep(100)
prepare.main(["--config", sys.argv[1]])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_prepare_that_is_killed_leaves_no_processes(files, recipe_of, sample_tokenizer_dir, cache):
    recipe_of(
        monolingual=[{"language": "en", "path": files.lines("a.txt", lines_of(60, 1))}],
        tokenizer=str(sample_tokenizer_dir),
    )
    command = [sys.executable, "-c", KILLED, str(files.folder / "recipe.yaml")]
    # each of its processes has the pipe open as long as it runs
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **output)
    try:
        printed, _ = process.communicate(timeout=90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, printed


@pytest.mark.slow
def test_prepare_continues_after_kills(
    files, recipe_of, sample_tokenizer, sample_tokenizer_dir, cache, tokenized_texts
):
    texts = {name: lines_of(1200, seed) for seed, name in enumerate(("en", "de", "fr"))}
    tables = [{"language": name, "path": files.lines(f"{name}.txt", lines)} for name, lines in texts.items()]
    recipe = recipe_of(monolingual=tables, tokenizer=str(sample_tokenizer_dir))

    def killed(calls):
        """`prepare` in another process, killed at this call for text: a call is 1,000 rows, or the rest of 1,200."""

        def encode(texts, tokenizer):
            nonlocal calls
            calls -= 1
            if not calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return encode_texts(texts, tokenizer)

        READINGS["text"] = encode
        prepare.main(["--config", str(files.folder / "recipe.yaml")])

    for calls in (1, 4, 3):  # in the first column, in the second, in the third
        process = multiprocessing.get_context("fork").Process(target=killed, args=(calls,))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    prepare.main(["--config", str(files.folder / "recipe.yaml")])
    assert len(tokenized_texts) == 1200, "finished columns are kept"
    tokenized_texts.clear()
    for corpus, lines in zip(load_corpora(recipe, sample_tokenizer), texts.values(), strict=True):
        assert corpus.columns[0].rows["ids"][:] == encode_texts(lines, sample_tokenizer)
    assert not tokenized_texts, "a run finds what was prepared"
