// Attention with padding, documents and dropout, and scaled rotary positions, through every check
// of the op table.

#include <vector>

#include "sherd/autograd/ops/transformer.h"
#include "sherd/runtime/kernels/rope_scaling.h"
#include "tests/support/op_table.h"

namespace sherd::testing {
namespace {

using In = OpInputs;
using kernels::AttentionOptions;
using kernels::RopeScaling;
using kernels::RopeScalingType;

// What a row says of its keys, made on the device of its operands.
struct Seen {
  std::vector<int64_t> mask = {}, lengths = {}, cu_seqlens = {};
  double dropout = 0.0;
};

OpRow Masked(const std::string& name, const Shape& q, const Shape& k, bool causal,
             const Seen& seen) {
  const auto function = [=](In in) {
    const Device& device = in[0].value().device();
    const auto tensor = [&](const std::vector<int64_t>& x, const Shape& shape) {
      return x.empty() ? Tensor() : Tensor::FromHost<int64_t>(device, x, shape);
    };
    AttentionOptions options = {.causal = causal, .scale = 0.5, .dropout = seen.dropout};
    options.key_mask = tensor(seen.mask, {k[0], k[1]});
    options.key_lengths = tensor(seen.lengths, {k[0]});
    options.cu_seqlens = tensor(seen.cu_seqlens, {static_cast<int64_t>(seen.cu_seqlens.size())});
    return Attention(in[0], in[1], in[2], options);
  };
  return {.name = name,
          .operands = {Normal(q), Normal(k), Normal(k)},
          .function = function,
          .golden = "attention/" + name,
          .layout_eps = 4.0,
          .dtype_eps = 4.0,
          .close = true};
}

std::vector<OpRow> Attentions() {
  const Seen mask = {.mask = {0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0}};
  const Seen documents = {.cu_seqlens = {0, 2, 3, 7}};
  std::vector<OpRow> rows = {
      Masked("a key mask, causal", {3, 5, 4, 2}, {3, 5, 2, 2}, true, mask),
      Masked("a key mask", {3, 5, 4, 2}, {3, 5, 2, 2}, false, mask),
      Masked("key lengths", {3, 2, 2, 4}, {3, 4, 2, 4}, false, {.lengths = {4, 2, 0}}),
      Masked("packed documents, causal", {1, 8, 4, 2}, {1, 8, 2, 2}, true, documents),
      Masked("packed documents", {1, 8, 4, 2}, {1, 8, 2, 2}, false, documents),
      Masked("dropped probabilities", {2, 5, 4, 2}, {2, 5, 2, 2}, true, {.dropout = 0.3}),
      Masked("dropped probabilities of packed documents", {1, 8, 4, 2}, {1, 8, 2, 2}, true,
             {.cu_seqlens = {0, 2, 3, 7}, .dropout = 0.3}),
  };
  for (size_t i : {5, 6}) {
    rows[i].golden.clear();
    rows[i].random = true;
    rows[i].recording = {.seed = 9, .step = 2, .samples = {10, 11}};
  }
  rows[6].recording.samples = {10};
  return rows;
}

OpRow Scaled(const std::string& name, double theta, const RopeScaling& scaling) {
  const auto function = [=](In in) {
    const DType dtype = in[0].dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    return Rope(in[0],
                kernels::MakeRopeTables(in[0].value().device(), dtype, 1500, 16, theta, scaling),
                1490);
  };
  return {.name = "rope scaled " + name,
          .operands = {Normal({1, 3, 2, 16})},
          .function = function,
          .golden = "attention/rope scaled " + name};
}

std::vector<OpRow> Ropes() {
  return {
      Scaled("linear", 1e4, {.type = RopeScalingType::kLinear, .factor = 8.0}),
      Scaled("dynamic", 1e4,
             {.type = RopeScalingType::kDynamic,
              .factor = 4.0,
              .original_max_position_embeddings = 512}),
      Scaled("dynamic within the trained length", 1e4,
             {.type = RopeScalingType::kDynamic,
              .factor = 4.0,
              .original_max_position_embeddings = 8192}),
      Scaled("llama3", 5e5,
             {.type = RopeScalingType::kLlama3,
              .factor = 8.0,
              .original_max_position_embeddings = 8192}),
      Scaled("yarn", 1e4,
             {.type = RopeScalingType::kYarn,
              .factor = 4.0,
              .original_max_position_embeddings = 1024}),
      Scaled("yarn with options of its own", 1e4,
             {.type = RopeScalingType::kYarn,
              .factor = 16.0,
              .original_max_position_embeddings = 4096,
              .beta_fast = 20.0,
              .beta_slow = 2.0,
              .attention_factor = 1.25}),
  };
}

std::vector<OpRow> All() {
  std::vector<OpRow> all = Attentions();
  for (const OpRow& row : Ropes()) all.push_back(row);
  return all;
}

SHERD_TEST_OP_TABLE(Attention, All());

}  // namespace
}  // namespace sherd::testing
