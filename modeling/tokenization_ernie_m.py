# SPDX-License-Identifier: Apache-2.0
"""ERNIE-M's own tokenizer: the ids that its released checkpoints and transformers 4 give, with offsets and word ids.

SentencePiece splits the text; then every Chinese character and every punctuation mark becomes a subword of its own, and
a subword is cut wherever digits begin or end. Ids are the line numbers of vocab.txt. A fine-tuned checkpoint
understands only the ids it was trained with; XLM-R's tokenizer, the default of this zoo, gives other ones.

Format: `[CLS] x [SEP]`, `[CLS] x [SEP] [SEP] y [SEP]`.
"""

import copy
import json
import re
from collections import deque
from itertools import accumulate, groupby
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
from tokenizers import AddedToken, NormalizedString, PreTokenizedString, Token, Tokenizer
from tokenizers.decoders import Fuse, Replace, Sequence, Strip
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPACE = "▁"  # SentencePiece's sign for a space
# characters that are subwords of their own: these marks, and the block of unified Chinese characters
ALONE = re.compile("[,;:.?!~，；：。？！《》【】\u4e00-\u9fff]")
FILES = {"vocab_file": "vocab.txt", "sentencepiece_model_ckpt": "sentencepiece.bpe.model"}


class Subword(NamedTuple):
    """A subword of a text: the number of its word, and where it is, in characters of the text from 0."""

    word: int
    text: str
    begin: int
    end: int


def cut(piece: str) -> list[tuple[int, int]]:
    """Where a token of SentencePiece is cut: (start, end) of each part; a space sign that is left alone is dropped."""
    parts = []
    start = 0
    for index, character in enumerate(piece):
        if character == SPACE:
            continue
        is_alone = ALONE.match(character) is not None
        digits_turn = index > 0 and character.isdigit() != piece[index - 1].isdigit()
        if not (is_alone or digits_turn):
            continue
        if start < index and piece[start:index] != SPACE:
            parts.append((start, index))
        start = index
        if is_alone:
            parts.append((index, index + 1))
            start = index + 1
    if start < len(piece):
        parts.append((start, len(piece)))
    return parts


def parts_of(pieces: list[str], index: int) -> list[tuple[int, int]]:
    """Where a token of SentencePiece in a text is cut. A space sign that is a token of its own is only read inside a
    text, before a token that has none."""
    if pieces[index] != SPACE:
        return cut(pieces[index])
    is_inside = 0 < index < len(pieces) - 1
    if is_inside and not pieces[index + 1].startswith(SPACE):
        return [(0, 1)]
    return []


def following_origins(origins: list[int]) -> list[int]:
    """Where the next character of the text begins, for each normalized character; `origins`: where its own does.

    Several characters may come of one, as 1, ⁄ and 2 of ½. The last origin is the end of the text.
    """
    ends = origins[1:]
    following = origins[-1]
    for index in reversed(range(len(ends))):
        if origins[index + 1] > origins[index]:
            following = origins[index + 1]
        ends[index] = following
    return ends


class SubwordSplitter:
    """What the `tokenizers` library calls for the text between added tokens: cuts it into tokens with ids and offsets.

    Args:
        processor: the SentencePiece model.
        ids: subword -> id.
        unknown_id: id of the subwords that are not in `ids`.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, ids: dict[str, int], unknown_id: int):
        self.processor = processor
        self.ids = ids
        self.unknown_id = unknown_id

    def subwords(self, text: str) -> list[Subword]:
        """The subwords of a text, in order.

        The space before a word is not in its offsets, and a space sign that is a subword of its own covers nothing.
        """
        normalized, origins = self.processor.normalize(text, with_offsets=True)
        pieces = self.processor.encode(text, out_type=str)
        ends = following_origins(list(origins))
        subwords = []
        position = 0  # of the piece in the normalized text
        for index, piece in enumerate(pieces):
            for start, end in parts_of(pieces, index):
                part = piece[start:end]
                first = position + end - len(part.lstrip(SPACE))
                begin = origins[first]
                stop = begin if part == SPACE else ends[position + end - 1]
                word = normalized.count(SPACE, 0, first)
                subwords.append(Subword(word, part, begin, stop))
            position += len(piece)
        return subwords

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """The interface of `PreTokenizer.custom`: splits at words, and sets the tokens of each."""
        words: deque[list[Subword]] = deque()

        def split(_: int, segment: NormalizedString) -> list[Any]:
            parts = []
            for _, group in groupby(self.subwords(segment.normalized), key=lambda subword: subword.word):
                word = list(group)
                words.append(word)
                parts.append(segment[word[0].begin : word[-1].end])
            return parts

        def tokens_of(word: str) -> list[Token]:
            subwords = words.popleft()
            offset = subwords[0].begin
            bytes_before = [0, *accumulate(len(character.encode()) for character in word)]
            tokens = []
            for subword in subwords:
                span = (bytes_before[subword.begin - offset], bytes_before[subword.end - offset])
                tokens.append(Token(self.ids.get(subword.text, self.unknown_id), subword.text, span))
            return tokens

        text.split(split)
        text.tokenize(tokens_of)


class ErnieMTokenizer(PreTrainedTokenizerFast):
    """ERNIE-M's tokenizer, with all that the library's fast tokenizers offer: batches, windows, offsets, word ids.

    Args:
        sentencepiece_model_ckpt: path of sentencepiece.bpe.model.
        vocab_file: path of vocab.txt, a subword a line.
        do_lower_case: lower-case the text first.

    Equal to transformers 4: subwords, ids, the format of pairs, truncation, token types (not returned by default). Not
    equal, on purpose: an attention mask is returned by default, which transformers 4 left to the model.

    Raises ValueError for a folder without both files, and for a SentencePiece model with byte fallback.

    Example:
        >>> tokenizer = ErnieMTokenizer.from_pretrained("susnato/ernie-m-base_pytorch")
        >>> inputs = tokenizer(["The house is small."], ["Das Haus ist klein."], return_tensors="pt")  # (B, T)

    Source: ERNIE-M of transformers 4 and of PaddleNLP.
    """

    # The backend holds the splitter, which is Python and which it cannot write. `datasets` hashes an object's __dict__
    # to recognize it, and would fail there: in a slot, the backend is no part of it.
    __slots__ = ("_tokenizer",)

    vocab_files_names = FILES
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        sentencepiece_model_ckpt: str | None = None,
        vocab_file: str | None = None,
        do_lower_case: bool = False,
        unk_token: str | AddedToken = "[UNK]",
        sep_token: str | AddedToken = "[SEP]",
        pad_token: str | AddedToken = "[PAD]",
        cls_token: str | AddedToken = "[CLS]",
        mask_token: str | AddedToken = "[MASK]",
        **kwargs: Any,
    ):
        if sentencepiece_model_ckpt is None or vocab_file is None:
            raise ValueError(f"the folder must have {' and '.join(FILES.values())} of the original checkpoint.")
        # what the library makes of a folder's files for its own tokenizers
        for name in ("vocab", "merges", "tokenizer_file", "tokenizer_object"):
            kwargs.pop(name, None)
        self.do_lower_case = do_lower_case
        self.sp_model = sentencepiece.SentencePieceProcessor(model_file=sentencepiece_model_ckpt)
        if any(self.sp_model.is_byte(index) for index in range(len(self.sp_model))):
            raise ValueError(f"{sentencepiece_model_ckpt} has byte fallback: give the one of an ERNIE-M checkpoint.")
        with open(vocab_file, encoding="utf-8") as file:  # not splitlines(): subwords hold other line breaks
            self.lines = [line.rstrip("\n") for line in file]
        ids = {subword: index for index, subword in enumerate(self.lines)}

        self._tokenizer = None
        self.added: dict[int, dict[str, Any]] | None = None
        backend = Tokenizer(WordLevel(ids, unk_token=str(unk_token)))
        if do_lower_case:
            backend.normalizer = Lowercase()
        backend.decoder = Sequence([Replace(SPACE, " "), Fuse(), Strip(" ", 1, 0)])
        # replaced below: only now are the ids of the special tokens known, which the vocabulary may lack
        backend.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
        super().__init__(
            tokenizer_object=backend,
            do_lower_case=do_lower_case,
            unk_token=unk_token,
            sep_token=sep_token,
            pad_token=pad_token,
            cls_token=cls_token,
            mask_token=mask_token,
            **kwargs,
        )
        begin = str(self.cls_token)
        end = str(self.sep_token)
        self.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=f"{begin}:0 $A:0 {end}:1 {end}:1 $B:1 {end}:1",
            special_tokens=[(begin, self.cls_token_id), (end, self.sep_token_id)],
        )
        self.splitter = SubwordSplitter(self.sp_model, ids, self.unk_token_id)
        self.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(self.splitter)

    def save_vocabulary(  # pyrefly: ignore[bad-override]  # the library's type is that of a single file
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Writes vocab.txt and sentencepiece.bpe.model. Returns the paths."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        vocabulary = Path(save_directory, prefix + FILES["vocab_file"])
        model = Path(save_directory, prefix + FILES["sentencepiece_model_ckpt"])
        model.write_bytes(self.sp_model.serialized_model_proto())
        with open(vocabulary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{subword}\n" for subword in self.lines)
        return str(vocabulary), str(model)

    def _save_pretrained(
        self,
        save_directory: str | PathLike[str],
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        """The library's hook for the files other than tokenizer_config.json.

        A tokenizer.json cannot hold ERNIE-M's rules: others would read it and give wrong ids. So none is written, and
        the added tokens that it would hold go into tokenizer_config.json, as in transformers 4.
        """
        config_file = Path(file_names[0])
        settings = json.loads(config_file.read_text(encoding="utf-8"))
        settings["added_tokens_decoder"] = self.added
        for trace in ("is_local", "local_files_only"):  # of the load; they would follow the tokenizer to the Hub
            settings.pop(trace, None)
        config_file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return (*file_names, *self.save_vocabulary(str(save_directory), filename_prefix))

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """The library's hook for added tokens: keeps a list of them in __dict__, see `__slots__`."""
        count = super()._add_tokens(new_tokens, special_tokens=special_tokens)
        tokens = sorted(self.added_tokens_decoder.items())
        self.added = {index: token.__getstate__() for index, token in tokens}
        return count

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: the backend without the splitter."""
        backend = self.backend_tokenizer
        backend.pre_tokenizer = None
        try:
            return {**self.__dict__, "_tokenizer": copy.deepcopy(backend)}
        finally:
            backend.pre_tokenizer = PreTokenizer.custom(self.splitter)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The backend, and the splitter in it again."""
        self._tokenizer = state.pop("_tokenizer")
        self.__dict__.update(state)
        self.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(self.splitter)


# save_pretrained copies this file into the folder, and tokenizer_config.json names it: AutoTokenizer finds it there
ErnieMTokenizer.register_for_auto_class("AutoTokenizer")
