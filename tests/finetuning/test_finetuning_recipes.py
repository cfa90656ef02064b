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


def assert_trains_with(recipe, **expected):
    """The hyperparameters of a recipe have these values."""
    assert {name: getattr(recipe.training, name) for name in expected} == expected


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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipes_parse_say_their_command_and_name_known_rows(name):
    recipe = load(name)
    folder, _, task = name.rpartition("/")
    assert recipe.output_dir.startswith(f"runs/somewhere/{recipe.task}")
    if folder and recipe.kind != "translation":
        assert task.startswith((recipe.task, "sick", "amazon", "sample"))
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


RATES_OF_VECO = {  # C of the ACL paper, and B of the ICLR submission
    ("acl", "zero_shot"): [5e-6, 8e-6, 1e-5, 2e-5, 3e-5],
    ("acl", "translate_train_all"): [5e-6, 6e-6, 7e-6, 8e-6, 9e-6],
    ("iclr", "zero_shot"): [1e-5, 2e-5, 3e-5],
    ("iclr", "translate_train_all"): [3e-6, 5e-6, 1e-5],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if re.match("veco/(?!sample|sick)", name)])
def test_recipes_of_veco_are_searched_as_its_appendices_print(name):
    recipe = load(name)
    if recipe.kind not in TRAINED:
        return
    rates = RATES_OF_VECO["iclr" if name.endswith("_iclr") else "acl", recipe.setting]
    tried = {"learning_rate": rates, "epochs": [3, 5, 10], "batch_size": [16, 32, 64]}
    for field, values in tried.items():
        assert getattr(recipe.training, field) in values
    without_rows = recipe.task in ("xquad", "tydiqa")  # of development
    if recipe.setting != "zero_shot" and without_rows:
        assert recipe.selection == "last"
        assert not recipe.sweep
    else:
        assert recipe.sweep == {f"training.{field}": values for field, values in tried.items()}
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
    tried = {"batch_size": batch, "learning_rate": rates, "epochs": epochs}
    for name, values in tried.items():
        assert recipe.sweep.get(f"training.{name}", [getattr(recipe.training, name)]) == values
    assert_trains_with(recipe, warmup_steps=warmup, weight_decay=0, schedule="linear")
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
    assert_trains_with(recipe, batch_size=batch, learning_rate=rate, layerwise_decay=decay, weight_decay=weight_decay)
    assert_trains_with(recipe, epochs=epochs, warmup_steps=0.1, schedule="linear", epsilon=1e-6, max_grad_norm=1.0)
    assert recipe.max_length == length
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
    assert_trains_with(recipe, batch_size=batch, learning_rate=rate, weight_decay=weight_decay, epochs=epochs)
    assert_trains_with(recipe, warmup_steps=0.1, schedule="linear")
    assert recipe.seeds == [1, 2, 3, 4, 5]
    if average is None:
        assert recipe.published is None
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
    ("name", "pair", "tokens", "rate", "dropout", "bleu", "sacrebleu"),
    [
        ("wmt14_en_de", "en-de", 2**16, 1e-4, 0.3, 31.7, 30.6),
        ("wmt14_en_fr", "en-fr", 2**18, 2e-4, 0.1, 44.5, 42.0),
    ],
)
def test_recipes_of_wmt14_are_as_in_the_paper(name, pair, tokens, rate, dropout, bleu, sacrebleu):
    recipe = load(f"veco/{name}")
    assert_trains_with(recipe, max_tokens=tokens, learning_rate=rate)
    assert_trains_with(recipe, max_steps=100_000, warmup_steps=16_000, schedule="linear")
    # from the released scripts
    assert_trains_with(recipe, label_smoothing=0.2, max_grad_norm=0.1, weight_decay=0.01, dropout=dropout)
    assert_trains_with(recipe, betas=[0.9, 0.999], epsilon=1e-8)
    assert (recipe.selection, recipe.average_checkpoints) == ("average", 10)
    assert recipe.generation.beams == 5
    assert recipe.decoder_layers is None
    assert recipe.decoder_layer_selection is None
    assert recipe.tie_decoder is True
    published = look_up(recipe.references[0], recipe.task, recipe.kind, "sacrebleu", [pair])
    assert published.scores == {"sacrebleu": {pair: sacrebleu}, "bleu": {pair: bleu}}


@pytest.mark.parametrize(("name", "translates"), [("mbart_small", 2), ("mbart_small_mono", 0), ("multi30k_mbart", 2)])
def test_recipes_of_the_mbart_style_model_are_as_in_table_8(name, translates):
    recipe = load(f"veco/{name}")
    assert recipe.initialize == "random"
    tables = [(t.source_column == t.target_column, t.is_own_target, t.source_mask_probability) for t in recipe.train]
    assert tables == [(True, True, 0.15)] * 2 + [(False, False, 0.25)] * translates
    if name == "mbart_small":
        assert_trains_with(recipe, learning_rate=3e-4, max_steps=240_000, warmup_steps=12_000, schedule="linear")
        assert_trains_with(recipe, betas=[0.9, 0.999], epsilon=1e-6, weight_decay=0.01, label_smoothing=0.0)
        assert_trains_with(recipe, dropout=0.1, attention_dropout=0.1, max_tokens=4096 * 128)
        assert recipe.tie_decoder is True


@pytest.mark.parametrize(
    ("task", "epochs"),
    [("xnli", 5), ("pawsx", 5), ("udpos", 10), ("panx", 10), ("xquad", 3), ("mlqa", 3), ("tydiqa", 3)],
)
def test_recipes_of_any_encoder_are_as_the_benchmarks_scripts(task, epochs):
    """train_<task>.sh and train_qa.sh"""
    recipe = load(f"xtreme/{task}")
    assert_trains_with(recipe, batch_size=32, epochs=epochs, epsilon=1e-8)
    if recipe.kind == "question_answering":
        assert_trains_with(recipe, learning_rate=3e-5, warmup_steps=0.06, weight_decay=1e-4)
        assert (recipe.max_length, recipe.selection) == (384, "last")
        assert (recipe.doc_stride, recipe.max_answer_length, N_BEST) == (128, 30, 20)
        assert recipe.metric == ("mlqa" if task == "mlqa" else "squad")
    else:
        assert_trains_with(recipe, learning_rate=2e-5, warmup_steps=0, weight_decay=0)
        assert (recipe.max_length, recipe.selection) == (128, "source_dev")


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
