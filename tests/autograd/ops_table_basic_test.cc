// The ops of a decoder, through every check of the op table.

#include <array>
#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "tests/support/op_table.h"

namespace sherd::testing {
namespace {

using In = OpInputs;

kernels::RopeTables Tables(const Variable& x, int64_t positions) {
  const DType dtype = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return kernels::MakeRopeTables(x.value().device(), dtype, positions, x.shape().back());
}

std::vector<Variable> SplitTo(const Variable& x, int dim, const std::vector<int64_t>& sizes) {
  return Split(x, dim, sizes);
}

std::vector<OpRow> Elementwise() {
  return {
      {.name = "add",
       .operands = {Normal({3, 4}), Normal({3, 4})},
       .function = [](In in) { return Add(in[0], in[1]); },
       .golden = "basic/add"},
      {.name = "mul",
       .operands = {Normal({3, 4}), Normal({3, 4})},
       .function = [](In in) { return Mul(in[0], in[1]); },
       .golden = "basic/mul"},
      {.name = "scale",
       .operands = {Normal({3, 4})},
       .function = [](In in) { return Scale(in[0], -1.75); },
       .golden = "basic/scale"},
      {.name = "silu",
       .operands = {Normal({3, 5})},
       .function = [](In in) { return Silu(in[0]); },
       .golden = "basic/silu",
       .layout_eps = 1.0},
      {.name = "silu_mul",
       .operands = {Normal({3, 5}), Normal({3, 5})},
       .function = [](In in) { return SiluMul(in[0], in[1]); },
       .golden = "basic/silu_mul",
       .layout_eps = 1.0},
      {.name = "silu_mul of halves",
       .operands = {Normal({3, 8})},
       .function =
           [](In in) {
             const std::vector<Variable> halves = SplitTo(in[0], 1, {4, 4});
             return SiluMul(halves[0], halves[1]);
           }},
      {.name = "cast to f32 and back",
       .operands = {Normal({3, 5})},
       .function = [](In in) { return Cast(Cast(in[0], DType::kF32), DType::kF64); },
       .smooth = false},
      {.name = "dropout",
       .operands = {Normal({2, 3, 8})},
       .function = [](In in) { return Dropout(in[0], 0.25); },
       .random = true,
       .recording = {.seed = 9, .step = 2, .samples = {10, 11}}},
  };
}

std::vector<OpRow> Products() {
  const auto linear = [](In in) { return Linear(in[0], in[1]); };
  const auto matmul = [](MatmulOptions options) {
    return [=](In in) { return Matmul(in[0], in[1], options); };
  };
  std::vector<OpRow> rows = {
      {.name = "linear",
       .operands = {Normal({3, 4}), Normal({5, 4})},
       .function = linear,
       .golden = "basic/linear"},
      {.name = "linear of three dimensions",
       .operands = {Normal({2, 3, 4}), Normal({5, 4})},
       .function = linear,
       .golden = "basic/linear of three dimensions"},
      {.name = "linear of a vector",
       .operands = {Normal({4}), Normal({5, 4})},
       .function = linear,
       .golden = "basic/linear of a vector"},
      {.name = "linear of a square",
       .operands = {Normal({4, 4}), Normal({4, 4})},
       .function = linear,
       .golden = "basic/linear of a square"},
      {.name = "matmul",
       .operands = {Normal({3, 4}), Normal({4, 2})},
       .function = matmul({}),
       .golden = "basic/matmul"},
      {.name = "matmul a transposed",
       .operands = {Normal({4, 3}), Normal({4, 2})},
       .function = matmul({.transpose_a = true}),
       .golden = "basic/matmul a transposed"},
      {.name = "matmul b transposed",
       .operands = {Normal({3, 4}), Normal({2, 4})},
       .function = matmul({.transpose_b = true}),
       .golden = "basic/matmul b transposed"},
      {.name = "matmul both transposed",
       .operands = {Normal({4, 3}), Normal({2, 4})},
       .function = matmul({true, true}),
       .golden = "basic/matmul both transposed"},
      // Squares, so that one variable may be both.
      {.name = "matmul squares",
       .operands = {Normal({3, 3}), Normal({3, 3})},
       .function = matmul({})},
      {.name = "matmul squares transposed",
       .operands = {Normal({3, 3}), Normal({3, 3})},
       .function = matmul({true, true})},
      {.name = "matmul a^T b",
       .operands = {Normal({3, 4}), Normal({3, 4})},
       .function = matmul({.transpose_a = true})},
      {.name = "matmul a b^T",
       .operands = {Normal({3, 4}), Normal({3, 4})},
       .function = matmul({.transpose_b = true})},
  };
  for (OpRow& row : rows) row.layout_eps = 2.0;
  return rows;
}

std::vector<OpRow> Rows() {
  return {
      {.name = "embedding",
       .operands = {GivenIds({4, 1, 4, 0, 4, 1}, {2, 3}), Normal({5, 3})},
       .function = [](In in) { return EmbeddingLookup(in[0], in[1]); },
       .golden = "basic/embedding"},
      {.name = "embedding of i32 ids",
       .operands = {Ids({7}, 4).I32(), Normal({4, 3})},
       .function = [](In in) { return EmbeddingLookup(in[0], in[1]); }},
      {.name = "rms_norm",
       .operands = {Normal({3, 4}), Normal({4})},
       .function = [](In in) { return RmsNorm(in[0], in[1]); },
       .golden = "basic/rms_norm",
       .dtype_eps = 2.0},
      {.name = "rms_norm of three dimensions",
       .operands = {Normal({2, 2, 4}), Normal({4})},
       .function = [](In in) { return RmsNorm(in[0], in[1], 0.1); },
       .golden = "basic/rms_norm of three dimensions",
       .dtype_eps = 2.0},
      {.name = "rms_norm of a vector",
       .operands = {Normal({5}), Normal({5})},
       .function = [](In in) { return RmsNorm(in[0], in[1]); },
       .dtype_eps = 2.0},
      {.name = "rope",
       .operands = {Normal({2, 3, 2, 4})},
       .function = [](In in) { return Rope(in[0], Tables(in[0], 3)); },
       .golden = "basic/rope"},
      {.name = "rope from a later position",
       .operands = {Normal({1, 2, 2, 4})},
       .function = [](In in) { return Rope(in[0], Tables(in[0], 9), 6); },
       .golden = "basic/rope from a later position"},
  };
}

std::vector<OpRow> Attentions() {
  const auto attention = [](bool causal) {
    return [=](In in) { return Attention(in[0], in[1], in[2], {.causal = causal, .scale = 0.5}); };
  };
  std::vector<OpRow> rows = {
      {.name = "attention causal",
       .operands = {Normal({2, 4, 2, 4}), Normal({2, 4, 2, 4}), Normal({2, 4, 2, 4})},
       .function = attention(true),
       .golden = "basic/attention causal"},
      {.name = "attention not causal",
       .operands = {Normal({1, 3, 2, 4}), Normal({1, 5, 2, 4}), Normal({1, 5, 2, 4})},
       .function = attention(false),
       .golden = "basic/attention not causal"},
      {.name = "attention with earlier keys",
       .operands = {Normal({1, 2, 1, 4}), Normal({1, 5, 1, 4}), Normal({1, 5, 1, 4})},
       .function = attention(true),
       .golden = "basic/attention causal with earlier keys"},
      {.name = "attention with grouped queries",
       .operands = {Normal({1, 3, 4, 2}), Normal({1, 3, 2, 2}), Normal({1, 3, 2, 2})},
       .function = attention(true),
       .golden = "basic/attention with grouped queries"},
      {.name = "attention of one variable",
       .operands = {Normal({1, 3, 2, 4})},
       .function =
           [=](In in) {
             return attention(true)(std::array{in[0], in[0], in[0]});
           }},
      {.name = "attention of a fused projection",
       .operands = {Normal({1, 3, 8})},
       .function =
           [=](In in) {
             const std::vector<Variable> parts = SplitTo(in[0], 2, {4, 2, 2});
             const std::array qkv = {Reshape(parts[0], {1, 3, 2, 2}),
                                     Reshape(parts[1], {1, 3, 1, 2}),
                                     Reshape(parts[2], {1, 3, 1, 2})};
             return attention(true)(qkv);
           }},
  };
  for (OpRow& row : rows) {
    row.dtype_eps = 4.0;
    row.layout_eps = 4.0;
    row.close = true;
  }
  return rows;
}

std::vector<OpRow> Shapes() {
  return {
      {.name = "reshape",
       .operands = {Normal({2, 6})},
       .function =
           [](In in) {
             return Reshape(in[0], {3, 2, 2});
           },
       .golden = "basic/reshape",
       .refuses = {{-1, Layout::kColumns}, {-1, Layout::kReversed}, {-1, Layout::kExpanded}}},
      {.name = "slice of the first dimension",
       .operands = {Normal({4, 3})},
       .function = [](In in) { return Slice(in[0], 0, 1, 3); },
       .golden = "basic/slice of the first dimension"},
      {.name = "slice of the last dimension",
       .operands = {Normal({4, 3})},
       .function = [](In in) { return Slice(in[0], 1, 2, 3); },
       .golden = "basic/slice of the last dimension"},
      {.name = "split with an unused part",
       .operands = {Normal({2, 7})},
       .function =
           [](In in) {
             const std::vector<Variable> parts = SplitTo(in[0], 1, {3, 1, 3});
             return Mul(parts[0], parts[2]);
           },
       .golden = "basic/split with an unused part"},
      {.name = "concat",
       .operands = {Normal({2, 1, 3}), Normal({2, 2, 3}), Normal({2, 3, 3})},
       .function = [](In in) { return Concat(in, 1); },
       .golden = "basic/concat"},
      {.name = "concat of the first dimension",
       .operands = {Normal({1, 3}), Normal({2, 3})},
       .function = [](In in) { return Concat(in, 0); },
       .golden = "basic/concat of the first dimension"},
      {.name = "concat of equal shapes",
       .operands = {Normal({2, 3}), Normal({2, 3})},
       .function = [](In in) { return Concat(in, 1); }},
      {.name = "sum",
       .operands = {Normal({2, 3})},
       .function = [](In in) { return Sum(Mul(in[0], in[0])); },
       .golden = "basic/sum"},
      {.name = "sum beside another use",
       .operands = {Normal({4})},
       .function =
           [](In in) {
             return Concat(std::array{Sum(in[0]), Silu(in[0])}, 0);
           },
       .golden = "basic/sum beside another use",
       .layout_eps = 2.0},
      {.name = "two views of one variable",
       .operands = {Normal({2, 4})},
       .function =
           [](In in) {
             return Add(Reshape(in[0], {2, 2, 2}), Reshape(in[0], {2, 2, 2}));
           }},
      {.name = "overlapping slices",
       .operands = {Normal({5, 2})},
       .function = [](In in) { return Mul(Slice(in[0], 0, 0, 3), Slice(in[0], 0, 2, 5)); },
       .golden = "basic/overlapping slices"},
      {.name = "a variable and an op of it",
       .operands = {Normal({2, 3})},
       .function = [](In in) { return Mul(Add(in[0], Silu(in[0])), in[0]); },
       .dtype_eps = 2.0},
  };
}

std::vector<OpRow> Losses() {
  return {
      {.name = "causal_lm with ignored labels",
       .operands = {Normal({2, 3, 5}), GivenIds({1, -100, 4, 0, 2, -100}, {2, 3})},
       .function = [](In in) { return CausalLmLoss()(in[0], in[1].value()).value; },
       .golden = "basic/causal_lm with ignored labels"},
      {.name = "causal_lm of i32 labels",
       .operands = {Normal({3, 4}), GivenIds({1, 3, 0}, {3}).I32()},
       .function =
           [](In in) { return CausalLmLoss({.ignore_index = 3})(in[0], in[1].value()).value; },
       .golden = "basic/causal_lm of i32 labels"},
  };
}

std::vector<OpRow> All() {
  std::vector<OpRow> all;
  for (const auto& part : {Elementwise(), Products(), Rows(), Attentions(), Shapes(), Losses()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

SHERD_TEST_OP_TABLE(Basic, All());

}  // namespace
}  // namespace sherd::testing
