#include "sherd/autograd/cast_call.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

struct Features {
  Variable x;
  Variable ids;
  std::optional<Variable> mask;
  std::map<std::string, std::vector<Variable>> more;
};
void VisitVariables(Features& f, const VariableVisitor& visit) {
  visit(f.x);
  visit(f.ids);
  VisitVariables(f.mask, visit);
  VisitVariables(f.more, visit);
}

// Notes the dtypes its body sees; returns what it was given, x doubled.
class Probe : public Module {
 public:
  Features operator()(const Features& f) {
    return Call(
        *this,
        [](Probe& self, const Features& f) {
          self.seen = f;
          Features out = f;
          out.x = Scale(f.x, 2.0);
          return out;
        },
        f);
  }
  Features seen;
};

class InDTypes final : public Interceptor {
 public:
  explicit InDTypes(CallDTypes dtypes) : dtypes_(dtypes) {}
  void Around(const CallContext& call) override {
    std::vector<DType> before, after;
    const auto note = [](std::vector<DType>& to) {
      return [&to](Variable& v) { to.push_back(v.defined() ? v.dtype() : DType::kI32); };
    };
    call.record().VisitArguments(note(before));
    ProceedIn(call, dtypes_);
    call.record().VisitArguments(note(after));
    EXPECT_EQ(before, after) << "the arguments of the caller's record were changed";
  }

 private:
  CallDTypes dtypes_;
};

Features Given(const Device& device) {
  const Variable x = Variable::Leaf(TensorOf<float>(device, {1.0f, 1.00390625f}, {2}));
  Features f;
  f.x = x;
  f.ids = Variable(TensorOf<int64_t>(device, {4, 2}, {2}));
  f.more["constant"] = {Variable(TensorOf<double>(device, {0.5}, {1})), Variable()};
  f.more["same"] = {x};
  f.more["narrow"] = {Variable::Leaf(Tensor::Zeros(device, DType::kBF16, {3}))};
  return f;
}

TEST(CastCall, EveryFloatIsCastAndNothingElse) {
  const Device device = Device::Cpu();
  Probe probe;
  probe.AddInterceptor(std::make_shared<InDTypes>(CallDTypes{DType::kBF16, DType::kF32}));
  const Features given = Given(device);
  Tape tape;
  const Recording on(tape);
  const Features got = probe(given);
  const Features& seen = probe.seen;
  EXPECT_EQ(seen.x.dtype(), DType::kBF16);
  // 1.00390625 lies between two bf16 numbers, 1 and 1.0078125; ties go to the even one.
  EXPECT_EQ(float{seen.x.value().data<BFloat16>()[1]}, 1.0f);
  EXPECT_EQ(seen.ids.dtype(), DType::kI64);
  EXPECT_EQ(seen.ids.value().raw(), given.ids.value().raw());
  EXPECT_FALSE(seen.mask.has_value());
  EXPECT_EQ(seen.more.at("constant")[0].dtype(), DType::kBF16);
  EXPECT_FALSE(seen.more.at("constant")[0].requires_grad());
  EXPECT_FALSE(seen.more.at("constant")[1].defined());
  EXPECT_TRUE(seen.more.at("same")[0].ident() == seen.x.ident()) << "one variable became two";
  EXPECT_TRUE(seen.more.at("narrow")[0].ident() == given.more.at("narrow")[0].ident());
  EXPECT_EQ(got.x.dtype(), DType::kF32);
  EXPECT_EQ(got.ids.dtype(), DType::kI64);
  EXPECT_EQ(got.more.at("narrow")[0].dtype(), DType::kF32);
  EXPECT_EQ(given.x.dtype(), DType::kF32);
}

TEST(CastCall, GradientsFlowBackThroughBothCasts) {
  const Device device = Device::Cpu();
  Probe probe;
  probe.AddInterceptor(std::make_shared<InDTypes>(CallDTypes{DType::kBF16, DType::kF32}));
  const Features given = Given(device);
  Tape tape;
  const Recording on(tape);
  const Features got = probe(given);
  const std::vector<Variable> roots = {got.x, got.more.at("same")[0], got.more.at("narrow")[0]};
  const std::vector<Tensor> seeds = {TensorOf<float>(device, {1.0f, 3.0f}, {2}),
                                     TensorOf<float>(device, {0.25f, 0.0f}, {2}),
                                     TensorOf<float>(device, {1.0f, 2.0f, 3.0f}, {3})};
  tape.Backward(roots, seeds);
  EXPECT_EQ(given.x.grad().ToHost<float>(), (std::vector<float>{2.25f, 6.0f}));
  const Tensor narrow = given.more.at("narrow")[0].grad();
  EXPECT_EQ(narrow.dtype(), DType::kBF16);
  EXPECT_EQ(float{narrow.data<BFloat16>()[2]}, 3.0f);
}

// Ops recorded for a call, the probe's own one left out.
int64_t Casts(const CallDTypes& dtypes, const Features& given) {
  Probe probe;
  probe.AddInterceptor(std::make_shared<InDTypes>(dtypes));
  Tape tape;
  const Recording on(tape);
  probe(given);
  return tape.ops() - 1;
}

TEST(CastCall, CastsOnlyWhatHasAnotherDType) {
  const Device device = Device::Cpu();
  const Features given = Given(device);
  EXPECT_EQ(Casts({}, given), 0);
  // x, which comes twice; the constant is no op of the tape.
  EXPECT_EQ(Casts({.arguments = DType::kBF16}, given), 1);
  EXPECT_EQ(Casts({.arguments = DType::kF32}, given), 1) << "the bf16 variable alone";
  // 2 x and the passed x; what came as bf16 stays.
  EXPECT_EQ(Casts({.results = DType::kBF16}, given), 2);
}

TEST(CastCall, AFailedCallLeavesTheArgumentsAlone) {
  class Fails : public Module {
   public:
    Variable operator()(const Variable& x) {
      return Call(
          *this,
          [](Fails&, const Variable& x) {
            if (x.dtype() == DType::kBF16) ThrowInvalidArgument("not today");
            return x;
          },
          x);
    }
  };
  Fails fails;
  fails.AddInterceptor(std::make_shared<InDTypes>(CallDTypes{.arguments = DType::kBF16}));
  const Variable x(TensorOf<float>(Device::Cpu(), {1.0f}, {1}));
  EXPECT_TRUE(Contains(ErrorOf([&] { fails(x); }), "not today"));
  EXPECT_EQ(x.dtype(), DType::kF32);
}

// Tables are no variables: a call in bf16 turns its heads by f32 cosines, those it was made with.
TEST(CastCall, TablesOfAModuleAreNeverCast) {
  class Turn : public Module {
   public:
    explicit Turn(const Device& device)
        : tables(kernels::MakeRopeTables(device, DType::kF32, 9, 4)) {}
    Variable operator()(const Variable& x) {
      return Call(
          *this, [](Turn& self, const Variable& x) { return Rope(x, self.tables, 1); }, x);
    }
    kernels::RopeTables tables;
  };
  const Device device = Device::Cpu();
  Turn turn(device);
  turn.AddInterceptor(std::make_shared<InDTypes>(CallDTypes{DType::kBF16, DType::kF32}));
  const std::vector<float> cosines = turn.tables.cos.ToHost<float>();
  const std::vector<float> xs = {1.0f, 0.5f, -2.0f, 0.25f};
  Tape tape;
  const Recording on(tape);
  const Variable y = turn(Variable::Leaf(TensorOf<float>(device, xs, {1, 1, 1, 4})));
  EXPECT_EQ(turn.tables.cos.dtype(), DType::kF32);
  EXPECT_EQ(turn.tables.cos.ToHost<float>(), cosines);
  // Position 1 turns the pairs (0, 2) and (1, 3) by 1 and by 10000^(-1/2) = 0.01. The cosine of
  // 0.01 is 1 in bf16, its sine 0.00999; the result shows it to bf16's own rounding.
  const double angles[] = {1.0, 0.01};
  const std::vector<float> got = y.value().ToHost<float>();
  for (size_t i = 0; i < 2; ++i) {
    const double a = double{xs[i]}, b = double{xs[i + 2]};
    const double first = a * std::cos(angles[i]) - b * std::sin(angles[i]);
    const double second = b * std::cos(angles[i]) + a * std::sin(angles[i]);
    EXPECT_NEAR(double{got[i]}, first, 0x1p-8 * std::fabs(first));
    EXPECT_NEAR(double{got[i + 2]}, second, 0x1p-8 * std::fabs(second));
  }
}

TEST(Cast, ToTheSameDTypeIsTheSameVariable) {
  const Device device = Device::Cpu();
  Tape tape;
  const Recording on(tape);
  const Variable x = Variable::Leaf(TensorOf<float>(device, {1.0f, 2.0f}, {2}));
  const Variable y = Scale(x, 1.5);
  const int64_t before = device.allocator().stats().allocations;
  for (const Variable& v : {x, y, y.Detach()}) {
    const Variable same = Cast(v, DType::kF32);
    EXPECT_TRUE(same.ident() == v.ident());
    EXPECT_EQ(same.value().raw(), v.value().raw());
  }
  EXPECT_EQ(device.allocator().stats().allocations, before);
  EXPECT_EQ(tape.ops(), 1);
}

// The gradient of a cast is the gradient cast back, whatever was rounded on the way.
TEST(Cast, TheGradientIsThatOfTheIdentity) {
  const Device device = Device::Cpu();
  for (DType to : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (DType from : {DType::kF64, DType::kF32}) {
      const Variable x = Variable::Leaf(NormalTensor(device, from, {7}, 3));
      Tape tape;
      const Recording on(tape);
      const Variable y = Cast(x, to);
      const Tensor seed = Tensor::Empty(device, to, {7});
      kernels::Fill(seed, -0.375);
      tape.Backward({&y, 1}, {&seed, 1});
      EXPECT_EQ(x.grad().dtype(), from);
      const Tensor wide = Tensor::Empty(device, DType::kF64, {7});
      kernels::Cast(x.grad(), wide);
      for (double g : wide.ToHost<double>()) EXPECT_EQ(g, -0.375);
    }
  }
}

TEST(Cast, RefusesIntegers) {
  const Device device = Device::Cpu();
  const Variable ids(TensorOf<int64_t>(device, {1}, {1}));
  const Variable x(TensorOf<float>(device, {1.0f}, {1}));
  EXPECT_TRUE(Contains(ErrorOf([&] { Cast(ids, DType::kF32); }), "a float tensor is needed"));
  EXPECT_TRUE(Contains(ErrorOf([&] { Cast(x, DType::kI32); }), "goes to a float dtype"));
}

}  // namespace
}  // namespace sherd::testing
