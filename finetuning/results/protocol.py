"""The `protocol` of results.json: which data were read and how scores were computed, as typed classes.

A kind of task with further facts has a subclass.
"""

from typing import Any, ClassVar, Self, TypedDict


class ReadTable(TypedDict, total=False):
    """A table that was read, as results.json and run.json name it; kinds of task add counts of their own."""

    path: str
    config: str | None
    split: str
    revision: str | None
    where: dict[str, str]
    languages: list[str]  # or the pair of languages
    rows: int
    fingerprint: str
    translations: dict[str, Any]
    target: "ReadTable | None"  # of a pair of tables
    labeled_by: list[str]


class Facts:
    """Named values. `as_json` returns those that were set.

    Only declared names can be set. The object has them in the order in which they were set: a page of results follows
    the run, from what was read to what was scored.
    """

    PARTS: ClassVar[dict[str, type["Facts"]]] = {}  # the fields that are facts themselves

    def __init__(self, **values: Any):
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        # a misspelled name would become a key of results.json that nothing reads
        assert any(name in vars(cls).get("__annotations__", {}) for cls in type(self).__mro__), name
        super().__setattr__(name, value)

    def as_json(self) -> dict[str, Any]:
        """The values that were given, as JSON has them."""
        return {name: value.as_json() if isinstance(value, Facts) else value for name, value in vars(self).items()}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        """Returns the facts of a JSON object. A kind of task may have names that this class does not declare."""
        facts = cls()
        parts = {name: part.of(content[name]) for name, part in cls.PARTS.items() if name in content}
        # without __setattr__: cards and suites read results of any kind without its class
        vars(facts).update(content | parts)
        return facts


class Selection(Facts):
    """The rule and the rows that selected the evaluated checkpoint, or layer."""

    rule: str
    data: list[ReadTable] | str | None = None
    rows: dict[str, int]
    sweep: dict[str, Any] | None = None  # the grid that the hyperparameters were chosen from
    selected_steps: list[int | list[int]] = []  # one a seed, as `scores`
    scores: list[float | None] = []


class Metric(Facts):
    """The main score, and the module of finetuning/metrics that computed it."""

    name: str
    module: str
    version: str
    unit: str
    greater_is_better: bool = True
    signatures: dict[str, dict[str, str]]  # by pair and score
    stands_for: dict[str, str]


class Protocol(Facts):
    """The facts of every kind of task, and those that pages of several kinds show.

    A task sets `training_data` to `selection` when it reads its data, and `metric` with its results.
    """

    PARTS = {"selection": Selection, "metric": Metric}

    training_data: list[ReadTable]  # empty where nothing is trained
    training_rows: int
    evaluation_data: list[ReadTable]
    evaluated_split: str
    evaluated_rows: dict[str, int]  # by language or pair, as everything below
    selection: Selection
    differs: list[str] = []  # how the rows are not those of published figures
    plug_in: bool = False
    texts: int | None = None  # of a classified row: 1, or 2 of a pair
    max_length: int
    label_unit: str  # what `label_scores` count
    layer: int | None = None  # the reported one
    layers: list[int]
    method: str | None = None  # how scores are read from vectors; the reported one
    pooling: str | None = None
    # scores of guessing: the share of the commonest label; by score, in percent; links by position
    majority_share: dict[str, float] = {}
    chance: dict[str, dict[str, float]] = {}
    by_position: dict[str, dict[str, float]] = {}
    fine_tuned_before: list[str]
    metric: Metric


class LanguageProtocol(Protocol):
    """The facts of tasks that are trained, and evaluated in each language separately.

    Counts are by part (`train`, `dev`, `evaluation`) and language.
    """

    translations: str | None = None  # who or what made them
    labels: list[str]
    left_out_rows: dict[str, int] = {}  # of training, by language
    cut_texts: dict[str, dict[str, int]] = {}
    split_texts: dict[str, dict[str, int]] = {}
    cut_translations: dict[str, dict[str, int]] = {}
    fresh_parameters: dict[str, Any] | None = None
    facts: list[str] = []  # further facts for readers about how scores were computed
