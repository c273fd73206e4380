#!/usr/bin/env python3
"""Byte-level tokenizers beside the package `tokenizers`, on 10,000 texts each: the same ids, and the same text back.

    bpe_compare_test.py <tokenizer_probe> <tokenizer.json>...     prints a line PASS, FAIL or SKIP for each
"""

import sys

import bpe_texts
from tokenizer_compare import integers, label, probe, report

TEXTS = 10000


def compare(program, name, texts, Tokenizer):
    reference = Tokenizer.from_file(name)
    tokens = 0
    for text, (ids, decoded) in zip(texts, probe(program, "bpe", name, texts)):
        want = reference.encode(text, add_special_tokens=False).ids
        if integers(ids) != want:
            return "text %r has ids %s, but the package says %s" % (text, ids, want)
        decoded = bytes.fromhex(decoded).decode("utf-8", errors="replace")
        if decoded != reference.decode(want, skip_special_tokens=False):
            return "text %r comes back as %r" % (text, decoded)
        tokens += len(want)
    print("%s: %d texts, %d characters, %d tokens" % (label(name), len(texts), sum(map(len, texts)), tokens))
    return None


def main():
    program, names = sys.argv[1], sys.argv[2:]
    try:
        from tokenizers import Tokenizer
    except ImportError:
        for name in names:
            print("SKIP tokens of %s: the package tokenizers is not installed" % label(name))
        return
    texts = list(bpe_texts.difficult(TEXTS // 2, seed=2))
    texts += list(bpe_texts.found(TEXTS - len(texts)))
    # Where a machine has few texts, more of the other kind.
    texts += list(bpe_texts.difficult(TEXTS - len(texts), seed=3))
    for name in names:
        report("tokens of %s" % label(name), compare(program, name, texts, Tokenizer))


if __name__ == "__main__":
    main()
