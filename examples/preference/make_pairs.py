#!/usr/bin/env python3
"""Makes pairs of answers from texts: a sentence's own end is chosen, the same words in another order rejected.

    make_pairs.py OUT TEXT...

Writes OUT/train.jsonl and OUT/held_out.jsonl, lines of {"prompt", "chosen", "rejected"}; every tenth sentence is
held out. The same texts make the same pairs.
"""
import json
import os
import random
import re
import sys

LONGEST = 120  # bytes of prompt and answer


def sentences(paths):
    seen = set()
    for path in paths:
        with open(path, encoding="utf-8", errors="ignore") as file:
            text = re.sub(r"\s+", " ", file.read())
        for sentence in re.findall(r"[A-Za-z][A-Za-z ,;'()-]{30,400}[.;]", text):
            words = sentence.split()
            if len(words) >= 9 and sentence not in seen:
                seen.add(sentence)
                yield words


def pair(words, rng):
    """The first words are the prompt; 6 to 10 more the answer."""
    cut = rng.randint(3, len(words) - 6)
    prompt = " ".join(words[max(0, cut - 6):cut]) + " "
    answer = words[cut:cut + rng.randint(6, 10)]
    other = answer[:]
    while other == answer:
        rng.shuffle(other)
        if len(set(answer)) < 3:
            return None
    made = {"prompt": prompt, "chosen": " ".join(answer), "rejected": " ".join(other)}
    longest = len(prompt.encode()) + max(len(made[k].encode()) for k in ("chosen", "rejected"))
    return made if longest <= LONGEST else None


def main(out, paths):
    os.makedirs(out, exist_ok=True)
    rng = random.Random(1)
    pairs = [p for p in (pair(words, rng) for words in sentences(paths)) if p]
    if len(pairs) < 20:
        sys.exit("the texts have only %d sentences to make pairs of; 20 are needed" % len(pairs))
    for name, part in (("train", [p for i, p in enumerate(pairs) if i % 10]), ("held_out", pairs[::10])):
        with open(os.path.join(out, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(p) + "\n" for p in part)
        print("%s: %d pairs" % (file.name, len(part)))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
