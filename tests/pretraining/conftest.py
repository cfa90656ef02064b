"""Fixtures of these tests: small recipes on the sample corpus and on their own files, and the command itself."""

import functools
import json
import multiprocessing
import shutil
import socket
import time
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, PreTrainedTokenizerFast

from pretraining import run, tracking
from pretraining.checkpoints import checkpoints_of
from pretraining.data.batches import Feed
from pretraining.recipe import Recipe
from pretraining.tracking import read_events
from tests.conftest import forget_accelerate
from tests.pretraining import forked
from zoo_core.recipes import load_recipe

LANGUAGES = ("en", "de", "zh")

BASE = {
    "output_dir": "unused",
    "model": {"type": "veco"},
    "phases": [{"name": "a", "steps": 6, "learning_rate": 1e-3, "objectives": {"mlm": {"batch_size": 8}}}],
}


class Files:
    """Writes small files and returns their paths."""

    def __init__(self, folder: Path):
        self.folder = folder

    def lines(self, name: str, lines: list[str]) -> str:
        (self.folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return str(self.folder / name)

    def jsonl(self, name: str, rows: list[dict]) -> str:
        return self.lines(name, [json.dumps(row, ensure_ascii=False) for row in rows])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def recipe_of(files):
    """A small recipe with the given fields; `objectives` and `corpora` are those of its only phase."""

    def make(objectives=None, corpora=None, **fields) -> Recipe:
        values = json.loads(json.dumps(BASE | fields))
        if objectives:
            values["phases"][0]["objectives"] = objectives
        if corpora:
            values["phases"][0]["corpora"] = corpora
        recipe = load_recipe(Recipe, files.lines("recipe.yaml", [json.dumps(values)]), [])
        recipe.check()
        return recipe

    return make


@pytest.fixture
def sample(sample_corpus_dir):
    """The fields of a table of the sample corpus, by language."""
    return lambda language: {"path": str(sample_corpus_dir), "config": language}


@pytest.fixture
def batches_of(sample_tokenizer):
    """`batches_of(recipe, corpora)`: all batches of the first phase, of one process, from a given step."""

    def make(recipe: Recipe, corpora: list, start: int = 0, processes: int = 1, process: int = 0) -> list[dict]:
        shares = {"num_processes": processes, "process_index": process}
        return list(Feed(recipe, corpora, sample_tokenizer, **shares).training(recipe.phases[0], 0, start))

    return make


@pytest.fixture(scope="session")
def examples_of():
    """`examples_of(corpus)`: the token ids of the sides of each training example, as lists."""

    def examples(corpus) -> list[list[list[int]]]:
        count = len(corpus.lengths)
        sides = corpus.read(np.zeros(count, dtype=int), np.arange(count)).sides
        return [[tokens.tolist() for tokens in of_example] for of_example in zip(*sides, strict=True)]

    return examples


@pytest.fixture(scope="session")
def rows_of():
    """`rows_of(batches)`: sorted [(objective, corpus, example, input ids, labels)] without padding, the same for any
    batching."""

    def rows(batches: list[dict]) -> list[tuple]:
        found = []
        for name, fields in (item for batch in batches for item in batch.items()):
            lengths = fields["attention_mask"].sum(1).tolist()
            for row, (corpus, example) in enumerate(zip(fields["languages"], fields["examples"].tolist(), strict=True)):
                shown = (fields[key][row, : lengths[row]].tolist() for key in ("input_ids", "labels"))
                found.append((name, corpus, example, *shown))
        return sorted(found)

    return rows


def write_recipe(folder: Path, tokenizer: Path, corpus: Path) -> Path:
    """A small recipe on the sample corpus, without dropout, so that splitting a batch changes nothing."""
    tables = {name: {"path": str(corpus / name / "train.jsonl")} for name in LANGUAGES}
    recipe = {
        "output_dir": str(folder / "run"),
        "model": {
            "type": "xlm_align",
            "config": {
                **dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64),
                **dict(max_position_embeddings=130, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            },
        },
        "tokenizer": str(tokenizer),
        "monolingual": [{"language": name, **table} for name, table in tables.items()],
        "bitext": [
            dict(source_language="en", target_language=name, join_on="id", source=tables["en"], target=tables[name])
            for name in LANGUAGES[1:]
        ],
        "phases": [
            {
                "name": "main",
                "steps": 3,
                "learning_rate": 1e-3,
                "schedule": "constant",
                "objectives": {"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 128}},
            }
        ],
        "log_every_steps": 1,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


@pytest.fixture
def recipe_file(tmp_path, sample_tokenizer_dir, sample_corpus_dir):
    """A recipe of `write_recipe` that a test may change."""
    return write_recipe(tmp_path, sample_tokenizer_dir, sample_corpus_dir)


@pytest.fixture
def train(recipe_file, request, monkeypatch):
    """The user's command, in this process: `train("phases.0.steps=2", "--resume")`."""
    if "draws" not in request.node.name:  # it takes longer than all the rest of these runs
        monkeypatch.setattr(tracking, "plot_curves", lambda folder: None)

    def command(*arguments):
        forget_accelerate()
        run.main(["--config", str(recipe_file), *arguments])

    return command


@pytest.fixture(scope="session")
def veco_phases():
    """Settings: cross-attention alone for two steps, with its own losses, then everything, with Adam carried over."""
    names, sizes = ("ca_mlm_segments", "ca_mlm_pairs"), {"batch_size": 4, "max_length": 48}
    first = {"name": "cross", "steps": 2, "learning_rate": 0.001, "trainable": ["*.crossattention.*"]}
    first["objectives"] = {name: sizes | {"terms": ["cross"]} for name in names}
    second = {"name": "all", "steps": 2, "optimizer": "carried", "objectives": dict.fromkeys(names, sizes)}
    return ["model.type=veco", f"phases={json.dumps([first, second])}", "save_every_steps=1", "keep_checkpoints=0"]


@pytest.fixture(scope="session")
def difference():
    """`difference(folder, other)`: the largest difference between the weights of two folders with a model/."""

    def largest(folder: Path, other: Path) -> float:
        first, second = (load_file(path / "model" / "model.safetensors") for path in (folder, other))
        assert first.keys() == second.keys()
        return max((first[key] - second[key]).abs().max().item() for key in first)

    return largest


@pytest.fixture(scope="session")
def assert_same_run(difference):
    """`assert_same_run(folder, whole)`: equal weights and events, except times; no temporary files are left."""

    def facts_of(folder: Path) -> list[dict]:
        return [
            {key: value for key, value in event.items() if "per_second" not in key and key != "memory_gib"}
            for event in read_events(folder)
        ]

    def check(folder: Path, whole: Path) -> None:
        assert difference(folder, whole) == 0
        assert facts_of(folder) == facts_of(whole)
        assert not list(folder.glob("**/.*")), "something unfinished was left"

    return check


@pytest.fixture(scope="session")
def cut_back():
    """`cut_back(run, step, to)`: a copy of a finished run, as if killed right after the checkpoint of `step`."""

    def copy(run_folder: Path, step: int, to: Path) -> Path:
        shutil.copytree(run_folder, to)
        shutil.rmtree(to / "model")
        for checkpoint in checkpoints_of(to):
            if int(checkpoint.name.removeprefix("step-")) > step:
                shutil.rmtree(checkpoint)
        return to

    return copy


@pytest.fixture
def fails(train, capsys):
    """The message of a command that stops with an error."""

    def message(*arguments):
        with pytest.raises(SystemExit) as stop:
            train(*arguments)
        assert stop.value.code == 2
        return capsys.readouterr().err

    return message


class Run:
    """A run of the command in processes of their own: what they print, and their exit codes."""

    def __init__(self, arguments: list[str], log: Path, fault: str = "", processes: int = 1):
        """Starts it. `fault` is Python code that runs first; several processes get what `accelerate launch` sets."""
        context, self.log, self.processes = multiprocessing.get_context("forkserver"), log, []
        context.set_forkserver_preload(["tests.pretraining.forked"])
        with socket.socket() as server:  # of the system: a run in this process seeds `random`
            server.bind(("127.0.0.1", 0))
            port = str(server.getsockname()[1])
        for rank in map(str, range(processes)):
            environment = dict(ACCELERATE_USE_CPU="true", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank)
            environment |= dict(LOCAL_RANK=rank, WORLD_SIZE=str(processes))
            given = (list(arguments), environment if processes > 1 else {}, str(log), fault)
            self.processes.append(context.Process(target=forked.start, args=given))
            self.processes[-1].start()
        self.pids = [process.pid for process in self.processes]

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def wait(self) -> int:
        """Returns the exit code, or the negative signal, which must be the same for all processes."""
        for process in self.processes:
            process.join()
        codes = {process.exitcode for process in self.processes}
        assert len(codes) == 1, (codes, self.printed()[-3000:])
        return codes.pop()

    def until(self, condition) -> None:
        """Waits until `condition(printed text)`; fails if the run ends before."""
        while not condition(self.printed()):
            assert all(process.is_alive() for process in self.processes), f"the run has ended\n{self.printed()[-3000:]}"
            time.sleep(0.01)  # leaves the processor to the run

    def end(self) -> None:
        """Kills the run if it has not ended."""
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def started(recipe_file, tmp_path):
    """`started("phases.0.steps=2", fault="...", processes=2)`: the user's command, in separate processes."""
    runs = []

    def start(*arguments: str, fault: str = "", processes: int = 1) -> Run:
        log = tmp_path / "log.txt"
        log.unlink(missing_ok=True)
        runs.append(Run(["--config", str(recipe_file), *map(str, arguments)], log, fault, processes))
        return runs[-1]

    yield start
    for run_ in runs:
        run_.end()


@pytest.fixture
def finished(started):
    """`finished(...)`: like `started`, and the run must succeed."""

    def finish(*arguments: str, **how) -> Run:
        run_ = started(*arguments, **how)
        assert run_.wait() == 0, run_.printed()[-3000:]
        return run_

    return finish


@pytest.fixture(scope="session")
def whole(sample_tokenizer_dir, sample_corpus_dir, tmp_path_factory):
    """`whole(*settings)`: the folder of an uninterrupted run, read-only, made once for the same settings."""

    @functools.cache
    def folder_of(*settings: str) -> Path:
        home = tmp_path_factory.mktemp("whole")
        recipe = write_recipe(home, sample_tokenizer_dir, sample_corpus_dir)
        run_ = Run(["--config", str(recipe), *settings], home / "log.txt")
        assert run_.wait() == 0, run_.printed()[-3000:]
        return home / "run"

    return folder_of


@pytest.fixture(scope="session")
def teacher_dir(tmp_path_factory, sample_corpus_dir):
    """Folder of a random English BERT with its own lower-case WordPiece tokenizer."""
    folder = tmp_path_factory.mktemp("teacher")
    wordpiece = BertWordPieceTokenizer(lowercase=True)
    texts = datasets.load_dataset(str(sample_corpus_dir), "en", split="train")["text"]
    wordpiece.train_from_iterator(texts, vocab_size=600, show_progress=False)
    wordpiece.save_model(str(folder))
    tokenizer = BertTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, initializer_range=0.5, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_of():
    """A tokenizer with these subwords: `wordpiece` with BERT's special tokens in front, `unigram` (SentencePiece) and
    `byte_level` with RoBERTa's in front and <mask> last."""

    def make(kind: str, subwords: list[str], **specials: str | None) -> PreTrainedTokenizerFast:
        if kind == "wordpiece":
            names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
            vocabulary = {subword: number for number, subword in enumerate([*names.values(), *subwords])}
            backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
            backend.normalizer = normalizers.BertNormalizer(lowercase=False)
            backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            backend.decoder = decoders.WordPiece()
        else:
            names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
            names |= {"cls": "<s>", "sep": "</s>"}
            listed = ["<s>", "<pad>", "</s>", "<unk>", *subwords, "<mask>"]
            if kind == "unigram":
                scores = [(subword, -float(i)) for i, subword in enumerate(listed)]
                backend = Tokenizer(models.Unigram(scores, unk_id=3))
                backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
            else:
                backend = Tokenizer(models.BPE({subword: i for i, subword in enumerate(listed)}, []))
                backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
                backend.decoder = decoders.ByteLevel()
        names |= specials
        given = {f"{name}_token": token for name, token in names.items() if token is not None}
        return PreTrainedTokenizerFast(tokenizer_object=backend, **given)

    return make
