"""The page and its API: three tabs over one chosen model, drawn by gradio."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import gradio as gr
from answers import ENCODINGS, METHODS, align_words, fill_masks, rank_sentences
from drawing import TABS, alignment, filled, hint, message, model_facts, ranking, tab_notice
from loading import Model, Models

TITLE = "Cross-lingual encoders: try one"
ABOUT = "Which words are translations of each other, what stands behind a mask, which sentences mean the same."
TRUST = (
    "**A model brings its own code, and it will run on the machine that serves this page.** Name only models that you "
    "trust."
)
SENTENCES = json.loads((Path(__file__).parent / "sentences.json").read_text(encoding="utf-8"))
LANGUAGE_OF = {text: language for group in SENTENCES for language, text in group.items()}
PAIRS = [
    [SENTENCES[number][first], SENTENCES[number][second]]
    for number, first, second in ((0, "en", "de"), (2, "fr", "ar"), (3, "en", "zh"), (2, "sw", "en"))
]
MASKED = [
    ["The children are reading a <mask> in the garden."],
    ["Die Kinder <mask> im Garten ein Buch."],
    ["孩子们在花园里<mask>书。"],
    ["الأطفال يقرؤون <mask> في الحديقة."],
    ["Watoto wanasoma <mask> bustanini."],
    ["Les enfants <mask> un livre dans le <mask>."],
]
QUERIES = [[SENTENCES[1]["en"]], [SENTENCES[0]["sw"]], [SENTENCES[3]["ar"]], [SENTENCES[2]["zh"]]]
ONE_AT_A_TIME = {"concurrency_limit": 1, "concurrency_id": "model"}  # a tokenizer cannot serve two threads at once
WAITING = 64  # requests; more are told to come back
SHOWN = 36  # characters of a model's name, on a phone
QUIET = "zoo-quiet"  # takes no room without a message
DEFAULT_LAYER = -1  # of a call: two thirds of the way up
# puts a mask where the cursor is in the box, or at its end
INSERT = "Insert "
INSERT_MASK = """(text, label) => {
  const mask = label.slice(LENGTH);
  const box = document.querySelector("#masked-text textarea");
  const at = box && box.value === text ? box.selectionStart : text.length;
  const gap = at > 0 && !/\\s$/.test(text.slice(0, at)) ? " " : "";
  return text.slice(0, at) + gap + mask + text.slice(at);
}""".replace("LENGTH", str(len(INSERT)))


class Page:
    """The page over `models`; `start` is the model that is there when it opens, or None. `blocks` is what is launched.

    Events of the page are private. Programs call the functions of `add_api`, which give data in place of HTML.
    """

    def __init__(self, models: Models, start: Model | None):
        self.models, self.start = models, start
        with gr.Blocks(title=TITLE, analytics_enabled=False) as self.blocks:
            gr.Markdown(f"# {TITLE}\n{ABOUT}", elem_classes="zoo-title")
            self.add_choice()
            # what a newly chosen model changes in each tab
            self.notices = [
                gr.HTML(tab_notice(start, tab), elem_id=f"{tab}-notice", elem_classes=QUIET, render=False)
                for tab in TABS
            ]
            self.sliders = [self.layer_slider(f"{tab}-layer") for tab in ("align", "nearest")]
            self.insert = gr.Button(insert_label(start), elem_id="insert-mask", scale=1, render=False)
            for tab, add in zip(TABS, (self.add_align, self.add_fill, self.add_nearest), strict=True):
                with gr.Tab(TABS[tab], id=tab, elem_id=f"{tab}-tab"):
                    add()
            self.connect_choice()
            self.add_api()
        self.blocks.queue(max_size=WAITING)

    def add_choice(self) -> None:
        """The list of models, what is known of the chosen one, and the box to name another."""
        name = self.start.name if self.start else None
        self.current = gr.State(name)
        self.choice = gr.Dropdown(
            self.choices(), value=name, label="Model", filterable=False, interactive=True, elem_id="model"
        )
        self.facts = gr.HTML(
            model_facts(self.start) if self.start else hint("No model yet: name one below."), elem_id="facts"
        )
        self.trouble = gr.HTML("", elem_id="trouble", elem_classes=QUIET)
        if self.models.only_listed:
            return
        with gr.Accordion("Another model", open=self.start is None, elem_id="another"):
            self.named = gr.Textbox(
                label="A folder, or an id on the Hub",
                placeholder="runs/veco/model or FacebookAI/xlm-roberta-base",
                elem_id="named",
                submit_btn="Load",
            )
            gr.Markdown(TRUST, elem_classes="zoo-trust", elem_id="trust")

    def choices(self) -> list[tuple[str, str]]:
        """The models as the list shows them. Of a long path it shows the end, which tells it from others."""
        return [(name if len(name) <= SHOWN else f"…{name[1 - SHOWN :]}", name) for name in self.models.names]

    def connect_choice(self) -> None:
        """What happens when a model is chosen or named."""
        outputs = [self.choice, self.current, self.trouble, self.facts, self.insert, *self.notices, *self.sliders]
        options = {"outputs": outputs, "api_visibility": "private", **ONE_AT_A_TIME}
        self.choice.input(self.use, [self.choice, self.current], show_progress_on=self.facts, **options)
        if not self.models.only_listed:
            self.named.submit(self.use, [self.named, self.current], show_progress_on=self.facts, **options)

    def use(self, name: str | None, current: str | None) -> tuple:
        """Takes up a model, or says why not and leaves all as it is."""
        try:
            model = self.models.get(name)
        except ValueError as error:
            stays = f" {current} stays in use." if current else ""
            unchanged = [gr.skip()] * (2 + len(self.notices) + len(self.sliders))
            return gr.update(value=current), current, message(f"{error}{stays}"), *unchanged
        return (
            gr.update(choices=self.choices(), value=model.name),
            model.name,
            "",
            model_facts(model),
            insert_label(model),
            *(tab_notice(model, tab) for tab in TABS),
            *(gr.update(maximum=model.layers, value=model.default_layer) for _ in self.sliders),
        )

    def layer_slider(self, identity: str) -> gr.Slider:
        """Whose states are compared."""
        layers, value = (self.start.layers, self.start.default_layer) if self.start else (12, 8)
        label = "Layer (0: the embeddings)"
        return gr.Slider(0, layers, value=value, step=1, label=label, elem_id=identity, render=False)

    def add_align(self) -> None:
        """The tab of word links."""
        self.notices[0].render()
        with gr.Row():
            source = gr.Textbox(label="A sentence", lines=2, elem_id="source", min_width=300)
            target = gr.Textbox(label="Its translation", lines=2, elem_id="target", min_width=300)
        with gr.Row():
            method = gr.Dropdown(
                list(METHODS.items()), value="ot_words", label="Method", filterable=False, min_width=260
            )
            encoding = gr.Dropdown(
                list(ENCODINGS.items()), value="separate", label="The model reads them", filterable=False, min_width=200
            )
            self.sliders[0].render()

        def draw(name, x, y, how, reads, layer):
            return alignment(align_words(self.models.get(name), x, y, how, layer, reads))

        inputs = [self.choice, source, target, method, encoding, self.sliders[0]]
        self.add_answer("align", "Align", draw, inputs, [source, target], PAIRS, "Linked words get one color.")

    def add_fill(self) -> None:
        """The tab of masked words."""
        self.notices[1].render()
        text = gr.Textbox(label="A sentence with masks in place of words", lines=2, elem_id="masked-text")
        with gr.Row():
            self.insert.render()
            top = gr.Slider(1, 20, value=5, step=1, label="Words for each mask", elem_id="top", scale=2)
        self.insert.click(None, [text, self.insert], text, js=INSERT_MASK, api_visibility="private")

        def draw(name, masked, count):
            return filled(fill_masks(self.models.get(name), masked, count))

        next_step = "A mask stands for the word that the model is asked for, in any language."
        self.add_answer("fill", "Fill in", draw, [self.choice, text, top], [text], MASKED, next_step)

    def add_nearest(self) -> None:
        """The tab of nearest sentences."""
        self.notices[2].render()
        query = gr.Textbox(label="A sentence, in any language", lines=2, elem_id="query")
        pool = gr.Textbox(
            "\n".join(text for group in SENTENCES for text in group.values()),
            label="Sentences to search, one a line",
            lines=6,
            max_lines=12,
            elem_id="pool",
        )
        self.sliders[1].render()

        def draw(name, text, sentences, layer):
            return ranking(rank_sentences(self.models.get(name), text, sentences, layer), LANGUAGE_OF)

        inputs = [self.choice, query, pool, self.sliders[1]]
        self.add_answer("nearest", "Find", draw, inputs, [query], QUERIES, "Translations should come first.")

    def add_answer(
        self, tab: str, label: str, draw: Callable, inputs: list, boxes: list, examples: list, next_step: str
    ) -> None:
        """Button, answer and examples of a tab. `boxes` are what an example fills; the answer follows at once."""

        def answer(*values) -> str:
            try:
                return draw(*values)
            except ValueError as error:
                return message(str(error))

        button = gr.Button(label, variant="primary", elem_id=f"{tab}-button")
        shown = gr.HTML(hint(next_step), elem_id=f"{tab}-answer")
        chosen = gr.Examples(examples, boxes).load_input_event
        options = {"inputs": inputs, "outputs": shown, "api_visibility": "private", **ONE_AT_A_TIME}
        gr.on([button.click, *(box.submit for box in boxes)], answer, **options)
        chosen.then(answer, **options)

    def add_api(self) -> None:
        """/align, /fill and /nearest, for gradio_client; they give dicts, and errors in the words of the page."""
        first = self.start.name if self.start else ""

        def called(function: Callable, model: str, *values) -> dict:
            try:
                return asdict(function(self.models.get(model), *values))
            except ValueError as error:
                raise gr.Error(str(error), print_exception=False) from error

        def align(
            source: str,
            target: str,
            method: str = "ot",
            layer: int = DEFAULT_LAYER,
            encoding: str = "separate",
            model: str = first,
        ) -> dict:
            """Word links of a pair, as numbers from 0 of its words. Layer -1: two thirds of the way up."""
            return called(align_words, model, source, target, method, layer_of(layer), encoding)

        def fill(text: str, top: int = 5, model: str = first) -> dict:
            """Of each mask in the text the `top` best words: [word, token, probability]."""
            return called(fill_masks, model, text, top)

        def nearest(query: str, sentences: str, layer: int = DEFAULT_LAYER, model: str = first) -> dict:
            """Sentences, one a line, with their cosines, the nearest first. Layer -1: two thirds of the way up."""
            return called(rank_sentences, model, query, sentences, layer_of(layer))

        for function in (align, fill, nearest):
            gr.api(function, api_name=function.__name__, **ONE_AT_A_TIME)


def layer_of(number: int) -> int | None:
    """None, which is the default, for DEFAULT_LAYER."""
    return None if number == DEFAULT_LAYER else number


def insert_label(model: Model | None) -> str:
    """What the button says that inserts a mask, which models spell differently."""
    return INSERT + ((model and model.tokenizer.mask_token) or "<mask>")
