// A gradient that a leaf got belongs to it: nobody else's changes when it is written to.

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using Leaves = std::vector<Variable>;

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

struct AliasCase {
  std::string name;
  std::vector<Shape> shapes;
  // The roots of one backward.
  std::function<std::vector<Variable>(const Leaves&)> function;
};

void PrintTo(const AliasCase& alias, std::ostream* out) { *out << alias.name; }

class AliasTest : public ::testing::TestWithParam<AliasCase> {
 protected:
  AliasTest() {
    for (const Shape& shape : GetParam().shapes) {
      leaves_.push_back(
          Variable::Leaf(NormalTensor(Cpu(), DType::kF64, shape, 7 + leaves_.size())));
    }
  }

  // One backward. All roots of one shape get the same seed tensor.
  void Backward() {
    Tape tape;
    std::vector<Variable> roots;
    {
      const Recording on(tape);
      roots = GetParam().function(leaves_);
    }
    for (size_t i = seeds_.size(); i < roots.size(); ++i) {
      const bool same = i > 0 && roots[i].shape() == roots[0].shape();
      seeds_.push_back(same ? seeds_[0]
                            : NormalTensor(Cpu(), DType::kF64, roots[i].shape(), 90 + i));
    }
    tape.Backward(roots, seeds_);
  }

  // Every tensor that must not change with another: the leaves' gradients, their values, the seeds.
  std::vector<Tensor> All() const {
    std::vector<Tensor> all;
    for (const Variable& leaf : leaves_) all.push_back(leaf.grad());
    for (const Variable& leaf : leaves_) all.push_back(leaf.value());
    for (size_t i = 0; i < seeds_.size(); ++i) {
      if (i == 0 || seeds_[i].raw() != seeds_[0].raw()) all.push_back(seeds_[i]);
    }
    return all;
  }

  // Overwrites each of them in turn and looks at the others.
  void ExpectApart() {
    const std::vector<Tensor> all = All();
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(all[i].defined()) << "tensor " << i;
      std::vector<std::vector<double>> before;
      for (const Tensor& tensor : all) before.push_back(tensor.ToHost<double>());
      kernels::Fill(all[i], 1000.0 + static_cast<double>(i));
      for (size_t j = 0; j < all.size(); ++j) {
        if (j != i) {
          EXPECT_EQ(all[j].ToHost<double>(), before[j])
              << GetParam().name << ": writing tensor " << i << " changed tensor " << j;
        }
      }
    }
  }

  Leaves leaves_;
  std::vector<Tensor> seeds_;
};

TEST_P(AliasTest, AfterOneBackward) {
  Backward();
  ExpectApart();
}

TEST_P(AliasTest, AfterASecondBackwardThatAdds) {
  Backward();
  std::vector<std::vector<double>> once;
  for (const Variable& leaf : leaves_) once.push_back(leaf.grad().ToHost<double>());
  Backward();
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const std::vector<double> twice = leaves_[i].grad().ToHost<double>();
    for (size_t k = 0; k < twice.size(); ++k) {
      EXPECT_DOUBLE_EQ(twice[k], 2.0 * once[i][k]) << "leaf " << i << ", element " << k;
    }
  }
  ExpectApart();
}

// What was handed out after a first backward is not written to by a second one.
TEST_P(AliasTest, AGradientTakenEarlierStays) {
  Backward();
  std::vector<Tensor> taken;
  std::vector<std::vector<double>> before;
  for (const Variable& leaf : leaves_) {
    taken.push_back(leaf.grad());
    before.push_back(taken.back().ToHost<double>());
    leaf.ClearGrad();
  }
  Backward();
  for (size_t i = 0; i < taken.size(); ++i) EXPECT_EQ(taken[i].ToHost<double>(), before[i]);
}

std::vector<AliasCase> Cases() {
  using Roots = std::vector<Variable>;
  const Shape matrix = {3, 3};
  return {
      {"x + y", {matrix, matrix}, [](const Leaves& in) { return Roots{Add(in[0], in[1])}; }},
      {"x - y", {matrix, matrix}, [](const Leaves& in) { return Roots{Sub(in[0], in[1])}; }},
      {"x + x", {matrix}, [](const Leaves& in) { return Roots{Add(in[0], in[0])}; }},
      {"x + y + z",
       {matrix, matrix, matrix},
       [](const Leaves& in) { return Roots{Add(Add(in[0], in[1]), in[2])}; }},
      {"x + y beside x + z",
       {matrix, matrix, matrix},
       [](const Leaves& in) {
         return Roots{Add(in[0], in[1]), Add(in[0], in[2])};
       }},
      {"the leaf itself", {matrix}, [](const Leaves& in) { return Roots{in[0]}; }},
      {"two leaves themselves",
       {matrix, matrix},
       [](const Leaves& in) {
         return Roots{in[0], in[1]};
       }},
      {"a leaf as root and as operand",
       {matrix, matrix},
       [](const Leaves& in) {
         return Roots{Add(in[0], in[1]), in[0]};
       }},
      {"one leaf as two roots",
       {matrix},
       [](const Leaves& in) {
         return Roots{in[0], in[0]};
       }},
      {"reshape", {matrix}, [](const Leaves& in) { return Roots{Reshape(in[0], {9})}; }},
      {"two reshapes of a sum",
       {matrix, matrix},
       [](const Leaves& in) {
         return Roots{Add(Reshape(in[0], {9}), Reshape(in[1], {9})), Reshape(in[0], {9})};
       }},
      {"x + x^T",
       {matrix},
       [](const Leaves& in) { return Roots{Add(in[0], Transpose(in[0], 0, 1))}; }},
      {"x + y^T",
       {matrix, matrix},
       [](const Leaves& in) { return Roots{Add(in[0], Transpose(in[1], 0, 1))}; }},
      {"slices",
       {{4, 3}, {2, 3}},
       [](const Leaves& in) {
         return Roots{Add(Slice(in[0], 0, 0, 2), in[1]), Add(Slice(in[0], 0, 1, 3), in[1])};
       }},
      {"expanded",
       {{1, 3}, matrix},
       [](const Leaves& in) {
         return Roots{Add(Expand(in[0], {3, 3}), in[1])};
       }},
      {"expanded to its own shape",
       {matrix, matrix},
       [](const Leaves& in) {
         return Roots{Add(Expand(in[0], {3, 3}), in[1])};
       }},
      {"broadcast",
       {{3}, matrix},
       [](const Leaves& in) {
         return Roots{Add(in[0], in[1]), Add(in[1], in[0])};
       }},
      {"a residual chain",
       {matrix, matrix, matrix},
       [](const Leaves& in) {
         const Variable first = Add(in[0], Matmul(in[0], in[1]));
         return Roots{Add(first, Matmul(first, in[2]))};
       }},
      {"a residual chain without a branch's op",
       {matrix, matrix},
       [](const Leaves& in) {
         const Variable first = Add(in[0], in[1]);
         return Roots{Add(first, Add(first, in[1]))};
       }},
      {"a cast that does nothing",
       {matrix, matrix},
       [](const Leaves& in) { return Roots{Add(Cast(in[0], DType::kF64), in[1])}; }},
      {"scatter_add of equal shapes",
       {matrix, matrix},
       [](const Leaves& in) {
         const Tensor index = Tensor::Zeros(Cpu(), DType::kI64, {3, 3});
         return Roots{ScatterAdd(in[0], 0, index, in[1]), Add(in[0], in[1])};
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(All, AliasTest, ::testing::ValuesIn(Cases()));

}  // namespace
}  // namespace sherd::testing
