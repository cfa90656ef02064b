import dataclasses
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from omegaconf import MISSING, OmegaConf
from rich.console import Console

from zoo_core.command_line import parse_command_line, print_fields
from zoo_core.recipe_files import recipe_names
from zoo_core.recipes import (
    add_resolver,
    change_recipe,
    load_recipe,
    option,
    read_yaml,
    recipe_differences,
    save_recipe,
)
from zoo_core.tables import Table, load_table


@dataclass
class Source:
    """Rows from somewhere."""

    path: str = option(MISSING, "file of the rows")
    revision: str | None = option(None, "version of the rows")


@dataclass
class Corpus(Source):
    """Text of one language."""

    language: str = option(MISSING, "language code")
    size: int | None = option(None, "number of rows")


@dataclass
class Goal:
    weight: float = option(1.0, "factor in the loss")


@dataclass
class Stage:
    """A stage of training."""

    steps: int = option(10, "number of steps")
    goals: dict[str, Goal] = option({}, "objectives by name")


@dataclass
class Recipe:
    """A recipe for the tests."""

    output_dir: str = option(MISSING, "folder of the run")
    corpora: list[Corpus] = option([], "texts")
    stages: list[Stage] = option([Stage()], "stages in order")
    extra: Source | None = option(None, "one more table")
    second: Source | None = option(None, "yet another table")
    betas: list[float] = option([0.9, 0.98], "Adam's betas")
    config: dict[str, Any] = option({}, "anything")
    precision: Literal["fp32", "bf16"] = option("fp32", "arithmetic")
    shuffle: bool = option(True, "whether to shuffle")
    depth: int | Literal["half"] | None = option(None, "layers")
    stage: Stage = field(default_factory=Stage)


YAML = """# how to run this
output_dir: runs/${precision}
corpora:
- {path: a.txt, language: en}
- {path: b.txt, language: "no", size: 3}
stages:
- steps: 5
  goals: {mlm: {weight: 1e-1}}
config: {a: [1, 2.5], b: {c: text}}
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(YAML)
    return str(path)


def test_a_file_fills_nested_fields_and_leaves_the_rest_at_their_defaults(recipe_file):
    recipe = load_recipe(Recipe, recipe_file, [])
    assert recipe == Recipe(
        output_dir="runs/fp32",
        corpora=[Corpus(path="a.txt", language="en"), Corpus(path="b.txt", language="no", size=3)],
        stages=[Stage(steps=5, goals={"mlm": Goal(weight=0.1)})],
        config={"a": [1, 2.5], "b": {"c": "text"}},
    )


@pytest.mark.parametrize(
    ("override", "get", "expected"),
    [
        ("stages.0.steps=7", lambda r: r.stages[0].steps, 7),
        ("stages.0.goals.tlm.weight=2", lambda r: r.stages[0].goals, {"mlm": Goal(0.1), "tlm": Goal(2.0)}),
        ("stages.0.goals={tlm: {}}", lambda r: r.stages[0].goals, {"tlm": Goal()}),
        ("corpora=[{path: c.txt, language: sw}]", lambda r: r.corpora, [Corpus(path="c.txt", language="sw")]),
        ("betas.1=0.999", lambda r: r.betas, [0.9, 0.999]),
        ("extra.path=x", lambda r: r.extra, Source(path="x")),
        ("config.b.d=1e-3", lambda r: r.config["b"], {"c": "text", "d": 1e-3}),
        ("corpora.0.language=no", lambda r: r.corpora[0].language, "no"),  # text is literal
        ("corpora.0.revision=0123", lambda r: r.corpora[0].revision, "0123"),
        ("corpora.0.revision=null", lambda r: r.corpora[0].revision, None),
        ("corpora.0.path=a=b", lambda r: r.corpora[0].path, "a=b"),
        ("corpora.0.path=[a", lambda r: r.corpora[0].path, "[a"),
        ("stage.steps=1", lambda r: r.stage.steps, 1),
        ("shuffle=false", lambda r: r.shuffle, False),
        ("precision=bf16", lambda r: r.output_dir, "runs/bf16"),
    ],
)
def test_overrides_set_one_field(recipe_file, override, get, expected):
    assert get(load_recipe(Recipe, recipe_file, [override])) == expected


def test_later_overrides_win(recipe_file):
    assert load_recipe(Recipe, recipe_file, ["stage.steps=1", "stage.steps=2"]).stage.steps == 2


@pytest.mark.parametrize(
    ("overrides", "languages"),
    [
        (["corpora.0=null"], ["no"]),
        (["corpora.0=null", "corpora.1=null", "corpora.0=null"], []),
        (["corpora.0=null", "corpora.1.language=de"], ["de"]),  # positions stay what they are in the file
        (["corpora.1=null", "corpora=[{path: a, language: sw}]"], ["sw"]),
        (["corpora=null"], []),
    ],
)
def test_null_drops_entries_of_a_list(recipe_file, overrides, languages):
    assert [corpus.language for corpus in load_recipe(Recipe, recipe_file, overrides).corpora] == languages


def test_mutable_defaults_are_not_shared():
    one, two = Recipe(output_dir="a"), Recipe(output_dir="b")
    one.betas.append(1.0)
    one.corpora.append(Corpus())
    one.config["x"] = 1
    one.stages[0].steps = 99
    assert two == Recipe(output_dir="b")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stagse.0.steps=1", r"override `stagse.0.steps=1`: unknown field stagse; .*Did you mean .*'stages'"),
        ("stages.0.step=1", r"unknown field stages.0.step; Stage has no such field. Did you mean 'steps'\?"),
        ("stages.7.steps=1", r"stages has no entry 7: its length is 1.*`stages=\[...\]`"),
        ("stages.-1.steps=1", "stages has no entry -1"),
        ("betas.2=1", "betas has no entry 2: its length is 2"),
        ("stages.0.goals.mlm.wait=1", "unknown field stages.0.goals.mlm.wait.*Did you mean 'weight'"),
        ("stages=[{stepz: 1}]", "unknown field stages.0.stepz"),
        ("precision=fp64", "precision is 'fp64', it must be one of fp32, bf16"),
        ("stages.0.steps=many", r"stages.0.steps is 'many' \(str\). It must be a whole number"),
        ("stages.0.steps=1.5", r"1.5 \(float\). It must be a whole number"),
        ("stages.0.steps=true", r"True \(bool\)"),
        ("stages.0.steps=null", "stages.0.steps is empty"),
        ("stages.0.steps.x=1", "stages.0.steps is int and has no fields"),
        ("shuffle=3", "It must be true or false"),
        ("depth=all", r"depth is 'all' \(str\). It must be int \| half"),
        ("depth=1.5", r"depth is 1.5 \(float\)"),
        ("betas=3", "It must be a list of float"),
        ("betas=[a]", "betas.0 is 'a'"),
        ("config=3", "It must be a mapping of names to values"),
        ("stage=3", "It must be a mapping of the fields of Stage"),
        ("betas=[1", "betas.*not valid YAML"),
        ("output_dir=${nowhere}", "cannot be resolved.*nowhere"),
        ("steps", "is not of the form `field=value`"),
        ("=1", "is not of the form `field=value`"),
    ],
)
def test_wrong_overrides_are_named(recipe_file, override, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        load_recipe(Recipe, recipe_file, [override])


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:MY_API_KEY}",
        "runs/${ oc.env:MY_API_KEY,none }/x",
        "${oc.decode:${oc.env:MY_API_KEY}}",
        "${oc.${config.name}:MY_API_KEY}",  # the name of the function is in another field
        "${${config.name}:MY_API_KEY}",
        r"\${oc.env:MY_API_KEY}",  # as it is read again from recipe.yaml, it is no longer escaped
        r"${oc.decode:'$\{oc.env:MY_API_KEY\}'}",
        "${oc.select:stages}",
        "${somebody_elses:a}",
    ],
)
@pytest.mark.parametrize("field", ["output_dir", "corpora.0.path", "config.b", "stages.0.steps", "precision"])
def test_environment_variables_are_not_inserted(recipe_file, monkeypatch, field, text):
    monkeypatch.setenv("MY_API_KEY", "0123456789")
    OmegaConf.register_resolver("somebody_elses", lambda text: text, replace=True)
    overrides = ["config.name=oc.env" if "${$" in text else "config.name=env", f"{field}={text}"]
    with pytest.raises(ValueError, match=re.escape(field)) as raised:
        load_recipe(Recipe, recipe_file, overrides)
    assert "0123456789" not in str(raised.value)
    path = Path(recipe_file).with_name("child.yaml")
    path.write_text(yaml.safe_dump({"extends": recipe_file, "config": {"deep": [{"token": text}]}}))
    with pytest.raises(ValueError, match="config.deep.0.token"):
        load_recipe(Recipe, str(path), [overrides[0], "output_dir=a"])


def test_fields_are_inserted_into_others_and_by_functions_that_were_added(recipe_file):
    add_resolver("upper", str.upper)
    texts = ["${output_dir}/a", "${ corpora[0].path }", "${corpora.1.path}", "${upper:${corpora.1.path}}"]
    recipe = load_recipe(Recipe, recipe_file, ["output_dir=a", f"config.all={texts}".replace("'", '"')])
    assert recipe.config["all"] == ["a/a", "a.txt", "b.txt", "B.TXT"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "has no fields"),
        (b"# only a comment\n", "has no fields"),
        (b"just words", "is not a mapping"),
        (b"- a\n- b\n", "is not a mapping"),
        (b"output_dir: [a\nprecision: b", "line 2, column 10: not valid YAML"),
        (b"precision: fp32\nprecision: bf16", "line 2, .*duplicate key"),
        (b"output_dir: caf\xe9", "line 1: byte 0xe9 is not UTF-8"),
        (b"ok: 1\noutput_dir: a", r"in .*recipe.yaml: unknown field ok"),
        (b"output_dir: no", r'output_dir is False \(bool\). It must be text; in a file, put it in quotes: "..."'),
        (b"output_dir: a\ncorpora:\n- {path: a, langage: en}", "corpora.0.langage; .*Did you mean 'language'"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        load_recipe(Recipe, str(path), [])


def test_a_row_of_a_table_is_a_recipe(tmp_path):
    (tmp_path / "base.yaml").write_text("output_dir: a\nprecision: bf16\n")
    rows = ".shared: &shared {precision: fp32}\none: {extends: base.yaml, output_dir: b}\n"
    rows += "two: {<<: *shared, extends: one.yaml}\n"
    (tmp_path / "paper.yaml").write_text(rows)
    assert read_yaml(tmp_path / "one.yaml") == {"output_dir": "b", "precision": "bf16"}
    assert read_yaml(tmp_path / "two.yaml") == {"precision": "fp32"}
    assert recipe_names(tmp_path) == ["base.yaml", "one.yaml", "two.yaml"]
    for name, message in {"paper": "table of recipes", "tow": "'two.yaml'", ".shared": "not found"}.items():
        with pytest.raises(ValueError, match=message):
            read_yaml(tmp_path / f"{name}.yaml")


def test_a_missing_file_names_its_neighbors(recipe_file):
    with pytest.raises(ValueError, match="not found: .*Did you mean 'recipe.yaml'"):
        load_recipe(Recipe, recipe_file.replace("recipe", "recpie"), [])


def write_files(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(path)


def test_what_ships_is_found_from_any_folder(tmp_path, monkeypatch):
    """By its name below the packages; a file of that name below the working directory comes before it."""
    monkeypatch.chdir(tmp_path)
    name = "finetuning/recipes/xlm_align/xnli.yaml"
    assert "train" in read_yaml(name)  # of the file that it extends
    assert len(load_table(Table("sample_corpus", config="en"))) == 240  # the data of recipes too
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("output_dir: mine", encoding="utf-8")
    assert read_yaml(name) == {"output_dir": "mine"}


def test_a_file_goes_over_those_that_it_extends(tmp_path, monkeypatch):
    last = write_files(
        tmp_path,
        shared__base=YAML,
        shared__middle="extends: base.yaml\nstage: {goals: {mlm: {weight: 2}}}\nbetas: [0.5]\n",
        own__recipe="""extends: ../shared/middle.yaml
output_dir: there
stage: {steps: 3, goals: {tlm: {}}}
corpora: {0: null, 1: {language: sw}, 2: {path: c.txt, language: ur}}
stages: [{steps: 1}]
config: {a: {0: 9}, b: {d: 1}}
""",
    )
    monkeypatch.chdir(tmp_path / "own")  # relative to the file, in any working directory
    recipe = load_recipe(Recipe, last, ["betas.0=0.6"])
    assert recipe == Recipe(
        output_dir="there",
        corpora=[
            Corpus(path="b.txt", language="sw", size=3),
            Corpus(path="c.txt", language="ur"),
        ],
        stages=[Stage(steps=1)],
        stage=Stage(steps=3, goals={"mlm": Goal(2.0), "tlm": Goal()}),
        betas=[0.6],
        config={"a": [9, 2.5], "b": {"c": "text", "d": 1}},
    )
    assert read_yaml(last)["betas"] == [0.5] and "extends" not in read_yaml("recipe.yaml")
    save_recipe(recipe, tmp_path / "saved.yaml")  # the resolved values alone
    assert load_recipe(Recipe, str(tmp_path / "saved.yaml"), []) == recipe
    assert "extends" not in read_yaml(tmp_path / "saved.yaml")


def test_a_recipe_is_changed_in_a_copy(recipe_file):
    recipe = load_recipe(Recipe, recipe_file, [])
    changed = change_recipe(recipe, ["stages.0.steps=7", "stage.goals={tlm: {}}"])
    assert (changed.stages[0].steps, changed.stage.goals) == (7, {"tlm": Goal()})
    assert recipe == load_recipe(Recipe, recipe_file, [])
    with pytest.raises(ValueError, match="unknown field stages.0.stepz"):
        change_recipe(recipe, ["stages.0.stepz=7"])


@pytest.mark.parametrize(
    ("base", "own", "message"),
    [
        ("output_dir: a\nstagse: []", "extends: base.yaml", r"in \S*base.yaml: unknown field stagse; .*'stages'"),
        ("output_dir: a", "extends: base.yaml\nstagse: []", r"in \S*recipe.yaml: unknown field stagse"),
        ("betas: [1]", "extends: base.yaml\nbetas: {0: a}", r"in \S*recipe.yaml: betas.0 is 'a'"),
        ("betas: [1]", "extends: base.yaml\nbetas: {2: 3}", r"in \S*recipe.yaml: betas has no entry 2: .*or 1 to"),
        ("betas: [1]", "extends: base.yaml\nbetas: {x: 3}", "betas has no entry x"),
        ("output_dir: a", "extends: base.yaml\nbetas: {0: 3}", "betas is .*It must be a list of float"),
        ("output_dir: a", "extends: bsae.yaml", r"recipe.yaml extends \S*bsae.yaml. .*not found.*'base.yaml'"),
        ("output_dir: [", "extends: base.yaml", r"recipe.yaml extends \S*base.yaml. \S*base.yaml, line 2"),
        ("extends: recipe.yaml", "extends: base.yaml", "base.yaml extends .*circle: .*recipe.yaml -> .*base.yaml -> "),
        ("output_dir: a", "extends: recipe.yaml", "is a circle"),
        ("output_dir: a", "extends: [base.yaml]", "extends is .*It must be the path of another file"),
    ],
)  # fmt: skip
def test_errors_of_files_that_extend_each_other_name_the_file(tmp_path, base, own, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(Recipe, write_files(tmp_path, base=base, recipe=own), [])


def test_fields_without_a_value_are_reported_together():
    with pytest.raises(ValueError, match="no value for: corpora.0.language, corpora.0.path, output_dir. "):
        load_recipe(Recipe, None, ["corpora=[{size: 1}]"])


def test_saved_recipes_load_equal(recipe_file, tmp_path):
    overrides = ["corpora.0.revision=1e5", "corpora.0.language=no", "output_dir=a: #b", "extra.path=x"]
    recipe = load_recipe(Recipe, recipe_file, overrides)
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(Recipe, str(tmp_path / "saved.yaml"), []) == recipe
    assert recipe_differences(read_yaml(tmp_path / "saved.yaml"), dataclasses.asdict(recipe)) == []


def test_differences_have_dotted_names():
    old = {"a": 1, "list": [{"x": 1}, {"x": 2}], "gone": {"y": 1}, "empty": []}
    new = {"a": 1, "list": [{"x": 1}, {"x": 3}], "empty": [1]}
    assert recipe_differences(old, new) == [
        "list.1.x: 2 -> 3",
        "gone.y: 1 -> (not set)",
        "empty: [] -> (not set)",
        "empty.0: (not set) -> 1",
    ]


def test_help_lists_every_field_with_type_default_and_meaning():
    stream = io.StringIO()
    print_fields(Recipe, Console(file=stream, width=80, highlight=False))
    text = stream.getvalue()
    for name in (
        "output_dir  str  required",
        "corpora.N.language  str  required",
        "corpora.N.size  int, optional  default: none, at least 0",
        "stages.N.goals.NAME",  # Goal, Stage and Source are each used at two places
        "{extra,second}.path  str  required",
        "betas  list of float  default [0.9, 0.98]",
        "precision  fp32 | bf16  default fp32",
        "shuffle  bool  default true",
        "depth  int | half, optional  default: none",
        "Text of one language.",
    ):
        assert name in text, name
    for group in (Source, Corpus, Goal, Stage, Recipe):
        for item in dataclasses.fields(group):
            assert item.metadata.get("help", "") in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_command_line_reads_config_overrides_and_flags(recipe_file):
    flags = {"--resume": dict(action="store_true", help="continue")}
    argv = ["stages.0.steps=3", "--resume", "--config", recipe_file, "precision=bf16"]
    recipe, arguments = parse_command_line(Recipe, "text", flags, argv)
    assert (recipe.stages[0].steps, recipe.precision, arguments.resume) == (3, "bf16", True)


def test_command_line_errors_end_with_code_2_and_help_with_0(recipe_file, capsys):
    with pytest.raises(SystemExit) as stop:
        parse_command_line(Recipe, "text", argv=["--config", recipe_file, "stepz=1"])
    assert stop.value.code == 2
    assert "unknown field stepz" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        parse_command_line(
            Recipe, "What it does.", {"--resume": dict(action="store_true", help="continue")}, ["--help"]
        )
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "What it does." in shown and "--resume" in shown and "corpora.N.path" in shown


@dataclass
class Rates:
    rate: float = option(0.5, "a rate", above=0, high=1)


@dataclass
class Bounded:
    sizes: list[int] = option([1], "sizes", low=1, below=8)
    inner: list[Rates] = field(default_factory=list)
    length: int | None = option(None, "length", low=1)
    count: int = option(3, "whole numbers without bounds start at 0")
    penalty: float = option(0.0, "any finite number")
    text: str = option("", "text")


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("inner=[{rate: 0}]", "inner.0.rate"),
        ("inner=[{rate: 0.5}, {rate: 1.1}]", "inner.1.rate"),
        ("inner=[{rate: .nan}]", "inner.0.rate"),
        ("sizes=[7, 8]", "sizes"),
        ("sizes=[0]", "sizes"),
        ("length=0", "length"),
        ("count=-1", "count"),
        ("count=2147483648", "count"),
        ("penalty=-.inf", "penalty"),
        (f"penalty={10**400}", "penalty"),
        ('text="a\\0b"', "text"),
    ],
)
def test_values_out_of_their_bounds_are_named(tmp_path, override, name):
    file = tmp_path / "recipe.yaml"
    file.write_text(override.replace("=", ": ", 1) + "\n")
    with pytest.raises(ValueError, match=rf"{name} (is|must be) "):
        load_recipe(Bounded, str(file), [])
    if not override.startswith("text"):  # an override of a text field is taken literally
        with pytest.raises(ValueError, match=rf"{name} (is|must be) "):
            load_recipe(Bounded, None, [override])


def test_values_within_their_bounds_are_taken():
    recipe = load_recipe(Bounded, None, ["sizes=[1, 7]", "inner=[{rate: 1}]", "penalty=-2", "count=0"])
    assert (recipe.sizes, recipe.inner[0].rate, recipe.penalty, recipe.count) == ([1, 7], 1.0, -2.0, 0)
