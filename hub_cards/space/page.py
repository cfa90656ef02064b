"""The page: tabs over one chosen model, drawn by gradio."""

from collections.abc import Callable
from html import escape
from pathlib import Path

import gradio as gr
from answers import ENCODINGS, METHODS, Classified, align_words, fill_masks, rank_sentences, run_head
from drawing import TABS, alignment, classified, filled, hint, marked, message, model_facts, ranking
from loading import Model, Models
from samples import LANGUAGE_OF, pool, samples

TITLE = "Try a cross-lingual encoder"
ABOUT = "Which words are translations of each other, which word is behind a mask, which sentences mean the same."
TRUST = (
    "No code of a model named here runs: models of this zoo are loaded by its own code, others by transformers. What "
    "needs code of its own is refused."
)
LINKS = (Path(__file__).parent / "links.js").read_text(encoding="utf-8")
HEAD_BOXES = {  # by task: labels of the two boxes; the second is hidden without one
    "text-classification": ("A text", "A second text, where the model reads pairs"),
    "token-classification": ("A text", ""),
    "question-answering": ("A question", "A text that answers it"),
}
ONE_AT_A_TIME = {"concurrency_limit": 1, "concurrency_id": "model"}  # a tokenizer cannot serve two threads at once
WAITING = 64  # requests; more are asked to come back


class Page:
    """The page over `models`; `start`: the model that is there when it opens, or None. `blocks` is what is launched."""

    def __init__(self, models: Models, start: Model | None):
        self.models, self.start = models, start
        with gr.Blocks(title=TITLE, analytics_enabled=False) as self.blocks:
            gr.Markdown(f"# {TITLE}\n{ABOUT}", elem_classes="zoo-title")
            self.add_choice()
            self.samples: dict[str, gr.Dataset] = {}
            self.answers: list[tuple] = []  # functions with their inputs and outputs
            with gr.Tabs(selected="head" if start and start.head else "align"):
                for tab, add in zip(
                    TABS, (self.add_align, self.add_fill, self.add_nearest, self.add_head), strict=True
                ):
                    with gr.Tab(TABS[tab], id=tab, elem_id=f"{tab}-tab"):
                        add()
            if not self.models.only_listed:
                self.add_another()
            self.connect_choice()
        self.blocks.queue(max_size=WAITING)

    def add_choice(self) -> None:
        """The list of models, what is known of the chosen one."""
        name = self.start.name if self.start else None
        self.current = gr.State(name)
        self.choice = gr.Dropdown(
            self.models.names, value=name, label="Model", filterable=False, interactive=True, elem_id="model"
        )
        self.facts = gr.HTML(
            model_facts(self.start) if self.start else hint("No model yet: name one below."), elem_id="facts"
        )

    def add_another(self) -> None:
        """The box to name another model, at the end of the page."""
        with gr.Accordion("Another model", open=self.start is None, elem_id="another"):
            self.named = gr.Textbox(
                label="A folder, or an id on the Hub",
                placeholder="runs/veco/model or FacebookAI/xlm-roberta-base",
                elem_id="named",
                submit_btn="Load",
            )
            gr.Markdown(TRUST, elem_classes="zoo-trust", elem_id="trust")

    def connect_choice(self) -> None:
        """What happens when a model is chosen or named."""
        outputs = [self.choice, self.current, self.facts, *self.samples.values(), *self.head_boxes]
        options = {"outputs": outputs, "api_visibility": "private", "show_progress_on": self.facts, **ONE_AT_A_TIME}
        events = [self.choice.input(self.use, [self.choice, self.current], **options)]
        if not self.models.only_listed:
            events.append(self.named.submit(self.use, [self.named, self.current], **options))
        for event in events:  # the new model also answers what is in the boxes
            for answer, inputs, shown in self.answers:
                event.then(answer, inputs, shown, api_visibility="private", **ONE_AT_A_TIME)

    def use(self, name: str | None, current: str | None) -> dict:
        """Takes up a model, or says why not and leaves all as it is."""
        try:
            model = self.models.get(name)
        except ValueError as error:
            stays = f" {current} stays in use." if current else ""
            gr.Warning(escape(f"{error}{stays}"), duration=None)
            return {self.choice: gr.update(value=current)}
        new = samples(model)
        updates = {
            self.choice: gr.update(choices=self.models.names, value=model.name),
            self.current: model.name,
            self.facts: model_facts(model),
        }
        updates |= {shown: gr.update(**dataset_of(new[tab])) for tab, shown in self.samples.items()}
        if model.head:
            texts = next(iter(new["head"].values()))
            updates |= {
                box: gr.update(value=text, label=label, visible=bool(label))
                for box, text, label in zip(self.head_boxes, texts, HEAD_BOXES[model.head], strict=True)
            }
        return updates

    def add_align(self) -> None:
        """The tab of word links."""
        with gr.Row():
            source = gr.Textbox(label="A sentence", elem_id="source", min_width=300)
            target = gr.Textbox(label="Its translation", elem_id="target", min_width=300)
        with gr.Accordion("Settings", open=False), gr.Row():
            method = gr.Dropdown(
                list(METHODS.items()), value="ot_words", label="Method", filterable=False, min_width=260
            )
            encoding = gr.Dropdown(
                list(ENCODINGS.items()), value="separate", label="The model reads them", filterable=False, min_width=200
            )

        def draw(name, x, y, how, reads):
            return alignment(align_words(self.models.get(name), x, y, how, reads))

        inputs = [self.choice, source, target, method, encoding]
        self.add_answer("align", "Align", draw, inputs, [source, target], js_on_load=LINKS, apply_default_css=False)

    def add_fill(self) -> None:
        """The tab of masked words."""
        text = gr.Textbox(label="A sentence with masks in place of words", elem_id="masked-text")
        with gr.Accordion("Settings", open=False):
            top = gr.Slider(1, 20, value=5, step=1, label="Words for each mask", elem_id="top")

        def draw(name, masked, count):
            return filled(fill_masks(self.models.get(name), masked, count))

        self.add_answer("fill", "Fill in", draw, [self.choice, text, top], [text])

    def add_nearest(self) -> None:
        """The tab of nearest sentences."""
        query = gr.Textbox(label="A sentence, in any language", elem_id="query")
        with gr.Accordion("Sentences to search", open=False):
            options = {"lines": 6, "max_lines": 12, "elem_id": "pool"}
            searched = gr.Textbox(pool(self.start), label="One a line", **options)

        def draw(name, text, sentences):
            return ranking(rank_sentences(self.models.get(name), text, sentences), LANGUAGE_OF)

        self.add_answer("nearest", "Find", draw, [self.choice, query, searched], [query])

    def add_head(self) -> None:
        """The tab of what a model was fine-tuned for; style.css hides it from others, as gradio keeps an open one."""
        labels = HEAD_BOXES[self.start.head] if self.start and self.start.head else ("", "")
        self.head_boxes = [
            gr.Textbox(label=label, elem_id=f"head-text-{number}", visible=bool(label))
            for number, label in enumerate(labels, start=1)
        ]

        def draw(name, text, second):
            found = run_head(self.models.get(name), text, second)
            return classified(found) if isinstance(found, Classified) else marked(found)

        self.add_answer("head", "Run", draw, [self.choice, *self.head_boxes], self.head_boxes)

    def add_answer(self, tab: str, label: str, draw: Callable, inputs: list, boxes: list, **options) -> None:
        """Button, answer and samples of a tab. `boxes` are what a sample fills, in `inputs` behind the model's name.

        The page opens with the first sample and its answer; `options` are of the answer's HTML.
        """
        first, rest = inputs[0], inputs[1 + len(boxes) :]
        start = samples(self.start)[tab]
        for box, text in zip(boxes, next(iter(start.values())), strict=True):
            box.value = text

        def answer(*values) -> str:
            if not values[0]:
                return hint("Name a model above.")
            try:
                return draw(*values)
            except ValueError as error:
                return message(str(error))

        def take(sample, name, *others) -> list:
            return [*sample, answer(name, *sample, *others)]

        button = gr.Button(label, variant="primary", elem_id=f"{tab}-button")
        self.samples[tab] = gr.Dataset(
            components=boxes, label="Examples", elem_id=f"{tab}-samples", **dataset_of(start)
        )
        shown = gr.HTML(answer(*(part.value for part in inputs)), elem_id=f"{tab}-answer", **options)
        self.answers.append((answer, inputs, shown))
        options = {"show_progress_on": shown, **ONE_AT_A_TIME}
        gr.on([button.click, *(box.submit for box in boxes)], answer, inputs, shown, api_name=tab, **options)
        sample = [self.samples[tab], first, *rest]
        self.samples[tab].click(take, sample, [*boxes, shown], api_visibility="private", **options)


def dataset_of(named: dict[str, list[str]]) -> dict[str, list]:
    """Samples by name, as gr.Dataset takes them."""
    return {"samples": list(named.values()), "sample_labels": list(named)}
