#!/usr/bin/env python3
"""The converter of GGUF files on one made here: convert_gguf_test.py <convert_gguf.py>.

Prints a line PASS, FAIL or SKIP for each check. Expected values are worked out element by element."""

import json
import os
import struct
import subprocess
import sys
import tempfile

DIM, HEADS, KV_HEADS, FFN, TOKENS = 32, 2, 1, 64, 5
HEAD = DIM // HEADS


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    element = 8 if isinstance(value[0], str) else 5
    items = [text(v) if element == 8 else struct.pack("<i", v) for v in value]
    return struct.pack("<IIQ", 9, element, len(value)) + b"".join(items)


def f32(rows, columns, seed):
    """The bytes of a tensor and its values, row by row."""
    values = [[(i * columns + j) * 0.25 - seed for j in range(columns)] for i in range(rows)]
    return 0, b"".join(struct.pack("<%df" % columns, *row) for row in values), values


def q8_0(rows, columns, seed):
    data, values = b"", []
    for i in range(rows):
        row = []
        for block in range(columns // 32):
            scale = 0.5 * (1 + (i + block) % 3)
            numbers = [(i * 7 + j * 5 + seed) % 256 - 128 for j in range(32)]
            data += struct.pack("<e32b", scale, *numbers)
            row += [scale * n for n in numbers]
        values.append(row)
    return 8, data, values


def q4_1(rows, columns, seed):
    data, values = b"", []
    for i in range(rows):
        row = []
        for block in range(columns // 32):
            scale, least = 0.25 * (1 + i % 4), -1.5 - block
            numbers = [(i * 3 + j * 5 + j // 16 * 7 + seed) % 16 for j in range(32)]
            # The first half of a block is in the low halves of the bytes.
            data += struct.pack("<ee16B", scale, least, *[numbers[j] | numbers[j + 16] << 4 for j in range(16)])
            row += [scale * n + least for n in numbers]
        values.append(row)
    return 3, data, values


def model():
    tensors = {"token_embd.weight": q8_0(TOKENS, DIM, 1), "output_norm.weight": f32(1, DIM, 2)}
    shapes = {"attn_q": (q4_1, DIM, DIM), "attn_k": (f32, HEAD * KV_HEADS, DIM), "attn_v": (q8_0, HEAD * KV_HEADS, DIM),
              "attn_output": (q4_1, DIM, DIM), "ffn_gate": (q4_1, FFN, DIM), "ffn_up": (f32, FFN, DIM),
              "ffn_down": (q4_1, DIM, FFN), "attn_norm": (f32, 1, DIM), "ffn_norm": (f32, 1, DIM)}
    for n, (name, (make, rows, columns)) in enumerate(shapes.items()):
        tensors["blk.0.%s.weight" % name] = make(rows, columns, n)
    metadata = {
        "general.architecture": "llama", "general.alignment": 32, "llama.block_count": 1, "llama.context_length": 128,
        "llama.embedding_length": DIM, "llama.feed_forward_length": FFN, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100000.0, "llama.rope.dimension_count": HEAD, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab", "é"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 4], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.chat_template": "{{ x }}"}
    return metadata, tensors


def gguf(metadata, tensors):
    infos, data = b"", b""
    for name, (kind, content, values) in tensors.items():
        extents = [len(values[0])] if name.endswith("norm.weight") else [len(values[0]), len(values)]
        infos += text(name) + struct.pack("<I%dQ" % len(extents), len(extents), *extents)
        infos += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    keys = b"".join(text(key) + typed(value) for key, value in metadata.items())
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + keys + infos
    return header + bytes(-len(header) % 32) + data


def convert(script, folder, content):
    path = os.path.join(folder, "x.gguf")
    with open(path, "wb") as file:
        file.write(content)
    return subprocess.run([sys.executable, script, path, os.path.join(folder, "out")], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def read_safetensors(path):
    with open(path, "rb") as file:
        content = file.read()
    size, = struct.unpack("<Q", content[:8])
    tensors = {}
    for name, entry in json.loads(content[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = content[8 + size + begin:8 + size + end]
            tensors[name] = (entry["shape"], list(struct.unpack("<%df" % (len(data) // 4), data)))
    return tensors


NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
for ours, theirs in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q", "self_attn.q_proj"),
                     ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
                     ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")):
    NAMES["blk.0.%s.weight" % ours] = "model.layers.0.%s.weight" % theirs


def weights(script):
    with tempfile.TemporaryDirectory() as folder:
        metadata, tensors = model()
        done = convert(script, folder, gguf(metadata, tensors))
        assert done.returncode == 0, done.stdout
        got = read_safetensors(os.path.join(folder, "out", "model.safetensors"))
    assert sorted(got) == sorted(NAMES.values()), sorted(got)
    for name, (_, _, values) in tensors.items():
        rows = values
        if "attn_q" in name or "attn_k" in name:
            # A head's rows 0, 2, 4, ... and then its rows 1, 3, 5, ...
            rows = [values[head * HEAD + 2 * j + odd] for head in range(len(values) // HEAD) for odd in (0, 1)
                    for j in range(HEAD // 2)]
        shape, flat = got[NAMES[name]]
        assert shape == ([DIM] if "norm" in name else [len(rows), len(rows[0])]), (name, shape)
        assert flat == [x for row in rows for x in row], name


def texts(script):
    with tempfile.TemporaryDirectory() as folder:
        done = convert(script, folder, gguf(*model()))
        assert done.returncode == 0, done.stdout
        def read(name):
            with open(os.path.join(folder, "out", name), encoding="utf-8") as file:
                return json.load(file)
        config, tokenizer, more = read("config.json"), read("tokenizer.json"), read("tokenizer_config.json")
    want = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
            "intermediate_size": FFN, "rms_norm_eps": 1e-05, "rope_theta": 100000.0, "tie_word_embeddings": True,
            "vocab_size": TOKENS, "bos_token_id": 0, "model_type": "llama"}
    assert {key: config[key] for key in want} == want, config
    assert tokenizer["model"]["vocab"] == {"<|end|>": 0, "a": 1, "b": 2, "ab": 3, "é": 4}, tokenizer
    assert tokenizer["model"]["merges"] == [["a", "b"]], tokenizer
    assert [(t["id"], t["content"], t["special"]) for t in tokenizer["added_tokens"]] == [(0, "<|end|>", True), (4, "é", False)]
    assert more["bos_token"] == "<|end|>" and more["chat_template"] == "{{ x }}", more


def refusals(script):
    def changed(key, value):
        metadata, tensors = model()
        metadata[key] = value
        return gguf(metadata, tensors)
    metadata, tensors = model()
    kinds = dict(tensors, **{"output_norm.weight": (12,) + tensors["output_norm.weight"][1:]})
    names = dict(tensors, **{"blk.0.attn_q.bias": tensors["output_norm.weight"]})
    for content, why in ((changed("general.architecture", "gemma"), "general.architecture is gemma, not llama"),
                         (changed("tokenizer.ggml.pre", "llama-bpe"), "tokenizer.ggml.pre is llama-bpe, none of gpt-2, smollm"),
                         (changed("llama.rope.scaling.type", "yarn"), "llama.rope.scaling.type is yarn, which is not supported"),
                         (changed("tokenizer.ggml.token_type", [3, 1, 1, 1, 6]), "token 4, 'é', has type 6"),
                         (gguf(metadata, kinds), "tensor output_norm.weight has type 12, which is not supported"),
                         (gguf(metadata, names), "tensor blk.0.attn_q.bias is none of a Llama"),
                         (gguf(metadata, tensors)[:-200], "reaches behind the end of the file"),
                         (b"GGML", "does not begin with GGUF")):
        with tempfile.TemporaryDirectory() as folder:
            done = convert(script, folder, content)
            assert done.returncode == 1 and why in done.stdout, (why, done.stdout)
            assert not os.path.exists(os.path.join(folder, "out", "config.json")), why


def main():
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("SKIP conversion of GGUF files: numpy is not installed")
        return
    for name, check in (("weights", weights), ("config and tokenizer", texts), ("refusals", refusals)):
        try:
            check(sys.argv[1])
            print("PASS %s of a GGUF file" % name)
        except AssertionError as error:
            print("FAIL %s of a GGUF file: %s" % (name, str(error).replace("\n", " ")))


if __name__ == "__main__":
    main()
