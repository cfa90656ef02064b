"""`word-align`: input, output, resuming after a stop, and errors."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from finetuning.align import blocks
from finetuning.align import links as links_module
from finetuning.align import output as alignment_output
from finetuning.align.command import main
from tests.finetuning.conftest import PAIRS


@pytest.fixture
def pairs(tmp_path):
    """File of five pairs, two of them without words on a side."""
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join(PAIRS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def many(tmp_path):
    """File of 200 pairs of different lengths."""
    path = tmp_path / "many.txt"
    words = " ".join(PAIRS).replace("|||", "").split()
    lines = [f"{' '.join(words[n % 11 : n % 11 + 1 + n % 5])} ||| {' '.join(words[-1 - n % 7 :])}" for n in range(200)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def run(tiny_model, capsys):
    """run(*arguments) -> (stdout, stderr) of the command with the tiny model."""

    def with_model(*arguments, model=tiny_model):
        main(["--model", str(model), *map(str, arguments)])
        return capsys.readouterr()

    return with_model


@pytest.fixture
def refused(tiny_model, capsys):
    """refused(*arguments) -> the message with which the command refuses them."""

    def message(*arguments, model=tiny_model):
        with pytest.raises(SystemExit) as stopped:
            main(["--model", str(model), *map(str, arguments)])
        assert stopped.value.code == 2
        return capsys.readouterr().err

    return message


# ---- input and output


def test_links_are_those_of_the_aligner_whatever_way_the_pairs_come(run, tiny_model, pairs, tmp_path, monkeypatch):
    from transformers import AutoModel, AutoTokenizer

    from modeling.word_alignment import WordAligner

    model, tokenizer = AutoModel.from_pretrained(tiny_model).eval(), AutoTokenizer.from_pretrained(tiny_model)
    sides = [line.split("|||") if line else ("", "") for line in PAIRS]
    found = list(WordAligner(model, tokenizer).align(sides))
    expected = "".join(" ".join(f"{i}-{j}" for i, j in pair.links) + "\n" for pair in found)
    assert expected.count("\n") == 5 and expected.splitlines()[2:4] == ["", ""] and expected[0] != "\n"

    out, err = run(pairs)
    assert out == expected
    assert "5 pairs" in err and re.search(r"\b2 .* without words", err)

    for name, side in (("x.de", 0), ("x.en", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side].strip()}\n" for pair in sides), encoding="utf-8")
    assert run(tmp_path / "x.de", tmp_path / "x.en").out == expected

    (tmp_path / "x.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in sides), encoding="utf-8")
    assert run(tmp_path / "x.tsv").out == expected

    rows = [{"de": source.split(), "en": target} for source, target in sides]  # its text has no punctuation to split
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert run(tmp_path / "x.jsonl", "--columns", "de", "en").out == expected

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(pairs.read_bytes()))))
    out, err = run("--quiet")
    assert out == expected and err == ""


def test_json_and_probabilities(run, pairs):
    plain = run(pairs).out.splitlines()
    with_probabilities = [line.split() for line in run(pairs, "--probabilities").out.splitlines()]
    rows = [json.loads(line) for line in run(pairs, "--output-format", "json").out.splitlines()]
    full = [json.loads(line) for line in run(pairs, "--output-format", "json", "--probabilities").out.splitlines()]
    assert rows[1]["source"] == ["zwei", "Hunde", "spielen"] and rows[3]["target"] == []
    assert [" ".join(f"{i}-{j}" for i, j in row["links"]) for row in rows] == plain
    assert all(row.keys() == {"source", "target", "links", "precision"} for row in rows)
    split = [json.loads(line) for line in run(pairs, "--output-format", "json", "--split").out.splitlines()]
    assert all(row.keys() - rows[0].keys() == {"source_offsets", "target_offsets"} for row in split)
    text = PAIRS[0].partition(" ||| ")[2]
    assert [text[begin:end] for begin, end in split[0]["target_offsets"]] == split[0]["target"]
    for row, links in zip(full, with_probabilities, strict=True):
        assert len(row["probabilities"]) == len(row["links"]) == len(links)
        written = [link.split(":") for link in links]
        assert [f"{i}-{j}" for i, j in row["links"]] == [link for link, _ in written]
        # JSON has six digits, and rounding twice may give another fourth one
        assert row["probabilities"] == pytest.approx([float(probability) for _, probability in written], abs=1e-4)


SPLIT = list("我们不相信。"), ["we", "don't", "believe", "it", "."]
AS_IT_IS = ["我们不相信。"], ["we", "don't", "believe", "it."]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("x.txt", (), AS_IT_IS),
        ("x.txt", ("--pre-split",), AS_IT_IS),
        ("x.txt", ("--split",), SPLIT),
        ("x.tsv", (), AS_IT_IS),
        ("x.jsonl", (), SPLIT),
        ("x.jsonl", ("--split",), SPLIT),
        ("x.jsonl", ("--pre-split",), AS_IT_IS),
        (None, (), SPLIT),
        (None, ("--pre-split",), AS_IT_IS),
    ],
)
def test_lines_are_words_and_other_text_is_split(run, tmp_path, name, options, words):
    """Of pairs by `|||` or a tab, of JSON strings, and of two sentences."""
    texts = "我们不相信。", "we don't believe it."
    line = {"x.txt": " ||| ".join(texts), "x.tsv": "\t".join(texts)}
    path = tmp_path / (name or "none")
    path.write_text(line.get(name, json.dumps(dict(zip(("source", "target"), texts, strict=True)))) + "\n")
    out, err = run(*((path,) if name else texts), *options, "--output-format", "json")
    row = json.loads(out)
    assert (row["source"], row["target"]) == words
    assert ("source_offsets" in row) == (words is SPLIT)
    assert ("words:" in err) == (words is SPLIT and name is not None)
    assert ("--split splits" in err) == (words is AS_IT_IS and not options)


def test_words_are_counted_alike_however_they_come(run, tmp_path):
    """Links, page and the file that a run leaves, with no-break spaces and punctuation glued to words."""
    sides = [
        (["10\u00a0000", "EUR,", "\u00a0", "Hund."], ["\u00a0", "dog", '"10\u00a0000"']),
        (["Mann"], ["a", "man!"]),
    ]
    names = {
        "x.txt": [" ||| ".join(map(" ".join, pair)) for pair in sides],
        "x.tsv": ["\t".join(map(" ".join, pair)) for pair in sides],
        "x.jsonl": [json.dumps({"source": source, "target": target}) for source, target in sides],
        "strings.jsonl": [json.dumps({"source": " ".join(x), "target": " ".join(y)}) for x, y in sides],
    }
    found = []
    for name, lines in names.items():
        path, page, links = (tmp_path / f"{name}{ending}" for ending in ("", ".html", ".links"))
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        out, err = run(path, "--layer", "1", "--pre-split", "--output-format", "json", "--html", page)
        rows = [json.loads(line) for line in out.splitlines()]
        assert [(row["source"], row["target"]) for row in rows] == sides
        data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)[1])
        assert [(pair["source"], pair["target"]) for pair in data["pairs"]] == sides
        run(path, "--layer", "1", "--pre-split", "--output", links)
        assert "precision fp32" in err and "<dt>precision</dt><dd>fp32" in page.read_text(encoding="utf-8")
        found.append((out, links.read_text()))
    assert all(one == found[0] for one in found) and "0-" in found[0][1]


def test_weights_that_are_not_finite_are_refused(zoo_model_dir, pairs, capsys):
    folder = zoo_model_dir("xlm_align", copy=True)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layer.1." in name)
    weights[name].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for given in ([str(pairs)], ["a b", "c d"]):  # over few tokens, attention with NaN may give finite states
        with pytest.raises(SystemExit) as ended:
            main(["--model", str(folder), "--layer", "2", *given])
        assert ended.value.code == 2 and name.partition("encoder.")[2] in capsys.readouterr().err


def test_pairs_longer_than_the_positions_are_split_and_counted(run, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(" ".join(["Mann Hund"] * 60) + " ||| " + " ".join(["man dog"] * 60) + "\nHund ||| dog\n")
    out, err = run(path)
    linked = {int(link.partition("-")[0]) for link in out.splitlines()[0].split()}
    assert max(linked) > 100  # the end of the sentence is not left out
    assert re.search(r"\b1 .* 64 positions", err)


def test_settings_reach_the_aligner(run, refused, pairs):
    def links(*arguments):
        return run(pairs, "--probabilities", *arguments).out

    assert len(links("--method", "softmax", "--threshold", "0.9")) < len(links("--method", "softmax"))
    for arguments in (
        ("--layer", "0"),
        ("--encoding", "joint"),
        ("--threshold", "0.3"),
    ):
        assert links(*arguments) != links(), arguments
    out, err = run(pairs, "--batch-size", "1", "--precision", "bf16")
    assert out.count("\n") == 5 and re.search("precision bf16.* the other pairs", err)
    assert "layer is 9" in refused(pairs, "--layer", "9")


def test_link_all_adds_one_link_to_each_source_word_without_a_link(run, many):
    def links(*arguments):
        out = run(many, "--layer", "1", "--output-format", "json", "--probabilities", *arguments).out
        return [json.loads(line) for line in out.splitlines()]

    rows = zip(links(), links("--link-all"), links("--threshold", "0.001"), strict=True)
    added = 0
    for plain, full, every in rows:
        likeliest = {}
        for (i, j), probability in zip(every["links"], every["probabilities"], strict=True):
            if i not in {word for word, _ in plain["links"]} and probability > likeliest.get(i, ((), 0))[1]:
                likeliest[i] = [i, j], probability
        expected = [*zip(plain["links"], plain["probabilities"], strict=True), *likeliest.values()]
        assert list(zip(full["links"], full["probabilities"], strict=True)) == sorted(expected)
        assert {i for i, _ in full["links"]} == set(range(len(full["source"])))
        added += len(likeliest)
    assert added > 20


def test_links_do_not_depend_on_the_other_pairs(run, many, tmp_path):
    """The default precision is fp32, also on a processor that multiplies bfloat16."""
    together = run(many, "--layer", "2").out.splitlines()
    for number, line in list(enumerate(many.read_text().splitlines()))[::20]:
        (tmp_path / "one.txt").write_text(f"{line}\n")
        out, err = run(tmp_path / "one.txt", "--layer", "2")
        assert out.splitlines() == [together[number]] and "precision fp32" in err


def test_the_layer_is_chosen_by_the_pairs_and_kept(run, tiny_model, pairs, many, tmp_path, monkeypatch):
    from modeling.word_alignment import WordAligner

    assert re.search("layer 1 of 2.* 3 pairs", run(pairs).err)
    values = iter(({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.3, 1: 0.2, 2: 0.1}))
    seen = []
    monkeypatch.setattr(WordAligner, "compare_layers", lambda self, given: seen.append(len(given)) or next(values))
    links = tmp_path / "links.txt"
    assert re.search("layer 2 of 2.* 200 pairs", run(many, "--output", links).err)
    assert links.read_text() == run(many, "--layer", "2").out and links.read_text().count("\n") == 200
    with many.open("a") as stream:
        stream.write("zwei Hunde ||| two dogs\n")
    run(many, "--output", links, "--resume")  # compares no layers again
    assert seen == [200]
    with many.open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        out, err = run("--layer", "auto")
    assert "layer 0 of 2" in err and out == run(many, "--layer", "0").out and seen == [200, 200]
    # the default stays where another layer is better by little, or no layer separates translations
    for values in ({0: 0.1, 1: 0.3, 2: 0.31}, {0: -0.1, 1: -0.3, 2: -0.31}):
        monkeypatch.setattr(WordAligner, "compare_layers", lambda self, given, values=values: values)
        assert "layer 1 of 2" in run(many).err


# ---- an output file, and resuming it


def test_a_file_says_how_it_was_made(run, refused, pairs, tmp_path):
    links = tmp_path / "links.txt"
    assert run(pairs, "--output", links).out == ""
    assert links.read_text() == run(pairs).out
    state = json.loads((tmp_path / "links.txt.word-align.json").read_text())
    assert state["is_complete"] and state["lines"] == 5
    assert state["settings"]["layer"] == 1 and state["settings"]["method"] == "ot_words"
    assert state["settings"]["precision"] == "fp32"
    assert f"{links} exists" in refused(pairs, "--output", links)
    assert "complete: 5 lines" in run(pairs, "--output", links, "--resume").err
    assert links.read_text() == run(pairs).out


def test_places_that_cannot_be_written_are_found_before_the_model_is_loaded(refused, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(links_module, "load_aligner", None)
    for option in ("--output", "--html"):
        assert f"{tmp_path / 'none'} is not" in refused(pairs, option, tmp_path / "none" / "x.png")
        assert f"{tmp_path} is a folder. {option}" in refused(pairs, option, tmp_path)
    here = tmp_path / "links.txt"
    here.write_text("")
    monkeypatch.setattr("os.access", lambda path, mode: path not in (here, tmp_path))
    for option, place in (("--output", here), ("--html", tmp_path / "page.html")):
        assert f"{place} cannot be written" in refused(pairs, option, place)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["links.txt", "pairs.txt"]


def test_a_file_is_not_written_over_another(refused, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, named in (
        (("--output", "x", "--html", tmp_path / "x"), "--output and --html"),
        (("--output", "x", "--html", "x.word-align.json"), "--html and what --resume needs of --output"),
        (("--output", "pairs.txt"), "--output and the input"),
    ):
        assert named in refused(pairs, *arguments), arguments
    assert pairs.read_text(encoding="utf-8").splitlines() == PAIRS


TSV = ("--output-format", "tsv")


@pytest.mark.slow
@pytest.mark.parametrize("stopped, form", [(70, ()), (150, ()), (150, TSV)])
def test_a_killed_run_is_gone_on_with(run, refused, stop_after, many, tmp_path, stopped, form):
    links, many = tmp_path / "links.txt", (many, "--batch-size", "1", *form)
    arguments = (*many, "--output", links)
    stop_after(stopped, *arguments)
    kept = stopped // 32 * 32  # a block is 32 batches
    assert json.loads((tmp_path / "links.txt.word-align.json").read_text())["lines"] == kept
    with links.open("a") as file:
        file.write("0-")  # a line that was not written to its end
    err = run(*arguments, "--resume").err
    assert links.read_text() == run(*many).out
    assert f"after {kept} of" in err
    assert json.loads((tmp_path / "links.txt.word-align.json").read_text())["is_complete"]
    links.write_text("\n" * 199)
    assert str(links) in refused(*arguments, "--resume")


@pytest.mark.parametrize("form", [(), TSV])
def test_resume_without_a_file_starts_and_a_longer_input_is_finished(run, many, tmp_path, form):
    links, part = tmp_path / "links.txt", tmp_path / "part.txt"
    part.write_text("".join(many.read_text().splitlines(keepends=True)[:70]))
    resumed = ("--output", links, "--resume", *form)
    run(part, *resumed)  # and chooses the layer
    layer = json.loads((tmp_path / "links.txt.word-align.json").read_text())["settings"]["layer"]
    assert links.read_text() == run(part, *form, "--layer", layer).out
    assert "130 pairs" in run(many, *resumed).err
    assert "complete: 200 lines" in run(many, *resumed).err
    assert links.read_text() == run(many, *form, "--layer", layer).out


def test_resume_refuses_other_settings_other_model_and_other_input(run, refused, many, tmp_path, tiny_veco):
    links, other = tmp_path / "links.txt", tmp_path / "other.txt"
    run(many, "--output", links)
    resumed = ("--output", links, "--resume")
    assert "method: ot_words -> mutual" in refused(many, *resumed, "--method", "mutual", "--output-format", "json")
    assert "link_all" in refused(many, *resumed, "--link-all")
    assert "model: sha256:" in refused(many, *resumed, model=tiny_veco)
    lines, before = many.read_text().splitlines(keepends=True), links.read_bytes()
    for text, named in ((["x ||| y\n", *lines[1:], *lines], "first 200 lines"), (lines[:150], "only 150 lines")):
        other.write_text("".join(text))
        assert named in refused(other, *resumed)
    (tmp_path / "links.txt.word-align.json").unlink()
    assert "links.txt.word-align.json" in refused(many, *resumed)
    assert links.read_bytes() == before


@pytest.mark.slow
def test_the_state_is_saved_on_the_way(run, many, tmp_path, monkeypatch):
    monkeypatch.setattr(alignment_output, "SAVE_EVERY_SECONDS", 0.0)
    saved = []
    write_json = alignment_output.write_json
    monkeypatch.setattr(
        alignment_output, "write_json", lambda path, state: (saved.append(state), write_json(path, state))
    )
    run(many, "--output", tmp_path / "links.txt", "--batch-size", "1")
    assert [state["lines"] for state in saved] == [0, 32, 64, 96, 128, 160, 192, 200, 200]


@pytest.fixture
def stop_after(run, monkeypatch, capsys):
    """stop_after(lines, *arguments) -> stderr of a run that gets Ctrl-C in the block with this line."""

    def stopped(lines, *arguments):
        align_block = blocks.align_block

        def interrupted(aligner, reader, rows, first, *others):
            if lines in range(first, first + len(rows)):
                os.kill(os.getpid(), signal.SIGINT)
            return align_block(aligner, reader, rows, first, *others)

        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(blocks, "align_block", interrupted)
            run(*arguments)
        assert ended.value.code == 130
        return capsys.readouterr().err

    return stopped


def test_another_input_is_refused_after_a_stop(run, refused, stop_after, many, tmp_path):
    links = tmp_path / "links.txt"
    arguments = (many, "--output", links, "--batch-size", "1")
    stop_after(150, *arguments)
    lines, before = many.read_text().splitlines(keepends=True), links.read_bytes()
    many.write_text("".join(["x ||| y\n", *lines[1:]]))
    assert "first 128 lines" in refused(*arguments, "--resume")
    assert links.read_bytes() == before


def test_ctrl_c_and_bad_lines_leave_a_file_to_go_on_with(run, refused, stop_after, many, tmp_path, monkeypatch):
    links = tmp_path / "links.txt"
    many.write_text(many.read_text() * 2)
    err = stop_after(100, many, "--output", links, "--batch-size", "1")
    assert "96 pairs" in err and "--resume" in err

    # standard input cannot be looked through beforehand
    lines = many.read_bytes().splitlines(keepends=True)
    bad = io.BufferedReader(io.BytesIO(b"".join([*lines[:380], b"no mark\n", *lines[381:]])))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(bad))
    err = refused("--output", links, "--batch-size", "1", "--resume")
    assert "line 381" in err and "--resume" in err
    assert links.read_text().count("\n") == 352  # eleven blocks of 32
    run(many, "--output", links, "--batch-size", "1", "--resume")
    assert links.read_text() == run(many, "--batch-size", "1").out


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_ends_it_quietly(many, tiny_model):
    many.write_text(many.read_text() * 2)  # some 200 kB of JSON, more than a pipe holds
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "finetuning.align", "--model", tiny_model, "--layer", "1", many),
            *("--batch-size", "4", "--output-format", "json", "--probabilities", "--quiet"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert b"links" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# ---- errors


def test_a_rank_without_a_launcher_is_none(run, pairs, monkeypatch):
    expected = run(pairs).out
    monkeypatch.setenv("RANK", "1")
    assert run(pairs).out == expected


def test_models_and_devices_that_there_are_not(refused, pairs, tmp_path):
    assert str(tmp_path / "none") in refused(pairs, model=tmp_path / "none")
    err = refused(pairs, model="no-such-runs/model")
    assert f"no-such-runs/model in {Path.cwd()}" in err
    assert "train" not in err and "hub_root" not in err  # of which the command knows nothing
    for device in ("cuda:77", "gpu"):
        assert f"--device {device} " in refused(pairs, "--device", device)


def test_bad_lines_of_files_are_found_before_anything_is_written(refused, pairs, tmp_path):
    pairs.write_text(pairs.read_text(encoding="utf-8") + "no mark\n", encoding="utf-8")
    links = tmp_path / "links.txt"
    assert "pairs.txt, line 6" in refused(pairs, "--output", links)
    assert not links.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--resume", "--resume .* --output"),
        ("--split --pre-split", "--pre-split: .* --split"),
        ("--columns de en", "--columns"),
        ("--columns 0 1", "--columns"),
        ("--columns 1 2 3", "unrecognized arguments: 3"),
        ("--languages de en", "--languages"),
        ("--batch-size 0", "--batch-size: '0'"),
        ("--threshold 0.3 --method ot", "--threshold .* ot"),
        ("--threshold 3", "threshold=3"),
        ("--link-all --method ot", "--link-all .* ot"),
        ("--method otter", "'otter'"),
        ("--symmetrization most", "'most'"),
        ("--gold x", "unrecognized arguments: --gold"),
    ],
)
def test_options_that_there_are_not_or_that_contradict_each_other(refused, pairs, arguments, named):
    assert re.search(f"error: .*{named}", refused(pairs, *arguments.split()))
