#!/usr/bin/env python3
"""Writes tests/golden/models/<kind>/, one folder for each kind named (all without a name): a tiny random model as
`save_pretrained` writes it, and golden.safetensors with what transformers computes from it in f32.

    tokens, mask, token_types   the input, [3, 7], rows padded at the end
    out                         the result
    grad_out                    random, zero where there is padding; the loss is the sum of out x grad_out
    grad.<name>                 the gradient of each parameter, under its name in model.safetensors

Needs torch 1.13 and transformers 4.46, which has no Qwen3: that is Qwen2 with another attention, below. The tests need
neither. generation_config.json, which concerns no weight, is removed."""

import argparse
import json
import os

import safetensors.torch
import torch
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb, repeat_kv

HERE = os.path.dirname(os.path.abspath(__file__))
DECODER = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0)
GPT2 = dict(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_inner=24, n_positions=16, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
BERT = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=12, pad_token_id=0)


class Qwen3Attention(nn.Module):
    """Queries and keys are normalised over the size of a head, before they are rotated; no biases."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        self.q_norm = LlamaRMSNorm(self.size, eps=config.rms_norm_eps)
        self.k_norm = LlamaRMSNorm(self.size, eps=config.rms_norm_eps)

    def forward(self, hidden_states, attention_mask=None, position_embeddings=None, **_):
        shape = hidden_states.shape[:2] + (-1, self.size)
        q = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        k, v = repeat_kv(k, self.heads // self.kv_heads), repeat_kv(v, self.heads // self.kv_heads)
        scores = q @ k.transpose(2, 3) / self.size ** 0.5 + attention_mask[:, :, :, : k.shape[2]]
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(hidden_states.shape[:2] + (-1,))
        return self.o_proj(out), None, None


def qwen3():
    config = transformers.Qwen2Config(**{**DECODER, "intermediate_size": 20}, head_dim=6, rms_norm_eps=1e-6,
                                      attn_implementation="eager")
    model = transformers.Qwen2ForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn = Qwen3Attention(config)
    return model


def eager(config_class, model_class, sizes, **more):
    return model_class(config_class(**{**sizes, **more}, attn_implementation="eager"))


def kinds():
    t = transformers
    llama3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=16)
    yarn = dict(rope_type="yarn", factor=2.0, beta_fast=4.0, beta_slow=1.0, original_max_position_embeddings=32)
    linear = dict(rope_type="linear", factor=2.0)
    return {
        "llama": lambda: eager(t.LlamaConfig, t.LlamaForCausalLM, DECODER, rope_scaling=llama3, attention_bias=True),
        "smollm2": lambda: eager(t.LlamaConfig, t.LlamaForCausalLM, DECODER, tie_word_embeddings=True,
                                 rope_theta=100000.0),
        "llama_classify": lambda: eager(t.LlamaConfig, t.LlamaForSequenceClassification, DECODER, rope_scaling=yarn,
                                        num_labels=3, mlp_bias=True),
        "llama_embed": lambda: eager(t.LlamaConfig, t.LlamaModel, DECODER),
        "mistral": lambda: eager(t.MistralConfig, t.MistralForCausalLM, DECODER, sliding_window=None, head_dim=6),
        "qwen2": lambda: eager(t.Qwen2Config, t.Qwen2ForCausalLM, DECODER, rms_norm_eps=1e-6, rope_scaling=linear),
        "qwen3": qwen3,
        "gpt2": lambda: eager(t.GPT2Config, t.GPT2LMHeadModel, GPT2),
        "gpt2_classify": lambda: eager(t.GPT2Config, t.GPT2ForSequenceClassification, GPT2, num_labels=3),
        "bert_mlm": lambda: eager(t.BertConfig, t.BertForMaskedLM, BERT),
        "bert_classify": lambda: eager(t.BertConfig, t.BertForSequenceClassification, BERT, num_labels=3),
        "bert_embed": lambda: eager(t.BertConfig, t.BertModel, BERT),
    }


def randomise(model, generator):
    """No parameter stays at a value that hides an error: norms are not 1 and biases are not 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
            if parameter.dim() == 1 and "norm" in name.lower() or "ln_" in name and name.endswith("weight"):
                parameter += 1.0


def mean_of(hidden, mask):
    weights = mask.to(hidden.dtype)
    return (hidden * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True)


def compute(kind, model, inputs, generator):
    model.eval()
    if "token_types" in inputs:
        result = model(input_ids=inputs["tokens"], attention_mask=inputs["mask"], token_type_ids=inputs["token_types"])
    else:
        result = model(input_ids=inputs["tokens"], attention_mask=inputs["mask"], use_cache=False)
    # An embedding is the mean of the last hidden states of a row.
    out = mean_of(result.last_hidden_state, inputs["mask"]) if kind.endswith("embed") else result.logits
    grad_out = torch.randn(out.shape, generator=generator)
    if out.dim() == 3:
        grad_out *= inputs["mask"][:, :, None]
    (out * grad_out).sum().backward()
    golden = dict(inputs, out=out.detach(), grad_out=grad_out)
    for name, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        golden["grad." + name] = grad
    return {name: value.contiguous() for name, value in golden.items()}


def write(kind, make):
    folder = os.path.join(HERE, "models", kind)
    os.makedirs(folder, exist_ok=True)
    for old in os.listdir(folder):
        os.remove(os.path.join(folder, old))
    generator = torch.Generator().manual_seed(len(kind) + 100 * ord(kind[0]) + ord(kind[-1]))
    torch.manual_seed(1)
    model = make()
    randomise(model, generator)
    # Several files of one of them: as large as they were asked to be at most.
    model.save_pretrained(folder, max_shard_size="9KB" if kind == "llama" else "5GB")
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    if kind == "qwen3":
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config.update(model_type="qwen3", architectures=["Qwen3ForCausalLM"], attention_bias=False)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2, sort_keys=True)
            file.write("\n")
    mask = torch.tensor([[1] * n + [0] * (7 - n) for n in (7, 5, 3)])
    inputs = {"tokens": torch.randint(3, 40, (3, 7), generator=generator) * mask, "mask": mask}
    if kind.startswith("bert"):
        inputs["token_types"] = torch.randint(0, 2, (3, 7), generator=generator)
    golden = compute(kind, model, inputs, generator)
    safetensors.torch.save_file(golden, os.path.join(folder, "golden.safetensors"))
    sizes = [os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)]
    print("%s: %d files of %d bytes" % (kind, len(sizes), sum(sizes)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", help="of: " + ", ".join(kinds()))
    arguments = parser.parse_args()
    for kind in arguments.kinds or kinds():
        write(kind, kinds()[kind])


if __name__ == "__main__":
    main()
