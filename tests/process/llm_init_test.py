#!/usr/bin/env python3
"""Training that starts from a Hugging Face folder, and texts that saved models write.

    llm_init_test.py <sherd_train_llm>      prints PASS or FAIL per check; sherd_generate_llm lies beside it
"""

import json
import os
import random
import struct
import subprocess

from llm_runs import expect, main, mpirun, read_metrics

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
SMOLLM2 = os.path.join(GOLDEN, "models", "smollm2")
PROMPT = "5,9,30"


def generate(runs, *arguments, launcher=(), stdin=""):
    """Exit code, stdout and stderr of the program that continues texts."""
    program = os.path.join(os.path.dirname(runs.program), "sherd_generate_llm")
    done = subprocess.run([*launcher, program, *arguments], cwd=runs.folder, text=True, input=stdin,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=runs.environment, timeout=120,
                          check=False)
    return done.returncode, done.stdout, done.stderr


def drawn(runs, *arguments, **more):
    code, out, err = generate(runs, *arguments, **more)
    expect(code == 0, "exit code %d: %s" % (code, err.strip()))
    return out.strip()


def sample(tokens):
    """A line of JSON: each token is to be followed by the next."""
    return json.dumps({"tokens": tokens, "labels": tokens[1:] + [-100]})


def samples(runs):
    """Rows of tokens below 40 of which each follows from the one before."""
    draw = random.Random(2)
    lines = []
    for _ in range(120):
        token, row = draw.randrange(40), []
        for _ in range(12):
            row.append(token)
            token = (7 * token + 3) % 40
        lines.append(sample(row))
    return runs.file("samples.jsonl", "\n".join(lines) + "\n")


def train(runs, data, name, *flags, launcher=()):
    arguments = ["--data", data, "--out", runs.path(name), "--batch", "8", "--eval_every", "0", *flags]
    code, out, err = runs.run(arguments, launcher)
    expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
    return read_metrics(runs.path(name)), out


def losses(out):
    """The last lines' loss before training and after it, as they are printed."""
    return [line.split()[2] for line in out.splitlines() if line.startswith(("before training ", "validation loss "))][::-1]


def check_init(runs):
    """A folder's model is trained on, alike on one rank and on two.

    It starts from the folder's weights: with a rate that changes nothing, the saved state says what the folder says."""
    flags = ["--init", SMOLLM2, "--vocab", "40", "--seq", "16"]
    data = samples(runs)
    one, out = train(runs, data, "init1", "--steps", "30", "--lr", "1e-2", *flags)
    two, _ = train(runs, data, "init2", "--steps", "30", "--lr", "1e-2", *flags, launcher=mpirun(2))
    expect("2 blocks of width 16" in out, "the first line is of other sizes: " + out[:200])
    expect(one[-1]["loss"] < one[0]["loss"] - 1.0, "the loss went from %g to %g" % (one[0]["loss"], one[-1]["loss"]))
    for a, b in zip(one, two):
        expect(abs(a["loss"] - b["loss"]) <= 1e-3 * a["loss"], "step %d: %g and %g" % (a["step"], a["loss"], b["loss"]))
    expect(abs(one[0]["loss"] - two[0]["loss"]) <= 1e-5 * one[0]["loss"], "the first losses differ")
    before, after = losses(out)
    expect(float(after) < float(before) - 1.0, "held out: %s, then %s" % (before, after))
    _, out = train(runs, data, "still", "--steps", "1", "--lr", "1e-300", "--save_every", "1", *flags, launcher=mpirun(2))
    expect(losses(out) == [before, before], "with a rate that changes nothing: %s, %s before" % (losses(out), before))
    draw = ["--prompt_tokens", PROMPT, "--tokens", "12", "--no_end"]
    of_folder = drawn(runs, "--model", SMOLLM2, "--greedy", *draw)
    expect(len(of_folder.split()) == 12, "not 12 tokens: " + of_folder)
    state = os.listdir(runs.path("still/states"))
    expect(len(state) == 1, "states are %s" % state)
    for model in ("still", "still/states", os.path.join("still/states", state[0])):
        expect(drawn(runs, "--model", runs.path(model), "--greedy", *draw) == of_folder, model + " differs")
    train(runs, data, "moved", "--steps", "300", "--lr", "1e-2", "--save_every", "300", "--export",
          runs.path("exported"), *flags)
    moved = drawn(runs, "--model", runs.path("moved"), "--greedy", *draw)
    expect(moved != of_folder, "training changed nothing")
    # What it learnt: 7 x + 3 modulo 40.
    learnt = drawn(runs, "--model", runs.path("moved"), "--greedy", "--prompt_tokens", "1,10,33", "--tokens", "4")
    expect(learnt == "34 1 10 33", "it says " + learnt)
    expect(sorted(os.listdir(runs.path("exported"))) == ["config.json", "model.safetensors"], "other files")
    expect(drawn(runs, "--model", runs.path("exported"), "--greedy", *draw) == moved, "the export differs")


def check_resume(runs):
    """A run from a folder goes on from its state, not from the folder."""
    flags = ["--init", SMOLLM2, "--vocab", "40", "--seq", "16", "--save_every", "4", "--lr", "1e-2"]
    data = samples(runs)
    whole, _ = train(runs, data, "whole", "--steps", "8", *flags)
    train(runs, data, "part", "--steps", "4", "--min_lr", "1e-3", *flags)
    rest, out = train(runs, data, "part", "--steps", "8", "--resume", *flags)
    expect("goes on after step 4" in out, "it began anew")
    expect(len(rest) == 8 and rest[4]["loss"] < whole[0]["loss"], "it did not go on from what was learnt")


def write_folder(path, tokenizer):
    """A small random Llama for the tokens of a tokenizer, with it."""
    with open(tokenizer, encoding="utf-8") as file:
        tokens = json.load(file)
    vocabulary = 1 + max([*tokens["model"]["vocab"].values(), *(t["id"] for t in tokens["added_tokens"])])
    os.makedirs(path)
    with open(os.path.join(path, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokens, file)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocabulary,
                   "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
                   "max_position_embeddings": 64, "tie_word_embeddings": True, "eos_token_id": 0}, file)
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [vocabulary, 16], "model.norm.weight": [16],
              layer + "input_layernorm.weight": [16], layer + "post_attention_layernorm.weight": [16]}
    shapes.update({layer + "self_attn.%s_proj.weight" % name: [16, 16] for name in "qkvo"})
    shapes.update({layer + "mlp.gate_proj.weight": [24, 16], layer + "mlp.up_proj.weight": [24, 16],
                   layer + "mlp.down_proj.weight": [16, 24]})
    header, data, draw = {}, b"", random.Random(3)
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0 if "norm" in name else draw.gauss(0, 0.1) for _ in range(count)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack("<%df" % count, *values)
    text = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def check_text(runs):
    """Text is of the folder's tokens, and the state knows its tokenizer."""
    folder = runs.path("words")
    write_folder(folder, os.path.join(GOLDEN, "bpe", "smollm.json"))
    metrics, out = train(runs, runs.text, "told", "--init", folder, "--seq", "32", "--steps", "20", "--lr", "1e-2",
                         "--save_every", "20", "--generate", "40", "--prompt", "in the", "--export",
                         runs.path("exported_words"))
    expect("nats per token" in out and "byte bigram" not in out, "not of tokens: " + out)
    expect(metrics[-1]["loss"] < metrics[0]["loss"] - 1.0, "it learnt nothing")
    expect(metrics[-1]["tokens"] <= 20 * 8 * 32, "more tokens than rows have")
    text = drawn(runs, "--model", runs.path("told"), "--prompt", "in the", "--tokens", "20", "--temperature", "1",
                 "--top_k", "20", "--top_p", "0.9", "--seed", "4")
    again = drawn(runs, "--model", runs.path("told"), "--tokens", "20", "--temperature", "1", "--top_k", "20",
                  "--top_p", "0.9", "--seed", "4", stdin="in the")
    expect(text and text == again, "stdin and --prompt differ: %r and %r" % (text, again))
    exported = drawn(runs, "--model", runs.path("exported_words"), "--tokens", "20", "--temperature", "1", "--top_k",
                     "20", "--top_p", "0.9", "--seed", "4", stdin="in the")
    expect(exported == text, "the export differs: %r and %r" % (exported, text))
    two = drawn(runs, "--model", runs.path("told"), "--prompt", "in the", "--tokens", "20", "--greedy",
                launcher=mpirun(2))
    expect(two == drawn(runs, "--model", runs.path("told"), "--prompt", "in the", "--tokens", "20", "--greedy"),
           "two ranks write something else")


def check_lines(runs):
    """Lines of text are trained on as the tokens that the tokenizers package has for them."""
    folder = runs.path("lines")
    write_folder(folder, os.path.join(GOLDEN, "bpe", "smollm.json"))
    with open(os.path.join(GOLDEN, "bpe", "smollm.jsonl"), encoding="utf-8") as file:
        known = [line for line in map(json.loads, file) if 2 <= len(line["ids"]) <= 60]
    texts = runs.file("texts.jsonl", "".join(json.dumps({"text": line["text"]}) + "\n" for line in known))
    tokens = runs.file("tokens.jsonl", "".join(sample(line["ids"]) + "\n" for line in known))
    flags = ["--init", folder, "--seq", "60", "--steps", "3"]
    of_texts, _ = train(runs, texts, "texts", *flags)
    of_tokens, _ = train(runs, tokens, "tokens", *flags)
    for a, b in zip(of_texts, of_tokens):
        expect(a["loss"] == b["loss"] and a["tokens"] == b["tokens"], "step %d differs" % a["step"])


def check_end(runs):
    """The end token ends a text, and --no_end goes on."""
    greedy = ["--model", SMOLLM2, "--prompt_tokens", PROMPT, "--tokens", "12", "--greedy"]
    whole = drawn(runs, *greedy, "--no_end").split()
    ended = drawn(runs, *greedy, "--end_token", whole[5]).split()
    expect(ended == whole[:whole.index(whole[5])], "%s of %s" % (ended, whole))


def check_bytes(runs):
    """A run of bytes writes bytes."""
    train(runs, runs.text, "bytes", "--dim", "16", "--heads", "2", "--kv_heads", "2", "--layers", "1", "--seq", "32",
          "--steps", "2", "--save_every", "2", "--generate", "0")
    expect(drawn(runs, "--model", runs.path("bytes"), "--prompt", "the", "--tokens", "5") != "", "nothing was written")


def check_errors(runs):
    """What does not fit is said before anything is trained."""
    data = samples(runs)

    def refused(part, *flags, program=None):
        code, _, err = program(runs, *flags) if program else runs.run(
            ["--data", data, "--out", runs.path("never"), *flags])
        expect(code in (1, 2) and part in err, "exit code %d: %s" % (code, err.strip()))
        expect(not os.path.exists(runs.path("never")), "the folder was made")

    refused("--dim and --init exclude each other", "--init", SMOLLM2, "--dim", "16")
    refused("config", "--init", runs.path("nowhere"))
    refused("has 32 positions, fewer than --seq 64", "--init", SMOLLM2, "--vocab", "40", "--seq", "64")
    refused("has 40 tokens, and the data has 50", "--init", SMOLLM2, "--vocab", "50", "--seq", "16")
    refused("has model.safetensors already", "--export", SMOLLM2, "--init", SMOLLM2, "--vocab", "40", "--seq", "16")
    refused("no causal language model", "--init", os.path.join(GOLDEN, "models", "bert_mlm"), "--vocab", "40",
            "--seq", "12")
    refused("--model is missing", program=generate)
    refused("is neither a Hugging Face folder", "--model", runs.path("nowhere"), program=generate)
    refused("give --tokenizer, or --prompt_tokens", "--model", SMOLLM2, "--prompt", "x", program=generate)
    refused("'40' is no token of the model, which has 40", "--model", SMOLLM2, "--prompt_tokens", "3,40",
            program=generate)
    refused("does not predict the next token", "--model", os.path.join(GOLDEN, "models", "bert_embed"),
            "--prompt_tokens", "3", program=generate)
    refused("did you mean --top_k", "--model", SMOLLM2, "--topk", "3", program=generate)
    refused("--prompt and --prompt_tokens exclude each other", "--model", SMOLLM2, "--prompt", "a",
            "--prompt_tokens", "3", program=generate)


if __name__ == "__main__":
    main([check_init, check_resume, check_text, check_lines, check_end, check_bytes, check_errors])
