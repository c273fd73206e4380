// Every misuse of a tape is an error that says who, where and with what.

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

class TapeErrorsTest : public ::testing::Test {
 protected:
  Variable Leaf(const std::vector<double>& values) {
    return Variable::Leaf(TensorOf<double>(device_, values, {static_cast<int64_t>(values.size())}));
  }
  Tensor F64(const Shape& shape, uint64_t seed = 1) {
    return NormalTensor(device_, DType::kF64, shape, seed);
  }

  Device device_ = Device::Cpu();
  Tape tape_;
};

void ExpectError(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
}

// An op whose backward fails, after it has taken a buffer for its first operand.
class FailingOp final : public Op {
 public:
  std::string_view name() const override { return "failing"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
  }
  void Forward(OpForward& f) const override { f.outputs[0].data<double>()[0] = 1.0; }
  void Backward(OpBackward& b) const override {
    b.target(0);
    ThrowInvalidArgument("it broke");
  }
};

// A stack of layers, to have a path: "body.first".
class Pair : public Module {
 public:
  Pair()
      : first_(2, 2, Initializer::Constant(1.0), DType::kF64),
        second_(2, 3, Initializer::Constant(1.0), DType::kF64) {
    RegisterModule("first", first_);
    RegisterModule("second", second_);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Pair& self, const Variable& x) { return self.second_(self.first_(x)); }, x);
  }
  LinearLayer first_;
  LinearLayer second_;
};

class Tree : public Module {
 public:
  Tree() { RegisterModule("body", body_); }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](Tree& self, const Variable& x) { return self.body_(x); }, x);
  }
  Pair body_;
};

TEST_F(TapeErrorsTest, SecondBackwardOverAnOpNamesIt) {
  const Variable x = Leaf({1});
  const Recording on(tape_);
  const Variable y = Scale(x, 2.0);
  tape_.Backward(y);
  ExpectError(ErrorOf([&] { tape_.Backward(y); }),
              {"[backward]", "gave up what 'scale' had saved", "retain", "tape_errors_test.cc:84"});
  EXPECT_EQ(x.grad().ToHost<double>(), std::vector<double>{2});
}

TEST_F(TapeErrorsTest, RootsMustBeOneRecordedElement) {
  const Variable x = Leaf({1, 2});
  const Variable unrecorded = Scale(x, 2.0);
  const Recording on(tape_);
  ExpectError(ErrorOf([&] { tape_.Backward(Scale(x, 2.0)); }), {"one element", "f64 [2] on cpu:0"});
  ExpectError(ErrorOf([&] { tape_.Backward(Sum(unrecorded)); }), {"depends on nothing"});
  ExpectError(ErrorOf([&] { tape_.Backward(Variable()); }), {"one element", "undefined"});
}

TEST_F(TapeErrorsTest, SeedsMustFitTheirRoots) {
  const Recording on(tape_);
  const Variable y = Scale(Leaf({1, 2}), 2.0);
  const Device other = Device::Cpu({.index = 1});
  for (const Tensor& seed : {F64({3}), Tensor(), NormalTensor(device_, DType::kF32, {2}, 1),
                             NormalTensor(other, DType::kF64, {2}, 1)}) {
    ExpectError(ErrorOf([&] {
                  tape_.Backward({&y, 1}, {&seed, 1});
                }),
                {"[backward]", "root is f64 [2] on cpu:0", "seed is " + seed.ToString(),
                 "tape_errors_test.cc"});
  }
  ExpectError(ErrorOf([&] { tape_.Backward({&y, 1}, {}); }), {"1 roots", "0"});
}

TEST_F(TapeErrorsTest, VariablesOfAResetTapeAreRefused) {
  const Variable x = Leaf({1});
  const Recording on(tape_);
  const Variable old = Scale(x, 2.0);
  tape_.Reset();
  ExpectError(ErrorOf([&] { Scale(old, 2.0); }), {"[scale]", "operand 0", "reset", "Detach()"});
  ExpectError(ErrorOf([&] { tape_.Backward(old); }), {"[backward]", "reset"});
  EXPECT_EQ(ErrorOf([&] { Scale(old.Detach(), 2.0); }), "no error");
}

TEST_F(TapeErrorsTest, VariablesOfAnotherTapeAreRefused) {
  const Variable x = Leaf({1});
  Tape other;
  Variable y;
  {
    const Recording on(tape_);
    y = Scale(x, 2.0);
    // Also where the other recording is still on, further out.
    const Recording nested(other);
    ExpectError(ErrorOf([&] { Scale(y, 2.0); }), {"operand 0", "another one"});
  }
  const Recording on(other);
  ExpectError(ErrorOf([&] { Scale(y, 2.0); }), {"operand 0", "another one"});
  ExpectError(ErrorOf([&] { other.Backward(y); }), {"another one"});
}

TEST_F(TapeErrorsTest, ParameterChangedBetweenForwardAndBackward) {
  Tree model;
  Initialize(model, device_, 1);
  const Recording on(tape_);
  const Variable y = Sum(model(F64({1, 2})));
  model.body_.first_.weight().MutableLocal();
  ExpectError(ErrorOf([&] { tape_.Backward(y); }),
              {"[backward of linear]", "'body.first.weight' changed", "body.first)"});
}

TEST_F(TapeErrorsTest, FrozenParameterChangedBetweenForwardAndBackward) {
  Tree model;
  Initialize(model, device_, 1);
  model.body_.second_.weight().set_requires_grad(false);
  const Recording on(tape_);
  const Variable y = Sum(model(F64({1, 2})));
  model.body_.second_.weight().MutableLocal();
  ExpectError(ErrorOf([&] { tape_.Backward(y); }), {"'body.second.weight' changed"});
}

TEST_F(TapeErrorsTest, ReadBeforeInitialisationNamesTheParameter) {
  Tree model;
  ExpectError(ErrorOf([&] {
                model(F64({1, 2}));
              }),
              {"'body.first.weight'", "before it was initialised"});
  ExpectError(ErrorOf([&] { model.body_.first_.weight().MutableLocal(); }),
              {"'body.first.weight'", "before it was"});
}

TEST_F(TapeErrorsTest, ForwardErrorsHaveOpModulePathAndLine) {
  Tree model;
  Initialize(model, device_, 1);
  const std::string text = ErrorOf([&] { model(F64({4, 5})); });
  ExpectError(text, {"[linear]", "x is f64 [4, 5] on cpu:0", "weight is f64 [2, 2] on cpu:0",
                     "(in body.first)", "layers.cc:"});
  const Variable x = F64({2});
  const int line = __LINE__ + 1;
  ExpectError(ErrorOf([&] { Add(x, F64({3})); }),
              {"[add]", "f64 [2]", "f64 [3]", "tape_errors_test.cc:" + std::to_string(line)});
}

TEST_F(TapeErrorsTest, UndefinedAndMixedDeviceOperandsAreNamed) {
  const Variable x = F64({2, 2});
  const Variable there = NormalTensor(Device::Cpu({.index = 1}), DType::kF64, {2, 2}, 1);
  const Tensor labels = TensorOf<int64_t>(Device::Cpu({.index = 1}), {0, 1}, {2});
  ExpectError(ErrorOf([&] { Add(x, Variable()); }), {"[add]", "operand 1 is undefined"});
  ExpectError(ErrorOf([&] { Scale(Variable(), 1.0); }), {"[scale]", "operand 0 is undefined"});
  ExpectError(ErrorOf([&] { Mul(x, there); }),
              {"operand 0, f64 [2, 2] on cpu:0", "operand 1, f64 [2, 2] on cpu:1"});
  ExpectError(ErrorOf([&] {
                Concat(std::array{x, x, there}, 0);
              }),
              {"operand 0", "cpu:0", "operand 2", "cpu:1"});
  ExpectError(ErrorOf([&] { CausalLmLoss()(x, labels); }),
              {"[causal_lm_loss]", "logits on cpu:0 and labels on cpu:1", "i64 [2] on cpu:1"});
  ExpectError(ErrorOf([&] { CausalLmLoss()(x, Tensor()); }), {"labels of the batch are undefined"});
  LinearLayer layer(2, 2, Initializer::Constant(1.0), DType::kF64);
  Initialize(layer, device_, 1);
  ExpectError(ErrorOf([&] { layer(there); }), {"cpu:1", "parameter 'weight'", "cpu:0"});
}

TEST_F(TapeErrorsTest, MismatchedOperandsAreBothDescribed) {
  const Variable x = F64({2, 3});
  const Variable narrow = NormalTensor(device_, DType::kF32, {2, 3}, 1);
  const Variable ids = TensorOf<int64_t>(device_, {0, 1}, {2});
  ExpectError(ErrorOf([&] { Mul(x, narrow); }), {"f64 [2, 3]", "f32 [2, 3]"});
  ExpectError(ErrorOf([&] { SiluMul(x, F64({3, 2})); }), {"f64 [2, 3]", "f64 [3, 2]"});
  ExpectError(ErrorOf([&] {
                Linear(x, F64({4, 2}));
              }),
              {"x is f64 [2, 3]", "weight is f64 [4, 2]"});
  ExpectError(ErrorOf([&] { Matmul(x, x); }), {"a is f64 [2, 3]", "b is f64 [2, 3]"});
  ExpectError(ErrorOf([&] { Matmul(x, x, {true, true}); }), {"a (transposed)", "b (transposed)"});
  ExpectError(ErrorOf([&] { EmbeddingLookup(x, x); }),
              {"ids is f64 [2, 3]", "table is f64 [2, 3]"});
  ExpectError(ErrorOf([&] { EmbeddingLookup(ids, F64({1, 2})); }), {"[embedding]", "1"});
  ExpectError(ErrorOf([&] { RmsNorm(x, F64({2})); }), {"x is f64 [2, 3]", "weight is f64 [2]"});
  ExpectError(ErrorOf([&] {
                Attention(F64({1, 2, 3, 4}), F64({1, 2, 2, 4}), F64({1, 2, 2, 4}), {});
              }),
              {"[attention]", "q is f64 [1, 2, 3, 4]", "k is f64 [1, 2, 2, 4]"});
  ExpectError(ErrorOf([&] {
                Concat(std::array{x, Variable(F64({2, 2}))}, 0);
              }),
              {"operand 0 is f64 [2, 3]", "operand 1 is f64 [2, 2]"});
  ExpectError(ErrorOf([&] { Reshape(x, {4, 2}); }), {"[reshape]", "f64 [2, 3]", "[4, 2]"});
  ExpectError(ErrorOf([&] { Slice(x, 1, 2, 4); }), {"[slice]", "[2, 4)"});
  ExpectError(ErrorOf([&] {
                Split(x, 1, std::array<int64_t, 2>{1, 1});
              }),
              {"[split]", "add up to 2"});
  ExpectError(ErrorOf([&] { Silu(ids); }), {"x is i64 [2]"});
  ExpectError(ErrorOf([&] {
                Rope(F64({1, 5, 1, 2}), kernels::MakeRopeTables(device_, DType::kF64, 4, 2));
              }),
              {"0 to 5"});
  ExpectError(ErrorOf([&] { CausalLmLoss()(x, TensorOf<int64_t>(device_, {0}, {1})); }),
              {"logits is f64 [2, 3]", "labels is i64 [1]"});
  ExpectError(ErrorOf([&] {
                CausalLmLoss()(x, TensorOf<int64_t>(device_, {0, 3}, {2}));
              }),
              {"[causal_lm_loss]", "label 3 at [1] is outside [0, 3)"});
}

TEST_F(TapeErrorsTest, LeavesAreFloats) {
  ExpectError(ErrorOf([&] { Variable::Leaf(TensorOf<int64_t>(device_, {1}, {1})); }), {"i64 [1]"});
  ExpectError(ErrorOf([&] { Variable::Leaf(Tensor()); }), {"undefined"});
}

TEST_F(TapeErrorsTest, FailedBackwardLeavesNothingBehindAndTheNextStepIsRight) {
  const Variable x = Leaf({3});
  const Variable untouched = Leaf({4});
  const auto held = [&] { return device_.allocator().stats().total.current_bytes; };
  const int64_t before = held();
  {
    const Recording on(tape_);
    const Variable y = ApplyOne(FailingOp(), {Scale(x, 2.0)}, CallSite::Here());
    ExpectError(ErrorOf([&] { tape_.Backward(Add(y, untouched)); }),
                {"[backward of failing]", "it broke", "tape_errors_test.cc"});
  }
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(untouched.grad().defined()) << "leaves change only when all went well";
  tape_.Reset();
  EXPECT_EQ(held(), before);
  const Recording on(tape_);
  tape_.Backward(Mul(x, untouched));
  EXPECT_EQ(x.grad().ToHost<double>(), std::vector<double>{4});
  EXPECT_EQ(untouched.grad().ToHost<double>(), std::vector<double>{3});
}

TEST_F(TapeErrorsTest, HandlesOutliveTheirModule) {
  Parameter weight;
  {
    Tree model;
    weight = model.body_.first_.weight();
    EXPECT_EQ(weight.name(), "body.first.weight");
  }
  EXPECT_EQ(weight.name(), "weight");
}

}  // namespace
}  // namespace sherd::testing
