#include "tests/support/grid_model.h"

#include <array>
#include <string>

#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/runtime/core/random.h"

namespace sherd::testing {
namespace {

constexpr int64_t kHeads = 3;
constexpr int64_t kHeadSize = 2;
constexpr int64_t kFfn = 7;
constexpr double kDropout = 0.2;
const Initializer kInit = Initializer::Normal(0.3);

}  // namespace

GridBlock::GridBlock(DType dtype, std::shared_ptr<const kernels::RopeTables> tables)
    : norm_attention_(kChannels, 1e-5, dtype),
      norm_ffn_(kChannels, 1e-5, dtype),
      qkv_(kChannels, (kHeads + 2) * kHeadSize, kInit, dtype),
      out_(kHeads * kHeadSize, kChannels, kInit, dtype),
      gate_up_(kChannels, 2 * kFfn, kInit, dtype),
      down_(kFfn, kChannels, kInit, dtype),
      tables_(std::move(tables)) {
  RegisterModule("norm_attention", norm_attention_);
  RegisterModule("qkv", qkv_);
  RegisterModule("out", out_);
  RegisterModule("norm_ffn", norm_ffn_);
  RegisterModule("gate_up", gate_up_);
  RegisterModule("down", down_);
}

Variable GridBlock::operator()(const Variable& x) {
  return Call(
      *this,
      [](GridBlock& self, const Variable& x) {
        const int64_t b = x.dim(0);
        const int64_t t = x.dim(1);
        const std::array<int64_t, 3> qkv_sizes = {kHeads * kHeadSize, kHeadSize, kHeadSize};
        const std::vector<Variable> qkv = Split(self.qkv_(self.norm_attention_(x)), 2, qkv_sizes);
        const Variable q = Rope(Reshape(qkv[0], {b, t, kHeads, kHeadSize}), *self.tables_);
        const Variable k = Rope(Reshape(qkv[1], {b, t, 1, kHeadSize}), *self.tables_);
        const Variable v = Reshape(qkv[2], {b, t, 1, kHeadSize});
        const Variable mixed = Attention(q, k, v, {.causal = true, .scale = 0.7});
        const Variable h =
            Add(x, Dropout(self.out_(Reshape(mixed, {b, t, kHeads * kHeadSize})), kDropout));
        const std::array<int64_t, 2> halves = {kFfn, kFfn};
        const std::vector<Variable> ffn = Split(self.gate_up_(self.norm_ffn_(h)), 2, halves);
        return Add(h, Dropout(self.down_(SiluMul(ffn[0], ffn[1])), kDropout));
      },
      x);
}

GridModel::GridModel(const Device& device, DType dtype)
    : embedding_(kVocabulary, GridBlock::kChannels, kInit, dtype),
      norm_(GridBlock::kChannels, 1e-5, dtype) {
  auto tables = std::make_shared<const kernels::RopeTables>(
      kernels::MakeRopeTables(device, dtype, kTokens, kHeadSize));
  twice_ = std::make_unique<GridBlock>(dtype, tables);
  plain_ = std::make_unique<GridBlock>(dtype, tables);
  frozen_ = std::make_unique<GridBlock>(dtype, tables);
  optional_ = std::make_unique<GridBlock>(dtype, tables);
  RegisterModule("embedding", embedding_);
  RegisterModule("twice", *twice_);
  RegisterModule("plain", *plain_);
  RegisterModule("frozen", *frozen_);
  RegisterModule("optional", *optional_);
  RegisterModule("norm", norm_);
  for (const Parameter& parameter : frozen_->parameters()) parameter.set_requires_grad(false);
}

Variable GridModel::operator()(const Variable& tokens, bool use_optional) {
  return Call(
      *this,
      [](GridModel& self, const Variable& tokens, bool use_optional) {
        Variable x = self.twice()(self.embedding_(tokens));
        x = self.frozen()(self.plain()(x));
        if (use_optional) x = self.optional()(x);
        return Linear(self.norm_(self.twice()(x)), self.embedding_.weight());
      },
      tokens, use_optional);
}

std::vector<GridBatch> GridBatches(const Device& device, int64_t step, int ranks, int rank,
                                   int micro_batches, int calls) {
  std::vector<GridBatch> batches(static_cast<size_t>(micro_batches));
  const int64_t parts = int64_t{ranks} * micro_batches;
  for (int m = 0; m < micro_batches; ++m) {
    const int64_t part = int64_t{rank} * micro_batches + m;
    for (int c = 0; c < calls; ++c) {
      const int64_t own = kGridSamples / calls;
      GridCall call;
      std::vector<int64_t> tokens;
      std::vector<int64_t> labels;
      for (int64_t i = own * part / parts; i < own * (part + 1) / parts; ++i) {
        const int64_t sample = step * kGridSamples + i * calls + c;
        call.samples.push_back(sample);
        for (int64_t t = 0; t < GridModel::kTokens; ++t) {
          const std::array<uint32_t, 4> random =
              Philox4x32(7, static_cast<uint64_t>(sample), static_cast<uint64_t>(t));
          tokens.push_back(random[0] % GridModel::kVocabulary);
          labels.push_back(random[1] % 5 == 0 ? -100 : random[2] % GridModel::kVocabulary);
        }
      }
      const Shape shape = {static_cast<int64_t>(call.samples.size()), GridModel::kTokens};
      call.tokens = Tensor::FromHost<int64_t>(device, tokens, shape);
      call.labels = Tensor::FromHost<int64_t>(device, labels, shape);
      batches[static_cast<size_t>(m)].calls.push_back(std::move(call));
    }
  }
  return batches;
}

}  // namespace sherd::testing
