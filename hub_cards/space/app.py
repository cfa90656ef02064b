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
from collections.abc import Callable
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
MAX_CHARACTERS = 4000
MAX_SENTENCES = 200
MAX_MASKS = 20
MAX_TOP = 20
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
POOL = "\n".join(dict.fromkeys(text for source, target in PAIRS for text in (target, source)))


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
        config = self.states.model.config
        parameters = sum(weight.numel() for weight in self.whole.parameters())
        head = self.task.replace("-", " ") or "no head"
        line = f"**{config.model_type}** · {parameters / 1e6:,.1f}M parameters · {config.num_hidden_layers} layers"
        line += f" · reads {self.positions:,} tokens · {head}"
        if parameters < TOY_PARAMETERS:
            line += "\n\n**This is a toy model, far too small for any language. Its answers mean little.**"
        return line


@functools.lru_cache(maxsize=3)
def load(name: str, trust_remote_code: bool = False) -> Model:
    """Loads a folder or Hub id, on the CPU. Raises ValueError or OSError for what is no text encoder, cannot be read,
    lacks weights of its encoder or has others than finite ones, or needs its own code."""
    source = download_pinned(name)
    config = load_config(source, trust_remote_code)
    tokenizer = load_tokenizer(source, trust_remote_code)
    suffix = saved_suffix(config)
    auto_class = getattr(transformers, f"AutoModel{suffix}")
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = load_auto_model(auto_class, source, trust_remote_code, dtype=torch.float32, **report)
    is_encoder = model.eval().base_model is model
    fresh = fresh_weights(model, info, name, is_whole=is_encoder)
    is_whole = all(POOLER.search(key) for key in fresh)
    check_finite(model, name)
    states = LayerStates(model)
    if len(tokenizer) > config.vocab_size:
        raise ValueError(f"{name}: the tokenizer has {len(tokenizer):,} tokens, the model {config.vocab_size:,}.")
    task = TASKS.get(suffix, "")
    is_plug_in = getattr(
        config, "plug_in", False
    )  # this head also reads translations, and the page has no field for them
    lacks_mask = task == "fill-mask" and tokenizer.mask_token_id is None
    if not is_whole or is_plug_in or lacks_mask:
        task = ""
    aligner = transformers.pipeline(
        "word-alignment",
        pipeline_class=WordAlignmentPipeline,
        model=states.model,
        tokenizer=tokenizer,
        device="cpu",
    )
    positions = min(states.longest_input or sys.maxsize, tokenizer.model_max_length)  # 1e30 where it has no limit
    return Model(tokenizer, states, model, task, aligner, positions)


def saved_suffix(config: Any) -> str:
    """The end of the class that was saved, of TASKS; that of masked LM where a folder's code has one; else empty."""
    saved = (config.architectures or [""])[0]
    for suffix in TASKS:
        if saved.endswith(suffix):
            return suffix
    auto_map = getattr(config, "auto_map", None) or {}
    return "ForMaskedLM" if "AutoModelForMaskedLM" in auto_map else ""


def checked(name: str, text: Any, longest: int = MAX_CHARACTERS) -> str:
    """The text without white space around it. Raises ValueError for what is empty or no text, and for a long one."""
    if not isinstance(text, str):
        text = ""
    text = text.encode("utf-8", "replace").decode().strip()
    if not text:
        raise ValueError(f"{name} is empty, or no text.")
    if len(text) > longest:
        raise ValueError(f"{name} has {len(text):,} characters: this page takes {longest:,}.")
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
    source = checked("The first sentence", source)
    target = checked("The second sentence", target)
    alignment = model.aligner((source, target), probabilities=True, layer=model.layer)
    groups = group_numbers(alignment["links"])
    first = [(f"{word} ", groups.get(("source", position))) for position, word in enumerate(alignment["source"])]
    second = [(f"{word} ", groups.get(("target", position))) for position, word in enumerate(alignment["target"])]
    links = []
    for (i, j), probability in zip(alignment["links"], alignment["probabilities"], strict=True):
        links.append([alignment["source"][i], alignment["target"][j], round(probability, 3)])
    return first, second, links


def group_numbers(links: list[tuple[int, int]]) -> dict[tuple[str, int], str]:
    """The number, from 1, of the group of each linked word (side, position): words that links join, directly or not."""
    groups: list[set[tuple[str, int]]] = []
    for i, j in links:
        joined = {("source", i), ("target", j)}
        others = []
        for group in groups:
            if group.isdisjoint(joined):
                others.append(group)
            else:
                joined |= group
        groups = [*others, joined]
    numbers = {}
    for number, group in enumerate(sorted(groups, key=min), start=1):
        numbers |= dict.fromkeys(group, str(number))
    return numbers


def fill_masks(model: Model, text: str, top: int = 5) -> tuple[str, list]:
    """The text with the best token at each mask, each mask by itself, and [mask, token, probability] of the `top` best.

    A mask may be spelled as the model's own, or as <mask> or [MASK].
    """
    if model.task != "fill-mask":
        raise ValueError("This model has no masked-LM head: try the pre-trained model that it started from.")
    tokenizer = model.tokenizer
    text = checked("The sentence", text)
    if top not in range(1, MAX_TOP + 1):
        raise ValueError(f"{str(top)[:20]} is no number of words for a mask: give 1 to {MAX_TOP}.")
    for spelling in MASKS:
        text = text.replace(spelling, tokenizer.mask_token)
    inputs = encoded(model, text)
    input_ids = inputs["input_ids"][0]
    positions = input_ids.eq(tokenizer.mask_token_id).nonzero()[:, 0]
    if not 0 < len(positions) <= MAX_MASKS:
        raise ValueError(
            f"The text has {len(positions)} masks: put {tokenizer.mask_token} in place of 1 to {MAX_MASKS} words."
        )
    with torch.inference_mode():
        logits = model.whole(**inputs).logits[0, positions].float()
    best = logits.softmax(-1).topk(min(int(top), logits.shape[1]))
    filled = input_ids.clone()
    filled[positions] = best.indices[:, 0]
    rows = []
    for number, (tokens, probabilities) in enumerate(zip(best.indices, best.values, strict=True), start=1):
        for token, probability in zip(tokens.tolist(), probabilities.tolist(), strict=True):
            word = tokenizer.decode([token]).strip() or tokenizer.convert_ids_to_tokens(token)
            rows.append([number, word, round(probability, 4)])
    return tokenizer.decode(filled, skip_special_tokens=True), rows


def rank_sentences(model: Model, query: str, sentences: str) -> list:
    """[cosine with the query, sentence] of sentences, one a line, the nearest first."""
    query = checked("The sentence", query)
    lines = checked("The list of sentences", sentences, MAX_SENTENCES * (MAX_CHARACTERS + 1)).splitlines()
    lines = [checked(f"{line[:20]}...", line) for line in lines if line.strip()]
    lines = list(dict.fromkeys(lines))
    if len(lines) > MAX_SENTENCES:
        raise ValueError(f"There are {len(lines)} sentences to search: give 1 to {MAX_SENTENCES}, one a line.")
    vectors = sentence_vectors(model, [query, *lines])
    cosines = torch.nn.functional.cosine_similarity(vectors[:1], vectors[1:]).tolist()
    rows = [[round(cosine, 3), line] for cosine, line in zip(cosines, lines, strict=True)]
    return sorted(rows, reverse=True)


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
    texts = {"text": text}
    if model.task == "text-classification" and not is_empty:
        texts["text_pair"] = checked("The second text", second)
    encoded(model, *texts.values())
    run = transformers.pipeline(model.task, model=model.whole, tokenizer=model.tokenizer, device="cpu")
    if model.task == "text-classification":
        scores = run(texts, top_k=None)
        return {score["label"]: score["score"] for score in scores}, None
    # taggers learn the label of a word's first token; without spaces, as in Chinese, each token goes by itself
    strategy = "first" if " " in text else "simple"
    with warnings.catch_warnings(action="ignore"):  # that words are found by spaces: they are
        return None, {"text": text, "entities": run(text, aggregation_strategy=strategy)}


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

    def answering(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a listed model's name, whose ValueError the page shows."""

        def answer(name: Any, *values: Any) -> Any:
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
            parts_of_page = ("fill-mask", "classification", "text-classification", "token-classification")
            updates = [gr.update(visible=chosen.task.endswith(end)) for end in parts_of_page]
            return chosen.facts, *updates

        description = [answering(describe), model, [facts, mask_tab, head_tab, labels, parts]]
        alignment = [answering(align_words), [model, source, target], [*sides, links]]
        page.load(*description, api_visibility="private", **settings)
        page.load(*alignment, api_visibility="private", **settings)
        model.input(*description, api_visibility="private", **settings)
        align.click(*alignment, api_name="align", **settings)
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
    models = flags.model or [name.strip() for name in os.environ.get("ZOO_MODELS", "").split(",") if name.strip()]
    if not models:
        models = metadata_load(Path(__file__).with_name("README.md"))["models"]
    models = list(dict.fromkeys(models))
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
