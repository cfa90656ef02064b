"""Draws the attention between the tokens of two sentences as a heat map, after Figure 1 of VECO (Luo et al., ACL 2021).

    python -m finetuning.tools.attention_map --model runs/veco/model --source "Take a seat and have a rest" \\
        --target "坐下来休息一下" --output attention.png
    python -m finetuning.tools.attention_map --model runs/veco/model --kind cross --layer 6 --source ... --target ...

- `joint`: self-attention over both sentences in one input, `<s> x </s></s> y </s>`, for any encoder that AutoModel
  loads. The title of a layer has the share of attention from one sentence to the other.
- `cross`: cross-attention of a VECO encoder: x attends to the last states of y, and y to those of x.

Rows attend to columns; a row sums to 1. All layers are drawn unless you give --layer. The paper's figure is the mean
over the heads of the middle layer of base-size XLM and XLM-R.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo_core.command_line import CommandParser, user_errors
from zoo_core.recipes import TRUST_REMOTE_CODE


@dataclass
class AttentionMap:
    """Attention from one sequence to another, or to itself.

    name: for the titles. rows, columns: their tokens (T and S). row_sides, column_sides: 0 for a token of the source,
    1 for one of the target, None for special tokens. weights: (L, A, T, S), layers and heads.
    """

    name: str
    rows: list[str]
    columns: list[str]
    row_sides: list[int | None]
    column_sides: list[int | None]
    weights: np.ndarray

    def across(self, matrix_TS: np.ndarray) -> float | None:
        """Returns the mean share of attention to the other sentence; None if the columns are one sentence."""
        rows, columns = np.array(self.row_sides, dtype=float), np.array(self.column_sides, dtype=float)
        if len(set(self.column_sides) - {None}) < 2:
            return None
        other_TS = rows[:, None] == 1 - columns[None]  # special tokens are nan, which equals nothing
        return float((matrix_TS * other_TS).sum(1)[~np.isnan(rows)].mean())


def read_attention(
    model: str,
    source: str,
    target: str,
    kind: str = "joint",
    hub_root: str | None = None,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
) -> list[AttentionMap]:
    """Returns the attention of all layers and heads: one map for `joint`, two for VECO's `cross`.

    Raises ValueError for an empty sentence, `cross` with a model without cross-attention, and sentences that are longer
    than the model's positions.
    """
    import torch
    from transformers import AutoModel

    from finetuning.models import describe_model, load_pretrained
    from zoo_core.vocabularies import longest_input

    path, config, tokenizer, _ = describe_model(model, tokenizer, hub_root, trust_remote_code=trust_remote_code)
    is_joint = kind == "joint"
    if not is_joint and not getattr(config, "cross_attention", False):
        raise ValueError(
            f"kind is cross, and {model} ({config.model_type}) has no cross-attention, only "
            "self-attention over both sentences. Use kind joint, or name the folder of a VECO encoder."
        )
    inputs = [tokenizer(source, target)] if is_joint else [tokenizer(source), tokenizer(target)]
    longest = max(len(encoding["input_ids"]) for encoding in inputs)
    if longest > longest_input(config):
        raise ValueError(
            f"The input has {longest} tokens, and {model} has {longest_input(config)} positions. Give shorter "
            "sentences."
        )
    for name, side in (("source", 0), ("target", 1)):
        if (side if is_joint else 0) not in inputs[0 if is_joint else side].sequence_ids(0):
            raise ValueError(f"{name} has no token. Give two sentences.")
    # the other implementations do not return weights
    loaded = load_pretrained(AutoModel, path, model, trust_remote_code, attn_implementation="eager")
    with torch.no_grad():
        return (joint_attention if is_joint else cross_attention)(loaded, tokenizer, *inputs)


def _ids(encoding, device):
    import torch

    return torch.tensor([encoding["input_ids"]], device=device)


def joint_attention(model, tokenizer, pair) -> list[AttentionMap]:
    """Returns the self-attention over both sentences of one encoding."""
    attentions = model(_ids(pair, model.device), output_attentions=True).attentions
    tokens, sides = tokenizer.convert_ids_to_tokens(pair["input_ids"]), pair.sequence_ids(0)
    return [AttentionMap("self-attention", tokens, tokens, sides, sides, _stack(attentions))]


def cross_attention(model, tokenizer, source, target) -> list[AttentionMap]:
    """Returns the attention of x to H_y and of y to H_x: the S stream of `VecoForPreTraining`, causal if trained so."""
    import torch

    sides = []
    for number, encoding in enumerate((source, target)):
        ids_1T = _ids(encoding, model.device)
        tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
        numbers = [None if place is None else number for place in encoding.sequence_ids(0)]
        sides.append((ids_1T, model(ids_1T).last_hidden_state, tokens, numbers))
    maps = []
    for name, own, other in (("source reads target", *sides), ("target reads source", *reversed(sides))):
        length = own[0].shape[1]
        mask_1TT = torch.ones(1, length, length, dtype=torch.bool, device=model.device)
        if getattr(model.config, "cross_stream", None) == "causal":
            mask_1TT = mask_1TT.tril()
        outputs = model(own[0], attention_mask=mask_1TT, encoder_hidden_states=other[1], output_attentions=True)
        maps.append(AttentionMap(name, own[2], other[2], own[3], other[3], _stack(outputs.cross_attentions)))
    return maps


def _stack(attentions) -> np.ndarray:
    """L of (1, A, T, S) -> (L, A, T, S)."""
    return np.stack([layer[0].float().cpu().numpy() for layer in attentions])


def choose(maps: list[AttentionMap], layer: int | None) -> list[tuple[int, AttentionMap, np.ndarray]]:
    """Returns (layer, map, mean (T, S) over its heads) of each panel; `layer` counts from 1, None: all.

    Raises ValueError for a layer that the model does not have.
    """
    layers = len(maps[0].weights)
    if layer is not None and not 1 <= layer <= layers:
        raise ValueError(
            f"layer is {layer}, and the model has {layers} layers. Give a number from 1 to {layers}, or leave --layer "
            "out for all."
        )
    chosen = range(1, layers + 1) if layer is None else [layer]
    return [(number, item, item.weights[number - 1].mean(0)) for number in chosen for item in maps]


def fonts_for(text: str) -> list[str]:
    """Returns the names of installed fonts with glyphs of `text`: matplotlib's own, and fonts with what it lacks."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    lacking = set(map(ord, text)) - set(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())
    # matplotlib's font of last resort has a box for every character
    fonts = [font for font in fontManager.ttflist if lacking and not font.name.startswith("Last Resort")]
    found = [font.name for font in fonts if lacking & set(get_font(font.fname).get_charmap())]
    return ["DejaVu Sans", *dict.fromkeys(found)]


def draw(panels: list[tuple[int, AttentionMap, np.ndarray]], title: str, output: str | Path) -> None:
    """Writes the heat maps, one per panel; matplotlib warns of characters that no installed font has."""
    import matplotlib
    from matplotlib.figure import Figure

    maps = list({id(item): item for _, item, _ in panels}.values())
    families = fonts_for("".join(token for item in maps for token in (*item.rows, *item.columns)))
    tokens = max(len(side) for item in maps for side in (item.rows, item.columns))
    inches = min(9.0, max(2.6, 0.17 * tokens + 1.0))  # of a panel
    size = min(8.0, 50 * inches / tokens)  # of a label, in points
    columns = len(maps) * max(1, math.ceil(math.sqrt(len(panels)) / len(maps)))
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    highest = max(matrix.max() for _, _, matrix in panels)  # one scale, so that panels can be compared
    with matplotlib.rc_context({"font.family": families}):
        figure = Figure(figsize=(inches * columns, (inches + 0.3) * rows + 0.4), layout="constrained")
        for place, (layer, item, matrix_TS) in enumerate(panels):
            axes = figure.add_subplot(rows, columns, place + 1)
            image = axes.imshow(matrix_TS, cmap="Blues", vmin=0.0, vmax=highest, interpolation="nearest", aspect="auto")
            axes.set_xticks(range(len(item.columns)), item.columns, rotation=90)
            axes.set_yticks(range(len(item.rows)), item.rows)
            axes.tick_params(labelsize=size, length=0)
            across = item.across(matrix_TS)
            share = "" if across is None else f", {across:.0%} across"
            axes.set_title(f"layer {layer}: {item.name}{share}", fontsize=9)
            if across is not None:  # a line where the target's part of the input begins
                border = item.column_sides.index(1) - 1.5
                axes.axhline(border, color="tab:orange", linewidth=0.8)
                axes.axvline(border, color="tab:orange", linewidth=0.8)
        bar = dict(shrink=min(1.0, 4 / (inches * rows)), aspect=30, pad=0.01, label="attention, mean of the heads")
        figure.colorbar(image, ax=figure.axes, **bar)
        figure.suptitle(title, fontsize=10)
        figure.savefig(output, dpi=110)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="model folder or Hub id")
    parser.add_argument("--source", required=True, metavar="TEXT", help="first sentence, x")
    parser.add_argument("--target", required=True, metavar="TEXT", help="second sentence, y: its translation")
    parser.add_argument("--output", required=True, metavar="FILE", help="image to write: .png, .pdf, .svg")
    parser.add_argument("--kind", choices=("joint", "cross"), default="joint", help="see above (default joint)")
    parser.add_argument("--layer", type=int, metavar="N", help="one layer, counted from 1 (default: all)")
    parser.add_argument("--hub_root", metavar="DIR", help="folder that mirrors the Hub")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    parser.add_argument("--tokenizer", metavar="DIR", help="folder or Hub id of the tokenizer (default: the model's)")
    flags = parser.parse_args(argv)
    with user_errors():
        from matplotlib.backend_bases import FigureCanvasBase
        from transformers.utils import logging

        logging.set_verbosity_error()  # the heads that are not read
        logging.disable_progress_bar()
        output, formats = Path(flags.output), FigureCanvasBase.get_supported_filetypes()
        if output.suffix[1:] not in formats:
            raise ValueError(
                f"output is {flags.output}. Use one of {', '.join('.' + name for name in sorted(formats))}."
            )
        asked = (flags.model, flags.source, flags.target, flags.kind)
        maps = read_attention(*asked, flags.hub_root, flags.tokenizer, flags.trust_remote_code)
        panels = choose(maps, flags.layer)
        output.parent.mkdir(parents=True, exist_ok=True)
        draw(panels, f"{flags.model}, mean of all heads; rows attend to columns", output)
        print(f"written: {output}")


if __name__ == "__main__":
    main()
