"""From the ``tokenizer.ggml.*`` metadata of a GGUF file to a checked vocabulary and a `tokenizers` encoder.

Files hold one of two kinds:

- ``gpt2``: byte-level BPE. Token texts are bytes in GPT-2's printable alphabet; the merges stand in the file.
- ``llama``: SentencePiece BPE. Spaces are written U+2581, unknown characters fall back to byte tokens ``<0xNN>``;
  instead of merges there is a score per token, and the pair that makes the best-scored token is merged first.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pagedcache.errors import UnsupportedModel

if TYPE_CHECKING:
    import tokenizers

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # values of tokenizer.ggml.token_type
_SPACE = "\u2581"  # how SentencePiece writes a space
_MAX_PIECE = 256  # characters of a SentencePiece token; each is cut at every place, in quadratic time

# Control tokens that end a text in any model, whatever else the file declares.
_ENDS = set("</s> <|endoftext|> <|end_of_text|> <|eot_id|> <|eom_id|> <|im_end|> <|end|> <end_of_turn>".split())

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_NAMES = {"llama-bpe", "llama-v3", "llama3"}
_PRE_TOKENIZERS = {"gpt-2", "smollm"} | _LLAMA3_NAMES  # the values of tokenizer.ggml.pre that are understood


class Vocabulary:
    """A checked vocabulary: texts, types and ids of all tokens, which one begins and which ones end a text."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model: object = self._get("model", None)
        self.pre: object = self._get("pre", "gpt-2")
        if self.model not in ("gpt2", "llama"):
            raise UnsupportedModel(f"tokenizer.ggml.model is {self.model!r}; only 'gpt2' and 'llama' are read")
        if self.model == "gpt2" and self.pre not in _PRE_TOKENIZERS:
            raise UnsupportedModel(f"tokenizer.ggml.pre is {self.pre!r}; only {sorted(_PRE_TOKENIZERS)} are known")
        self.texts: list[str] = self._list("tokens", str)
        self.types: list[int] = self._list("token_type", int, len(self.texts))
        self.ids = {text: token for token, text in enumerate(self.texts)}
        if len(self.ids) != len(self.texts):
            raise UnsupportedModel("damaged vocabulary: tokenizer.ggml.tokens holds a text twice")
        wants_bos = self._get("add_bos_token", self.model == "llama" or self.pre in _LLAMA3_NAMES)
        self.bos = self._special("bos") if wants_bos else None
        declared = {self._special("eos"), self._special("eot"), self._special("eom")}
        usual = {self.ids[text] for text in _ENDS & self.ids.keys() if self.types[self.ids[text]] == _CONTROL}
        self.ends = frozenset(token for token in declared | usual if token is not None)

    def pieces(self) -> list[bytes]:
        """Return the bytes that each token stands for, none for control tokens."""
        alphabet = _byte_alphabet()
        pieces = []
        for text, kind in zip(self.texts, self.types, strict=True):
            if kind == _CONTROL:
                pieces.append(b"")
            elif kind == _USER_DEFINED:
                pieces.append(text.encode())
            elif self.model == "llama":
                pieces.append(_fallback_byte(text) if kind == _BYTE else text.replace(_SPACE, " ").encode())
            else:
                try:
                    pieces.append(bytes([alphabet[character] for character in text]))
                except KeyError as error:
                    raise UnsupportedModel(f"damaged vocabulary: token {text!r} is not byte-level text") from error
        return pieces

    def encoder(self) -> "tokenizers.Tokenizer":
        """Build the encoder, control and user-defined tokens included."""
        from tokenizers import AddedToken

        encoder = self._sentencepiece() if self.model == "llama" else self._byte_level()
        for kind in (_CONTROL, _USER_DEFINED):
            # The library wants every token's own content; `normalized` would rewrite spaces within it.
            named = [text for text, each in zip(self.texts, self.types, strict=True) if each == kind and text]
            encoder.add_tokens([AddedToken(text, special=kind == _CONTROL, normalized=False) for text in named])
        return encoder

    def _byte_level(self) -> "tokenizers.Tokenizer":
        from tokenizers import Regex, Tokenizer, pre_tokenizers

        # A merge is two token texts with one space between; the texts hold none, their alphabet writes it as "Ġ".
        merges = [tuple(merge.split(" ", 1)) for merge in self._list("merges", str)]
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.pre == "smollm":
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pre in _LLAMA3_NAMES:
            steps.append(pre_tokenizers.Split(Regex(_LLAMA3_WORDS), "isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pre not in _LLAMA3_NAMES))
        encoder = Tokenizer(self._bpe(merges, ignore_merges=self.pre in _LLAMA3_NAMES))
        encoder.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return encoder

    def _sentencepiece(self) -> "tokenizers.Tokenizer":
        from tokenizers import Tokenizer, normalizers

        scores = self._list("scores", float, len(self.texts))
        longest = max(self.texts, key=len, default="")
        if (length := len(longest)) > _MAX_PIECE:
            token = self.ids[longest]
            raise UnsupportedModel(f"token {token} has {length} characters; at most {_MAX_PIECE} are read")
        made = [
            (-scores[token], self.ids[text[:cut]], self.ids[text[cut:]])
            for token, text in enumerate(self.texts)
            for cut in range(1, len(text))
            if text[:cut] in self.ids and text[cut:] in self.ids
        ]
        merges = [(self.texts[left], self.texts[right]) for _, left, right in sorted(made)]
        unknown = next((text for text, kind in zip(self.texts, self.types, strict=True) if kind == _UNKNOWN), None)
        encoder = Tokenizer(self._bpe(merges, byte_fallback=True, fuse_unk=True, unk_token=unknown))
        steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
        if self._get("add_space_prefix", True):
            steps.insert(0, normalizers.Prepend(_SPACE))
        encoder.normalizer = normalizers.Sequence(steps)
        return encoder

    def _bpe(self, merges: list[Any], **options: Any) -> Any:
        from tokenizers import models

        try:
            return models.BPE(self.ids, merges, **options)
        except Exception as error:  # the library raises its errors as bare Exception
            raise UnsupportedModel(f"damaged vocabulary: {error}") from error

    def _get(self, name: str, default: object) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _list(self, name: str, kind: type, length: int | None = None) -> list[Any]:
        items = self._get(name, None)
        if not isinstance(items, list) or any(type(item) is not kind for item in items):
            raise UnsupportedModel(f"damaged vocabulary: tokenizer.ggml.{name} is no list of {kind.__name__}")
        if length is not None and len(items) != length:
            raise UnsupportedModel(f"damaged vocabulary: {len(items)} tokenizer.ggml.{name} for {length} tokens")
        return items

    def _special(self, name: str) -> int | None:
        token = self._get(f"{name}_token_id", None)
        if token is None or (type(token) is int and 0 <= token < len(self.texts)):
            return token
        raise UnsupportedModel(f"damaged vocabulary: {name}_token_id is {token!r}, there are {len(self.texts)} tokens")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable character for each byte: itself where it is printable Latin-1, else from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _fallback_byte(text: str) -> bytes:
    """Return the byte that a SentencePiece token ``<0xNN>`` stands for."""
    try:
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
    except ValueError:
        pass
    raise UnsupportedModel(f"damaged vocabulary: {text!r} is no byte token")
