// The gradient of every op equals central differences of its values, in f64.

#include "sherd/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using Inputs = std::span<const Variable>;

constexpr double kBound = 1e-7;

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

struct OpCase {
  std::string name;
  std::vector<Shape> shapes;
  std::function<Variable(Inputs)> function;
};

void PrintTo(const OpCase& op, std::ostream* out) { *out << op.name; }

class GradCheckTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(GradCheckTest, EqualsCentralDifferences) {
  std::vector<Tensor> inputs;
  for (const Shape& shape : GetParam().shapes) {
    inputs.push_back(NormalTensor(Cpu(), DType::kF64, shape, 100 + inputs.size()));
  }
  const GradCheckResult result = GradCheck(GetParam().function, inputs);
  std::printf("%-36s worst error %.1e\n", GetParam().name.c_str(), result.worst_error);
  EXPECT_LT(result.worst_error, kBound) << result.worst;
}

Variable Ids(const std::vector<int64_t>& ids, const Shape& shape) {
  return TensorOf<int64_t>(Cpu(), ids, shape);
}

kernels::RopeTables Tables(int64_t positions, int64_t head_size) {
  return kernels::MakeRopeTables(Cpu(), DType::kF64, positions, head_size);
}

// Columns 1 to 4 of a [R, 6] matrix: strided rows.
Variable Columns(const Variable& x) { return Slice(x, 1, 1, 5); }

std::vector<Variable> SplitTo(const Variable& x, int dim, const std::vector<int64_t>& sizes) {
  return Split(x, dim, sizes);
}

std::vector<OpCase> PlainOps() {
  const auto linear = [](Inputs in) { return Linear(in[0], in[1]); };
  return {
      {"add", {{2, 3}, {2, 3}}, [](Inputs in) { return Add(in[0], in[1]); }},
      {"mul", {{2, 3}, {2, 3}}, [](Inputs in) { return Mul(in[0], in[1]); }},
      {"scale", {{2, 3}}, [](Inputs in) { return Scale(in[0], -1.75); }},
      {"silu", {{2, 5}}, [](Inputs in) { return Silu(in[0]); }},
      {"silu_mul", {{2, 5}, {2, 5}}, [](Inputs in) { return SiluMul(in[0], in[1]); }},
      {"linear", {{3, 4}, {5, 4}}, linear},
      {"linear of three dimensions", {{2, 3, 4}, {5, 4}}, linear},
      {"linear of a vector", {{4}, {5, 4}}, linear},
      {"matmul", {{3, 4}, {4, 2}}, [](Inputs in) { return Matmul(in[0], in[1]); }},
      {"matmul a transposed",
       {{4, 3}, {4, 2}},
       [](Inputs in) { return Matmul(in[0], in[1], {.transpose_a = true}); }},
      {"matmul b transposed",
       {{3, 4}, {2, 4}},
       [](Inputs in) { return Matmul(in[0], in[1], {.transpose_b = true}); }},
      {"matmul both transposed",
       {{4, 3}, {2, 4}},
       [](Inputs in) {
         return Matmul(in[0], in[1], {true, true});
       }},
      {"embedding with repeated ids",
       {{5, 3}},
       [](Inputs in) {
         return EmbeddingLookup(Ids({4, 1, 4, 0, 4, 1}, {2, 3}), in[0]);
       }},
      {"rms_norm", {{3, 4}, {4}}, [](Inputs in) { return RmsNorm(in[0], in[1]); }},
      {"rms_norm of three dimensions",
       {{2, 2, 4}, {4}},
       [](Inputs in) { return RmsNorm(in[0], in[1], 0.1); }},
      {"rope", {{2, 3, 2, 4}}, [](Inputs in) { return Rope(in[0], Tables(3, 4)); }},
      {"rope from a later position",
       {{1, 2, 2, 4}},
       [](Inputs in) { return Rope(in[0], Tables(9, 4), 6); }},
      {"attention causal",
       {{2, 4, 2, 4}, {2, 4, 2, 4}, {2, 4, 2, 4}},
       [](Inputs in) { return Attention(in[0], in[1], in[2], {.causal = true, .scale = 0.5}); }},
      {"attention not causal",
       {{1, 3, 2, 4}, {1, 5, 2, 4}, {1, 5, 2, 4}},
       [](Inputs in) { return Attention(in[0], in[1], in[2], {.causal = false, .scale = 0.5}); }},
      {"attention causal with earlier keys",
       {{1, 2, 1, 4}, {1, 5, 1, 4}, {1, 5, 1, 4}},
       [](Inputs in) { return Attention(in[0], in[1], in[2], {.causal = true, .scale = 0.5}); }},
      {"attention with grouped queries",
       {{1, 3, 4, 2}, {1, 3, 2, 2}, {1, 3, 2, 2}},
       [](Inputs in) { return Attention(in[0], in[1], in[2], {.causal = true, .scale = 0.7}); }},
      {"reshape",
       {{2, 6}},
       [](Inputs in) {
         return Reshape(in[0], {3, 2, 2});
       }},
      {"slice of the first dimension", {{4, 3}}, [](Inputs in) { return Slice(in[0], 0, 1, 3); }},
      {"slice of the last dimension", {{4, 3}}, [](Inputs in) { return Slice(in[0], 1, 2, 3); }},
      {"split with an unused part",
       {{2, 7}},
       [](Inputs in) {
         const std::vector<Variable> parts = SplitTo(in[0], 1, {3, 1, 3});
         return Mul(parts[0], parts[2]);
       }},
      {"concat", {{2, 1, 3}, {2, 2, 3}, {2, 3, 3}}, [](Inputs in) { return Concat(in, 1); }},
      {"concat of the first dimension", {{1, 3}, {2, 3}}, [](Inputs in) { return Concat(in, 0); }},
      {"sum", {{2, 3}}, [](Inputs in) { return Sum(Mul(in[0], in[0])); }},
      {"sum beside another use",
       {{4}},
       [](Inputs in) {
         return Concat(std::array{Sum(in[0]), Silu(in[0])}, 0);
       }},
      {"causal lm loss with ignored labels",
       {{2, 3, 5}},
       [](Inputs in) {
         return CausalLmLoss()(in[0], Ids({1, -100, 4, 0, 2, -100}, {2, 3}).value()).value;
       }},
      {"causal lm loss of i32 labels",
       {{3, 4}},
       [](Inputs in) {
         return CausalLmLoss({.ignore_index = 3})(in[0], TensorOf<int32_t>(Cpu(), {1, 3, 0}, {3}))
             .value;
       }},
  };
}

// One variable as several operands has one gradient: the sum of its parts.
std::vector<OpCase> OneVariableTwice() {
  return {
      {"add x x", {{2, 3}}, [](Inputs in) { return Add(in[0], in[0]); }},
      {"mul x x", {{2, 3}}, [](Inputs in) { return Mul(in[0], in[0]); }},
      {"silu_mul x x", {{2, 3}}, [](Inputs in) { return SiluMul(in[0], in[0]); }},
      {"linear x x", {{3, 4}}, [](Inputs in) { return Linear(in[0], in[0]); }},
      {"matmul x x", {{3, 3}}, [](Inputs in) { return Matmul(in[0], in[0]); }},
      {"matmul x^T x",
       {{3, 4}},
       [](Inputs in) { return Matmul(in[0], in[0], {.transpose_a = true}); }},
      {"matmul x x^T",
       {{3, 4}},
       [](Inputs in) { return Matmul(in[0], in[0], {.transpose_b = true}); }},
      {"matmul x^T x^T",
       {{3, 3}},
       [](Inputs in) {
         return Matmul(in[0], in[0], {true, true});
       }},
      {"rms_norm x x", {{5}}, [](Inputs in) { return RmsNorm(in[0], in[0]); }},
      {"attention x x x",
       {{1, 3, 2, 4}},
       [](Inputs in) { return Attention(in[0], in[0], in[0], {.causal = true, .scale = 0.4}); }},
      {"attention x y y",
       {{1, 3, 2, 4}, {1, 3, 1, 4}},
       [](Inputs in) { return Attention(in[0], in[1], in[1], {.causal = true, .scale = 0.4}); }},
      {"attention x y x",
       {{1, 3, 2, 2}, {1, 3, 2, 2}},
       [](Inputs in) { return Attention(in[0], in[1], in[0], {.causal = true, .scale = 0.4}); }},
      {"concat x x",
       {{2, 3}},
       [](Inputs in) {
         return Concat(std::array{in[0], in[0]}, 1);
       }},
      {"two views of x",
       {{2, 4}},
       [](Inputs in) {
         return Add(Reshape(in[0], {4, 2}), Reshape(in[0], {4, 2}));
       }},
      {"overlapping slices of x",
       {{5, 2}},
       [](Inputs in) { return Mul(Slice(in[0], 0, 0, 3), Slice(in[0], 0, 2, 5)); }},
      {"x and an op of x", {{2, 3}}, [](Inputs in) { return Mul(Add(in[0], Silu(in[0])), in[0]); }},
  };
}

std::vector<OpCase> StridedOperands() {
  const auto heads = [](const Variable& fused) {
    // [1, 3, 8] holds a query of two heads, a key and a value of one, each of size 2.
    std::vector<Variable> parts = SplitTo(fused, 2, {4, 2, 2});
    return std::array{Reshape(parts[0], {1, 3, 2, 2}), Reshape(parts[1], {1, 3, 1, 2}),
                      Reshape(parts[2], {1, 3, 1, 2})};
  };
  return {
      {"strided add", {{2, 6}, {2, 4}}, [](Inputs in) { return Add(Columns(in[0]), in[1]); }},
      {"strided mul",
       {{2, 6}, {2, 6}},
       [](Inputs in) { return Mul(Columns(in[0]), Columns(in[1])); }},
      {"strided scale", {{2, 6}}, [](Inputs in) { return Scale(Columns(in[0]), 2.5); }},
      {"strided silu", {{2, 6}}, [](Inputs in) { return Silu(Columns(in[0])); }},
      {"halves of a fused silu_mul",
       {{3, 8}},
       [](Inputs in) {
         const std::vector<Variable> halves = SplitTo(in[0], 1, {4, 4});
         return SiluMul(halves[0], halves[1]);
       }},
      {"strided linear",
       {{3, 6}, {2, 6}},
       [](Inputs in) { return Linear(Columns(in[0]), Columns(in[1])); }},
      {"strided matmul",
       {{3, 6}, {4, 6}},
       [](Inputs in) { return Matmul(Columns(in[0]), Columns(in[1])); }},
      {"strided matmul transposed",
       {{4, 6}, {5, 6}},
       [](Inputs in) {
         return Matmul(Columns(in[0]), Columns(in[1]), {true, true});
       }},
      {"embedding in a strided table",
       {{5, 6}},
       [](Inputs in) {
         return EmbeddingLookup(Ids({3, 3, 0}, {3}), Columns(in[0]));
       }},
      {"strided rms_norm", {{3, 6}, {4}}, [](Inputs in) { return RmsNorm(Columns(in[0]), in[1]); }},
      {"rope of a slice of a fused tensor",
       {{1, 3, 8}},
       [=](Inputs in) { return Rope(heads(in[0])[0], Tables(3, 2)); }},
      {"attention of slices of a fused tensor",
       {{1, 3, 8}},
       [=](Inputs in) {
         const auto [q, k, v] = heads(in[0]);
         return Attention(q, k, v, {.causal = true, .scale = 0.7});
       }},
      {"strided reshape",
       {{2, 6}},
       [](Inputs in) {
         return Reshape(Columns(in[0]), {2, 2, 2});
       }},
      {"slice of a slice", {{4, 6}}, [](Inputs in) { return Slice(Columns(in[0]), 0, 1, 3); }},
      {"concat of slices",
       {{2, 6}, {2, 6}},
       [](Inputs in) {
         return Concat(std::array{Columns(in[0]), Columns(in[1])}, 0);
       }},
      {"strided sum", {{2, 6}}, [](Inputs in) { return Sum(Columns(in[0])); }},
      {"loss of a slice",
       {{3, 6}},
       [](Inputs in) {
         return CausalLmLoss()(Columns(in[0]), Ids({1, 3, -100}, {3}).value()).value;
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(PlainOps, GradCheckTest, ::testing::ValuesIn(PlainOps()));
INSTANTIATE_TEST_SUITE_P(OneVariableTwice, GradCheckTest, ::testing::ValuesIn(OneVariableTwice()));
INSTANTIATE_TEST_SUITE_P(StridedOperands, GradCheckTest, ::testing::ValuesIn(StridedOperands()));

TEST(GradCheckItself, FindsAWrongGradient) {
  // The gradient of the detached factor is missing.
  const std::vector<Tensor> inputs = {NormalTensor(Cpu(), DType::kF64, {3}, 1)};
  const GradCheckResult result =
      GradCheck([](Inputs in) { return Mul(in[0], in[0].Detach()); }, inputs);
  EXPECT_GT(result.worst_error, 0.01);
  EXPECT_TRUE(Contains(result.worst, "input 0"));
}

TEST(GradCheckItself, RefusesOtherDtypes) {
  const std::vector<Tensor> inputs = {NormalTensor(Cpu(), DType::kF32, {3}, 1)};
  EXPECT_TRUE(Contains(ErrorOf([&] { GradCheck([](Inputs in) { return Silu(in[0]); }, inputs); }),
                       "f32 [3]"));
}

}  // namespace
}  // namespace sherd::testing
