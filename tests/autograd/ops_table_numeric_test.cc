// Functions of one variable, softmax and layer norm, through every check of the op table.

#include <array>
#include <limits>
#include <vector>

#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/norm.h"
#include "sherd/autograd/ops/softmax.h"
#include "tests/support/op_table.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using In = OpInputs;

// A row of a function of one variable. Its loops may end in another way where elements are not
// adjacent, so that a multiplication and an addition are fused or not.
OpRow One(const std::string& name, const Operand& x, std::function<Variable(const Variable&)> f) {
  return {.name = name,
          .operands = {x},
          .function = [f = std::move(f)](In in) { return f(in[0]); },
          .golden = "numeric/" + name,
          .layout_eps = 1.0,
          .dtype_eps = 2.0};
}

const std::vector<double> kFar = {-6, -3.5, -1.25, -0.01, 0, 0.3, 2, 5.5};

std::vector<OpRow> Functions() {
  const auto gelu = [](const Variable& x) { return Gelu(x); };
  const auto gelu_tanh = [](const Variable& x) { return Gelu(x, GeluKind::kTanh); };
  return {One("gelu", Normal({3, 5}), gelu),
          One("gelu far out", GivenFloats(kFar, {2, 4}), gelu),
          One("gelu tanh", Normal({3, 5}), gelu_tanh),
          One("gelu tanh far out", GivenFloats(kFar, {2, 4}), gelu_tanh),
          One("relu", Apart({3, 5}), [](const Variable& x) { return Relu(x); }),
          One("relu at zero", GivenFloats({-1, 0, 2, -0.5}, {4}),
              [](const Variable& x) { return Relu(x); }),
          One("sigmoid", Normal({3, 5}), [](const Variable& x) { return Sigmoid(x); }),
          One("tanh", Normal({3, 5}), [](const Variable& x) { return Tanh(x); }),
          One("erf", Normal({3, 5}), [](const Variable& x) { return Erf(x); }),
          One("exp", Normal({3, 5}), [](const Variable& x) { return Exp(x); }),
          One("log", Positive({3, 5}), [](const Variable& x) { return Log(x); }),
          One("sqrt", Positive({3, 5}), [](const Variable& x) { return Sqrt(x); }),
          One("rsqrt", Positive({3, 5}), [](const Variable& x) { return Rsqrt(x); }),
          One("clamp", GivenFloats({-2, -0.5, -0.25, 0.25, 0.75, 1, 1.5, 3}, {2, 4}),
              [](const Variable& x) { return Clamp(x, -0.5, 1.0); }),
          One("clamp below", GivenFloats({-2, -0.5, 0.25, 4}, {4}), [](const Variable& x) {
            return Clamp(x, -0.5, std::numeric_limits<double>::infinity());
          })};
}

std::vector<OpRow> Rows() {
  const auto softmax = [](const Variable& x) { return Softmax(x); };
  const auto log_softmax = [](const Variable& x) { return LogSoftmax(x); };
  const Operand large = GivenFloats({-300, 0, 700, 699, 1, -1e4, -1e4, -1e4}, {2, 4});
  std::vector<OpRow> rows = Functions();
  for (OpRow& row :
       std::vector<OpRow>{One("softmax", Normal({3, 5}), softmax),
                          One("softmax of three dimensions", Normal({2, 3, 4}), softmax),
                          One("softmax of a vector", Normal({6}), softmax),
                          One("softmax of large elements", large, softmax),
                          One("log_softmax", Normal({3, 5}), log_softmax),
                          One("log_softmax of three dimensions", Normal({2, 3, 4}), log_softmax),
                          One("log_softmax of large elements", large, log_softmax)}) {
    rows.push_back(row);
  }
  for (OpRow& row : rows) {
    // Differences of elements near 700, or of kinks and jumps, say nothing.
    const bool flat = row.name.ends_with("large elements") || row.name.starts_with("clamp");
    if (flat || row.name == "relu at zero") row.smooth = false;
  }
  const auto layer_norm = [&](const std::string& name, std::vector<Operand> operands,
                              std::function<Variable(In)> f) {
    rows.push_back({.name = name,
                    .operands = std::move(operands),
                    .function = std::move(f),
                    .golden = "numeric/" + name,
                    .dtype_eps = 2.0});
  };
  const auto full = [](In in) { return LayerNorm(in[0], in[1], in[2]); };
  layer_norm("layer_norm", {Normal({3, 5}), Normal({5}), Normal({5})}, full);
  layer_norm("layer_norm of three dimensions", {Normal({2, 3, 4}), Normal({4}), Normal({4})}, full);
  layer_norm("layer_norm of a vector", {Normal({5}), Normal({5}), Normal({5})}, full);
  layer_norm("layer_norm without bias", {Normal({3, 5}), Normal({5})},
             [](In in) { return LayerNorm(in[0], in[1], Variable(), 0.1); });
  layer_norm("layer_norm without weight", {Normal({3, 5}), Normal({5})},
             [](In in) { return LayerNorm(in[0], Variable(), in[1]); });
  layer_norm("layer_norm without either", {Normal({3, 5})},
             [](In in) { return LayerNorm(in[0], Variable(), Variable()); });
  return rows;
}

SHERD_TEST_OP_TABLE(Numeric, Rows());

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Variable F64(const Shape& shape) { return NormalTensor(Cpu(), DType::kF64, shape, 1); }

TEST(NumericOps, RefusalsNameWhatDoesNotFit) {
  const Variable ids = TensorOf<int64_t>(Cpu(), {1, 2}, {2});
  const auto error = [](auto f) { return ErrorOf(f); };
  EXPECT_TRUE(Contains(error([&] { Gelu(ids); }), "[gelu]"));
  EXPECT_TRUE(Contains(error([&] { Gelu(ids); }), "i64 [2]"));
  EXPECT_TRUE(Contains(error([&] { Softmax(ids); }), "i64 [2]"));
  EXPECT_TRUE(Contains(error([&] { LogSoftmax(F64({})); }), "[log_softmax]"));
  EXPECT_TRUE(Contains(error([&] { Clamp(F64({2}), 1.0, 0.5); }), "1 is not at most"));
  EXPECT_TRUE(Contains(error([&] { Clamp(F64({2}), std::nan(""), 0.5); }), "nan"));
  const Variable x = F64({2, 3});
  EXPECT_TRUE(Contains(error([&] { LayerNorm(x, F64({2}), F64({3})); }), "weight"));
  EXPECT_TRUE(Contains(error([&] { LayerNorm(x, F64({2}), F64({3})); }), "f64 [2, 3]"));
  EXPECT_TRUE(Contains(error([&] { LayerNorm(x, F64({3}), F64({1, 3})); }), "bias"));
  EXPECT_TRUE(Contains(error([&] { LayerNorm(x, Variable(), F64({3}), -1.0); }), "got -1"));
  const Variable narrow = NormalTensor(Cpu(), DType::kF32, {3}, 1);
  EXPECT_TRUE(Contains(error([&] { LayerNorm(x, narrow, Variable()); }), "f32 [3]"));
}

// Bytes the tape keeps of `apply(x, ...)` when the program has let go of the operands; the result
// and what the leaves in `held` own are not counted.
template <typename F>
int64_t KeptBytes(const F& apply) {
  const Device device = Device::Cpu();
  Tape tape;
  const Recording on(tape);
  std::vector<Variable> held;
  const Variable result = apply(device, held);
  int64_t own = result.value().bytes();
  for (const Variable& variable : held) own += variable.value().bytes();
  return device.allocator().stats().total.current_bytes - own;
}

// x [4, 64] is 2048 bytes in f64, each of the statistics 64 rounded up, a weight 512.
TEST(NumericOps, LayerNormKeepsOnlyWhatTheWantedGradientsRead) {
  const auto kept = [](bool x_wanted, bool weight_wanted, bool bias_wanted) {
    return KeptBytes([=](const Device& device, std::vector<Variable>& held) {
      const auto make = [&](const Shape& shape, bool wanted) {
        const Tensor value = NormalTensor(device, DType::kF64, shape, 1);
        if (wanted) held.push_back(Variable::Leaf(value));
        return wanted ? held.back() : Variable(value);
      };
      const Variable x = make({4, 64}, x_wanted), weight = make({64}, weight_wanted);
      return LayerNorm(x, weight, make({64}, bias_wanted));
    });
  };
  constexpr int64_t kStatistics = 2 * 64;
  EXPECT_EQ(kept(true, true, true), kStatistics);
  EXPECT_EQ(kept(true, false, false), kStatistics + 512);
  EXPECT_EQ(kept(false, true, false), kStatistics + 2048);
  EXPECT_EQ(kept(false, false, true), kStatistics);
}

TEST(NumericOps, AFunctionKeepsItsArgumentOrItsResult) {
  const auto kept = [](Variable (*f)(const Variable&)) {
    return KeptBytes([=](const Device& device, std::vector<Variable>& held) {
      held.push_back(Variable::Leaf(NormalTensor(device, DType::kF64, {4, 64}, 1)));
      // Of an intermediate result that the program drops.
      return f(Tanh(held[0]));
    });
  };
  // What tanh keeps for itself is its result: 2048 bytes in every case, and shared where f keeps
  // its argument.
  EXPECT_EQ(kept([](const Variable& x) { return Gelu(x); }), 2048);
  EXPECT_EQ(kept([](const Variable& x) { return Exp(x); }), 2048);
  EXPECT_EQ(kept([](const Variable& x) { return Softmax(x); }), 2048);
}

}  // namespace
}  // namespace sherd::testing
