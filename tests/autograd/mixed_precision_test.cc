// Parameters that ops read in 16 bits while their gradients are kept in f32: nothing is rounded to
// 16 bits on the way where an op can write f32, and every contribution arrives exactly once.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/norm.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/tensors.h"
#include "tests/support/wide_host.h"

namespace sherd::testing {
namespace {

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Tensor To(const Tensor& x, DType dtype) {
  const Tensor out = Tensor::Empty(x.device(), dtype, x.shape());
  kernels::Cast(x, out);
  return out;
}

// Normal values as `dtype` stores them.
Tensor Random(DType dtype, const Shape& shape, uint64_t seed, double scale = 1.0) {
  return To(NormalTensor(Cpu(), DType::kF64, shape, seed, scale), dtype);
}

std::vector<double> Doubles(const Tensor& x) { return To(x, DType::kF64).ToHost<double>(); }

// ||a - b|| / ||b||
double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

struct WideCase {
  const char* name;
  Shape x;
  std::vector<Shape> parameters;
  std::function<Variable(const Variable& x, const std::vector<Variable>& p)> function;
};

const WideCase kWideCases[] = {
    {"linear",
     {37, 24},
     {{20, 24}, {20}},
     [](const Variable& x, const std::vector<Variable>& p) { return Linear(x, p[0], p[1]); }},
    {"matmul",
     {37, 24},
     {{24, 20}},
     [](const Variable& x, const std::vector<Variable>& p) { return Matmul(x, p[0]); }},
    {"matmul of a batch",
     {3, 37, 24},
     {{24, 20}},
     [](const Variable& x, const std::vector<Variable>& p) { return Matmul(x, p[0]); }},
    {"matmul, first operand",
     {3, 24, 20},
     {{37, 24}},
     [](const Variable& x, const std::vector<Variable>& p) { return Matmul(p[0], x); }},
    {"rms_norm",
     {100, 24},
     {{24}},
     [](const Variable& x, const std::vector<Variable>& p) { return RmsNorm(x, p[0], 1e-5); }},
    {"layer_norm",
     {100, 24},
     {{24}, {24}},
     [](const Variable& x, const std::vector<Variable>& p) {
       return LayerNorm(x, p[0], p[1], 1e-5);
     }},
    {"add of a row",
     {100, 24},
     {{24}},
     [](const Variable& x, const std::vector<Variable>& p) { return Add(x, p[0]); }},
    {"sub of a column",
     {100, 24},
     {{100, 1}},
     [](const Variable& x, const std::vector<Variable>& p) { return Sub(x, p[0]); }},
    {"mul with a row",
     {100, 24},
     {{24}},
     [](const Variable& x, const std::vector<Variable>& p) { return Mul(x, p[0]); }},
    {"mul",
     {100, 24},
     {{100, 24}},
     [](const Variable& x, const std::vector<Variable>& p) { return Mul(p[0], x); }},
    {"add",
     {100, 24},
     {{100, 24}},
     [](const Variable& x, const std::vector<Variable>& p) { return Add(p[0], x); }},
    {"cast",
     {100, 24},
     {{100, 24}},
     [](const Variable&, const std::vector<Variable>& p) { return Cast(p[0], DType::kF32); }},
    {"sum", {100, 24}, {{100, 24}}, [](const Variable&, const std::vector<Variable>& p) {
       return Sum(p[0]);
     }}};

// Gradients of the parameters, kept in `kept` (f64: as in the values' own f64), after `times`
// applications with different incoming gradients.
std::vector<std::vector<double>> Gradients(const WideCase& c, DType dtype, DType kept,
                                           DType rounded, int times) {
  const auto value = [&](const Shape& shape, uint64_t seed) {
    return To(Random(rounded, shape, seed), dtype);
  };
  WideHost host(kept);
  std::vector<Parameter> parameters;
  std::vector<Variable> variables;
  for (size_t i = 0; i < c.parameters.size(); ++i) {
    parameters.push_back(host.Add(value(c.parameters[i], 10 + i)));
    variables.push_back(parameters.back());
  }
  Tape tape;
  std::vector<Variable> results;
  std::vector<Tensor> seeds;
  {
    const Recording on(tape);
    for (int t = 0; t < times; ++t) {
      results.push_back(c.function(Variable(value(c.x, 1)), variables));
      const Tensor seed = Random(rounded, results.back().shape(), 50 + static_cast<uint64_t>(t));
      seeds.push_back(To(seed, results.back().dtype()));
    }
  }
  tape.Backward(results, seeds);
  std::vector<std::vector<double>> gradients;
  for (const Parameter& parameter : parameters) {
    EXPECT_EQ(host.contributions(parameter), times) << c.name;
    gradients.push_back(Doubles(host.grad(parameter)));
  }
  return gradients;
}

// Statistics of a norm are f32 and its sums run over 100 rows; the rest are sums of exact products.
constexpr double kNotRounded = 2e-6;

TEST(MixedPrecisionTest, OpsWriteF32GradientsOf16BitParametersWithoutRounding) {
  for (const WideCase& c : kWideCases) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      for (int times : {1, 3}) {
        const auto want = Gradients(c, DType::kF64, DType::kF64, dtype, times);
        const auto got = Gradients(c, dtype, DType::kF32, dtype, times);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LT(RelativeError(got[i], want[i]), kNotRounded)
              << c.name << ", parameter " << i << ", " << NameOf(dtype) << ", " << times;
        }
      }
    }
  }
}

TEST(MixedPrecisionTest, NarrowTargetsOfWideValuesAreRoundedOncePerContribution) {
  for (const WideCase& c : kWideCases) {
    for (DType kept : {DType::kBF16, DType::kF16}) {
      const auto want = Gradients(c, DType::kF64, DType::kF64, DType::kF32, 1);
      const auto got = Gradients(c, DType::kF32, kept, DType::kF32, 1);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LT(RelativeError(got[i], want[i]), kept == DType::kBF16 ? 0x1p-8 : 0x1p-11)
            << c.name << ", parameter " << i;
      }
    }
  }
}

// f16 values with bf16 gradients: one op's sums reach the target through f32, not through f16.
TEST(MixedPrecisionTest, A16BitTargetOfOther16BitValuesIsReachedThroughF32) {
  const WideCase& linear = kWideCases[0];
  const auto exact = Gradients(linear, DType::kF16, DType::kF32, DType::kF16, 1);
  const auto got = Gradients(linear, DType::kF16, DType::kBF16, DType::kF16, 1);
  for (size_t i = 0; i < got.size(); ++i) {
    for (size_t k = 0; k < got[i].size(); ++k) {
      const double want = static_cast<float>(BFloat16(static_cast<float>(exact[i][k])));
      EXPECT_EQ(got[i][k], want) << "parameter " << i << ", element " << k;
    }
  }
}

// An embedding sums rows in the order of their indices, so its bits are those of f32 arithmetic.
TEST(MixedPrecisionTest, ATiedWeightSumsBothUsesInF32) {
  constexpr int64_t kRows = 11, kChannels = 8, kTokens = 60;
  const std::vector<int64_t> ids = [] {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < kTokens; ++i) all.push_back(i * i % kRows);
    return all;
  }();
  const Tensor token_ids = TensorOf<int64_t>(Cpu(), ids, {kTokens});
  const Tensor table = Random(DType::kBF16, {kRows, kChannels}, 1);
  const Tensor hidden = Random(DType::kBF16, {kTokens, kChannels}, 2);
  const Tensor seed_rows = Random(DType::kBF16, {kTokens, kChannels}, 3);
  const Tensor seed_logits = Random(DType::kBF16, {kTokens, kRows}, 4);

  WideHost host(DType::kF32);
  const Parameter weight = host.Add(table);
  Tape tape;
  std::vector<Variable> results;
  {
    const Recording on(tape);
    results.push_back(EmbeddingLookup(Variable(token_ids), weight));
    results.push_back(Linear(Variable(hidden), weight));
  }
  tape.Backward(results, std::vector<Tensor>{seed_rows, seed_logits});

  std::vector<double> want(kRows * kChannels, 0.0);
  const std::vector<double> rows = Doubles(seed_rows), logits = Doubles(seed_logits);
  const std::vector<double> x = Doubles(hidden);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto at = static_cast<size_t>(t * kChannels + c);
      want[static_cast<size_t>(ids[static_cast<size_t>(t)] * kChannels + c)] += rows[at];
      for (int64_t v = 0; v < kRows; ++v) {
        want[static_cast<size_t>(v * kChannels + c)] +=
            logits[static_cast<size_t>(t * kRows + v)] * x[at];
      }
    }
  }
  EXPECT_EQ(host.contributions(weight), 2);
  EXPECT_LT(RelativeError(Doubles(host.grad(weight)), want), 1e-6);
}

TEST(MixedPrecisionTest, TheWeightOfALossOverTheVocabularyIsNotRounded) {
  const std::vector<int64_t> labels = {3, 0, 12, 7, 7, 1};
  const Tensor targets = TensorOf<int64_t>(Cpu(), labels, {6});
  std::vector<double> gradients[2];
  for (int wide = 0; wide < 2; ++wide) {
    // The same chunks of bf16 logits; only where the gradient is kept differs.
    WideHost host(wide == 1 ? DType::kF32 : DType::kBF16);
    const Parameter weight = host.Add(Random(DType::kBF16, {13, 8}, 5));
    Tape tape;
    Variable loss;
    {
      const Recording on(tape);
      loss = LinearCrossEntropy(Variable(Random(DType::kBF16, {6, 8}, 6)), weight, targets,
                                {.chunk_classes = 5})
                 .value;
    }
    const Tensor one = TensorOf<double>(Cpu(), {1.0}, {1});
    tape.Backward({&loss, 1}, {&one, 1});
    gradients[wide] = Doubles(host.grad(weight));
  }
  int64_t differ = 0;
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    const double rounded = static_cast<float>(BFloat16(static_cast<float>(gradients[1][i])));
    EXPECT_EQ(gradients[0][i], rounded);
    differ += gradients[1][i] != rounded;
  }
  EXPECT_GT(differ, 50) << "the f32 gradient has only values that bf16 has";
}

// How an op hands over its contributions to input 0, one after another.
enum class Way : uint8_t { kOwnDType, kAnyDType, kPass };

// A function of two inputs whose gradients are sums of powers of 4 times what comes in.
class WaysOp final : public Op {
 public:
  explicit WaysOp(std::vector<Way> ways) : ways_(std::move(ways)) {}
  std::string_view name() const override { return "ways"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override { kernels::Copy(f.inputs[0], f.outputs[0]); }
  void Backward(OpBackward& b) const override {
    // Stays staged while the other input gets its contributions.
    Write(b, 1, b.target(1), 0);
    for (size_t k = 0; k < ways_.size(); ++k) {
      if (ways_[k] == Way::kPass) {
        const Tensor grad = Tensor::Empty(b.grad().device(), b.grad().dtype(), b.grad().shape());
        kernels::Scale(b.grad(), std::pow(4.0, k), grad);
        b.Pass(0, grad);
      } else if (ways_[k] == Way::kOwnDType) {
        Write(b, 0, b.target(0), k);
      } else {
        const GradTarget to = b.target(0, GradDType::kAnyFloat);
        const Tensor wide = To(b.grad(), to.tensor.dtype());
        kernels::Scale(wide, std::pow(4.0, k), to.tensor, to.write);
      }
    }
  }

 private:
  static void Write(OpBackward& b, int i, const GradTarget& to, size_t power) {
    EXPECT_EQ(to.tensor.dtype(), b.input_spec(i).dtype);
    EXPECT_EQ(to.tensor.shape(), b.input_spec(i).shape);
    kernels::Scale(b.grad(), std::pow(4.0, power), to.tensor, to.write);
  }
  std::vector<Way> ways_;
};

// Whatever comes after a buffer that is to be cast finds it added already.
TEST(MixedPrecisionTest, EveryContributionOfAnOpArrivesOnceInEveryOrder) {
  constexpr Way kOwn = Way::kOwnDType, kAny = Way::kAnyDType, kPass = Way::kPass;
  const std::vector<std::vector<Way>> orders = {
      {kOwn},        {kOwn, kOwn, kOwn},   {kOwn, kAny},       {kAny, kOwn},
      {kOwn, kPass}, {kPass, kOwn, kPass}, {kOwn, kPass, kAny}};
  for (const std::vector<Way>& ways : orders) {
    for (DType kept : {DType::kF32, DType::kBF16, DType::kF64}) {
      WideHost host(kept);
      const Parameter weight = host.Add(Random(DType::kBF16, {5, 3}, 1));
      const Parameter other = host.Add(Random(DType::kBF16, {5, 3}, 2));
      Tape tape;
      Variable result;
      {
        const Recording on(tape);
        result = ApplyOne(WaysOp(ways), {weight.variable(), other.variable()}, CallSite::Here());
      }
      const Tensor seed = TensorOf<float>(Cpu(), std::vector<float>(15, 1.5f), {5, 3});
      const Tensor narrow = To(seed, DType::kBF16);
      tape.Backward({&result, 1}, {&narrow, 1});
      const auto n = static_cast<double>(ways.size());
      const double sum = (std::pow(4.0, n) - 1.0) / 3.0;
      for (double value : Doubles(host.grad(weight))) EXPECT_EQ(value, 1.5 * sum);
      for (double value : Doubles(host.grad(other))) EXPECT_EQ(value, 1.5);
      EXPECT_EQ(host.contributions(weight), ways.size());
      EXPECT_EQ(host.contributions(other), 1);
    }
  }
}

TEST(MixedPrecisionTest, AFailedOpAddsNothingOfWhatItStaged) {
  class FailingOp final : public Op {
   public:
    std::string_view name() const override { return "failing"; }
    void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
      plan.outputs = {{in[0].dtype(), in[0].shape()}};
    }
    void Forward(OpForward& f) const override { kernels::Copy(f.inputs[0], f.outputs[0]); }
    void Backward(OpBackward& b) const override {
      kernels::Fill(b.target(0).tensor, 7.0);
      ThrowInvalidArgument("no gradient today");
    }
  };
  WideHost host(DType::kF32);
  const Parameter weight = host.Add(Random(DType::kBF16, {4}, 1));
  Tape tape;
  Variable result;
  {
    const Recording on(tape);
    result = ApplyOne(FailingOp(), {weight.variable()}, CallSite::Here());
  }
  const Tensor seed = Random(DType::kBF16, {4}, 2);
  EXPECT_TRUE(Contains(ErrorOf([&] { tape.Backward({&result, 1}, {&seed, 1}); }), "no gradient"));
  for (double value : Doubles(host.grad(weight))) EXPECT_TRUE(std::isnan(value));
}

// With one dtype the buffer an op gets is the host's own, and a step allocates what it does without
// a host.
TEST(MixedPrecisionTest, EqualDTypesWriteTheHostsMemory) {
  class SameMemoryOp final : public Op {
   public:
    explicit SameMemoryOp(const void* memory) : memory_(memory) {}
    std::string_view name() const override { return "same_memory"; }
    void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
      plan.outputs = {{in[0].dtype(), in[0].shape()}};
    }
    void Forward(OpForward& f) const override { kernels::Copy(f.inputs[0], f.outputs[0]); }
    void Backward(OpBackward& b) const override {
      for (GradDType accepts : {GradDType::kOfInput, GradDType::kWide, GradDType::kAnyFloat}) {
        const GradTarget to = b.target(0, accepts);
        EXPECT_EQ(to.tensor.raw(), memory_);
        kernels::Copy(b.grad(), to.tensor, to.write);
      }
    }

   private:
    const void* memory_;
  };
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    WideHost host(dtype);
    const Parameter weight = host.Add(Random(dtype, {4}, 1));
    Tape tape;
    Variable result;
    {
      const Recording on(tape);
      result =
          ApplyOne(SameMemoryOp(host.LocalGrad(0).raw()), {weight.variable()}, CallSite::Here());
    }
    const Tensor seed = Random(dtype, {4}, 2);
    const int64_t before = Cpu().allocator().stats().allocations;
    tape.Backward({&result, 1}, {&seed, 1});
    EXPECT_EQ(Cpu().allocator().stats().allocations, before);
    EXPECT_EQ(host.contributions(weight), 3);
  }
}

}  // namespace
}  // namespace sherd::testing
