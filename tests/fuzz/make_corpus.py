"""Writes the seeds of corpus/: make_corpus.py <corpus>. Files that a fuzzer found stand beside them as "found_*"."""

import json
import os
import struct
import sys


def tensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def sized(content):
    return struct.pack("<H", len(content)) + content


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "two": tensors({"a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [4], 24, 32)}, bytes(range(32))),
    "metadata": tensors({"__metadata__": {"format": "pt"}, "w": entry("F16", [1], 0, 2)}, b"ab"),
    "scalar_and_none": tensors({"s": entry("F64", [], 0, 8), "n": entry("I64", [0, 5], 8, 8)}, bytes(8)),
    "types": tensors({t: entry(t, [2], 2 * i, 2 * i + 2) for i, t in enumerate(["U8", "I8", "BOOL", "F8_E4M3", "F8_E5M2"])}
                     | {"wide": entry("U64", [1], 10, 18), "x": entry("U16", [1], 18, 20)}, bytes(20)),
    "nothing": tensors({}),
    "spaces": tensors(b'{}      '),
    "escapes": tensors(b'{"\\u00fc\\ud83d\\ude00":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "overlap": tensors({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "hole": tensors({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)),
    "overlap_and_hole": tensors({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(16)),
    "another_size": tensors({"a": entry("F32", [1], 0, 8)}, bytes(8)),
    "huge": tensors({"a": entry("F32", [2**62, 4], 0, 8)}, bytes(8)),
    "wraps": tensors({"a": entry("F64", [2**31, 2**31, 4], 0, 0)}),
    "twice": tensors(b'{"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "long_header": struct.pack("<Q", 2**63) + b"{}",
    "most_header": struct.pack("<Q", 100_000_000) + b"{}",
}

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 192, "model_type": "llama",
          "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
          "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True, "vocab_size": 256}
INDEX = {"metadata": {"total_size": 1024}, "weight_map": {"a.weight": "model-00001-of-00002.safetensors",
                                                        "b.weight": "model-00002-of-00002.safetensors"}}
TOKENIZER = {"added_tokens": [{"id": 0, "content": "<|endoftext|>", "special": True}],
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
             "model": {"type": "BPE", "vocab": {"a": 1, "b": 2, "ab": 3}, "merges": ["a b"]}}

JSON = {
    "config": json.dumps(CONFIG, indent=2).encode(),
    "index": json.dumps(INDEX, indent=1).encode(),
    "tokenizer": json.dumps(TOKENIZER).encode(),
    "numbers": b"[0,-0,1.5,1e10,-2E-3,9223372036854775807,9223372036854775808,-9223372036854775808,1e308,1e-400]",
    "infinite": b"[1e999]",
    "strings": '["\\u0041\\ud83d\\ude00\\n\\"","ü😀"]'.encode(),
    "half_pair": b'"\\ud83d"',
    "deep": b"[" * 63 + b"]" * 63,
    "too_deep": b"[" * 65 + b"]" * 65,
    "twice": b'{"a":1,"a":2}',
    "words": b" [ true , false , null ] ",
    "cut": b'{"a": [1, 2',
}


def manifest(**changes):
    piece = {"rank": 0, "begin": 0, "count": 3, "crc32c": [1]}
    rest = {"rank": 1, "begin": 3, "count": 3, "crc32c": [4294967295]}
    moment = {"dtype": "f32", "pieces": [piece, rest]}
    whole = {"format": "sherd-state", "format_version": 1, "step": 7, "ranks": 2, "block_bytes": 4 << 20,
             "written_by": "sherd", "scaler": {"scale": 65536.0, "good_steps": 3}, "entries": {"seed": "1"},
             "parameters": {"w": {"shape": [2, 3], "counts": {"step": 7},
                                  "tensors": {"value": moment, "m": moment, "v": moment}},
                            "none": {"shape": [0], "counts": {}, "tensors": {"value": {"dtype": "bf16", "pieces": []}}}}}
    return json.dumps(whole | changes, separators=(",", ":")).encode()


MANIFEST = {
    "whole": manifest(),
    "newer": manifest(format_version=2),
    "no_ranks": manifest(ranks=0),
    "infinite_scale": manifest().replace(b"65536.0", b"1e999"),
    "many_checksums": manifest(parameters={"w": {"shape": [3 << 20], "counts": {}, "tensors": {"value": {
        "dtype": "f64", "pieces": [{"rank": 0, "begin": 0, "count": 3 << 20, "crc32c": [1, 2, 3, 4, 5, 6]}]}}}}),
    "huge": manifest(parameters={"w": {"shape": [2**62, 8], "counts": {}, "tensors": {"value": {"dtype": "f64", "pieces": []}}}}),
    "cut": manifest()[:200],
}


def folder(weight_map, first=b"", second=b"", **more):
    index = weight_map if isinstance(weight_map, bytes) else json.dumps({"weight_map": weight_map} | more).encode()
    return sized(index) + sized(first) + second


ONE, TWO = tensors({"x": entry("F32", [1], 0, 4)}, bytes(4)), tensors({"y": entry("F16", [2], 0, 4), "z": entry("I32", [0], 4, 4)}, bytes(4))
INDEX_FOLDER = {
    "two": folder({"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}, ONE, TWO, metadata={"total_size": 8}),
    "elsewhere": folder({"x": "../a.safetensors"}, ONE),
    "absolute": folder({"x": "/etc/passwd"}, ONE),
    "no_tensor": folder({"x": "a.safetensors", "w": "a.safetensors"}, ONE),
    "not_named": folder({"y": "b.safetensors"}, ONE, TWO),
    "other_file": folder({"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}, ONE, TWO),
    "no_file": folder({"x": "c.safetensors"}, ONE),
    "no_map": folder(b"{}", ONE),
    "no_index": folder(b"", ONE),
    "no_string": folder({"x": 1}, ONE),
}

LLAMA = CONFIG | {"max_position_embeddings": 128}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 100, "n_positions": 32, "n_embd": 16, "n_layer": 2,
        "n_head": 4, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "resid_pdrop": 0.1}
BERT = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 32, "hidden_act": "gelu", "max_position_embeddings": 32, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "position_embedding_type": "absolute"}
CONFIG_FILE = {name: json.dumps(fields).encode() for name, fields in {
    "llama": LLAMA, "gpt2": GPT2, "bert": BERT,
    "mistral": LLAMA | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False},
    "qwen3": LLAMA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "rope": LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_max_position_embeddings": 8192}},
    "yarn": LLAMA | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4, "beta_fast": 32, "beta_slow": 1}},
    "biases": LLAMA | {"attention_bias": True, "mlp_bias": True, "head_dim": 8, "torch_dtype": "bfloat16"},
    "no_positions": CONFIG,
    "labels": BERT | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}},
    "zero_heads": LLAMA | {"num_attention_heads": 0}, "huge": LLAMA | {"hidden_size": 2**62, "vocab_size": 2**40},
    "negative": LLAMA | {"rms_norm_eps": -1.0}, "unknown": {"model_type": "mamba"}}.items()}


def old_tokenizer(vocabulary, merges):
    return b"\x01" + sized(json.dumps(vocabulary).encode()) + merges


TINY = TOKENIZER["model"] | {"unk_token": None}
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, TOKENIZER["pre_tokenizer"]]}
STRIP = [{"id": 9, "content": "<s>", "lstrip": True, "rstrip": True, "special": True, "normalized": False, "single_word": False}]
TOKENIZER_FILE = {
    "tiny": json.dumps(TOKENIZER | {"added_tokens": []}).encode(),
    "digits": json.dumps(TOKENIZER | {"added_tokens": STRIP, "pre_tokenizer": DIGITS}).encode(),
    "pairs": json.dumps(TOKENIZER | {"added_tokens": STRIP, "model": TINY | {"merges": [["a", "b"]], "ignore_merges": True}}).encode(),
    "unknown": json.dumps(TOKENIZER | {"added_tokens": [], "model": TINY | {"unk_token": "b"}}).encode(),
    "far_id": json.dumps(TOKENIZER | {"added_tokens": [], "model": TINY | {"vocab": {"a": 1, "b": 16777215, "ab": 3}}}).encode(),
    "beyond": json.dumps(TOKENIZER | {"added_tokens": [], "model": TINY | {"vocab": {"a": 1, "b": 2**31, "ab": 3}}}).encode(),
    "normalizer": json.dumps(TOKENIZER | {"normalizer": {"type": "NFC"}}).encode(),
    "old": old_tokenizer({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}, b"#version: 0.2\na b\n"),
    "old_bad_merge": old_tokenizer({"a": 0, "b": 1}, b"a b\n"),
}

PIECES = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "ab": 5, "##ab": 6, "e": 7, "\u1100": 8, "##\u1161": 9}
AROUND = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                                   {"SpecialToken": {"id": "[SEP]", "type_id": 0}}], "pair": [],
          "special_tokens": {name: {"id": name, "ids": [PIECES[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}}
WORDPIECE = {"truncation": None, "padding": {"direction": "Right", "pad_token": "[PAD]"},
             "added_tokens": [{"id": 3, "content": "[SEP]", "special": True, "normalized": False}],
             "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
             "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": AROUND,
             "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                       "vocab": PIECES}}
LINES = "\n".join(PIECES).encode()
WORDPIECE_FILE = {
    "tiny": json.dumps(WORDPIECE).encode(),
    "pair": json.dumps(WORDPIECE | {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}}).encode(),
    "none": json.dumps(WORDPIECE | {"post_processor": None, "padding": None}).encode(),
    "raw": json.dumps(WORDPIECE | {
        "normalizer": {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False},
        "added_tokens": [{"id": 9, "content": "<s>", "lstrip": True, "rstrip": True, "special": False, "normalized": True}],
        "model": WORDPIECE["model"] | {"max_input_chars_per_word": 2**62, "continuing_subword_prefix": "", "vocab": PIECES | {"ab": 2**24 - 1}}}).encode(),
    "other_id": json.dumps(WORDPIECE | {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 4], "cls": ["[CLS]", 2]}}).encode(),
    "lines": b"\x01" + struct.pack("<H", len(LINES)) + LINES,
    "lines_cased": b"\x01" + struct.pack("<H", len(LINES)) + LINES + b'{"do_lower_case": false, "cls_token": {"content": "ab"}, '
                   b'"added_tokens_decoder": {"10": {"content": "<s>", "special": true}}}',
    "lines_not_utf8": b"\x01" + struct.pack("<H", len(LINES) + 2) + LINES + b"\n\xff",
    "lines_missing": b"\x01" + struct.pack("<H", 6) + b"[PAD]\n",
}


def raw(form, vocabulary, end, index, tokens):
    return bytes([form, vocabulary, end]) + sized(index) + tokens


def index(width_code, lengths, documents, width):
    starts, at = [], 0
    for length in lengths:
        starts.append(at * width)
        at += length
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, width_code, len(lengths), len(documents))
            + struct.pack("<%di" % len(lengths), *lengths) + struct.pack("<%dq" % len(starts), *starts)
            + struct.pack("<%dq" % len(documents), *documents))


def llm_c(magic, version, count):
    return struct.pack("<256i", magic, version, count, *[0] * 253)


U16 = struct.pack("<16H", *range(16))
TOKEN_FILE = {
    "raw": raw(1, 0, 0, b"", U16),
    "raw_with_ends": raw(1, 0, 7, b"", U16),
    "odd": raw(1, 0, 0, b"", U16 + b"x"),
    "detect": raw(0, 3, 0, b"", U16),
    "llm_c": raw(2, 255, 0, b"", llm_c(20240520, 1, 16) + U16),
    "llm_c_wide": raw(0, 255, 0, b"", llm_c(20240801, 7, 4) + struct.pack("<4I", 1, 2, 3, 65535)),
    "llm_c_another_count": raw(2, 255, 0, b"", llm_c(20240520, 1, 15) + U16),
    "llm_c_negative": raw(2, 255, 0, b"", llm_c(20240520, 1, -1) + U16),
    "megatron": raw(3, 0, 0, index(8, [10, 6], [0, 1, 2], 2), U16),
    "megatron_detected": raw(4, 0, 1, index(4, [2, 0, 2], [0, 3], 4), struct.pack("<4i", 1, 2, 3, 4)),
    "megatron_64": raw(3, 1, 0, index(5, [2], [0, 1], 8), struct.pack("<2q", 5, 6)),
    "megatron_negative": raw(3, 1, 0, index(4, [1], [0, 1], 4), struct.pack("<i", -1)),
    "megatron_wraps": raw(3, 1, 0, b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2**62, 2**61), U16),
}

JSON_LINES = {
    "texts": b'{"text": "abc"}\n{"text": "d"}\n\n{"text": "ef"}',
    "tokens": b'{"tokens": [1, 2, 3], "labels": [2, 3, -100]}\n{"labels": [0], "tokens": [0]}\n',
    "both": b'{"text": "a", "tokens": [1], "labels": [1]}\n',
    "neither": b'{}\n',
    "beyond": b'{"tokens": [100], "labels": [1]}\n',
    "windows": b'{"text": "!"}\r\n{"text": "\\u0021"}\r\n',
    "low_text": b'{"text": "\\n !"}\n{"text": "#"}\n',
    "long": b'{"text": "' + b"a" * 40 + b'"}\n{"text": "b"}\n',
    "no_object": b"[1]\n",
    "blank": b"\n \n\t\n",
    "not_utf8": b'{"text": "\xff"}\n',
}

DATASET = {"tokens": b"\x00\x80" + U16 + U16, "odd": b"\x00\x80" + U16 + b"x", "few": b"\x00\x80" + U16[:8]}
DATASET |= {"lines_" + name: b"\x01\x80" + content for name, content in JSON_LINES.items()}
DATASET |= {"low_lines_" + name: b"\x01\x00" + JSON_LINES[name] for name in ("texts", "tokens", "windows")}
DATASET |= {"text": b"\x02\x00" + bytes(range(256))}
WORDS = sized(TOKENIZER_FILE["tiny"])
DATASET |= {"words": b"\x03\x00" + WORDS + b"ab ba abb" * 20, "no_tokenizer": b"\x03\x00" + sized(b"{}") + b"ab" * 20}
DATASET |= {"words_lines": b"\x04\x00" + WORDS + b'{"text": "abab"}\n{"tokens": [1, 3], "labels": [3, -100]}\n',
            "words_beyond": b"\x04\x03" + WORDS + b'{"text": "ba"}\n{"text": "ab"}\n',
            "words_none": b"\x04\x00" + WORDS + b'{"text": "xyz"}\n{"text": "ab"}\n'}

if __name__ == "__main__":
    for target, files in (("safetensors", SAFETENSORS), ("json", JSON), ("manifest", MANIFEST),
                          ("index", INDEX_FOLDER), ("config", CONFIG_FILE), ("tokenizer", TOKENIZER_FILE), ("wordpiece", WORDPIECE_FILE),
                          ("token_file", TOKEN_FILE), ("json_lines", JSON_LINES), ("dataset", DATASET)):
        folder = os.path.join(sys.argv[1], target)
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
