"""A page to try cross-lingual encoders on: word links, masked words, similar sentences, the head of a fine-tuned model.

    python hub_cards/space/app.py --model runs/xlm_align-smoke/model

This folder is a Space: uploaded with crosslingual_zoo/modeling in it, it runs there. It needs gradio, torch and
transformers.
"""

import argparse
import functools
import html
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent.parent))  # of a checkout, with crosslingual_zoo/
# what is typed here stays here; gradio reads both when it is imported
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["GRADIO_RUN_HISTORY"] = "False"

import gradio as gr
import torch
import transformers
from huggingface_hub import metadata_load
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from crosslingual_zoo.modeling.checkpoints import (
    POOLER,
    download_pinned,
    fresh_weights,
    load_auto_model,
    load_config,
    load_tokenizer,
)
from crosslingual_zoo.modeling.layer_states import LayerStates, check_finite, default_layer
from crosslingual_zoo.modeling.pipeline_word_alignment import WordAlignmentPipeline

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
TASKS = {  # by the end of the class that was saved: what such a model is used for
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
}
MAX_CHARACTERS, MAX_SENTENCES, MAX_MASKS, MAX_TOP = 4000, 200, 20, 20
MASKS = ("<mask>", "[MASK]")  # spellings of a mask that everybody knows
TOY_PARAMETERS = 10_000_000  # below: the vocabulary of a real encoder of many languages alone has more
COLORS = ("red", "green", "blue", "yellow", "purple", "teal", "orange", "cyan", "lime", "pink")
PAIRS = [
    ["The children are reading a book in the garden.", "Die Kinder lesen im Garten ein Buch."],
    ["My brother bought fresh bread at the market.", "我哥哥在市场买了新鲜的面包。"],
    ["The children are reading a book in the garden.", "الأطفال يقرؤون كتابًا في الحديقة."],
    ["It will rain tomorrow.", "Kesho mvua itanyesha."],
]
MASKED = ["The children are reading a <mask> in the garden.", "Die Kinder lesen ein <mask>.", "孩子们在看<mask>。"]
POOL = "\n".join(dict.fromkeys(text for pair in PAIRS for text in pair[::-1]))


@dataclass
class Model:
    """A loaded model. whole: with its head; task: of that head, a value of TASKS, or empty; states: gives those of the
    encoder; positions: longest input in tokens, special ones included."""

    tokenizer: Any
    states: LayerStates
    whole: Any
    task: str
    aligner: Any
    positions: int

    @property
    def layer(self) -> int:
        """The layer whose states are compared."""
        return default_layer(self.states.model.config.num_hidden_layers)

    @property
    def facts(self) -> str:
        """What was loaded, in a line of Markdown, and whether it is a toy."""
        config, parameters = self.states.model.config, sum(weight.numel() for weight in self.whole.parameters())
        line = f"**{config.model_type}** · {parameters / 1e6:,.1f}M parameters · {config.num_hidden_layers} layers"
        line += f" · reads {self.positions:,} tokens · {self.task.replace('-', ' ') or 'no head'}"
        toy = "\n\n**This is a toy model, far too small for any language. Its answers mean little.**"
        return line + toy * (parameters < TOY_PARAMETERS)


@functools.lru_cache(maxsize=3)
def load(name: str, trust_remote_code: bool = False) -> Model:
    """Loads a folder or Hub id, on the CPU. Raises ValueError or OSError for what is no text encoder, cannot be read,
    lacks weights of its encoder or has others than finite ones, or needs its own code."""
    source = download_pinned(name)
    config, tokenizer = load_config(source, trust_remote_code), load_tokenizer(source, trust_remote_code)
    saved = (config.architectures or [""])[0]
    fills = "AutoModelForMaskedLM" in (getattr(config, "auto_map", None) or {})  # whichever class was saved
    suffix = next((end for end in TASKS if saved.endswith(end)), "ForMaskedLM" * fills)
    kind = getattr(transformers, f"AutoModel{suffix}")
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, found = load_auto_model(kind, source, trust_remote_code, dtype=torch.float32, **report)
    base = model.eval().base_model
    missing = [key for key in fresh_weights(model, found, name, is_whole=base is model) if not POOLER.search(key)]
    check_finite(model, name)
    states = LayerStates(model)
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{name}: the tokenizer has {len(tokenizer):,} tokens, the model {config.vocab_size:,}.")
    # a plug-in head reads translations too, which the page does not ask for
    task = TASKS.get(suffix, "") if not missing and not getattr(config, "plug_in", False) else ""
    task = "" if task == "fill-mask" and tokenizer.mask_token_id is None else task
    given = {"model": states.model, "tokenizer": tokenizer, "device": "cpu"}
    aligner = transformers.pipeline("word-alignment", pipeline_class=WordAlignmentPipeline, **given)
    positions = min(states.longest_input or sys.maxsize, tokenizer.model_max_length)  # 1e30 where it has no limit
    return Model(tokenizer, states, model, task, aligner, positions)


def checked(what: str, text: Any, longest: int = MAX_CHARACTERS) -> str:
    """The text without white space around it. Raises ValueError for what is empty or no text, and for a long one."""
    text = text.encode("utf-8", "replace").decode().strip() if isinstance(text, str) else ""
    if not text:
        raise ValueError(f"{what} is empty, or no text.")
    if len(text) > longest:
        raise ValueError(f"{what} has {len(text):,} characters: this page takes {longest:,}.")
    return text


def encoded(model: Model, *texts: str) -> Any:
    """A text, or a pair, as the model's input. Raises ValueError where it is longer than the model reads."""
    inputs = model.tokenizer(*texts, return_tensors="pt", verbose=False)
    if (length := inputs["input_ids"].shape[1]) > model.positions:
        raise ValueError(f"The text has {length:,} tokens, and the model reads {model.positions:,}: shorten it.")
    return inputs


def align_words(model: Model, source: str, target: str) -> tuple[list, list, list]:
    """Links between the words of two sentences, by the word-alignment pipeline.

    Returns the words of both sentences, each with the number of its group of linked words or None, and the links:
    [word, partner, probability].
    """
    source, target = checked("The first sentence", source), checked("The second sentence", target)
    found = model.aligner((source, target), probabilities=True, layer=model.layer)
    groups: list[set] = []  # (side, place) of words that links join, directly or not
    for i, j in found["links"]:
        joined = [group for group in groups if (0, i) in group or (1, j) in group]
        groups = [group for group in groups if group not in joined] + [{(0, i), (1, j)}.union(*joined)]
    number_of = {word: str(number) for number, group in enumerate(sorted(groups, key=min), start=1) for word in group}
    first, second = (
        [(f"{word} ", number_of.get((side, place))) for place, word in enumerate(found[name])]
        for side, name in enumerate(("source", "target"))
    )
    links = zip(found["links"], found["probabilities"], strict=True)
    return first, second, [[found["source"][i], found["target"][j], round(share, 3)] for (i, j), share in links]


def fill_masks(model: Model, text: str, top: int = 5) -> tuple[str, list]:
    """The text with the best token at each mask, each mask by itself, and [mask, token, probability] of the `top` best.

    A mask may be spelled as the model's own, or as <mask> or [MASK].
    """
    if model.task != "fill-mask":
        raise ValueError("This model has no masked-LM head: try the pre-trained model that it started from.")
    mask, text = model.tokenizer.mask_token, checked("The sentence", text)
    if top not in range(1, MAX_TOP + 1):
        raise ValueError(f"{str(top)[:20]} is no number of words for a mask: give 1 to {MAX_TOP}.")
    for spelling in MASKS:
        text = text.replace(spelling, mask)
    inputs = encoded(model, text)
    places = inputs["input_ids"][0].eq(model.tokenizer.mask_token_id).nonzero()[:, 0]
    if not 0 < len(places) <= MAX_MASKS:
        raise ValueError(f"The text has {len(places)} masks: put {mask} in place of 1 to {MAX_MASKS} words.")
    with torch.inference_mode():
        logits = model.whole(**inputs).logits[0, places].float()
    best = logits.softmax(-1).topk(min(int(top), logits.shape[1]))
    filled, decode = inputs["input_ids"][0].clone(), model.tokenizer.decode
    filled[places] = best.indices[:, 0]
    rows = [
        [number, decode([token]).strip() or model.tokenizer.convert_ids_to_tokens(token), round(share, 4)]
        for number, found in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), start=1)
        for token, share in zip(*found, strict=True)
    ]
    return decode(filled, skip_special_tokens=True), rows


def rank_sentences(model: Model, query: str, sentences: str) -> list:
    """[cosine with the query, sentence] of sentences, one a line, the nearest first."""
    query = checked("The sentence", query)
    lines = checked("The list of sentences", sentences, MAX_SENTENCES * (MAX_CHARACTERS + 1)).splitlines()
    lines = list(dict.fromkeys(checked(f"{line[:20]}...", line) for line in lines if line.strip()))
    if len(lines) > MAX_SENTENCES:
        raise ValueError(f"There are {len(lines)} sentences to search: give 1 to {MAX_SENTENCES}, one a line.")
    vectors = sentence_vectors(model, [query, *lines])
    cosines = torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:]).tolist()
    return sorted(([round(cosine, 3), line] for cosine, line in zip(cosines, lines, strict=True)), reverse=True)


def sentence_vectors(model: Model, texts: list[str]) -> Any:
    """(texts, hidden size): the mean of a text's states at the default layer, as in the zoo's retrieval task.

    Special tokens are left out of the mean. Texts are cut at the model's length.
    """
    special = [token for token in model.tokenizer.all_special_ids if token != model.tokenizer.unk_token_id]
    means = []
    for text in texts:
        inputs = model.tokenizer(text, truncation=True, max_length=model.positions, return_tensors="pt")
        with torch.inference_mode():
            states = model.states(dict(inputs), [model.layer])[model.layer][0]
        counts = ~torch.isin(inputs["input_ids"][0], torch.tensor(special))
        means.append(states[counts].sum(0) / counts.sum().clamp(min=1))
    return torch.stack(means)


def run_head(model: Model, text: str, second: str | None = None) -> tuple[dict[str, float] | None, dict | None]:
    """What a fine-tuned head says: the labels of a text, or of a pair; or the text with its labeled parts."""
    if not model.task.endswith("classification"):
        raise ValueError("This model has no head that was fine-tuned for a task.")
    text = checked("The text", text)
    is_empty = second is None or (isinstance(second, str) and not second.strip())  # the API sends null for no text
    pair = [text]
    if model.task == "text-classification" and not is_empty:
        pair.append(checked("The second text", second))
    encoded(model, *pair)
    run = transformers.pipeline(model.task, model=model.whole, tokenizer=model.tokenizer, device="cpu")
    if model.task == "text-classification":
        found = run(dict(zip(("text", "text_pair"), pair, strict=False)), top_k=None)
        return {one["label"]: one["score"] for one in found}, None
    # taggers learn the label of a word's first token; without spaces, as in Chinese, each token goes by itself
    with warnings.catch_warnings(action="ignore"):  # that words are found by spaces: they are
        return None, {"text": text, "entities": run(text, aggregation_strategy="first" if " " in text else "simple")}


class NoFiles:
    """Refuses requests with files: the page takes none, and gradio would keep them on the disk, also empty ones."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        if is_http and Headers(scope=scope).get("content-type", "").lower().startswith("multipart/"):
            refusal = PlainTextResponse("This page takes no files.", status_code=413)
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def make_page(models: list[str], trust_remote_code: bool) -> Any:
    """The page over the listed models; no other is loaded. The first one is loaded at once."""

    def answering(function):
        """The function of a listed model's name, whose ValueError the page shows."""

        def answer(name, *values):
            try:
                if name not in models:
                    raise ValueError(f"{str(name)[:80]} is not listed: only listed models are loaded.")
                return function(load(name, trust_remote_code), *values)
            except (ValueError, OSError) as error:
                raise gr.Error(html.escape(str(error)), print_exception=False) from None

        return answer

    # a tokenizer cannot serve two threads at once; the functions check what gradio would
    settings = {"concurrency_limit": 1, "concurrency_id": "model", "preprocess": False}
    load(models[0], trust_remote_code)
    with gr.Blocks(title="Try a cross-lingual encoder", analytics_enabled=False) as page:
        gr.Markdown("# Try a cross-lingual encoder")
        model = gr.Dropdown(models, value=models[0], label="Model", visible=len(models) > 1)
        facts = gr.Markdown()
        with gr.Tab("Word links"):
            with gr.Row():
                source = gr.Textbox(PAIRS[0][0], label="A sentence", min_width=300)
                target = gr.Textbox(PAIRS[0][1], label="A translation", min_width=300)
            align = gr.Button("Align", variant="primary")
            colors = {str(number): COLORS[number % len(COLORS)] for number in range(MAX_CHARACTERS)}
            with gr.Row():
                sides = [gr.HighlightedText(color_map=colors, show_label=False) for _ in range(2)]
            links = gr.Dataframe(headers=["word", "partner", "probability"], label="Links", wrap=True)
            gr.Examples(PAIRS, [source, target])
        with gr.Tab("Masks", visible=False) as mask_tab:  # shown with its model: gradio hides no tab that it began with
            text = gr.Textbox(MASKED[0], label="A sentence with <mask> in place of words")
            top = gr.Slider(1, MAX_TOP, value=5, step=1, label="Words for each mask")
            fill = gr.Button("Fill in", variant="primary")
            filled = gr.Textbox(label="With the best words, each mask by itself")
            words = gr.Dataframe(headers=["mask", "word", "probability"], label="Words", wrap=True)
            gr.Examples([[example] for example in MASKED], [text])
        with gr.Tab("Sentences"):
            query = gr.Textbox(PAIRS[0][0], label="A sentence, in any language")
            pool = gr.Textbox(POOL, lines=5, label="Sentences to search, one a line")
            find = gr.Button("Find", variant="primary")
            nearest = gr.Dataframe(
                headers=["cosine", "sentence"], label="The nearest first", wrap=True, column_widths=["25%", "75%"]
            )
        with gr.Tab("Labels", visible=False) as head_tab:
            head_text = gr.Textbox(PAIRS[0][0], label="A text")
            second = gr.Textbox(label="A second text, where the model reads pairs")
            run = gr.Button("Run", variant="primary")
            labels = gr.Label(label="Labels", visible=False)
            parts = gr.HighlightedText(label="Labeled parts", visible=False)

        def describe(chosen: Model) -> tuple:
            kinds = ("fill-mask", "classification", "text-classification", "token-classification")
            return chosen.facts, *(gr.update(visible=chosen.task.endswith(kind)) for kind in kinds)

        shown = [answering(describe), model, [facts, mask_tab, head_tab, labels, parts]]
        aligned = [answering(align_words), [model, source, target], [*sides, links]]
        for event, given in ((page.load, shown), (page.load, aligned), (model.input, shown)):
            event(*given, api_visibility="private", **settings)
        align.click(*aligned, api_name="align", **settings)
        fill.click(answering(fill_masks), [model, text, top], [filled, words], api_name="fill", **settings)
        find.click(answering(rank_sentences), [model, query, pool], nearest, api_name="nearest", **settings)
        run.click(answering(run_head), [model, head_text, second], [labels, parts], api_name="head", **settings)
    return page.queue(max_size=64)


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line, loads the first model, and serves the page until it is stopped."""
    parser = argparse.ArgumentParser(prog="app.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model",
        action="append",
        help="a folder that holds a model, or its id on the Hub; give several. Only these are loaded. Default: the "
        "variable ZOO_MODELS, with commas between them, or else `models` of README.md",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        default=os.environ.get("ZOO_TRUST_REMOTE_CODE") == "1",
        help="run the code that these models bring (default: ZOO_TRUST_REMOTE_CODE is 1)",
    )
    host = os.environ.get("GRADIO_SERVER_NAME") or LOOPBACK[0]
    parser.add_argument("--host", default=host, help="0.0.0.0 lets other machines in (default: %(default)s)")
    parser.add_argument("--port", type=int, help="default: GRADIO_SERVER_PORT, else the first free one from 7860 on")
    flags = parser.parse_args(arguments)
    transformers.logging.set_verbosity(50)  # pipelines list all classes that are none of the zoo's as an error
    named = [name.strip() for name in os.environ.get("ZOO_MODELS", "").split(",") if name.strip()]
    models = list(dict.fromkeys(flags.model or named or metadata_load(Path(__file__).with_name("README.md"))["models"]))
    # a page of another site that calls itself by another name for this machine is refused
    hosts = LOOPBACK if flags.host in LOOPBACK else ["*"]
    try:
        make_page(models, flags.trust_remote_code).launch(
            server_name=flags.host,
            server_port=flags.port,
            share=False,  # no tunnel, regardless of GRADIO_SHARE
            ssr_mode=False,
            footer_links=["api"],
            theme=gr.themes.Default(font="system-ui", font_mono="ui-monospace"),  # nothing is fetched
            app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=hosts), Middleware(NoFiles)]},
        )
    except (ValueError, OSError) as error:  # no model, or a port that is taken
        parser.exit(2, f"app.py: error: {error}\n")


if __name__ == "__main__":
    main()
