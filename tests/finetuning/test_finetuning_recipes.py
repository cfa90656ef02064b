"""Every fine-tuning recipe against the values that the papers print; it parses and says its command."""

import functools
import re
from pathlib import Path

import pytest

from crosslingual_zoo.finetuning.published import find, languages_of, look_up
from crosslingual_zoo.finetuning.sweep import points_of
from crosslingual_zoo.finetuning.tasks.question_answering.task import N_BEST
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of, task_of
from crosslingual_zoo.finetuning.tasks.vectors.base import reported_layer
from crosslingual_zoo.finetuning.tasks.vectors.recipe import expanded
from crosslingual_zoo.zoo_core.recipes import change_recipe, load_recipe, recipe_names

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "finetuning" / "recipes"
FOLDERS = [RECIPES, *(path for path in RECIPES.iterdir() if path.is_dir())]
PATHS = [folder / name for folder in FOLDERS for name in recipe_names(folder)]
PATH_OF = {re.sub(r"paper\.yaml#|\.yaml$", "", str(path.relative_to(RECIPES))): str(path) for path in PATHS}
NAMES = sorted(PATH_OF)
KIND_OF = {name: kind_of(["--config", path]) for name, path in PATH_OF.items()}
TRAINED = ("classification", "tagging", "question_answering")
TRANSLATED = "_translate_train_all"

# What published copies of the data, and those of finetuning/tools/, have: columns, and the tables with them.
COLUMNS = {
    "premise hypothesis label": ["nyu-mll/multi_nli", "local/sick"],
    "sentence1 sentence2 gold_label language": ["google/xtreme XNLI"],
    "sentence1 sentence2 label": ["google/xtreme PAWS-X"],
    "tokens ner_tags": ["lhoestq/conll2003", "masakhane/masakhaner2", "google/xtreme PAN-X", "conll"],
    "tokens pos_tags": ["google/xtreme udpos"],
    "question context answers id": ["rajpurkar/squad", "translations/squad"],
    "id question context answers": [f"google/xtreme {name}" for name in ("XQuAD", "MLQA", "tydiqa")],
    "premise hypothesis premise_en hypothesis_en label": ["translations/xnli"],
    "sentence1 sentence2 sentence1_en sentence2_en label": ["translations/pawsx"],
    "question context answers id question_en context_en": ["translations/tydiqa"],
    "id question_en context_en": ["translations/xquad", "translations/mlqa"],
    "tokens ner_tags tokens_en": ["translations/panx"],
    "tokens pos_tags tokens_en": ["translations/udpos"],
    "tokens labels tokens_en labels_en": ["labeled/panx", "labeled/udpos"],
    "text label domain": ["amazon_reviews"],
    "id text topic": ["sample_corpus"],
}
PAIRS = {"tatoeba": 36, "bucc": 4}
LANGUAGES = {"xnli": 15, "pawsx": 7, "udpos": 33, "panx": 40, "xquad": 11, "mlqa": 7, "tydiqa": 9}


@functools.cache  # for reading alone
def load(name, *overrides):
    return load_recipe(KINDS[KIND_OF[name]], PATH_OF[name], ["model=somewhere", *overrides])


def head(name):
    """The comment at the top of the file, or of the table."""
    file = PATH_OF[name].partition("#")[0]
    return re.match("(#.*\n)*", Path(file).read_text(encoding="utf-8"))[0]


def of_kinds(*kinds):
    return [name for name in NAMES if KIND_OF[name] in kinds]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipes_parse_say_their_command_and_name_known_rows(name):
    recipe = load(name)
    folder, _, task = name.rpartition("/")
    assert recipe.output_dir.startswith(f"runs/somewhere/{recipe.task}")
    if folder in ("xtreme", "veco", "ernie_m", "xlm_align", "metaxlm") and recipe.kind != "translation":
        assert (
            task == recipe.task or task.startswith(recipe.task + "_") or task.startswith(("sick", "amazon", "sample"))
        )
    command = f"--config {Path(PATH_OF[name]).relative_to(ROOT)}"
    assert re.sub("#.*", "#xnli", command) in head(name)
    if recipe.kind in TRAINED:
        check_trained(recipe)
    else:
        recipe.check()
    if recipe.kind == "translation":
        assert folder != "veco" or recipe.task == task
    if recipe.task in PAIRS:
        names = {pair.name for pair in expanded(recipe.pairs)}
        assert len(names) == PAIRS[recipe.task]
        assert {pair.rpartition("-")[2] for pair in names} == {"en"}
    for item in recipe.references:
        assert item["paper"] in ("veco", "ernie_m", "xlm_align", "metaxlm")


def check_trained(recipe):
    task_of(recipe).recipe.check()
    if recipe.sweep:
        points = list(points_of(recipe).values())
        for overrides in (points[0], points[-1]):
            change_recipe(recipe, overrides).check()
        for field, tried in recipe.sweep.items():  # without --sweep, a point of the grid
            assert getattr(recipe.training, field.partition(".")[2]) in tried
    for table in [*recipe.train, *recipe.evaluation]:
        path = table.path.removesuffix("/{language}")
        key = f"{path} {table.config.split('.')[0]}" if path == "google/xtreme" else path
        [known_columns] = [columns.split() for columns, keys in COLUMNS.items() if key in keys]
        columns = {*table.text_columns, table.label_column, *table.translation_columns}
        columns |= {*table.where, table.language_column}
        assert columns - {None} <= set(known_columns), table.path
    if recipe.task in LANGUAGES and recipe.task != "xnli":
        languages = [language for table in recipe.evaluation for language in table.languages]
        assert len(set(languages)) == len(languages) == LANGUAGES[recipe.task]
    if recipe.setting == "translate_train_all" and recipe.task in LANGUAGES:
        trained = {language for table in recipe.train for language in table.languages or ["en"]} | {"en"}
        assert len(trained) == LANGUAGES[recipe.task]


def test_recipes_are_there_for_every_task_of_each_paper():
    """VECO: ACL Tables 9-17; XLM-Align: Tables 13-19; MetaXLM: Table 8; ERNIE-M: Tables 1-5."""
    tasks = [*LANGUAGES, "bucc", "tatoeba"]
    of_ernie_m = f"xnli conll conll_supervised mlqa pawsx tatoeba xnli{TRANSLATED} pawsx{TRANSLATED}".split()
    expected = {
        "xtreme": [*tasks, "conll", "masakhaner2", *(f"{task}{TRANSLATED}" for task in LANGUAGES)],
        "veco": [
            *(f"{task}{suffix}" for task in tasks for suffix in ("", TRANSLATED, "_plug_in")),
            *(f"{task}_iclr" for task in LANGUAGES),
            *(f"{task}{TRANSLATED}_iclr" for task in ("xnli", "pawsx", "mlqa")),
        ],
        "xlm_align": [*LANGUAGES, "word_alignment"],
        "metaxlm": [*LANGUAGES, "tatoeba", "amazon", "amazon_supervised"],
        "ernie_m": [f"{task}{size}" for task in of_ernie_m for size in ("", "_large")],
    }
    assert {f"{folder}/{name}" for folder, names in expected.items() for name in names} <= set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in of_kinds(*TRAINED) if re.match("veco/(?!sample|sick)", name)])
def test_recipes_of_veco_are_searched_as_its_appendices_print(name):
    """C of the ACL paper, and B of the ICLR submission."""
    recipe = load(name)
    if name.endswith("_iclr"):
        rates = [1e-5, 2e-5, 3e-5] if recipe.setting == "zero_shot" else [3e-6, 5e-6, 1e-5]
    else:
        rates = [5e-6, 8e-6, 1e-5, 2e-5, 3e-5] if recipe.setting == "zero_shot" else [5e-6, 6e-6, 7e-6, 8e-6, 9e-6]
    training = recipe.training
    assert training.learning_rate in rates
    assert training.epochs in (3, 5, 10)
    assert training.batch_size in (16, 32, 64)
    without_rows = recipe.task in ("xquad", "tydiqa")  # of development
    if recipe.setting != "zero_shot" and without_rows:
        assert recipe.selection == "last"
        assert not recipe.sweep
        return
    assert list(recipe.sweep.values()) == [rates, [3, 5, 10], [16, 32, 64]]
    assert len(points_of(recipe)) == len(rates) * 3 * 3
    assert recipe.selection == ("source_dev" if without_rows else "mean_dev")


@pytest.mark.parametrize(
    ("task", "batch", "rates", "epochs", "warmup"),
    [  # Table 12
        ("udpos", [8, 16, 32], [1e-5, 2e-5, 3e-5], [10], 0.1),
        ("panx", [8], [5e-6, 6e-6, 7e-6, 8e-6, 9e-6], [10], 0.1),
        ("xquad", [32], [2e-5, 3e-5, 4e-5], [4], 0.1),
        ("mlqa", [32], [2e-5, 3e-5, 4e-5], [2, 3, 4], 0.1),
        ("tydiqa", [32], [2e-5, 3e-5], [5, 10, 15, 20], 0.1),
        ("xnli", [32], [5e-6, 6e-6, 7e-6, 8e-6], [10], 12500),
        ("pawsx", [32], [1e-5, 2e-5], [10], 0.1),
    ],
)
def test_recipes_of_xlm_align_are_searched_as_its_paper_prints(task, batch, rates, epochs, warmup):
    recipe = load(f"xlm_align/{task}")
    training = recipe.training
    tried = {"batch_size": batch, "learning_rate": rates, "epochs": epochs}
    for name, values in tried.items():
        assert recipe.sweep.get(f"training.{name}", [getattr(training, name)]) == values
    assert training.warmup_steps == warmup
    assert training.weight_decay == 0
    assert training.schedule == "linear"
    assert recipe.selection == ("source_dev" if task in ("xquad", "tydiqa") else "mean_dev")
    assert recipe.seeds == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("task", "batch", "rate", "decay", "weight_decay", "epochs", "length"),
    [  # Tables 11 and 12
        ("xnli", 32, 5e-5, 0.8, 0, 5, 256),
        ("xnli_large", 32, 5e-5, 0.8, 0, 5, 256),
        ("xnli_translate_train_all", 128, 5e-5, 0.8, 0, 2, 256),
        ("xnli_translate_train_all_large", 128, 5e-5, 0.8, 0, 1, 256),
        ("mlqa", 32, 3e-4, 0.8, 0, 2, 384),
        ("mlqa_large", 32, 8e-5, 0.9, 0, 2, 384),
        ("conll", 8, 4e-4, 0.8, 0.01, 10, 512),
        ("conll_large", 8, 4e-4, 0.8, 0.01, 10, 512),
        ("conll_supervised", 8, 3e-4, 0.8, 0.01, 10, 512),
        ("conll_supervised_large", 8, 3e-4, 0.8, 0.01, 10, 512),
        ("pawsx", 64, 5e-5, 0.8, 0.01, 10, 128),  # not printed: large's, with the decay of base's other tasks
        ("pawsx_large", 64, 5e-5, 0.9, 0.01, 10, 128),
        ("pawsx_translate_train_all", 64, 7e-5, 0.8, 0.01, 2, 128),
        ("pawsx_translate_train_all_large", 64, 7e-5, 0.9, 0.01, 2, 128),
    ],
)
def test_recipes_of_ernie_m_are_as_its_paper_prints(task, batch, rate, decay, weight_decay, epochs, length):
    recipe = load(f"ernie_m/{task}")
    training = recipe.training
    assert training.batch_size == batch
    assert training.learning_rate == rate
    assert training.layerwise_decay == decay
    assert training.weight_decay == weight_decay
    assert training.epochs == epochs
    assert recipe.max_length == length
    assert (training.warmup_steps, training.schedule) == (0.1, "linear")
    assert training.epsilon == 1e-6
    assert training.max_grad_norm == 1.0
    assert recipe.seeds == [1, 2, 3, 4, 5]
    if task.startswith("pawsx") and not task.endswith("_large"):
        assert recipe.published is None
    else:
        assert (" large" in recipe.published.row) == task.endswith("_large")


@pytest.mark.parametrize(
    ("task", "batch", "rate", "weight_decay", "epochs", "languages", "average"),
    [  # Table 8, and the averages of Tables 1 and 2
        ("udpos", 32, 1e-5, 0, 10, 33, 63.7),
        ("panx", 8, 7e-6, 0, 10, 40, 54.0),
        ("xquad", 32, 3e-5, 0, 4, 11, 57.9),
        ("mlqa", 32, 3e-5, 0, 4, 7, 51.5),
        ("tydiqa", 32, 4e-5, 0, 40, 9, 39.7),
        ("xnli", 32, 1e-5, 0.01, 6, 15, 64.6),
        ("pawsx", 32, 2e-5, 0.01, 10, 7, 83.2),
        ("amazon", 32, 2e-5, 0.01, 5, 4, None),
        ("amazon_supervised", 32, 2e-5, 0.01, 5, 12, 84.3),
    ],
)
def test_recipes_of_metaxlm_are_as_its_paper_prints(task, batch, rate, weight_decay, epochs, languages, average):
    recipe = load(f"metaxlm/{task}")
    training = recipe.training
    published = recipe.published
    assert (training.batch_size, training.learning_rate) == (batch, rate)
    assert (training.weight_decay, training.epochs) == (weight_decay, epochs)
    assert training.warmup_steps == 0.1
    assert training.schedule == "linear"
    assert recipe.seeds == [1, 2, 3, 4, 5]
    if average is None:
        assert published is None
        assert len(recipe.evaluation[0].languages) == languages
        return
    table = find(*recipe.references[0].values())[0]
    over = languages_of(recipe.task, table) if table["columns_are"] == "tasks" else table["columns"]
    printed = look_up(recipe.references[0], recipe.task, recipe.kind, recipe.main_score, over)
    assert printed.scores[recipe.main_score]["average"] == average
    assert len(over) == languages
    if task not in ("xnli", "amazon_supervised"):  # one table for all languages; a table for language and domain
        assert set(over) == {language for table in recipe.evaluation for language in table.languages}


@pytest.mark.parametrize(
    ("name", "pair", "tokens", "rate", "bleu", "sacrebleu"),
    [("wmt14_en_de", "en-de", 2**16, 1e-4, 31.7, 30.6), ("wmt14_en_fr", "en-fr", 2**18, 2e-4, 44.5, 42.0)],
)
def test_recipes_of_wmt14_are_as_in_the_paper(name, pair, tokens, rate, bleu, sacrebleu):
    recipe = load(f"veco/{name}")
    training = recipe.training
    assert (training.max_tokens, training.learning_rate) == (tokens, rate)
    assert training.max_steps == 100_000
    assert training.warmup_steps == 16_000
    assert training.schedule == "linear"
    assert recipe.selection == "average"
    assert recipe.average_checkpoints == 10
    assert recipe.generation.beams == 5
    assert recipe.decoder_layers is None
    assert recipe.decoder_layer_selection is None
    assert recipe.tie_decoder is True
    # from the released scripts: Adam (0.9, 0.999), and dropout by pair
    assert training.label_smoothing == 0.2
    assert training.max_grad_norm == 0.1
    assert training.weight_decay == 0.01
    assert (training.betas, training.epsilon) == ([0.9, 0.999], 1e-8)
    assert training.dropout == {"en-de": 0.3, "en-fr": 0.1}[pair]
    published = look_up(recipe.references[0], recipe.task, recipe.kind, "sacrebleu", [pair])
    assert published.scores == {"sacrebleu": {pair: sacrebleu}, "bleu": {pair: bleu}}


@pytest.mark.parametrize(("name", "translates"), [("mbart_small", 2), ("mbart_small_mono", 0), ("multi30k_mbart", 2)])
def test_recipes_of_the_mbart_style_model_are_as_in_table_8(name, translates):
    recipe = load(f"veco/{name}")
    assert recipe.initialize == "random"
    tables = [(t.source_column == t.target_column, t.is_own_target, t.source_mask_probability) for t in recipe.train]
    assert tables == [(True, True, 0.15)] * 2 + [(False, False, 0.25)] * translates
    if name == "mbart_small":
        training = recipe.training
        assert training.learning_rate == 3e-4
        assert training.max_steps == 240_000
        assert training.warmup_steps == 12_000
        assert training.betas == [0.9, 0.999]
        assert training.epsilon == 1e-6
        assert training.weight_decay == 0.01
        assert training.dropout == 0.1
        assert training.attention_dropout == 0.1
        assert training.schedule == "linear"
        assert training.max_tokens == 4096 * 128
        assert training.label_smoothing == 0.0
        assert recipe.tie_decoder is True


@pytest.mark.parametrize(
    ("task", "epochs"),
    [("xnli", 5), ("pawsx", 5), ("udpos", 10), ("panx", 10), ("xquad", 3), ("mlqa", 3), ("tydiqa", 3)],
)
def test_recipes_of_any_encoder_are_as_the_benchmarks_scripts(task, epochs):
    """train_<task>.sh and train_qa.sh"""
    recipe = load(f"xtreme/{task}")
    training = recipe.training
    is_answering = recipe.kind == "question_answering"
    assert training.batch_size == 32
    assert training.epochs == epochs
    assert training.epsilon == 1e-8
    expected = (3e-5, 0.06, 1e-4, 384, "last") if is_answering else (2e-5, 0, 0, 128, "source_dev")
    rates = training.learning_rate, training.warmup_steps, training.weight_decay
    assert (*rates, recipe.max_length, recipe.selection) == expected
    if is_answering:
        assert recipe.doc_stride == 128
        assert N_BEST == 20
        assert recipe.max_answer_length == 30
        assert recipe.metric == ("mlqa" if task == "mlqa" else "squad")


@pytest.mark.parametrize(
    ("name", "start"),
    [
        (f"veco/tydiqa{TRANSLATED}", f"veco/xquad{TRANSLATED}"),
        (f"veco/tatoeba{TRANSLATED}", f"veco/xnli{TRANSLATED}"),
        ("veco/bucc_plug_in", "veco/xnli_plug_in"),
        ("ernie_m/tatoeba_large", f"ernie_m/xnli{TRANSLATED}_large"),
        *((f"veco/{task}", None) for task in ("tatoeba", "bucc", "tydiqa")),
    ],
)
def test_recipes_start_from_the_runs_that_the_papers_name(name, start):
    """VECO and ERNIE-M read the middle layer of that run's model; the others the layer two thirds up of their own."""
    recipe = load(name)
    assert recipe.init_from == (start and load(start).output_dir)
    if recipe.kind in ("retrieval", "mining"):
        assert [reported_layer(recipe.layer, recipe.layers, depth)[0] for depth in (6, 12, 24)] == [3, 6, 12]
    for other in map(load, ("bucc_pools", "xtreme/tatoeba", "xlm_align/word_alignment", "metaxlm/tatoeba")):
        assert [reported_layer(other.layer, other.layers, depth)[0] for depth in (6, 12, 24)] == [4, 8, 16]


def test_recipes_name_output_dir_after_model_and_task():
    for model, folder in (("runs/x/checkpoints/step-5/model/", "x-step-5"), ("runs/x/seed-{seed}/model", "x")):
        assert load("xtreme/panx", f"model={model}").output_dir == f"runs/{folder}/panx"
