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
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, RobertaTokenizer, XLMRobertaTokenizer

from crosslingual_zoo.pretraining import run, tracking
from crosslingual_zoo.pretraining.checkpoints import checkpoints_of
from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.conftest import forget_accelerate
from tests.pretraining import forked
from tests.pretraining.run_folders import weights_of


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
    """Writes small files into the test's folder."""
    return Files(tmp_path)


@pytest.fixture
def recipe_of(files):
    """A small recipe with the given fields; `objectives` are those of its only phase."""

    def make(objectives=None, **fields) -> Recipe:
        phase = {"name": "a", "steps": 6, "learning_rate": 1e-3, "objectives": objectives or {"mlm": {"batch_size": 8}}}
        values = {"output_dir": "unused", "model": {"type": "veco"}, "phases": [phase]} | fields
        recipe = load_recipe(Recipe, files.lines("recipe.yaml", [json.dumps(values)]), [])
        recipe.check()
        return recipe

    return make


@pytest.fixture
def corpora_of(recipe_of, sample_tokenizer):
    """`corpora_of(objectives, **fields)`: the corpora of a small recipe, read by the sample tokenizer."""
    return lambda objectives=None, **fields: load_corpora(recipe_of(objectives, **fields), sample_tokenizer)


@pytest.fixture
def sample(sample_corpus_dir):
    """The fields of a table of the sample corpus, by language."""
    return lambda language: {"path": str(sample_corpus_dir), "config": language}


def sides_of(texts) -> list[list[list[int]]]:
    sides = []
    for side in texts.sides:
        sides.append([tokens.tolist() for tokens in side])
    return [list(example) for example in zip(*sides, strict=True)]


@pytest.fixture(scope="session")
def examples_of():
    """`examples_of(corpus)`: the token ids of the sides of each training example, as lists."""

    def examples(corpus) -> list[list[list[int]]]:
        count = len(corpus.training)
        return sides_of(corpus.read(np.zeros(count, dtype=int), np.arange(count)))

    return examples


@pytest.fixture(scope="session")
def held_out_of():
    """`held_out_of(corpus)`: the token ids of the sides of each held-out example, as lists."""
    return lambda corpus: sides_of(corpus.held_out)


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory, sample_tokenizer_dir, sample_corpus_dir):
    """A recipe on the sample corpus, read-only, without dropout, so that splitting a batch changes nothing."""
    tables = {name: {"path": str(sample_corpus_dir / name / "train.jsonl")} for name in ("en", "de", "zh")}
    config = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config |= dict(max_position_embeddings=130, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    objectives = {"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 128}}
    phase = {"name": "main", "steps": 3, "learning_rate": 1e-3, "schedule": "constant", "objectives": objectives}
    recipe = {
        "output_dir": "unused",
        "model": {"type": "xlm_align", "config": config},
        "tokenizer": str(sample_tokenizer_dir),
        "monolingual": [{"language": name, **table} for name, table in tables.items()],
        "bitext": [
            dict(source_language="en", target_language=name, join_on="id", source=tables["en"], target=tables[name])
            for name in ("de", "zh")
        ],
        "phases": [phase],
        "log_every_steps": 1,
    }
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


@pytest.fixture
def train(recipe_file, tmp_path, monkeypatch):
    """The user's command, in this process, into the folder `run`: `train("phases.0.steps=2", "--resume")`."""
    # drawing takes longer than all the rest of these runs
    monkeypatch.setattr(tracking, "plot_curves", lambda folder: (folder / "curves.png").touch())

    def command(*arguments):
        forget_accelerate()
        run.main(["--config", str(recipe_file), f"output_dir={tmp_path / 'run'}", *arguments])

    return command


@pytest.fixture
def fails(train, capsys):
    """The message of a command that stops with an error."""

    def message(*arguments):
        with pytest.raises(SystemExit) as stop:
            train(*arguments)
        assert stop.value.code == 2
        return capsys.readouterr().err

    return message


@pytest.fixture(scope="session")
def veco_phases():
    """Settings: cross-attention alone for two steps, with its own losses, then everything, with Adam carried over."""
    names = ("ca_mlm_segments", "ca_mlm_pairs")
    sizes = {"batch_size": 4, "max_length": 48}
    first = {"name": "cross", "steps": 2, "learning_rate": 0.001, "trainable": ["*.crossattention.*"]}
    first["objectives"] = dict.fromkeys(names, sizes | {"terms": ["cross"]})
    second = {"name": "all", "steps": 2, "optimizer": "carried", "objectives": dict.fromkeys(names, sizes)}
    return ["model.type=veco", f"phases={json.dumps([first, second])}", "save_every_steps=1", "keep_checkpoints=0"]


@pytest.fixture(scope="session")
def difference():
    """`difference(folder, other)`: the largest difference between the weights of two folders with a model/."""

    def largest(folder: Path, other: Path) -> float:
        weights = weights_of(folder)
        other_weights = weights_of(other)
        assert weights.keys() == other_weights.keys()
        return max((weight - other_weights[name]).abs().max().item() for name, weight in weights.items())

    return largest


@pytest.fixture(scope="session")
def assert_same_run(difference):
    """`assert_same_run(folder, whole)`: equal weights and events, except times; no temporary files are left."""

    def facts_of(folder: Path) -> list[dict]:
        events = read_events(folder)
        for event in events:
            for name in [name for name in event if "per_second" in name or name == "memory_gib"]:
                del event[name]
        return events

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


class Run:
    """A run of the command in processes of their own: what they print, and their exit codes."""

    def __init__(self, arguments: list[str], log: Path, fault: str = "", processes: int = 1):
        """Starts it. `fault` is Python code that runs first; several processes get what `accelerate launch` sets."""
        self.log = log
        self.processes = []
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.pretraining.forked"])
        log.write_text("")
        with socket.socket() as server:  # of the system: a run in this process seeds `random`
            server.bind(("127.0.0.1", 0))
            port = str(server.getsockname()[1])
        for rank in map(str, range(processes)):
            environment = {}
            if processes > 1:
                environment |= dict(ACCELERATE_USE_CPU="true", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
                environment |= dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(processes))
            process = context.Process(target=forked.start, args=(arguments, environment, str(log), fault))
            process.start()
            self.processes.append(process)
        self.pids = [process.pid for process in self.processes]

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

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


@pytest.fixture
def started(recipe_file, tmp_path):
    """`started("phases.0.steps=2", fault="...", processes=2)`: the user's command, in separate processes."""
    runs = []

    def start(*arguments: str, **how) -> Run:
        command = ["--config", str(recipe_file), f"output_dir={tmp_path / 'run'}", *arguments]
        runs.append(Run(command, tmp_path / "log.txt", **how))
        return runs[-1]

    yield start
    for run_ in runs:
        for process in run_.processes:
            process.kill()
            process.join()


@pytest.fixture
def finished(started):
    """`finished(...)`: like `started`, and the run must succeed."""

    def finish(*arguments: str, **how) -> None:
        run_ = started(*arguments, **how)
        assert run_.wait() == 0, run_.printed()[-3000:]

    return finish


@pytest.fixture(scope="session")
def whole(recipe_file, tmp_path_factory):
    """`whole(*settings)`: the folder of an uninterrupted run, read-only, made once for the same settings."""

    @functools.cache
    def folder_of(*settings: str) -> Path:
        home = tmp_path_factory.mktemp("whole")
        run_ = Run(["--config", str(recipe_file), f"output_dir={home / 'run'}", *settings], home / "log.txt")
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
    tokenizer = BertTokenizer(vocab=wordpiece.get_vocab())
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

    def make(kind: str, subwords: list[str], **specials: str | None):
        if kind == "wordpiece":
            bert_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *subwords]
            return BertTokenizer(vocab=numbered(bert_tokens), do_lower_case=False, **specials)
        vocabulary = numbered(["<s>", "<pad>", "</s>", "<unk>", *subwords, "<mask>"])
        if kind == "unigram":
            return XLMRobertaTokenizer(vocab=[(subword, -float(number)) for subword, number in vocabulary.items()])
        return RobertaTokenizer(vocab=vocabulary, merges=[])

    def numbered(tokens: list[str]) -> dict[str, int]:
        return {token: number for number, token in enumerate(tokens)}

    return make
