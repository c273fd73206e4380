#!/usr/bin/env python3
"""Writes tests/golden/bpe: make_bpe.py <folder>. Needs the package tokenizers, and a Debian machine for texts.

Trains a small byte-level tokenizer and writes it with several rules, NAME.json, and what the package makes of some
lines with each, NAME.jsonl: {"text", "ids"}."""

import json
import os
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data"))
import bpe_texts  # noqa: E402

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # No letter beyond those of the texts: some bytes have no token, as in SmolLM2.
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=SPECIAL, show_progress=False)
    lines = list(bpe_texts.found(3000)) + list(bpe_texts.difficult(500, seed=7))
    tokenizer.train_from_iterator(lines, trainer)
    return json.loads(tokenizer.to_str())


def variants(base):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    token = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    added = [dict(token, id=i, content=c) for i, c in enumerate(SPECIAL)]
    plain = dict(base, pre_tokenizer=level, post_processor=level, decoder=level, added_tokens=added)
    sequence = {"type": "Sequence", "pretokenizers": [digits, level]}
    spaced = {"type": "Sequence", "pretokenizers": [digits, dict(level, add_prefix_space=True)]}
    end = max(base["model"]["vocab"].values()) + 1
    stripping = added + [dict(token, id=end, content="<mask>", lstrip=True), dict(token, id=end + 1, content="<#", rstrip=True, special=False)]
    yield "gpt2", plain
    yield "smollm", dict(plain, pre_tokenizer=sequence)
    yield "prefix", dict(plain, pre_tokenizer=spaced, added_tokens=stripping, model=dict(base["model"], unk_token="!"))
    yield "whole", dict(plain, pre_tokenizer=dict(level, use_regex=False), model=dict(base["model"], ignore_merges=True))


if __name__ == "__main__":
    texts = list(bpe_texts.difficult(110)) + [line for line in bpe_texts.found(4000) if line.strip()][::40]
    for name, content in variants(trained()):
        path = os.path.join(sys.argv[1], name)
        with open(path + ".json", "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")
        tokenizer = Tokenizer.from_file(path + ".json")
        with open(path + ".jsonl", "w", encoding="utf-8") as file:
            for text in texts if name == "smollm" else texts[:60]:
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                file.write(json.dumps({"text": text, "ids": ids}, separators=(",", ":")) + "\n")
