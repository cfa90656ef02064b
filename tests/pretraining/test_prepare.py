"""Prepared shards give a run what the tables give it, and survive whatever happens while they are written."""

import hashlib
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pretraining.data.corpora import held_out_batches, load_corpora, phase_corpora, training_batches
from pretraining.data.fast_tokenize import encode_texts
from pretraining.data.prepared import MANIFEST, PROGRESS
from pretraining.data.shards import CorruptShard
from pretraining.run_lock import run_lock
from pretraining.tools import prepare as command
from pretraining.tools.prepare import prepare, verify

SMALL = 2048  # bytes of a shard
WORDS = "rain sun snow wind cook house onion thin the a over under small water stone bird".split()


def lines_of(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))).capitalize() + "." for _ in range(count)]


@pytest.fixture
def recipe(files, recipe_of, sample_tokenizer_dir):
    """All ways to name text: documents, a join with ids that do not meet, two columns, line by line, a separator."""
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
    bitext = [
        {
            "source_language": "en",
            "target_language": "fr",
            "join_on": "id",
            "source": {"path": str(files.folder / "en.jsonl")},
            "target": {"path": other},
        },
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
    return recipe_of(
        objectives={"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 64}},
        tokenizer=str(sample_tokenizer_dir),
        monolingual=[{"language": "en", "path": files.jsonl("stream.jsonl", rows), "size": 9, **stream}],
        bitext=[
            {
                "source_language": "en",
                "target_language": "de",
                "size": 9,
                "source": {"path": files.lines("a_stream.txt", english), **stream},
                "target": {"path": files.lines("b_stream.txt", german), **stream},
            }
        ],
    )


def small(recipe, folder, num_workers=1, max_rows=None, shard_bytes=SMALL):
    prepare(recipe, folder, num_workers, max_rows, shard_bytes)
    return folder


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def shards_in(folder):
    return sorted(folder.glob("shards/*/*.arrow"))


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def batches_of(recipe, tokenizer, count=4):
    """(corpora, their first training batches, their held-out batches)."""
    corpora, phase = load_corpora(recipe, tokenizer), recipe.phases[0]
    loader = iter(training_batches(phase_corpora(corpora, phase), phase, recipe, 0, tokenizer))
    held_out = [list(held_out_batches(corpora, phase, recipe, tokenizer, name)) for name in phase.objectives]
    return corpora, [next(loader) for _ in range(count)], held_out


def test_a_run_sees_what_it_sees_in_the_tables(recipe, tmp_path, files, sample_tokenizer):
    raw, batches, held_out = batches_of(recipe, sample_tokenizer)
    facts = [corpus.facts() for corpus in raw]
    folder = small(recipe, tmp_path / "shards")
    assert len(shards_in(folder)) > 20
    for path in files.folder.glob("*.*"):
        if path.suffix in (".jsonl", ".txt", ".tsv"):
            path.unlink()
    prepared, found, found_held_out = batches_of(replace(recipe, prepared=str(folder)), sample_tokenizer)
    assert [corpus.facts() for corpus in prepared] == facts, "run.json says the same"
    for one, other in zip(prepared, raw, strict=True):
        assert one.size == other.size and np.array_equal(one.lengths, other.lengths)
    assert any(held_out) and same(found_held_out, held_out)
    assert same(found, batches)


def test_text_that_corpora_share_is_written_once(recipe, tmp_path):
    folder = small(recipe, tmp_path / "shards")
    columns = {c["name"]: c["columns"] for c in json.loads((folder / MANIFEST).read_text())["corpora"]}
    assert columns["en"][0] == columns["en-fr"][0], "with the documents that only one of them needs"
    assert columns["de"][0] == columns["zh-en"][1]
    assert len(set(sum(columns.values(), []))) == 8


@pytest.mark.slow
def test_training_and_resuming_give_the_same_weights(train, tmp_path, recipe_file, capsys):
    folder, runs = str(tmp_path / "shards"), {name: str(tmp_path / name) for name in ("raw", "prepared", "resumed")}
    train(f"output_dir={runs['raw']}", "save_every_steps=2")
    command.main(["--config", str(recipe_file), "--output", folder, "--num_workers", "1"])
    assert f"train with: prepared={folder}" in capsys.readouterr().out
    train(f"output_dir={runs['prepared']}", f"prepared={folder}")

    shutil.copytree(runs["raw"], runs["resumed"])
    for leftover in ("model", "checkpoints/step-3"):
        shutil.rmtree(tmp_path / "resumed" / leftover)
    train(f"output_dir={runs['resumed']}", f"prepared={folder}", "--resume")
    weights = {name: load_file(f"{run}/model/model.safetensors") for name, run in runs.items()}
    assert same(weights["prepared"], weights["raw"]) and same(weights["resumed"], weights["raw"])
    facts = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("raw", "prepared")]
    assert facts[0]["corpora"] == facts[1]["corpora"]


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_bytes(recipe, streamed, tmp_path, files):
    for name, one in (("tables", recipe), ("streams", streamed)):
        alone = small(one, tmp_path / name / "alone")
        many = small(one, tmp_path / name / "many", num_workers=3)
        assert contents(alone) == contents(many)


def test_a_log_is_told_how_far_it_is(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "SECONDS_BETWEEN_LINES", 0)
    small(recipe, tmp_path / "prepared")
    lines = re.findall(r"^preparing: ([\d,]+) of ([\d,]+) rows ([\d,]+ tokens/s)?$", capsys.readouterr().err, re.M)
    done = [int(rows.replace(",", "")) for rows, _, _ in lines]
    assert done == sorted(done) and lines[-1][0] == lines[-1][1] and lines[-1][2]


def test_again_writes_nothing_and_follows_a_change(recipe, tmp_path, files, capsys):
    folder = small(recipe, tmp_path / "shards")
    before, times = contents(folder), {path: path.stat().st_mtime_ns for path in shards_in(folder)}
    small(recipe, folder)
    assert contents(folder) == before and times == {path: path.stat().st_mtime_ns for path in shards_in(folder)}
    assert "0 tokens written in" in capsys.readouterr().out
    # of the corpora of another recipe those that are not named stay
    files.lines("de.txt", lines_of(50, 9))
    small(replace(recipe, monolingual=recipe.monolingual[1:], bitext=[]), folder)
    assert "kept from before: en, en-fr, es-en, zh-en, ru-en" in capsys.readouterr().out
    after = contents(folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} - {MANIFEST}
    assert changed and all(name.startswith("shards/de-") for name in changed)
    verify(folder)


def interrupted(recipe, folder, lines, num_workers):
    """Prepares in a process of its own, which is killed once so many lines stand in the journal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretraining.data.shard_workers", "pretraining.start.initialization"])
    process = context.Process(target=prepare, args=(recipe, folder, num_workers, None, SMALL))
    process.start()
    while process.is_alive():
        if (folder / PROGRESS).is_file() and (folder / PROGRESS).read_bytes().count(b"\n") >= lines:
            process.kill()
        time.sleep(0.0005)  # let it work
    process.join()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_killed_at_any_moment_it_goes_on(recipe, streamed, tmp_path, num_workers, sample_tokenizer):
    both = replace(recipe, monolingual=recipe.monolingual[:1], bitext=recipe.bitext[:1] + streamed.bitext)
    wanted, folder = contents(small(both, tmp_path / "wanted")), tmp_path / "killed"
    draw, kept = random.Random(num_workers), {}
    for lines in sorted(draw.sample(range(1, 40), 3)):
        interrupted(both, folder, lines, num_workers)
        assert not (folder / MANIFEST).exists()
        with pytest.raises(ValueError, match="prepared in part.*Go on with"):
            load_corpora(replace(both, prepared=str(folder)), sample_tokenizer)
        for path, when in kept.items():
            assert path.stat().st_mtime_ns == when, "what was finished is kept"
        noted = [json.loads(line) for line in (folder / PROGRESS).read_text().split("\n")[:-1] if line.strip()]
        kept = {path: path.stat().st_mtime_ns for note in noted if "file" in note for path in [folder / note["file"]]}
    assert kept
    with (folder / PROGRESS).open("r+b") as journal:  # as where the machine stopped while a line was written
        journal.truncate(journal.seek(-7, os.SEEK_END))
    small(both, folder)
    assert contents(folder) == wanted


def test_a_journal_whose_first_line_was_cut_short_is_read(recipe, tmp_path):
    folder = small(recipe, tmp_path / "shards")
    before, manifest = contents(folder), json.loads((folder / MANIFEST).read_text())
    key, column = next(iter(manifest["columns"].items()))
    done = {"column": key} | column["shards"][0]
    written = (folder / done["file"]).stat().st_mtime_ns
    (folder / MANIFEST).unlink()
    (folder / PROGRESS).write_text('{"format": 1, "tokenizer_fing\n' + json.dumps(done) + "\n")
    small(recipe, folder)
    assert contents(folder) == before and (folder / done["file"]).stat().st_mtime_ns == written


def test_broken_files_are_named_and_rebuilt(recipe, tmp_path, sample_tokenizer):
    folder = small(recipe, tmp_path / "shards")
    before, read = contents(folder), replace(recipe, prepared=str(folder))
    flipped, cut, missing = (path for path in random.Random(0).sample(shards_in(folder), 3))
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 16
    flipped.write_bytes(content)
    with pytest.raises(ValueError, match=f"1 of the .* files.*{flipped.name} does not hold"):
        verify(folder)
    os.truncate(cut, 100)
    with pytest.raises(CorruptShard, match=f"{cut.name} has 100 bytes, and .* were written.*--output {folder}"):
        load_corpora(read, sample_tokenizer)
    missing.unlink()
    alignment = next(folder.glob("alignments/*"))
    os.truncate(alignment, alignment.stat().st_size - 8)
    with pytest.raises(ValueError, match="4 of the .* files"):
        verify(folder)
    whole = {path: path.stat().st_mtime_ns for path in shards_in(folder) if path not in (flipped, cut)}
    small(recipe, folder)
    assert contents(folder) == before
    assert all(path.stat().st_mtime_ns == when for path, when in whole.items())


def test_streams_are_read_once_in_their_own_order(streamed, tmp_path, sample_tokenizer, monkeypatch, caplog):
    folder = small(streamed, tmp_path / "shards")
    caplog.set_level("INFO")
    corpora = load_corpora(replace(streamed, prepared=str(folder)), sample_tokenizer)
    assert [corpus.counts["rows"] for corpus in corpora] == [200, 200] and "its size is counted" in caplog.text
    assert [corpus.size for corpus in corpora] == [len(corpus.lengths) for corpus in corpora]
    mono, pairs = corpora
    assert not mono.streaming and mono.facts()["size_source"] == "counted"
    for column, seed in ((mono.columns[0], 3), (pairs.columns[0], 3), (pairs.columns[1], 4)):
        wanted = encode_texts(lines_of(200, seed), sample_tokenizer)
        assert [column.ids(row).tolist() for row in range(200)] == wanted
    raw = load_corpora(streamed, sample_tokenizer)
    assert mono.facts()["tables"] != raw[0].facts()["tables"], "a run cannot change from the stream to its shards"
    # what is there and whole is not read again
    monkeypatch.setattr("pretraining.data.shard_plan.plain_rows", lambda rows: iter(list(rows.take(0))))
    small(streamed, folder)


def test_a_stream_is_read_as_far_as_asked_and_further_later(streamed, tmp_path):
    wanted = contents(small(streamed, tmp_path / "wanted"))
    folder = small(streamed, tmp_path / "shards", max_rows=77)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert [sum(shard["rows"] for shard in c["shards"]) for c in manifest["columns"].values()] == [77] * 3
    times = {path: path.stat().st_mtime_ns for path in shards_in(folder)}
    small(streamed, folder)
    assert contents(folder) == wanted
    kept = [path for path, when in times.items() if path.exists() and path.stat().st_mtime_ns == when]
    assert len(kept) == len(times) - 3, "all but the last, which was cut short"


def test_a_broken_shard_of_a_stream_is_rebuilt(streamed, tmp_path):
    folder = small(streamed, tmp_path / "shards")
    before = contents(folder)
    os.truncate(shards_in(folder)[5], 10)
    small(streamed, folder)
    assert contents(folder) == before


def test_another_tokenizer_is_refused(recipe, tmp_path, sample_tokenizer, sample_tokenizer_dir):
    from transformers import AutoTokenizer

    folder = small(recipe, tmp_path / "shards")
    other = AutoTokenizer.from_pretrained(sample_tokenizer_dir)
    other.add_tokens(["<place>"])
    other.save_pretrained(tmp_path / "other")
    for attempt in (
        lambda: load_corpora(replace(recipe, prepared=str(folder)), other),
        lambda: small(replace(recipe, tokenizer=str(tmp_path / "other")), folder),
    ):
        with pytest.raises(ValueError, match=f"{folder} was prepared with another tokenizer.*Set `tokenizer`"):
            attempt()
    verify(folder)


def test_another_recipe_is_refused_and_says_what_differs(recipe, tmp_path, sample_tokenizer):
    folder = small(replace(recipe, bitext=recipe.bitext[:2]), tmp_path / "shards")

    def message(**changes):
        with pytest.raises(ValueError) as error:
            load_corpora(replace(recipe, prepared=str(folder), **changes), sample_tokenizer)
        return str(error.value)

    assert "does not hold zh-en, ru-en" in message() and f"--output {folder}" in message()
    english, german = recipe.monolingual
    known = {"bitext": recipe.bitext[:2]}
    assert "document_column: doc -> (not there)" in message(
        monolingual=[replace(english, document_column=None, document_pattern=None), german], **known
    )
    assert "path: " in message(monolingual=[english, replace(german, path="b.txt")], **known)
    # the identity of the rows of every table follows from the joins of all
    join = replace(recipe.bitext[0], join_on="verse")
    assert "rows identified by id -> verse, else id" in message(bitext=[join])
    # how often a corpus is drawn is the recipe's to say
    sized = replace(recipe, prepared=str(folder), monolingual=[replace(english, size=7), german], **known)
    assert load_corpora(sized, sample_tokenizer)[0].size == 7


def test_folders_that_are_none(recipe, tmp_path, sample_tokenizer):
    def message(folder):
        with pytest.raises(ValueError) as error:
            load_corpora(replace(recipe, prepared=str(folder)), sample_tokenizer)
        return str(error.value)

    folder = tmp_path / "shards"
    assert "does not exist" in message(folder)
    folder.mkdir()
    assert f"holds no {MANIFEST}" in message(folder)
    (folder / MANIFEST).write_text("{")
    assert "cannot be read" in message(folder)
    (folder / MANIFEST).write_text(json.dumps({"format": 99}))
    assert "is of format 99" in message(folder)
    file = tmp_path / "file"
    file.write_text("x")
    assert "is a file" in message(file)


def test_prepare_refuses_folders_that_are_others(recipe, tmp_path):
    file, folder = tmp_path / "file", tmp_path / "thesis"
    file.write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        small(recipe, file)
    folder.mkdir()
    (folder / "chapter.tex").write_text("x")
    with pytest.raises(ValueError, match=r"holds other files \(chapter.tex\)"):
        small(recipe, folder)
    assert [path.name for path in folder.iterdir()] == ["chapter.tex"]
    busy = tmp_path / "busy"
    with run_lock(busy), pytest.raises(ValueError, match="being written by another command"):
        small(recipe, busy)
    small(recipe, busy)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(recipe, tmp_path):
    wanted, folder = contents(small(recipe, tmp_path / "wanted")), tmp_path / "shards"
    sizes = sorted(path.stat().st_size for path in shards_in(tmp_path / "wanted"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[-1] - 1, limits[1]))  # the largest shard cannot be written
    try:
        with pytest.raises(ValueError, match="File too large.* shards are finished and kept. Free some space"):
            small(recipe, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(folder.rglob("*.tmp")) and not (folder / MANIFEST).exists()
    times = {path: path.stat().st_mtime_ns for path in shards_in(folder)}
    small(recipe, folder)
    assert contents(folder) == wanted and times
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())


def test_a_failure_in_a_worker_is_told(recipe, tmp_path):
    recipe.monolingual[0].document_pattern = "^d[0-3]"
    with pytest.raises(ValueError, match="matches nothing in 'd4"):
        small(recipe, tmp_path / "shards", num_workers=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--output is missing"),
        (["--output", "x", "--num_workers", "0"], "--num_workers is 0"),
        (["--output", "x", "--max_rows", "5"], "the recipe streams no corpus"),
        (["--output", "x", "--verify"], "which does not exist"),
    ],
)
def test_flags_that_cannot_be(recipe_file, arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        command.main(["--config", str(recipe_file), *arguments])
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    out = capsys.readouterr().out
    assert "prepared=shards/mine" in out and "--shard_mib" in out and "document_column" in out
