import dataclasses
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
import yaml
from annotated_types import Gt, Le, Len
from omegaconf import MISSING, OmegaConf

from crosslingual_zoo.zoo_core.command_line import parse_command_line
from crosslingual_zoo.zoo_core.recipes import (
    Count,
    change_recipe,
    load_recipe,
    option,
    read_yaml,
    recipe_differences,
    recipe_names,
    save_recipe,
)
from crosslingual_zoo.zoo_core.tables import Table, load_table


@dataclass
class Corpus:
    """Text of one language."""

    path: str = option(MISSING, "file of the rows")
    revision: str | None = option(None, "version of the rows")
    language: str = option(MISSING, "language code")
    size: Count | None = option(None, "number of rows")

    def __post_init__(self):
        if self.language == "xx":
            raise ValueError("language is xx, which nobody speaks")


@dataclass
class Goal:
    """A goal of training."""

    weight: Annotated[float, Gt(0), Le(9)] = option(1.0, "factor in the loss")


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
    extra: Corpus | None = option(None, "one more table")
    betas: Annotated[list[float], Len(2, 2)] = option([0.9, 0.98], "Adam's betas")
    config: dict[str, Any] = option({}, "anything")
    precision: Literal["fp32", "bf16"] = option("fp32", "arithmetic")
    shuffle: bool = option(True, "whether to shuffle")
    depth: Count | Literal["half"] | None = option(None, "layers")
    stage: Stage = field(default_factory=Stage)


YAML = """# how to run this
output_dir: runs/${precision}
corpora: [{path: a.txt, language: en}, {path: b.txt, language: "no", size: 3}]
stages: [{steps: 5, goals: {mlm: {weight: 1e-1}}}]
config: {a: [1, 2.5], b: {c: text}}
"""


def write(folder, **texts):
    """Files of these names and texts; returns the path of the last one."""
    for name, text in texts.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def recipe_file(tmp_path):
    return write(tmp_path, recipe=YAML)


def test_load_recipe_fills_nested_fields_and_defaults(recipe_file):
    corpora = [Corpus(path="a.txt", language="en"), Corpus(path="b.txt", language="no", size=3)]
    config = {"a": [1, 2.5], "b": {"c": "text"}}
    expected = Recipe("runs/fp32", corpora, [Stage(steps=5, goals={"mlm": Goal(weight=0.1)})], config=config)
    assert load_recipe(Recipe, recipe_file, []) == expected
    assert load_recipe(Recipe, yaml.safe_load(YAML.replace("1e-1", "0.1")), []) == expected


@pytest.mark.parametrize(
    ("override", "get", "expected"),
    [
        ("stages.0.goals.tlm.weight=2", lambda r: r.stages, [Stage(5, {"mlm": Goal(0.1), "tlm": Goal(2.0)})]),
        ("betas.1=0.999", lambda r: r.betas, [0.9, 0.999]),
        ("extra={path: x, language: de}", lambda r: r.extra, Corpus(path="x", language="de")),
        ("config.b.d=1e-3", lambda r: r.config["b"], {"c": "text", "d": 1e-3}),
        ('corpora.0.language="no"', lambda r: r.corpora[0].language, "no"),
        ("corpora.0.revision='0123'", lambda r: r.corpora[0].revision, "0123"),
        ("corpora.0.path=a=b[:100]", lambda r: r.corpora[0].path, "a=b[:100]"),
        ("precision=bf16", lambda r: r.output_dir, "runs/bf16"),
    ],
)
def test_load_recipe_sets_one_field_by_an_override(recipe_file, override, get, expected):
    assert get(load_recipe(Recipe, recipe_file, [override])) == expected


@pytest.mark.parametrize(
    ("base", "recipe", "override", "named"),
    [
        (YAML, "extends: base.yaml", "stages.0.step=1", "stages.0.step .*'steps'"),
        (YAML, "extends: base.yaml", "stages.0.goals.mlm.weight=0", "stages.0.goals.mlm.weight .*0"),
        (YAML, "extends: base.yaml", "corpora.0.language=xx", "corpora.0: .*xx"),
        (YAML, "extends: base.yaml", "corpora.0.language=no", "corpora.0.language is False"),
        (YAML, "extends: base.yaml", "corpora.7.language=en", r"corpora.7.language=en.*corpora\[7\]"),
        (YAML, "extends: base.yaml", "extra.language=|||", "extra.language=.*Quote"),
        (YAML, "extends: base.yaml", "corpora=[{size: 1}]", "corpora.0.path, corpora.0.language"),
        ("", "corpora:\n- {path: a, langage: en}", "output_dir=a", "corpora.0.langage .*'language'"),
        ("extends: recipe.yaml", "extends: base.yaml", "output_dir=a", "recipe.yaml .*base.yaml"),
        ("betas: 3", "extends: base.yaml", "output_dir=a", "betas is 3"),
        ("betas: {a: 3}", "extends: base.yaml", "output_dir=a", "recipe.yaml: betas is {'a': 3}"),
    ],
)
def test_load_recipe_refuses(tmp_path, base, recipe, override, named):
    path = write(tmp_path, base=base, recipe=recipe)
    with pytest.raises(ValueError, match=named):
        load_recipe(Recipe, path, [override])


@pytest.mark.parametrize(
    "text",
    [
        "${oc.decode:${oc.env:MY_API_KEY}}",
        "${oc.${config.name}:MY_API_KEY}",  # the name of the function is in another field
        r"\${oc.env:MY_API_KEY}",  # as it is read again from recipe.yaml, it is no longer escaped
        "${somebody_elses:a}",
    ],
)
def test_load_recipe_inserts_no_environment_variables(monkeypatch, text):
    monkeypatch.setenv("MY_API_KEY", "0123456789")
    OmegaConf.register_resolver("somebody_elses", lambda text: text, replace=True)
    for name, fields in (("output_dir", {"output_dir": text}), ("config.deep.0", {"config": {"deep": [text]}})):
        with pytest.raises(ValueError, match=re.escape(name)) as raised:
            load_recipe(Recipe, fields, ["config.name=env"])
        assert "0123456789" not in str(raised.value)


def test_validate_a_row_of_a_table_as_a_recipe(tmp_path):
    first = "one: {extends: base.yaml, output_dir: b}\n"
    second = "two: {<<: *shared, extends: paper.yaml#one}\n"
    write(tmp_path, base="precision: bf16\n", paper=".shared: &shared {precision: fp32}\n" + first + second)
    assert read_yaml(tmp_path / "paper.yaml#one") == {"output_dir": "b", "precision": "bf16"}
    assert read_yaml(str(tmp_path / "paper.yaml#two")) == {"precision": "fp32"}  # output_dir is not inherited
    assert recipe_names(tmp_path) == ["base.yaml", "paper.yaml#one", "paper.yaml#two"]
    path = write(tmp_path, mine="extends: paper.yaml#two\nshuffle: false\n")
    assert load_recipe(Recipe, path, ["output_dir=o"]) == Recipe("o", precision="fp32", shuffle=False)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("paper.yaml", r"paper\.yaml is no row .*: one, two\."),
        ("paper.yaml#", r"paper\.yaml# is no row .*: one, two\."),
        ("paper.yaml#tow", r"paper\.yaml#tow is no row .*'two'"),
        ("paper.yaml#.shared", r"#\.shared is no row .* Known: one, two\."),
        ("paper.yaml#number", r"#number is no row .* Known: one, two\."),
        ("bse.yaml", r"bse\.yaml was not found\. .*'base.yaml'"),
        ("one.yaml", r"one\.yaml was not found\. .*paper\.yaml#one\.$"),
        ("papers.yaml#one", r"papers\.yaml#one was not found\. .*paper\.yaml#one\.$"),
        ("base.yaml#one", r"base\.yaml#one is no row .*none\."),
        ("mine.yaml", r"paper\.yaml#tow \(extended by .*mine\.yaml\) is no row .*'two'"),
        ("loop/paper.yaml#one", r"paper\.yaml#one \(extended by .*paper\.yaml#two\) extends itself"),
    ],
)
def test_load_recipe_refuses_what_is_no_file_and_no_row(tmp_path, name, named):
    write(tmp_path, base="precision: bf16\n", mine="extends: paper.yaml#tow\n")
    write(tmp_path, paper=".shared: {precision: fp32}\none: {precision: fp32}\ntwo: {output_dir: b}\nnumber: 3\n")
    (tmp_path / "loop").mkdir()
    write(tmp_path / "loop", paper="one: {extends: paper.yaml#two}\ntwo: {extends: paper.yaml#one}\n")
    with pytest.raises(ValueError, match=named) as raised:
        load_recipe(Recipe, tmp_path / name, [])
    assert "\n" not in str(raised.value)


def test_load_recipe_finds_installed_recipes_and_data_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "finetuning/recipes/xlm_align/paper.yaml#xnli"
    assert "train" in read_yaml(name)  # of the file that it extends
    assert len(load_table(Table("sample_corpus", config="en"))) == 240
    with pytest.raises(ValueError, match=r"not found.*'xnli\.yaml'"):
        read_yaml("finetuning/recipes/xtreme/xnl.yaml")
    (tmp_path / name).parent.mkdir(parents=True)
    write((tmp_path / name).parent, paper="xnli: {output_dir: mine}")  # has precedence
    assert read_yaml(name) == {"output_dir": "mine"}


def test_load_recipe_overrides_those_that_a_file_extends(tmp_path):
    middle = "extends: base.yaml\nstage: {goals: {mlm: {weight: 2}}}\nbetas: [0.5, 0.6]\n"
    top = "extends: middle.yaml\noutput_dir: a\nstages: [{}]\nstage: {steps: 3, goals: {tlm: {}}}\nconfig: {a: [9]}"
    expected = Recipe(
        "a",
        stages=[Stage()],
        stage=Stage(steps=3, goals={"mlm": Goal(2.0), "tlm": Goal()}),
        betas=[0.5, 0.6],
        config={"a": [9], "b": {"c": "text"}},
    )
    assert load_recipe(Recipe, write(tmp_path, base=YAML, middle=middle, top=top), ["corpora=[]"]) == expected


def test_save_recipe_writes_an_equal_recipe_and_recipe_differences_names_changes(recipe_file, tmp_path):
    recipe = load_recipe(Recipe, recipe_file, ["corpora.0.revision='1e5'", "output_dir='a: #b'"])
    save_recipe(recipe, tmp_path / "saved.yaml")
    assert load_recipe(Recipe, str(tmp_path / "saved.yaml"), []) == recipe
    changed = change_recipe(recipe, ["stages.0.steps=7", "stage.goals={tlm: {}}"])
    assert recipe_differences(read_yaml(tmp_path / "saved.yaml"), dataclasses.asdict(changed)) == [
        "stages.0.steps: 5 -> 7",
        "stage.goals: {} -> (not set)",
        "stage.goals.tlm.weight: (not set) -> 1.0",
    ]


FLAGS = {"--resume": dict(action="store_true", help="continue")}


def test_parse_command_line_reads_config_overrides_and_flags(recipe_file):
    argv = ["stages.0.steps=3", "--resume", "--config", recipe_file, "precision=bf16"]
    recipe, arguments = parse_command_line(Recipe, "text", FLAGS, argv)
    assert recipe.stages[0].steps == 3
    assert recipe.precision == "bf16"
    assert arguments.resume


def test_parse_command_line_refuses_in_one_line(recipe_file, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_command_line(Recipe, "text", FLAGS, ["--config", recipe_file, "stepz=1"])
    assert "stepz" in capsys.readouterr().err


def test_parse_command_line_helps_with_fields_and_flags(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse_command_line(Recipe, "text", FLAGS, ["--help"])
    printed = capsys.readouterr().out
    assert "corpora.N.path" in printed
    assert "--resume" in printed
