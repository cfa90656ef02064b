"""What the tests of the documentation share: the pages, their blocks, and a made-up place in which their commands run.

The place is laid out as the pages have it: the repository's folders, `runs/` with a tiny model wherever a command names
one, and the files that commands read. Next to it is `shared/hub`, a mirror of the Hub with a few rows of each data set.
"""

import importlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import forget_accelerate

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(f"{folder}/README.md" for folder in ("bench", "pretraining", "finetuning", "hub_cards")),
    "finetuning/align_words.md",
    *(f"hub_cards/models/{name}.md" for name in ("veco", "ernie_m", "xlm_align", "metaxlm")),
)
CODE = ("bench", "zoo_core", "finetuning", "hub_cards", "modeling", "pretraining", "sample_corpus", "Makefile")
TYPES = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm", "minilm": "MetaXlm"}
# twelve layers: recipes name the eighth, the tenth and the twelfth; a head of 64, which converters take for granted
TINY = dict(
    hidden_size=64, num_hidden_layers=12, num_attention_heads=1, intermediate_size=32, max_position_embeddings=514
)
TRANSLATED = ("en", "de", "fr", "es", "zh")
VERSES, ROWS = 48, 12
TAGGER = "runs/xlm-roberta-base/panx/seed-1/model"
ADAPTED = "intfloat/multilingual-e5-small"  # trained by `word-align adapt`, which takes minutes with twelve layers
MADE_OTHERWISE = {TAGGER, "runs/xlm_align-smoke/model"}


@dataclass
class Page:
    """A page of the documentation: its text, and its fenced blocks as (language, block), '' for commands."""

    path: Path
    text: str
    blocks: list[tuple[str, str]]

    def of(self, language: str) -> list[str]:
        return [block for fence, block in self.blocks if fence == language]


def read_page(name: str) -> Page:
    text = (ROOT / name).read_text(encoding="utf-8")
    parts = re.split(r"^```(.*)\n", text, flags=re.MULTILINE)  # text, fence, block, fence, text, ...
    return Page(ROOT / name, text, list(zip(parts[1::4], parts[2::4], strict=True)))


def commands_of(page: Page) -> list[str]:
    """The commands of a page in one line each, variables filled in: blocks, and in the text what begins like one."""
    found, variables = [], {}
    for line in "".join(page.of("")).replace("\\\n", " ").splitlines():
        if assigned := re.fullmatch(r"([A-Z]+)=(\S+)", line):
            variables[f"${assigned[1]}"] = assigned[2]
        elif line.strip():
            for name, value in variables.items():
                line = line.replace(name, value)
            found.append(line)
    prose = "".join(re.split(r"^```.*\n", page.text, flags=re.MULTILINE)[::2])
    inline = re.findall(r"`((?:python -m|python \w+/|accelerate|word-align|make|hf) [^`]+)`", prose)
    return found + inline


@pytest.fixture(scope="session")
def page_of() -> Callable[[str], Page]:
    return read_page


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    return {name: read_page(name) for name in PAGES}


def pytest_generate_tests(metafunc) -> None:
    """`command`: each command of the pages once; `python_block`: each block of Python, by page and number."""
    found = {name: read_page(name) for name in PAGES}
    if "command" in metafunc.fixturenames:
        where = {
            command: f"{name}-{n}" for name in reversed(PAGES) for n, command in enumerate(commands_of(found[name]))
        }
        metafunc.parametrize("command", [pytest.param(command, id=name) for command, name in where.items()])
    if "python_block" in metafunc.fixturenames:
        blocks = [(f"{name}-{n}", block) for name, page in found.items() for n, block in enumerate(page.of("python"))]
        metafunc.parametrize("python_block", [pytest.param(block, id=name) for name, block in blocks])


def write_rows(folder: Path, splits: dict[tuple[str, str], list[dict]]) -> None:
    """A data set of the Hub: {(config, split): rows}, and the README that lists them."""
    configs: dict[str, list[dict]] = {}
    for (config, split), rows in splits.items():
        file = folder / config / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        configs.setdefault(config, []).append({"split": split, "path": f"{config}/{split}.jsonl"})
    front = yaml.safe_dump({"configs": [{"config_name": name, "data_files": f} for name, f in configs.items()]})
    (folder / "README.md").write_text(f"---\n{front}---\n", encoding="utf-8")


def write_hub(hub: Path, sample: dict[str, list[str]]) -> None:
    """A few rows of every data set that commands read, made of the sample corpus; Russian and Swahili are made up."""
    texts = sample | {"ru": sample["fr"][::-1], "sw": sample["es"][::-1]}
    ids = [f"{1 + n // 12:05}{n % 12:03}" for n in range(VERSES)]  # book and chapter, verse
    verses = {name: [{"id": key, "text": text} for key, text in zip(ids, rows, strict=True)]
              for name, rows in texts.items()}  # fmt: skip
    write_rows(hub / "local/bible", {(name, "train"): rows for name, rows in verses.items()})
    captions = [{"translation": {"en": en, "de": de}} for en, de in zip(texts["en"], texts["de"], strict=True)]
    parts = ("train", "validation", "test")
    write_rows(hub / "local/multi30k", {("default", part): captions for part in parts})
    write_rows(hub / "wmt/wmt14", {("de-en", part): captions for part in parts})
    labels = ("entailment", "neutral", "contradiction")

    def pairs(language: str, columns: tuple[str, str, str], values: tuple) -> list[dict]:
        rows = zip(texts[language], texts[language][1:], itertools.cycle(values), strict=False)
        return [dict(zip(columns, row, strict=True)) for row in itertools.islice(rows, ROWS)]

    sick = pairs("en", ("premise", "hypothesis", "label"), labels)
    write_rows(hub / "local/sick", {("default", part): sick for part in parts})
    columns = ("sentence1", "sentence2", "gold_label")
    xnli = [{**row, "language": name} for name in ("en", "de") for row in pairs(name, columns, labels)]
    pawsx = {name: pairs(name, (*columns[:2], "label"), (0, 1)) for name in ("en", "de")}
    tatoeba = [{"source_sentence": de, "target_sentence": en}
               for en, de in zip(texts["en"][:ROWS], texts["de"], strict=False)]  # fmt: skip
    write_rows(hub / "google/xtreme", {
        **{("XNLI", part): xnli for part in parts[1:]},
        **{(f"PAWS-X.{name}", part): rows for name, rows in pawsx.items() for part in parts},
        ("tatoeba.deu", "validation"): tatoeba,
    })  # fmt: skip
    gold = hub / "local/word-alignment"
    for pair in ("de-en", "en-fr", "en-hi", "ro-en", "zh-en"):
        (gold / pair).mkdir(parents=True)
        if pair == "zh-en":
            continue
        for side in pair.split("-"):
            lines = texts.get(side, texts["es"])[:4]  # Hindi and Romanian are made up
            (gold / pair / f"test.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (gold / pair / "alignv2.txt").write_text("".join(f"{n} 1 1 S\n" for n in range(1, 5)), encoding="utf-8")
    lines = [f"{zh} ||| {en}" for zh, en in zip(texts["zh"][:4], texts["en"], strict=False)]
    (gold / "zh-en/zhen.src-tgt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (gold / "zh-en/zhen.gold").write_text("1-1\n" * 4, encoding="utf-8")
    (hub / "local/dictionaries").mkdir()
    for name in ("de", "fr", "es", "ru", "zh"):
        for part in ("0-5000", "5000-6500"):
            (hub / f"local/dictionaries/en-{name}.{part}.txt").write_text("the der\nand und\n", encoding="utf-8")
    (hub / "local/dictionaries/en-sw.txt").write_text("house nyumba\n", encoding="utf-8")


def save_model(folder: Path, tokenizer, type_name: str, head: str = "ForPreTraining", **config) -> None:
    """A tiny model of a type of the zoo with random weights, saved as pre-training saves it."""
    from pretraining.checkpoints import save_model_folder

    zoo_type = "metaxlm" if type_name == "minilm" else type_name
    cls = getattr(importlib.import_module(f"modeling.modeling_{zoo_type}"), TYPES[zoo_type] + head)
    torch.manual_seed(0)
    save_model_folder(cls(cls.config_class(vocab_size=len(tokenizer), **(TINY | config))), tokenizer, folder)


def write_starts(place: Path, hub: Path, tokenizer) -> None:
    """XLM-R's and RoBERTa's folders, at hand under their ids, and MiniLM's, a BERT with WordPiece."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import (
        BertConfig,
        BertModel,
        BertTokenizerFast,
        ModernBertConfig,
        ModernBertForMaskedLM,
        RobertaConfig,
        RobertaForMaskedLM,
        XLMRobertaConfig,
        XLMRobertaForMaskedLM,
    )  # fmt: skip

    shape = TINY | dict(vocab_size=len(tokenizer), type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    classes = {
        "FacebookAI/xlm-roberta-base": (XLMRobertaConfig, XLMRobertaForMaskedLM),
        "FacebookAI/xlm-roberta-large": (XLMRobertaConfig, XLMRobertaForMaskedLM),
        "microsoft/xlm-align-base": (XLMRobertaConfig, XLMRobertaForMaskedLM),
        ADAPTED: (XLMRobertaConfig, XLMRobertaForMaskedLM),
        "FacebookAI/roberta-base": (RobertaConfig, RobertaForMaskedLM),
        "jhu-clsp/mmBERT-small": (ModernBertConfig, ModernBertForMaskedLM),
    }
    for name, (config, model) in classes.items():
        torch.manual_seed(6)  # with this seed, layer 3 has the highest value: `word-align adapt` cannot train layer 0
        depth = {"num_hidden_layers": 3} if name == ADAPTED else {}
        model(config(**(shape | depth))).save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
        (hub / name).parent.mkdir(parents=True, exist_ok=True)
        (hub / name).symlink_to(place / name)
    minilm = place / "runs/minilm"
    minilm.mkdir(parents=True)
    tokens = BertWordPieceTokenizer()
    tokens.train([str(ROOT / "sample_corpus/en/train.jsonl")], vocab_size=500, show_progress=False)
    tokens.save_model(str(minilm))
    BertTokenizerFast(str(minilm / "vocab.txt")).save_pretrained(minilm)
    BertModel(BertConfig(**TINY, vocab_size=tokens.get_vocab_size())).save_pretrained(minilm)


def in_process(program: Callable, *arguments: str) -> None:
    """A command in this process, as if it had been started: accelerate keeps its state by process."""
    forget_accelerate()
    program(list(arguments))


@pytest.fixture(scope="session")
def prepared(sample_corpus_dir, sample_tokenizer_dir, sample_tokenizer, tmp_path_factory) -> Path:
    """The made-up place, made once: what commands read, also what earlier commands of a page would have written."""

    from modeling import convert_ernie_m
    from modeling.convert_common import rename
    from modeling.convert_veco import fairseq_table, native_table
    from modeling.modeling_veco import VecoModel
    from pretraining import run, tracking

    top = tmp_path_factory.mktemp("documentation")
    place, hub = top / "zoo", top / "shared" / "hub"
    place.mkdir()
    for name in CODE:
        (place / name).symlink_to(ROOT / name)
    rows = {name: (sample_corpus_dir / name / "train.jsonl").read_text(encoding="utf-8").splitlines()
            for name in TRANSLATED}  # fmt: skip
    sample = {name: [json.loads(line)["text"] for line in lines[:VERSES]] for name, lines in rows.items()}
    write_hub(hub, sample)
    write_starts(place, hub, sample_tokenizer)
    # every folder of a model that a command, an example or a recipe names
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "pretraining/recipes").glob("**/*.yaml")]
    texts += [read_page(name).text for name in PAGES]
    folders = sorted(set(re.findall(r"runs/[\w./-]+/model\b", "\n".join(texts))) - MADE_OTHERWISE)
    made: dict[str, Path] = {}
    for folder in folders:
        kind = next((name for name in TYPES if name in folder), "xlm_align")
        if kind in made:
            shutil.copytree(made[kind], place / folder)
        else:
            made[kind] = place / folder
            save_model(made[kind], sample_tokenizer, kind)
    labels = dict(enumerate(("O", "B-PER", "I-PER")))
    save_model(place / TAGGER, sample_tokenizer, "xlm_align", "ForTokenClassification",
               id2label=labels, label2id={name: n for n, name in labels.items()})  # fmt: skip
    for name in ("sample", "bible", "bible7", "multi30k", "en", "sample_en"):
        (place / f"runs/{name}_tokenizer").symlink_to(sample_tokenizer_dir)
    for side, language in {"corpus.de": "de", "corpus.en": "en", "test.de": "de", "test.en": "en"}.items():
        (place / side).write_text("\n".join(sample[language][:4]) + "\n", encoding="utf-8")
    for name in ("alignment.txt", "eflomal.txt", "fast_align.txt"):
        (place / name).write_text("0-0\n" * 4, encoding="utf-8")
    pairs = list(zip(sample["en"], sample["de"], strict=True))
    (place / "pairs.txt").write_text("".join(f"{en} ||| {de}\n" for en, de in pairs), encoding="utf-8")
    for table in ("en-bg.tsv", "en-ru.tsv"):
        (place / table).write_text("".join(f"{en}\t{de}\t0-0\n" for en, de in pairs), encoding="utf-8")
    rows = [json.dumps({"source": en, "target": de, "links": "0-0"}) for en, de in pairs]
    for table in ("gold.jsonl", "pairs.jsonl"):
        (place / table).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    (place / "labels.conll").write_text("Anna B-PER\nlives O\n\n" * 4, encoding="utf-8")
    spans = {"source": "Anna lives.", "target": "Anna wohnt.", "spans": [{"start": 0, "end": 4, "label": "PER"}]}
    (place / "spans.jsonl").write_text(json.dumps(spans) + "\n", encoding="utf-8")
    for language in ("de", "fr"):
        translated = place / f"translated/panx/{language}.jsonl"
        translated.parent.mkdir(parents=True, exist_ok=True)
        translated.write_text(json.dumps({"tokens": sample[language][0].split()}) + "\n", encoding="utf-8")
    questions = place / "xtreme_translations/XNLI/translate-train/en-de-translated.tsv"
    questions.parent.mkdir(parents=True)
    questions.write_text("\t".join((*sample["en"][:2], *sample["de"][:2], "neutral")) + "\n", encoding="utf-8")
    here = Path.cwd()
    os.chdir(place)
    try:
        in_process(convert_ernie_m.main, "--to", "transformers4", "runs/ernie_m-smoke/model", "saved_by_transformers_4")
        weights = VecoModel.from_pretrained("runs/veco/model").state_dict()
        torch.save(rename(weights, native_table("bert.", (".gamma", ".beta"), False), []), "pytorch_model.bin")
        torch.save({"model": rename(weights, fairseq_table(decoder_is_encoder=True), [])}, "model.pt")
        # a run of two steps and its evaluations, for both that are compared
        smoke = ("--config", "pretraining/recipes/xlm_align/smoke.yaml", "save_every_steps=1")
        short = [f"phases.{n}.{field}" for n in (0, 1) for field in ("steps=1", "warmup_steps=0")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracking, "plot_curves", lambda folder: None)  # most of the time of such a run
            in_process(run.main, *smoke, *short, "keep_checkpoints=0", "evaluation.every_steps=1")
        kept = {"runs/xlm_align-smoke": {"model"}}  # VECO's run keeps its model
        shutil.copytree("runs/xlm_align-smoke", "runs/veco-smoke", dirs_exist_ok=True,
                        ignore=lambda folder, names: kept.get(folder, set()))  # fmt: skip
        # and one of the suite of two tasks, for each of those that are put into one table
        from finetuning.run import main

        fast = ("seeds=[1]", "training.max_steps=1", "max_evaluation_examples=9", "selection=last")
        in_process(main, "--suite", "sample", "model=runs/xlm_align-smoke/model", "output_dir=runs/suite", *fast)
        for name in ("xlm-roberta-base/xtreme", "xlm_align-base/xtreme"):
            shutil.copytree("runs/suite", f"runs/{name}", dirs_exist_ok=True)
        for name in ("veco-smoke", "xlm_align-smoke"):
            shutil.copytree("runs/suite/topics", f"runs/{name}/sample_topics", dirs_exist_ok=True)
    finally:
        os.chdir(here)
    return place


@pytest.fixture
def place(prepared, tmp_path, monkeypatch) -> Path:
    """A copy of the made-up place that one command may write into; it is the working directory."""
    copy = tmp_path / "zoo"
    shutil.copytree(prepared, copy, symlinks=True, copy_function=os.link)
    (tmp_path / "shared").symlink_to(prepared.parent / "shared")
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def shallow(place, sample_tokenizer) -> Callable[[str], None]:
    """Gives the model of a folder two layers: more are only more of the same to what takes seconds for each."""

    def make(folder: str) -> None:
        shutil.rmtree(place / folder)
        save_model(place / folder, sample_tokenizer, "xlm_align", num_hidden_layers=2)

    return make
