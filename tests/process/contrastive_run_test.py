#!/usr/bin/env python3
"""Trains the contrastive example from scratch and from what it wrote, on one rank and on several.

    contrastive_run_test.py <sherd_train_contrastive>      prints PASS or FAIL per check
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

from llm_runs import expect, main, mpirun, read_metrics, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
MAKE_PAIRS = os.path.join(HERE, "..", "..", "examples", "contrastive", "make_pairs.py")
SMALL = ["--dim", "32", "--layers", "1", "--heads", "2", "--ffn", "64", "--batch", "16"]
EXACT = [*SMALL, "--dtype", "f64", "--steps", "6", "--eval_every", "3"]


def pairs(runs, name, count, seed, negatives=0):
    """Words of one language and what they are in another: a document has those of its query in another order."""
    draw = random.Random(seed)
    there = {"word%s" % c: "wort%s" % c[::-1] for c in ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st")}

    def translated(words):
        words = [there[w] for w in words]
        draw.shuffle(words)
        return " ".join(words)

    lines = []
    for i in range(count):
        query = draw.sample(sorted(there), 4 + i % 2)
        line = {"query": " ".join(query), "document": translated(query)}
        others = [translated(draw.sample(sorted(there), 3)) for _ in range(i % (negatives + 1))]
        if others:
            line["negatives"] = others
        lines.append(json.dumps(line))
    return runs.file(name, "\n".join(lines) + "\n")


def train(runs, name, *flags, launcher=(), more_negatives=0):
    learn = pairs(runs, "learn%d.jsonl" % more_negatives, 400, 1, more_negatives)
    held_out = pairs(runs, "held_out.jsonl", 60, 2)
    return run(runs, name, learn, held_out, *flags, launcher=launcher)


def run(runs, name, learn, held_out, *flags, launcher=()):
    arguments = ["--pairs", learn, "--held_out", held_out, "--out", runs.path(name), *flags]
    code, out, err = runs.run(arguments, launcher)
    expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
    return read_metrics(runs.path(name)), out


def table(out):
    """The last lines as {"recall@1": (before, after), ...}; without a run's beginning (after,)."""
    rows = [line.split() for line in out.splitlines() if line.startswith(("recall@", "mrr ", "loss "))]
    return {row[0]: tuple(map(float, row[1:])) for row in rows}


def check_learns(runs):
    """Held-out documents are found better after training on two ranks, and the folder says so again"""
    metrics, out = train(runs, "learns", *SMALL, "--steps", "150", "--lr", "5e-3", "--eval_every", "50",
                         "--export", runs.path("encoder"), launcher=mpirun(2))
    result = table(out)
    print({name: "%.3f -> %.3f" % values for name, values in result.items()})
    expect(result["recall@1"][1] > result["recall@1"][0] + 0.3, "recall@1 is %s" % (result["recall@1"],))
    expect(result["mrr"][1] > result["mrr"][0] and result["loss"][1] < result["loss"][0], "%s" % result)
    measured = [line["step"] for line in metrics if "held_out" in line]
    expect(measured == [50, 100, 150], "measured after steps %s" % measured)
    last = metrics[-1]
    expect(abs(last["held_out"]["recall@1"] - result["recall@1"][1]) < 1e-4, "metrics.jsonl says otherwise")
    with open(runs.path("learns/report.html"), encoding="utf-8") as report:
        text = report.read()
    expect("On held-out pairs" in text and "Recall@10" in text, "the report has no chart of it")
    files = sorted(os.path.relpath(os.path.join(folder, name), runs.path("encoder"))
                   for folder, _, names in os.walk(runs.path("encoder")) for name in names)
    expect(files == ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json",
                     "sentence_bert_config.json", "tokenizer_config.json", "vocab.txt"], "files are %s" % files)
    _, again = train(runs, "again", "--init", runs.path("encoder"), "--batch", "16", "--steps", "1", "--lr", "1e-9")
    for name, values in table(again).items():
        expect(abs(values[0] - result[name][1]) < 2e-4, "%s is %s, and was %s" % (name, values[0], result[name][1]))


def tensors(folder):
    """The bytes of each tensor of a model.safetensors."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: data[slice(*info["data_offsets"])] for name, info in header.items() if name != "__metadata__"}


def check_unused(runs):
    """What embeddings do not use stays as the folder has it, and all else is trained"""
    train(runs, "used0", *SMALL, "--steps", "1", "--export", runs.path("unused0"))
    train(runs, "used1", "--init", runs.path("unused0"), "--batch", "16", "--steps", "3", "--lr", "1e-2", "--export",
          runs.path("unused1"), launcher=mpirun(2))
    before, after = tensors(runs.path("unused0")), tensors(runs.path("unused1"))
    same = {name for name in before if before[name] == after[name]}
    expect(before.keys() == after.keys() and same == {name for name in before if ".pooler." in "." + name} and same,
           "unchanged are %s" % sorted(same))


def check_exact(runs):
    """What is logged does not depend on ranks, calls, checkpoints or whether calls are cached"""
    whole = ["--calls", "1"]
    for dropout, ways in (("0", [(1, ["--calls", "5"]), (2, []), (3, ["--calls", "3"]), (2, ["--cached", "on"]),
                                 (3, ["--checkpoint", "off"]), (2, ["--reshard", "off", "--calls", "4"])]),
                          # Calls of their own draw numbers of their own; cached ones are one call.
                          ("0.1", [(2, whole), (2, ["--cached", "on"]), (3, ["--calls", "5", "--cached", "on"]),
                                   (2, ["--cached", "on", "--checkpoint", "off", "--reshard", "off"])])):
        base = [*EXACT, "--dropout", dropout]
        alone, out = train(runs, "alone" + dropout, *base, *whole, more_negatives=2)
        for i, (ranks, flags) in enumerate(ways):
            calls = [] if "--calls" in flags else ["--calls", "2"]
            other, text = train(runs, "other%s_%d" % (dropout, i), *base, *calls, *flags,
                                launcher=mpirun(ranks) if ranks > 1 else (), more_negatives=2)
            apart = max(abs(a[k] - b[k]) / abs(a[k]) for a, b in zip(alone, other) for k in ("loss", "gradient_norm"))
            what = "dropout %s, %d ranks, %s" % (dropout, ranks, " ".join(calls + flags))
            print("%s: %.1e" % (what, apart))
            expect(len(other) == len(alone) and apart < 1e-10, "%s: %.1e apart" % (what, apart))
            expect(table(text) == table(out), "measures differ: %s, %s" % (table(text), table(out)))


def check_resume(runs):
    """A run that SIGTERM ends goes on with the same bits"""
    flags = [*SMALL, "--steps", "150", "--save_every", "40", "--eval_every", "0"]
    whole, _ = train(runs, "whole", *flags)
    learn, held_out = runs.path("learn0.jsonl"), runs.path("held_out.jsonl")
    arguments = ["--pairs", learn, "--held_out", held_out, "--out", runs.path("cut"), *flags]
    process = runs.start(arguments)
    metrics = runs.path("cut/metrics.jsonl")
    wait_for(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 0 or process.poll() is not None, 60, "a step")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    expect(process.returncode == 128 + signal.SIGTERM and "saved step" in err, "exit code %d: %s" % (process.returncode, err))
    code, out, err = runs.run([*arguments, "--resume"])
    expect(code == 0, err)
    for a, b in zip(whole, read_metrics(runs.path("cut"))):
        same = all(a[k] == b[k] for k in ("step", "loss", "gradient_norm", "tokens", "learning_rate"))
        expect(same, "step %d: %s, and %s" % (a["step"], a, b))
    expect(len(read_metrics(runs.path("cut"))) == 150, "not 150 steps")


def check_resumed_otherwise(runs):
    """A run goes on with other ranks and to the same numbers, and not with other pairs, tokens or pooling"""
    flags = [*EXACT, "--calls", "1", "--save_every", "3"]
    whole, _ = train(runs, "six", *flags)
    state = "state %s/states/step-00000006 is of " % runs.path("six")
    for change, part in ((["--steps", "5"], "step 6, and --steps 5 ends before it"),
                         (["--pairs", pairs(runs, "others.jsonl", 400, 9)], "other pairs than %s/others" % runs.folder),
                         (["--pooling", "first"], "other pairs than %s/learn0" % runs.folder)):
        words = ["--pairs", runs.path("learn0.jsonl"), "--held_out", runs.path("held_out.jsonl"), *flags, *change]
        chosen = dict(zip(words[::2], words[1::2]))  # the last one of each
        code, _, err = runs.run(["--out", runs.path("six"), "--resume", *(w for pair in chosen.items() for w in pair)])
        expect(code == 1 and state + part in err, "%s: %d: %s" % (change, code, err))
        expect(read_metrics(runs.path("six")) == whole, "the metrics changed")
    shutil.rmtree(runs.path("six/states/step-00000006"))
    # Steps 4 to 6 and the report go when step 4 is made again, not before.
    words = ["--pairs", runs.path("others.jsonl"), "--held_out", runs.path("held_out.jsonl"), *flags]
    code, _, err = runs.run(["--out", runs.path("six"), "--resume", *words])
    expect(code == 1 and "step-00000003 is of other pairs" in err, "%d: %s" % (code, err))
    expect(read_metrics(runs.path("six")) == whole and os.path.exists(runs.path("six/report.html")), "a run was changed")
    again, out = train(runs, "six", *flags, "--resume", launcher=mpirun(3))
    expect("goes on after step 3" in out, out)
    for a, b in zip(whole, again):
        apart = max(abs(a[k] - b[k]) / abs(a[k]) for k in ("loss", "gradient_norm", "tokens"))
        expect(apart < 1e-10, "step %d: %.1e apart" % (a["step"], apart))
    expect(len(again) == 6, "%d steps" % len(again))


def check_chosen_token(runs):
    """A token that stands in every text can be pooled, and a text without it is named"""
    learn = runs.file("masked.jsonl", "".join(
        json.dumps({"query": "q%d means [MASK]" % i, "document": "[MASK] is d%d" % i}) + "\n" for i in range(20)))
    _, out = run(runs, "chosen", learn, learn, *SMALL, "--steps", "2", "--pooling", "[MASK]")
    expect("recall@1" in out, out)
    code, _, err = runs.run(["--pairs", learn, "--held_out", pairs(runs, "none.jsonl", 5, 3), "--out",
                             runs.path("unchosen"), *SMALL, "--pooling", "[MASK]"])
    expect(code == 1 and "has no [MASK] among its first 64 tokens" in err, err)


def check_errors(runs):
    """What does not fit is said before anything is trained, once"""
    good = pairs(runs, "good.jsonl", 30, 1)
    one = runs.file("one.jsonl", json.dumps({"query": "word", "document": "wort", "negatives": ["wart"]}) + "\n")
    for flags, part in ((["--batch", "31"], "--batch 31 is more than the 30 pairs of"),
                        (["--batch", "2", "--calls", "3"], "leaves a rank 1 pair, too few for --calls 3"),
                        (["--symmetric", "on", "--held_out", one], "one.jsonl has one pair"),
                        (["--pooling", "[NONE]"], "a token of the vocabulary, not '[NONE]'"),
                        (["--pooling", "wordab"], "good.jsonl: the text \"wor"),
                        (["--seq", "2"], "raise --seq"),
                        (["--init", runs.folder], "config.json")):
        chosen = {"--pairs": good, "--held_out": good, "--out": runs.path("bad"), "--batch": "16",
                  **dict(zip(flags[::2], flags[1::2]))}
        code, _, err = runs.run([word for flag in chosen.items() for word in flag], mpirun(2))
        said = [line for line in err.splitlines() if line.startswith("train: ")]
        expect(code == 1 and len(said) == 1 and part in said[0], "%s: %d: %s" % (flags, code, err))
        expect(not os.path.exists(runs.path("bad")), "a folder was made")


def check_other_files(runs):
    """Ranks whose files differ are told, with the file"""
    ours, theirs = pairs(runs, "ours.jsonl", 30, 1), pairs(runs, "theirs.jsonl", 30, 2)
    held_out = pairs(runs, "held_out.jsonl", 60, 2)
    for second, named in (((theirs, held_out), "ours.jsonl"), ((ours, theirs), "held_out.jsonl")):
        of_rank = [["--pairs", files[0], "--held_out", files[1], "--out", runs.path("apart"), *SMALL]
                   for files in ((ours, held_out), second)]
        code, _, err = runs.run([*of_rank[0], ":", "-np", "1", runs.program, *of_rank[1]], mpirun(1))
        said = [line for line in err.splitlines() if line.startswith("train")]
        expect(code == 1 and len(said) == 1 and "rank 1 has other pairs in" in said[0] and named in said[0], err)
        expect(not os.path.exists(runs.path("apart")), "a folder was made")


def check_diverged(runs):
    """A loss that is no number ends the run on all ranks, and says so once"""
    good = pairs(runs, "good.jsonl", 30, 1)
    code, _, err = runs.run(["--pairs", good, "--held_out", good, "--out", runs.path("diverged"), *SMALL,
                             "--temperature", "1e-300"], mpirun(2))
    said = [line for line in err.splitlines() if line.startswith("train")]
    expect(code == 1 and len(said) == 1 and "the loss of step 1 is not finite" in said[0], "%d: %s" % (code, err))


def check_make_pairs(runs):
    """Pairs of packages: one of each source, none twice, what is dull left out"""
    listing = runs.file("available", "\n\n".join(
        "Package: %s\nSource: %s\nSection: %s\nDescription: %s\n more" % fields for fields in
        [("lib%d-dev" % i, "lib%d (1.0)" % i, "s%d" % (i % 2), "headers of %d" % i) for i in range(8)] +
        [("lib%d" % i, "lib%d" % i, "s%d" % (i % 2), "library %d" % i) for i in range(6)] +
        [("old", "old", "s0", "transitional package"), ("copy", "copy", "s0", "Library 1")]))
    done = subprocess.run([sys.executable, MAKE_PAIRS, runs.path("made"), "--held_out", "2", "--negatives", "2", "--from",
                           listing], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expect(done.returncode == 0, done.stdout)
    lines = []
    for name in ("train", "held_out"):
        with open(runs.path("made/%s.jsonl" % name), encoding="utf-8") as file:
            lines.append([json.loads(line) for line in file])
    train_lines, held_out = lines
    expect(len(held_out) == 2 and len(train_lines) == 6, "%d and %d pairs" % (len(train_lines), len(held_out)))
    queries = sorted(line["query"] for line in train_lines + held_out)
    # Where a package has its source's name, it is the one.
    wanted = sorted(["lib%d" % i for i in range(6)] + ["lib6-dev", "lib7-dev"])
    expect(queries in (wanted, sorted({*wanted, "copy"} - {"lib1"})), "queries are %s" % queries)
    for part in lines:
        documents = [line["document"] for line in part]
        for line in part:
            others = line["negatives"]
            expect(len(others) <= 2 and line["document"] not in others and set(others) <= set(documents), "%s" % line)
    expect(any(len(line["negatives"]) == 2 for line in train_lines), "no two negatives in %s" % train_lines)


if __name__ == "__main__":
    main([check_learns, check_unused, check_exact, check_resume, check_resumed_otherwise, check_chosen_token,
          check_errors, check_other_files, check_diverged, check_make_pairs])
