"""A run on prepared shards is the same as on the tables, and shards are complete after any fault during writing."""

import copy
import json
import multiprocessing
import random
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import load_from_disk

from pretraining.data.batches import Feed
from pretraining.data.corpora import load_corpora
from pretraining.data.examples import encode_texts
from pretraining.data.prepared import MANIFEST, SHARDS
from pretraining.tools import prepare as command
from pretraining.tools.prepare import prepare
from zoo_core.run_folders import run_lock

SMALL = 4096  # bytes of a shard
WORDS = "rain sun snow wind cook house onion thin the a over under small water stone bird".split()


def lines_of(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))).capitalize() + "." for _ in range(count)]


@pytest.fixture
def recipe(files, recipe_of, sample_tokenizer_dir):
    """All kinds of corpora: documents, a join with unmatched ids, two columns, line by line, a separator."""
    english, german = lines_of(160, 1), lines_of(160, 2)
    rows = [{"id": f"{n:03d}", "text": text, "doc": f"d{n // 7}"} for n, text in enumerate(english)]
    rows[20]["text"], rows[30]["text"] = "", None
    monolingual = [
        {"language": "en", "path": files.jsonl("en.jsonl", rows), "document_column": "doc", "document_pattern": "d."},
        {"language": "de", "path": files.lines("de.txt", german)},
    ]
    other = files.jsonl("fr.jsonl", [{"id": f"{n:03d}", "text": text} for n, text in enumerate(german) if n % 5])
    pairs = files.lines("pairs.tsv", ["es\ten", *(f"{a}\t{b}" for a, b in zip(german, english, strict=True))])
    marked = files.lines("marked.txt", [f"{a} ||| {b}" for a, b in zip(english, german, strict=True)])
    sides = {"source": {"path": files.lines("a.txt", english)}, "target": {"path": files.lines("b.txt", german)}}
    joined = {"join_on": "id", "source": {"path": str(files.folder / "en.jsonl")}, "target": {"path": other}}
    bitext = [
        {"source_language": "en", "target_language": "fr", **joined},
        {"source_language": "es", "target_language": "en", "table": {"path": pairs}},
        {"source_language": "zh", "target_language": "en", **sides},
        {"source_language": "ru", "target_language": "en", "table": {"path": marked}, "separator": "|||"},
    ]
    return recipe_of(
        objectives={
            "mlm": {"batch_size": 8, "max_length": 24},
            "tlm": {"batch_size": 8, "max_length": 64},
            "ca_mlm_segments": {"batch_size": 8, "max_length": 32},
            "ca_mlm_pairs": {"batch_size": 4, "max_length": 32},
        },
        tokenizer=str(sample_tokenizer_dir),
        monolingual=monolingual,
        bitext=bitext,
        evaluation={"held_out_fraction": 0.1, "max_examples": 20},
    )


@pytest.fixture
def streamed(files, recipe_of, sample_tokenizer_dir):
    """A stream of text with ids, and two that are read line by line."""
    english, german = lines_of(200, 3), lines_of(200, 4)
    rows = [{"id": f"x{n}", "text": text} for n, text in enumerate(english)]
    stream = {"streaming": True}
    texts = {"source": files.lines("a_stream.txt", english), "target": files.lines("b_stream.txt", german)}
    sides = {side: {"path": path, **stream} for side, path in texts.items()}
    return recipe_of(
        objectives={"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 64}},
        tokenizer=str(sample_tokenizer_dir),
        monolingual=[{"language": "en", "path": files.jsonl("stream.jsonl", rows), "size": 9, **stream}],
        bitext=[{"source_language": "en", "target_language": "de", "size": 9, **sides}],
    )


def small(recipe, folder, num_workers=1, max_rows=None, shard_bytes=SMALL):
    prepare(recipe, folder, num_workers, max_rows, shard_bytes)
    return folder


def shards_in(folder):
    """{shard: its time of writing}."""
    return {path: path.stat().st_mtime_ns for path in folder.glob(f"{SHARDS}/**/*.arrow")}


def columns_of(folder):
    """{key of a column: its rows}."""
    columns = json.loads((folder / MANIFEST).read_text())["columns"]
    return {key: [load_from_disk(folder / shard)[:] for shard in facts["shards"]] for key, facts in columns.items()}


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def batches_of(recipe, tokenizer, count=4):
    """(corpora, their first training batches, their held-out batches)."""
    corpora, phase = load_corpora(recipe, tokenizer), recipe.phases[0]
    feed = Feed.of(recipe, corpora, tokenizer)
    loader = iter(feed.training(phase, 0))
    size, objectives = recipe.evaluation.batch_size, phase.with_examples.values()
    held_out = [list(feed.held_out(phase, objective, size)) for objective in objectives]
    return corpora, [next(loader) for _ in range(count)], held_out


def test_a_run_sees_what_it_sees_in_the_tables(recipe, tmp_path, files, sample_tokenizer):
    raw, batches, held_out = batches_of(recipe, sample_tokenizer)
    facts = [corpus.facts() for corpus in raw]
    folder = small(recipe, tmp_path / "shards")
    assert len(shards_in(folder)) > 10
    columns = {c["name"]: c["columns"] for c in json.loads((folder / MANIFEST).read_text())["corpora"]}
    assert columns["de"][0] == columns["zh-en"][1], "text that corpora share is written once"
    for path in files.folder.glob("*.*"):
        if path.suffix in (".jsonl", ".txt", ".tsv"):
            path.unlink()
    prepared, found, found_held_out = batches_of(replace(recipe, prepared=str(folder)), sample_tokenizer)
    assert [corpus.facts() for corpus in prepared] == facts, "run.json says the same"
    for one, other in zip(prepared, raw, strict=True):
        assert one.size == other.size and np.array_equal(one.lengths, other.lengths)
    assert any(held_out) and same(found_held_out, held_out)
    assert same(found, batches)


def test_any_number_of_workers_writes_the_same_rows(recipe, streamed, tmp_path, monkeypatch):
    monkeypatch.setattr("pretraining.data.prepared.ROWS_OF_PROCESS", 20)
    both = replace(recipe, monolingual=recipe.monolingual[:1], bitext=streamed.bitext)
    alone, many = (small(both, tmp_path / f"of-{n}", n, None, 10 * SMALL) for n in (1, 2))
    assert columns_of(alone) == columns_of(many)


def test_again_writes_nothing_and_follows_a_change(recipe, tmp_path, files):
    folder = small(recipe, tmp_path / "shards")
    before = shards_in(folder)
    small(recipe, folder)
    assert shards_in(folder) == before
    # of the corpora of another recipe those that are not named stay
    files.lines("de.txt", lines_of(50, 9))
    small(replace(recipe, monolingual=recipe.monolingual[1:], bitext=[]), folder)
    after = shards_in(folder)
    assert before.items() < after.items()  # the German that zh-en reads is still there


def interrupted(recipe, folder, count):
    """Prepares in a separate process, which is killed when it has written this many shards."""
    process = multiprocessing.get_context("fork").Process(target=prepare, args=(recipe, folder, 1, None, SMALL))
    process.start()
    while process.is_alive():
        if len(shards_in(folder)) >= count:
            process.kill()
        time.sleep(0.0005)  # let it work
    process.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_at_any_moment_it_goes_on(recipe, streamed, tmp_path, sample_tokenizer):
    both = replace(recipe, monolingual=recipe.monolingual[:1], bitext=recipe.bitext[:1] + streamed.bitext)
    wanted, folder = columns_of(small(both, tmp_path / "wanted")), tmp_path / "killed"
    draw, kept = random.Random(1), {}
    for count in sorted(draw.sample(range(1, 20), 3)):
        interrupted(both, folder, count)
        assert not (folder / MANIFEST).exists()
        with pytest.raises(ValueError, match=str(folder)):
            load_corpora(replace(both, prepared=str(folder)), sample_tokenizer)
        shards = {path: when for path, when in shards_in(folder).items() if ".tmp" not in str(path)}
        assert kept.items() <= shards.items(), "what was finished is kept"
        kept = shards
    small(both, folder)
    assert kept and kept.items() <= shards_in(folder).items()
    assert columns_of(folder) == wanted and not list(folder.glob(".shard-*"))


def test_a_broken_shard_is_named_and_written_again(recipe, streamed, tmp_path, sample_tokenizer):
    recipe = replace(recipe, bitext=streamed.bitext)
    folder = small(recipe, tmp_path / "shards")
    before, wanted = shards_in(folder), columns_of(folder)
    broken = max(before)
    broken.write_bytes(broken.read_bytes()[:100])
    shard = folder.joinpath(*broken.relative_to(folder).parts[:3])
    with pytest.raises(ValueError, match=str(shard)):
        load_corpora(replace(recipe, prepared=str(folder)), sample_tokenizer)
    shutil.rmtree(shard)
    with pytest.raises(ValueError, match=str(shard)):
        load_corpora(replace(recipe, prepared=str(folder)), sample_tokenizer)
    small(recipe, folder)
    after = shards_in(folder)
    assert columns_of(folder) == wanted
    assert {path for path in before if before[path] != after[path]} == {p for p in before if p.is_relative_to(shard)}


def test_streams_are_read_once_in_their_own_order(streamed, tmp_path, sample_tokenizer, monkeypatch):
    folder = small(streamed, tmp_path / "shards")
    mono, pairs = load_corpora(replace(streamed, prepared=str(folder)), sample_tokenizer)
    assert mono.counts["rows"] == pairs.counts["rows"] == 200
    assert not mono.streaming and mono.size == len(mono.lengths) and mono.facts()["size_source"] == "counted"
    for column, seed in ((mono.columns[0], 3), (pairs.columns[0], 3), (pairs.columns[1], 4)):
        wanted = encode_texts(lines_of(200, seed), sample_tokenizer)
        assert [column.ids(row).tolist() for row in range(200)] == wanted
    raw = load_corpora(streamed, sample_tokenizer)
    assert mono.facts()["tables"] != raw[0].facts()["tables"], "a run cannot change from the stream to its shards"
    monkeypatch.setattr("pretraining.data.prepared.plain_rows", lambda rows: pytest.fail("read again"))
    small(streamed, folder)


def test_a_stream_is_read_as_far_as_asked_and_further_later(streamed, tmp_path):
    wanted = columns_of(small(streamed, tmp_path / "wanted"))
    folder = small(streamed, tmp_path / "shards", max_rows=77)
    assert [c["rows"] for c in json.loads((folder / MANIFEST).read_text())["columns"].values()] == [77] * 3
    before = shards_in(folder)
    column = next(iter(before)).relative_to(folder).parts[1]
    own = [
        ".shard-0a1b2c3d.tmp",
        f"{SHARDS}/{column}/00007-of-00009",
    ]  # of a process that was killed, of a former recipe
    others = [".tmp-mine", f"{SHARDS}/mine", f"{SHARDS}/{column}/000000000000-copy-2", f"{SHARDS}/{column}/notes"]
    for name in (*own, *others):
        (folder / name).mkdir()
    small(streamed, folder)
    assert all((folder / name).exists() for name in others) and not any((folder / name).exists() for name in own)
    assert columns_of(folder) == wanted
    assert len(before.items() & shards_in(folder).items()) == len(before) - 3, "all but the last, which was cut short"


@pytest.mark.slow
def test_training_and_resuming_give_the_same_weights(train, difference, cut_back, tmp_path, recipe_file):
    raw, shards = tmp_path / "run", tmp_path / "shards"
    train("save_every_steps=2")
    command.main(["--config", str(recipe_file), "--output", str(shards), "--num_workers", "1"])
    train(f"output_dir={tmp_path / 'prepared'}", f"prepared={shards}")
    resumed = cut_back(raw, 2, tmp_path / "resumed")
    train(f"output_dir={resumed}", f"prepared={shards}", "--resume")
    assert difference(tmp_path / "prepared", raw) == difference(resumed, raw) == 0
    facts = [json.loads((folder / "run.json").read_text()) for folder in (raw, tmp_path / "prepared")]
    assert facts[0]["corpora"] == facts[1]["corpora"]


def test_shards_of_another_recipe_are_refused(recipe, tmp_path, sample_tokenizer):
    folder = small(replace(recipe, bitext=recipe.bitext[:2]), tmp_path / "shards")
    english, german = recipe.monolingual
    known = {"bitext": recipe.bitext[:2]}
    for changes, field in (
        ({}, "zh-en"),
        (known | {"monolingual": [replace(english, document_column=None, document_pattern=None)]}, "document_column"),
        (known | {"monolingual": [english, replace(german, path="b.txt")]}, "path"),
        # the identity of the rows of every table follows from the joins of all
        ({"bitext": [replace(recipe.bitext[0], join_on="verse")]}, "join_on"),
    ):
        with pytest.raises(ValueError, match=field):
            load_corpora(replace(recipe, prepared=str(folder), **changes), sample_tokenizer)
    # how often a corpus is drawn is the recipe's to say
    sized = replace(recipe, prepared=str(folder), monolingual=[replace(english, size=7), german], **known)
    assert load_corpora(sized, sample_tokenizer)[0].size == 7
    sample_tokenizer = copy.deepcopy(sample_tokenizer)
    sample_tokenizer.add_tokens(["<place>"])
    sample_tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="tokenizer"):
        load_corpora(sized, sample_tokenizer)
    with pytest.raises(ValueError, match="tokenizer"):
        small(replace(recipe, tokenizer=str(tmp_path / "other")), folder)


def test_folders_that_are_refused(recipe, tmp_path, sample_tokenizer):
    folder = tmp_path / "shards"
    folder.mkdir()
    for manifest, named in ((None, MANIFEST), ("{", MANIFEST), ('{"format": 99}', "99")):
        if manifest:
            (folder / MANIFEST).write_text(manifest)
            with pytest.raises(ValueError, match=named):
                small(recipe, folder)
        with pytest.raises(ValueError, match=named):
            load_corpora(replace(recipe, prepared=str(folder)), sample_tokenizer)
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("x")
    for place in (thesis, thesis / "chapter.tex"):
        with pytest.raises(ValueError, match=str(place)):
            small(recipe, place)
    assert [path.name for path in thesis.iterdir()] == ["chapter.tex"]
    (tmp_path / "hidden").mkdir()
    (tmp_path / "mine" / SHARDS / "web").mkdir(parents=True)  # a data set of one's own, in a folder of the same name
    for place, name in (("hidden", ".notes"), ("mine", f"{SHARDS}/web/1.tar")):
        (tmp_path / place / name).write_text("precious")
        with pytest.raises(ValueError, match="other files"):
            small(recipe, tmp_path / place)
        assert (tmp_path / place / name).read_text() == "precious"
    with run_lock(tmp_path / "busy"), pytest.raises(ValueError, match="busy"):
        small(recipe, tmp_path / "busy")
