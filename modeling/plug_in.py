# SPDX-License-Identifier: Apache-2.0
"""VECO's heads on [H_x : S_x] of a text x (ACL 2021, section 3.1; `config.plug_in`).

H_x is the encoder's last layer for x alone, S_x that of the same layers with cross-attention to H_y, where y translates
x; and [H_y : S_y] of y, with cross-attention to H_x. Plug-out, heads read H_x, as XLM-R's do.

Legend: `B` sequences, `T` positions of x, `S` of y, `H` hidden size, `F` = 2H.
"""

import torch

from .attention_masks import as_block_mask

# what both streams of x get in addition to its tokens and their mask
INPUT_FIELDS = ("inputs_embeds", "position_ids", "token_type_ids")


def cross_stream_mask(config, attention_mask):
    """Self-attention mask of the stream that reads another sequence: as given, or causal (`config.cross_stream`), where
    token t attends to tokens s <= t."""
    return attention_mask if config.cross_stream == "bidirectional" else as_block_mask(attention_mask).tril()


class PlugIn:
    """Before a head among the base classes of a model: it reads a translation, where `config.plug_in` is set.

    Where the paper is silent: gradients flow through H_x and H_y (their stop-gradient belongs to pre-training, section
    2.2), the S stream is bidirectional or causal as it was pre-trained (`config.cross_stream`), and a single head
    serves both sides.

    Raises `ValueError` for `config.plug_in` without cross-attention.
    """

    def __init__(self, config):
        if config.plug_in and not config.cross_attention:
            raise ValueError(f"{type(self).__name__} with plug_in=True needs cross-attention: load a VECO encoder.")
        super().__init__(config)

    def encode(self, input_ids, attention_mask, **kwargs):
        """See `HeadModel.encode`: features (B, T, F) of x and, where y has labels, (B, S, F) of y.

        Args:
            input_ids, attention_mask: x, (B, T).
            kwargs: the `translation_*` fields, None where one was not given; further inputs of the encoder go to x.

        Raises:
            ValueError: plug-out with y; plug-in without y, or with a mask that is not (B, T).
        """
        if not self.config.plug_in:
            return super().encode(input_ids, attention_mask, **kwargs)
        names = [name for name in kwargs if name.startswith("translation_")]
        of_y = {name.removeprefix("translation_"): kwargs.pop(name) for name in names}
        if of_y.get("input_ids") is None:
            raise ValueError(
                f"plug-in without y: {type(self).__name__} has plug_in=True, give translation_input_ids and "
                "translation_attention_mask (a Trainer keeps them with remove_unused_columns=False)."
            )
        x = {"input_ids": input_ids, **{name: kwargs.pop(name) for name in INPUT_FIELDS if name in kwargs}}
        y = {name: of_y.get(name) for name in ("input_ids", "token_type_ids")}
        mask_x_BT = padding_mask("x", input_ids if input_ids is not None else x["inputs_embeds"], attention_mask)
        mask_y_BS = padding_mask("y", y["input_ids"], of_y.get("attention_mask"))
        # each H once; it serves the head and the other side
        outputs = self.roberta(**x, attention_mask=mask_x_BT, return_dict=True, **kwargs)
        alone_x_BTH = outputs.last_hidden_state
        alone_y_BSH = self.roberta(**y, attention_mask=mask_y_BS, return_dict=True).last_hidden_state

        def features(side, mask_BT, alone_BTH, other_BSH, other_mask_BS):
            crossed = self.roberta(
                **side,
                attention_mask=cross_stream_mask(self.config, mask_BT),
                encoder_hidden_states=other_BSH,
                encoder_attention_mask=other_mask_BS,
                return_dict=True,
            )
            return torch.cat([alone_BTH, crossed.last_hidden_state], dim=-1), mask_BT

        sides = [features(x, mask_x_BT, alone_x_BTH, alone_y_BSH, mask_y_BS)]
        if any(name.endswith(("labels", "_positions")) and value is not None for name, value in of_y.items()):
            sides.append(features(y, mask_y_BS, alone_y_BSH, alone_x_BTH, mask_x_BT))
        return outputs, sides


def padding_mask(side: str, tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The mask (B, T) of one side, all 1 by default. Raises ValueError for another shape: the heads of a pair have no
    use for block masks."""
    if attention_mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    if attention_mask.shape != tokens.shape[:2]:
        raise ValueError(
            f"the attention mask of {side} has shape {tuple(attention_mask.shape)}, and its text "
            f"{tuple(tokens.shape[:2])}: give a mask (B, T), 1 for tokens and 0 for padding."
        )
    return attention_mask
