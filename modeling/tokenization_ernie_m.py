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
from pathlib import Path

import sentencepiece
from tokenizers import PreTokenizedString, Token, Tokenizer
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


def cut(subword: str) -> list[tuple[int, int]]:
    """Where a token of SentencePiece is cut: (start, end) of each part; a space sign that is left alone is dropped."""
    parts, start = [], 0
    for index, character in enumerate(subword):
        if character == SPACE:
            continue
        alone = ALONE.match(character)
        turns = index > 0 and character.isdigit() != subword[index - 1].isdigit()
        if not (alone or turns):
            continue
        if start < index and subword[start:index] != SPACE:
            parts.append((start, index))
        start = index
        if alone:
            parts.append((index, index + 1))
            start = index + 1
    if start < len(subword):
        parts.append((start, len(subword)))
    return parts


class SubwordSplitter:
    """What the `tokenizers` library calls for the text between added tokens: cuts it into tokens with ids and offsets.

    Args:
        processor: the SentencePiece model.
        ids: subword -> id.
        unknown_id: id of the subwords that are not in `ids`.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, ids: dict[str, int], unknown_id: int):
        self.processor, self.ids, self.unknown_id = processor, ids, unknown_id

    def subwords(self, text: str) -> list[tuple[int, str, int, int]]:
        """(word, subword, begin, end) in order: words are counted, begin and end count the characters of `text`.

        The space before a word is not in its offsets, and a space sign that is a subword of its own covers nothing.
        """
        normalized, origins = self.processor.normalize(text, with_offsets=True)
        subwords = self.processor.encode(text, out_type=str)
        # where the next character of the text begins; several characters may come of one, as 1, ⁄ and 2 of ½
        ends, following = [0] * len(normalized), origins[-1]
        for index in reversed(range(len(normalized))):
            if origins[index + 1] > origins[index]:
                following = origins[index + 1]
            ends[index] = following

        found, position = [], 0
        for index, subword in enumerate(subwords):
            if subword == SPACE:
                # kept only inside a text, before a subword that has none of its own
                is_kept = 0 < index < len(subwords) - 1 and not subwords[index + 1].startswith(SPACE)
                parts = [(0, 1)] if is_kept else []
            else:
                parts = cut(subword)
            for start, end in parts:
                part = subword[start:end]
                first = position + end - len(part.lstrip(SPACE))
                begin = origins[first]
                stop = begin if part == SPACE else ends[position + end - 1]
                found.append((normalized.count(SPACE, 0, first), part, begin, stop))
            position += len(subword)
        return found

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """The interface of `PreTokenizer.custom`: splits at words, and sets the tokens of each."""
        words = deque()

        def split(_, segment):
            spans = []
            for _, group in groupby(self.subwords(segment.normalized), key=lambda subword: subword[0]):
                words.append(list(group))
                spans.append((words[-1][0][2], words[-1][-1][3]))
            return [segment[begin:end] for begin, end in spans]

        def tokens(word):
            group = words.popleft()
            offset = group[0][2]
            bytes_before = [0, *accumulate(len(character.encode()) for character in word)]
            return [
                Token(
                    self.ids.get(subword, self.unknown_id),
                    subword,
                    (bytes_before[begin - offset], bytes_before[end - offset]),
                )
                for _, subword, begin, end in group
            ]

        text.split(split)
        text.tokenize(tokens)


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
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        cls_token: str = "[CLS]",
        mask_token: str = "[MASK]",
        **kwargs,
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

        self._tokenizer = self.added = None
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
        begin, end = str(self.cls_token), str(self.sep_token)
        self.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=f"{begin}:0 $A:0 {end}:1 {end}:1 $B:1 {end}:1",
            special_tokens=[(begin, self.cls_token_id), (end, self.sep_token_id)],
        )
        self.splitter = SubwordSplitter(self.sp_model, ids, self.unk_token_id)
        self.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(self.splitter)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Writes vocab.txt and sentencepiece.bpe.model. Returns the paths."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        vocabulary, model = (Path(save_directory, prefix + name) for name in FILES.values())
        model.write_bytes(self.sp_model.serialized_model_proto())
        with open(vocabulary, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{subword}\n" for subword in self.lines)
        return str(vocabulary), str(model)

    def _save_pretrained(self, save_directory, file_names, legacy_format=None, filename_prefix=None):
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
        return (*file_names, *self.save_vocabulary(save_directory, filename_prefix))

    def _add_tokens(self, new_tokens, special_tokens=False) -> int:
        """The library's hook for added tokens: keeps a list of them in __dict__, see `__slots__`."""
        count = super()._add_tokens(new_tokens, special_tokens=special_tokens)
        self.added = {index: token.__getstate__() for index, token in sorted(self.added_tokens_decoder.items())}
        return count

    def __getstate__(self):
        """For pickle and copy: the backend without the splitter."""
        backend = self.backend_tokenizer
        backend.pre_tokenizer = None
        try:
            return {**self.__dict__, "_tokenizer": copy.deepcopy(backend)}
        finally:
            backend.pre_tokenizer = PreTokenizer.custom(self.splitter)

    def __setstate__(self, state):
        self._tokenizer = state.pop("_tokenizer")
        self.__dict__.update(state)
        self.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(self.splitter)


# save_pretrained copies this file into the folder, and tokenizer_config.json names it: AutoTokenizer finds it there
ErnieMTokenizer.register_for_auto_class("AutoTokenizer")
