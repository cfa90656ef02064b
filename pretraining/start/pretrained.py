"""Reads the checkpoints and tokenizers that a recipe names; errors name the recipe's field."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from modeling.checkpoints import download_pinned, load_auto_model, load_config, load_tokenizer, without_load_report
from modeling.fresh_weights import fresh_weights
from zoo_core.tables import looks_like_missing_folder, resolve_hub_path


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint or tokenizer that a field of a recipe names. A ValueError about it names the field."""

    name: str  # a folder or a Hub id, or owner/name@revision
    field: str
    hub_root: str | None = None
    trust_remote_code: bool = False

    def __str__(self) -> str:
        return f"{self.field} {self.name!r}"

    @cached_property
    def path(self) -> str:
        """The folder or Hub id; the downloaded folder of an `owner/name@revision`.

        Read it outside of a `try`: its error message is complete.
        """
        path = download_pinned(resolve_hub_path(self.name, self.hub_root))
        if looks_like_missing_folder(path):
            raise ValueError(
                f"{self} does not exist: it is neither a folder nor a Hub id (owner/name). A run's model is in its "
                "subfolder model/. The comment at the top of a recipe has the commands to run before it."
            )
        return path

    def config(self) -> PreTrainedConfig:
        """Reads the configuration."""
        path = self.path
        try:
            return load_config(path, self.trust_remote_code)
        except (OSError, ValueError) as error:
            raise ValueError(f"the configuration of {self} cannot be read: {_reason(error, path)}") from error

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Reads the tokenizer. Raises ValueError, too, if its own code would have to run."""
        path = self.path
        try:
            return load_tokenizer(path, self.trust_remote_code)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"the tokenizer of {self} cannot be loaded: {_reason(error, path)}") from error

    def masked_lm(self, config: PreTrainedConfig, is_whole: bool = False) -> tuple[PreTrainedModel, list[str]]:
        """Reads a masked language model in float32. Returns it with the names of its random weights: those of a head
        that the checkpoint lacks.

        Raises ValueError, too, for other missing weights (`fresh_weights`), and if `is_whole` for any.
        """
        path = self.path
        try:
            with without_load_report():  # the caller reports what is missing
                model, report = load_auto_model(
                    AutoModelForMaskedLM,
                    path,
                    self.trust_remote_code,
                    config=config,
                    dtype=torch.float32,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                )
        except (OSError, ValueError) as error:
            raise ValueError(f"the weights of {self} cannot be read: {_reason(error, path)}") from error
        return model, fresh_weights(model, report, str(self), is_whole)

    def with_tokenizer(self, name: str | None, field: str) -> "Pretrained":
        """Returns the tokenizer that `field` names for this checkpoint, or the checkpoint itself without a name."""
        return replace(self, name=name, field=field) if name else self

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, given: "Pretrained") -> None:
        """Compares `tokenizer`, that of `given`, with the checkpoint's own tokenizer, if it has one.

        Raises ValueError if an id is another token in the two. Added tokens, and ids that only one of them has, are
        left to `check_vocabulary`.
        """
        if given is self:
            return
        with without_load_report():
            try:
                own = self.tokenizer()
            except ValueError:
                return
        # in a folder with only a configuration, transformers makes a tokenizer of special tokens, which are all added
        ours, theirs = _ordinary_tokens(tokenizer), _ordinary_tokens(own)
        common = sorted(ours.keys() & theirs.keys())
        if others := [number for number in common if ours[number] != theirs[number]]:
            number = others[0]
            raise ValueError(
                f"{len(others):,} of {len(common):,} ids are other tokens in {given} than in the tokenizer of "
                f"{self.name!r} (id {number} is {ours[number]!r} and {theirs[number]!r}). Leave {given.field} out, or "
                "name the checkpoint's own tokenizer."
            )


def listed(names: Iterable[str]) -> str:
    """Lists names of weights in order; a name with a layer's number appears once, with `*`."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in sorted(names))) or "nothing"


def _ordinary_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """{id: token}, without special and added tokens."""
    added = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    return {number: token for token, number in tokenizer.get_vocab().items() if number not in added}


def _reason(error: Exception, path: str) -> str:
    """Returns the first line of an error, without the path, which the message has named."""
    return (str(error).strip().splitlines() or [""])[0].removeprefix(f"{path}: ")
