"""Reads word links from the attention between two sentences, and scores them: AER of every layer.

  python -m finetuning.tools.attention_links --config finetuning/recipes/xlm_align/word_alignment.yaml \\
    model=runs/veco/model

VECO's Figure 1 shows such attention. The recipe names sentences and gold links. For a VECO encoder, the attention is
the cross-attention of its plugged-in module: x attends to the last states of y, and y to those of x. For any other
encoder, it is the self-attention between the two sentences in one input. The heads are averaged. Two words are linked
if a token of each gives its largest weight to the other. Writes output_dir/results.json.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from finetuning.models import describe_model, load_pretrained
from finetuning.results.protocol import Metric
from finetuning.tasks.word_alignment.layers import score
from finetuning.tasks.word_alignment.recipe import WordAlignmentRecipe
from finetuning.tasks.word_alignment.task import WordAlignmentTask
from finetuning.tools.attention_map import cross_attention, joint_attention
from zoo_core.command_line import parse_command_line, user_errors
from zoo_core.console import CONSOLE, quiet_libraries
from zoo_core.provenance import write_json


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    recipe, _ = parse_command_line(WordAlignmentRecipe, __doc__, {}, argv)
    with user_errors():
        quiet_libraries()
        data = WordAlignmentTask(recipe).read()
        path, config, tokenizer, _ = describe_model(
            recipe.model, recipe.tokenizer, recipe.hub_root, trust_remote_code=recipe.trust_remote_code
        )
        from transformers import AutoModel

        # the other implementations do not return weights
        model = load_pretrained(
            AutoModel, path, recipe.model, recipe.trust_remote_code, attn_implementation="eager"
        ).eval()
        method = "cross-attention" if getattr(config, "cross_attention", False) else "self-attention"
        rows = []
        for name, pair in data.pairs.items():
            sentences = track(pair.gold, description=name, console=CONSOLE)
            found = {number: links_of(model, tokenizer, *pair.sentences[number]) for number in sentences}
            for layer in range(config.num_hidden_layers):
                scores = score({number: links[layer] for number, links in found.items()}, pair.gold)
                row = dict(language=name, method=method, layer=layer + 1, seed=1, split="test")
                rows += [{**row, "metric": metric, "value": value} for metric, value in scores.items()]
        data.protocol.metric, data.protocol.method = Metric(name="aer", greater_is_better=False), method
        facts = dict(format=2, task="attention_links", kind="word_alignment", setting="feature", seeds=[1])
        write_json(
            Path(recipe.output_dir) / "results.json",
            {
                **facts,
                "model": {"folder": recipe.model},
                "command": sys.argv,
                "protocol": data.protocol.as_json(),
                "scores": rows,
            },
        )


@torch.no_grad()
def links_of(model: Any, tokenizer: Any, x: list[str], y: list[str]) -> list[list[tuple[int, int]]]:
    """Returns the links of the words of x and y, layer by layer."""
    encode = partial(tokenizer, is_split_into_words=True)
    if getattr(model.config, "cross_attention", False):
        encodings = [encode(x), encode(y)]
        maps = cross_attention(model, tokenizer, *encodings)
    else:
        encodings = [encode(x, y)]
        maps = joint_attention(model, tokenizer, *encodings)
    x_words, y_words = encodings[0].word_ids(), encodings[-1].word_ids()
    x_places, y_places = ([n for n, own in enumerate(maps[-side].row_sides) if own == side] for side in (0, 1))
    x_reads_y, y_reads_x = maps[0].weights.mean(1), maps[-1].weights.mean(1)
    forward_LX = x_reads_y[:, x_places][:, :, y_places].argmax(2)
    backward_LY = y_reads_x[:, y_places][:, :, x_places].argmax(2)
    return [
        sorted({(x_words[x_places[i]], y_words[y_places[j]]) for i, j in enumerate(forward) if backward[j] == i})
        for forward, backward in zip(forward_LX, backward_LY, strict=True)
    ]


if __name__ == "__main__":
    main()
