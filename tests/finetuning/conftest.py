"""A tiny XLM-R with the sample corpus' tokenizer, and a recipe that fine-tunes it in a second."""

import functools
from pathlib import Path

import pytest
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM, set_seed

from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.run import main as finetune
from crosslingual_zoo.zoo_core.provenance import write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe, save_recipe
from tests.finetuning.feature_recipes import FEATURE_RECIPES
from tests.finetuning.labeled_rows import ANSWERS, WORDS, sentences, write_rows
from tests.finetuning.plug_in_kinds import questions

# of the aligner: two of the pairs have no words on a side
PAIRS = [
    "ein Mann geht über die Straße ||| a man crosses the street",
    "zwei Hunde spielen ||| two dogs play in the snow",
    "",
    "die Frau ||| ",
    "eine Frau liest ein Buch im Park ||| a woman reads a book in the park",
]


@pytest.fixture(scope="session")
def tiny_model(sample_tokenizer, tmp_path_factory):
    """Folder of a random model, as pre-training would leave it; its states, and so its labels, differ between texts."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    set_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, type_vocab_size=1)
    sizes |= dict(vocab_size=len(sample_tokenizer), max_position_embeddings=66)
    special = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, initializer_range=0.2)
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    XLMRobertaForMaskedLM(XLMRobertaConfig(**sizes, **special, **dropout)).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def topics_recipe(sample_corpus_dir, tiny_model):
    """topics_recipe(folder) -> overrides: topics of the sample corpus, English to German and Chinese, two seeds."""
    table = f"path: {sample_corpus_dir}, label_column: topic"
    return lambda folder: [
        f"model={tiny_model}",
        f"output_dir={folder}",
        f"train=[{{{table}, config: en}}]",
        f"evaluation=[{{{table}, config: '{{language}}', languages: [en, de, zh]}}]",
        *"task=topics selection=source_dev evaluate_every_steps=2 max_length=24 seeds=[1,2]".split(),
        *"training.learning_rate=1e-3 training.batch_size=48 training.epochs=1".split(),
    ]


@pytest.fixture
def topics(topics_recipe, tmp_path):
    """Overrides of `topics_recipe` for the test's own folder."""
    return topics_recipe(tmp_path / "out")


@pytest.fixture(scope="session")
def topics_run(topics_recipe, tmp_path_factory):
    """Folder of the run of `topics`, for reading alone."""
    folder = tmp_path_factory.mktemp("topics") / "out"
    finetune(topics_recipe(folder))
    return folder


@pytest.fixture
def topics_suite(topics, tiny_model, tmp_path):
    """topics_suite(*overrides) -> the command of a suite in tmp_path/suite: `topics` as tasks `one` and `two`."""

    def command(*overrides):
        save_recipe(load_recipe(Recipe, None, [*topics, *overrides]), tmp_path / "topics.yaml")
        tasks = [{"name": name, "recipe": "topics.yaml"} for name in ("one", "two")]
        write_json(tmp_path / "suite.yaml", {"name": "topics twice", "tasks": tasks})
        return ["--suite", f"{tmp_path}/suite.yaml", f"model={tiny_model}", f"output_dir={tmp_path}/suite"]

    return command


@pytest.fixture(scope="session")
def tiny_veco(zoo_model_dir):
    """Folder of an untrained VECO whose states hardly differ between texts."""
    return zoo_model_dir("veco", num_hidden_layers=2, max_position_embeddings=66, initializer_range=0.02)


@pytest.fixture(scope="session")
def plug_in_veco(zoo_model_dir):
    """Folder of an untrained VECO whose states differ between texts."""
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return zoo_model_dir("veco", num_hidden_layers=2, max_position_embeddings=66, initializer_range=0.2, **dropout)


@pytest.fixture(scope="session")
def change_weights():
    """change_weights(model, share=0.3) adds a share of the weights in a folder to them, in another order."""

    def change(model, share=0.3):
        tensors = load_file(model / "model.safetensors")
        changed = {name: weight + share * weight.flip(0) for name, weight in tensors.items()}
        save_file(changed, model / "model.safetensors", {"format": "pt"})

    return change


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Plots are empty files, because drawing takes half a second, unless a test uses `drawn`."""
    from matplotlib.figure import Figure

    save = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, path, **options: Path(path).write_bytes(b"\x89PNG"))
        yield save


@pytest.fixture
def drawn(undrawn, monkeypatch):
    """Plots are drawn in this test."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", undrawn)


@pytest.fixture(scope="session")
def captions_recipe(sample_corpus_dir, tiny_veco):
    """captions_recipe(folder) -> overrides: the sample corpus, English to German, one seed of six steps."""

    def table(split):
        return (
            f"[{{path: {sample_corpus_dir}, config: en, source_column: text, target_column: text, join_on: id, "
            f"target: {{path: {sample_corpus_dir}, config: de, split: '{split}'}}, split: '{split}'}}]"
        )

    def recipe(folder, with_dev=True):
        overrides = [
            f"model={tiny_veco}",
            f"output_dir={folder}",
            *"kind=translation task=sample source_language=en target_language=de generation.beams=2".split(),
            f"train={table('train')}",
            f"test={table('test[:30]')}",
            *"max_source_length=48 max_target_length=48 max_test_examples=3 evaluate_every_steps=2".split(),
            *"training.max_tokens=1000 training.learning_rate=1e-2 training.max_steps=6".split(),
        ]
        if with_dev:
            overrides += [f"dev={table('test[30:]')}", "max_dev_examples=12"]
        return overrides

    return recipe


@pytest.fixture
def captions(captions_recipe, tmp_path):
    """Overrides of `captions_recipe` without a development table."""
    return captions_recipe(tmp_path / "out", with_dev=False)


@pytest.fixture
def dev_captions(captions_recipe, tmp_path):
    """Overrides of `captions_recipe` with a development table."""
    return captions_recipe(tmp_path / "out")


@pytest.fixture
def write(tmp_path):
    """write(name, rows, features=None) -> path of a parquet file."""

    def write_rows(name, rows, features=None):
        path = tmp_path / f"{name}.parquet"
        Dataset.from_list(rows, features=features).to_parquet(path)
        return str(path)

    return write_rows


@pytest.fixture
def refused(capsys):
    """refused(arguments) -> the error message of finetuning/run.py, or of another `program`."""

    def message(arguments, program=finetune):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            program(arguments)
        assert stopped.value.code == 2
        return capsys.readouterr().err

    return message


@pytest.fixture(scope="session")
def feature_recipe(sample_corpus_dir, tiny_model):
    """feature_recipe(kind, folder) -> overrides of a recipe that trains nothing; its results are in folder/out."""

    def recipe(kind, folder):
        fields = FEATURE_RECIPES[kind](sample_corpus_dir, folder)
        return [f"kind={kind}", f"model={tiny_model}", f"output_dir={folder / 'out'}", "task=sample", *fields]

    return recipe


@pytest.fixture(scope="session")
def feature_run(feature_recipe, tmp_path_factory):
    """feature_run(kind) -> folder of a run of that recipe, for reading alone."""

    @functools.cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        finetune(feature_recipe(kind, folder))
        return folder / "out"

    return run


@pytest.fixture
def number_questions(tiny_model, tmp_path):
    """Overrides of a recipe: which word follows a number, in contexts of several windows, English to German."""
    rows = questions(25)[:24]
    for language, suffix in (("de", ""), ("en", "_en")):
        part = []
        for row in rows:
            columns = {name: row[name + suffix] for name in ("question", "context", "answers")}
            part.append({"id": row["id"], **columns})
        write_rows(tmp_path / f"{language}.jsonl", part[:12])
        write_rows(tmp_path / f"{language}-train.jsonl", part[12:])
    return [
        f"model={tiny_model}",
        f"output_dir={tmp_path / 'out'}",
        *"kind=question_answering task=places selection=last metric=mlqa seeds=[1]".split(),
        f"train=[{{path: {tmp_path}/en-train.jsonl, {ANSWERS}}}]",
        f"evaluation=[{{path: '{tmp_path}/{{language}}.jsonl', languages: [en, de], {ANSWERS}}}]",
        *"max_length=40 doc_stride=12 max_question_length=8".split(),
        *"training.learning_rate=1e-3 training.batch_size=8 training.epochs=1".split(),
    ]


@pytest.fixture(scope="session")
def people_recipe(tiny_model, tmp_path_factory):
    """people_recipe(folder) -> overrides of a tagging recipe: English to German, one seed of 12 steps."""
    data = tmp_path_factory.mktemp("people")
    for name, language, count in (("train", "en", 48), ("test.en", "en", 9), ("test.de", "de", 9)):
        Dataset.from_list(sentences(language, count)).to_parquet(data / f"{name}.parquet")
    return lambda folder: [
        f"model={tiny_model}",
        f"output_dir={folder}",
        *"task=people kind=tagging selection=source_dev evaluate_every_steps=4 max_length=40".split(),
        f"train=[{{path: {data}/train.parquet, {WORDS}}}]",
        f"evaluation=[{{path: '{data}/test.{{language}}.parquet', languages: [en, de], {WORDS}}}]",
        *"training.learning_rate=1e-2 training.batch_size=16 training.max_steps=12".split(),
        "training.layerwise_decay=0.9",
    ]


@pytest.fixture
def people(people_recipe, tmp_path):
    """Overrides of `people_recipe` for the test's own folder."""
    return people_recipe(tmp_path / "out")


@pytest.fixture(scope="session")
def people_run(people_recipe, tmp_path_factory):
    """Folder of the run of `people`, for reading alone."""
    folder = tmp_path_factory.mktemp("people") / "out"
    finetune(people_recipe(folder))
    return folder


@pytest.fixture
def word_align(tiny_model, capsys):
    """word_align(*arguments) -> (stdout, stderr) of the command with the tiny model."""
    from crosslingual_zoo.finetuning.align.command import main

    def run(*arguments, model=tiny_model):
        main([*map(str, arguments), "--model", str(model)])
        return capsys.readouterr()

    return run


@pytest.fixture
def align_refused(word_align, refused):
    """align_refused(*arguments) -> the words with which the command refuses them."""

    def message(*arguments, **model):
        error = refused(arguments, lambda flags: word_align(*flags, **model))
        return " ".join(error.split())

    return message


@pytest.fixture(scope="session")
def aligner(tiny_model):
    """aligner(**options) -> WordAligner of the tiny model."""
    from transformers import AutoModel, AutoTokenizer

    from crosslingual_zoo.modeling.word_alignment import WordAligner

    model = AutoModel.from_pretrained(tiny_model, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    return lambda **options: WordAligner(model, tokenizer, **options)
