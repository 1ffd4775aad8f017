"""llama.cpp, through its C functions: they are exported by the library inside the xllamacpp wheel.

The wheel's own classes start a server; here its functions are called by ctypes, so that nothing but ``llama_decode``
and the search for the largest logit is timed. The structures are those of the version in serving_requirements.txt.
Each sequence has a stream of cells of its own, which is faster than one unified cache.
"""

import ctypes
import importlib.metadata
import importlib.util
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_uint32, c_void_p
from pathlib import Path

import numpy as np

GGML_TYPE = {"f32": 0, "f16": 1}
FLASH_AUTO, FLASH_OFF = -1, 0


class ModelParams(ctypes.Structure):
    """``llama_model_params``; passed as it comes from llama.cpp."""

    _fields_ = [("opaque", ctypes.c_uint64 * 12)]


class ContextParams(ctypes.Structure):
    """``llama_context_params``."""

    _fields_ = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, c_int32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor")),
        *((name, c_float) for name in ("yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("callbacks", c_void_p * 3),
        *((name, c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("opaque", ctypes.c_uint64 * 4),
    ]


DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_outputs_max_per_seq": 1, "n_threads": 4,
    "n_threads_batch": 4, "flash_attn_type": -1, "yarn_ext_factor": -1.0, "defrag_thold": -1.0, "type_k": 1,
    "type_v": 1, "embeddings": False, "offload_kqv": True, "kv_unified": False,
}  # fmt: skip


class Batch(ctypes.Structure):
    """``llama_batch``."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


FUNCTIONS = {  # what they return, what they take
    "llama_model_default_params": (ModelParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_context_default_params": (ContextParams, []),
    "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_print_system_info": (c_char_p, []),
    "llama_backend_init": (None, []),
}


def library():
    """The functions above, if the structures are those that this file knows."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None:
        raise ImportError("no xllamacpp is installed here")
    functions = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    for name, (returns, takes) in FUNCTIONS.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = returns, takes
    found = functions.llama_context_default_params()
    for name, value in DEFAULTS.items():
        if getattr(found, name) != value:
            raise ImportError(
                f"{name} of llama_context_params is {getattr(found, name)} where {value} is expected: another version "
                "of llama.cpp than serving_requirements.txt asks for"
            )
    return functions


def version():
    flags = library().llama_print_system_info().decode()
    used = " ".join(part.split(" = ")[0].split(" : ")[-1] for part in flags.split(" | ") if part.endswith(" = 1"))
    return f"llama.cpp of xllamacpp {importlib.metadata.version('xllamacpp')} ({used})"


class Side:
    """`count` sequences of at most `length` tokens each."""

    def __init__(self, options):
        self.llama = library()
        self.llama.llama_backend_init()
        model = self.llama.llama_model_load_from_file(
            str(options.model).encode(), self.llama.llama_model_default_params()
        )
        self.vocab = self.llama.llama_vocab_n_tokens(self.llama.llama_model_get_vocab(model))
        params = self.llama.llama_context_default_params()
        params.n_ctx = options.count * options.length
        params.n_seq_max = options.count
        params.n_threads = params.n_threads_batch = options.threads
        params.type_k = params.type_v = GGML_TYPE[options.kv]
        # With flash attention, llama.cpp rounds float32 K and V to float16.
        params.flash_attn_type = FLASH_OFF if options.kv == "f32" else FLASH_AUTO
        self.context = self.llama.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError("llama.cpp refused to make a context")
        self.batch = self.llama.llama_batch_init(params.n_batch, 0, 1)
        self.lengths = []  # tokens of each sequence

    def prefill(self, prompts):
        """Add a sequence per prompt, in one batch; the greedy token after each."""
        first = len(self.lengths)
        self.lengths += [0] * len(prompts)
        return self._forward(range(first, len(self.lengths)), prompts)

    def decode(self, tokens):
        """Give each sequence its next token; the greedy token after it."""
        return self._forward(range(len(self.lengths)), [[token] for token in tokens])

    def rewind(self, position):
        """Forget what comes after the first `position` tokens of each sequence."""
        for sequence in range(len(self.lengths)):
            if not self.llama.llama_memory_seq_rm(self.llama.llama_get_memory(self.context), sequence, position, -1):
                raise RuntimeError(f"llama.cpp could not cut sequence {sequence} at {position}")
            self.lengths[sequence] = position

    def _forward(self, sequences, rows):
        batch, n, last = self.batch, 0, []
        for sequence, tokens in zip(sequences, rows, strict=True):
            for token in tokens:
                batch.token[n], batch.pos[n], batch.logits[n] = token, self.lengths[sequence], 0
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
                self.lengths[sequence] += 1
                n += 1
            last.append(n - 1)
            batch.logits[n - 1] = 1
        batch.n_tokens = n
        if status := self.llama.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        return [int(self._logits(i).argmax()) for i in last]

    def _logits(self, i):
        return np.ctypeslib.as_array(self.llama.llama_get_logits_ith(self.context, i), (self.vocab,))
