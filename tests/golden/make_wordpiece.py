#!/usr/bin/env python3
"""Writes tests/golden/wordpiece: make_wordpiece.py <folder>. Needs the package tokenizers (0.15), and a Debian machine for texts.

Trains small tokenizers of word pieces with several rules, NAME.json, and writes what the package makes of some lines with
each, NAME.jsonl: {"text", "ids"}, and "most", where there are at most so many ids. normalizer.jsonl has hashes of what it
makes of every code point, a block of 4096 each, under several rules."""

import json
import os
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data"))
import bpe_texts  # noqa: E402

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = bpe_texts.WORDS + 2 * bpe_texts.PIECES
# clean_text, handle_chinese_chars, strip_accents, lowercase
RULES = ["1111", "0010", "0001"]


def trained(normalizer, size):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, limit_alphabet=120, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(list(bpe_texts.found(3000)) + list(bpe_texts.difficult(300, 7, WORDS)), trainer)
    return json.loads(tokenizer.to_str())


def template(*names):
    """[CLS] text [SEP], or with other names around."""
    around = {n: {"id": n, "ids": [SPECIAL.index(n)], "tokens": [n]} for n in names}
    token, text = ({"SpecialToken": {"id": n, "type_id": 0}} for n in names), {"Sequence": {"id": "A", "type_id": 0}}
    *before, last = token
    return {"type": "TemplateProcessing", "single": [*before, text, last], "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": around}


def variants():
    uncased = trained(normalizers.BertNormalizer(), 500)
    # As a folder of an encoder has them, what is done at the right alone.
    uncased["truncation"] = {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0}
    uncased["padding"] = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                          "pad_token": "[PAD]"}
    yield "uncased", dict(uncased, post_processor=template("[CLS]", "[SEP]"))
    cased = trained(normalizers.BertNormalizer(lowercase=False), 500)
    yield "cased", dict(cased, post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})
    raw = trained(normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False), 500)
    added, vocab = raw["added_tokens"], raw["model"]["vocab"]
    added[4]["lstrip"] = True
    added.append(dict(added[0], id=max(vocab.values()) + 1, content="New Token", special=False, normalized=True, rstrip=True))
    # Other names of what continues a word, and words of 12 characters at most.
    vocab = {("++" + token[2:] if token.startswith("##") else token): id for token, id in vocab.items()}
    model = dict(raw["model"], vocab=vocab, continuing_subword_prefix="++", max_input_chars_per_word=12)
    yield "raw", dict(raw, model=model, added_tokens=added, post_processor=template("[CLS]", "[MASK]", "[SEP]"))


def fnv1a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def hashes(rules):
    """Of blocks of code points, each between marks of the last and of the first class."""
    flags = [flag == "1" for flag in rules]
    normalizer = normalizers.BertNormalizer(*flags)
    for first in range(0, 0x110000, 0x1000):
        text = "".join("x\u0345%c\u0334" % code for code in range(first, first + 0x1000) if not 0xD800 <= code < 0xE000)
        yield fnv1a(normalizer.normalize_str(text))


if __name__ == "__main__":
    texts = list(bpe_texts.difficult(90, 3, WORDS)) + list(bpe_texts.planes(20, 5))
    texts += [line for line in bpe_texts.found(4000) if line.strip()][::100]
    for name, content in variants():
        path = os.path.join(sys.argv[1], name)
        with open(path + ".json", "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")
        tokenizer = Tokenizer.from_file(path + ".json")
        tokenizer.no_padding()
        with open(path + ".jsonl", "w", encoding="utf-8") as file:
            for i, text in enumerate(texts):
                most = [None, 16, 3][i % 3]
                if most is None:
                    tokenizer.no_truncation()
                else:
                    tokenizer.enable_truncation(most)
                line = {"text": text, "ids": tokenizer.encode(text).ids}
                file.write(json.dumps(line if most is None else dict(line, most=[most]), separators=(",", ":")) + "\n")
    with open(os.path.join(sys.argv[1], "normalizer.jsonl"), "w", encoding="utf-8") as file:
        for rules in RULES:
            file.write(json.dumps({"rules": rules, "hashes": list(hashes(rules))}, separators=(",", ":")) + "\n")
