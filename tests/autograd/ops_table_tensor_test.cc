// Arithmetic, reductions, shapes and indices, through every check of the op table.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/reduce.h"
#include "tests/support/op_table.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using In = OpInputs;
using Function = std::function<Variable(In)>;

struct ShapePair {
  std::string name;
  Shape a, b;
};

// PAIRS of ops_tensor.py.
std::vector<ShapePair> Pairs() {
  return {{"equal", {3, 4}, {3, 4}},        {"row", {3, 4}, {4}},
          {"column", {3, 4}, {3, 1}},       {"scalar", {2, 3}, {1}},
          {"middle", {2, 3, 4}, {2, 1, 4}}, {"both ways", {3, 1}, {1, 4}},
          {"longer", {4}, {2, 3, 4}}};
}

std::vector<OpRow> Arithmetics() {
  const std::vector<std::pair<std::string, Function>> ops = {
      {"add", [](In in) { return Add(in[0], in[1]); }},
      {"sub", [](In in) { return Sub(in[0], in[1]); }},
      {"mul", [](In in) { return Mul(in[0], in[1]); }},
      {"div", [](In in) { return Div(in[0], in[1]); }},
  };
  std::vector<OpRow> rows;
  for (const auto& [op, function] : ops) {
    for (const auto& [name, a, b] : Pairs()) {
      rows.push_back({.name = op + " " + name,
                      .operands = {Normal(a), op == "div" ? Apart(b) : Normal(b)},
                      .function = function,
                      .golden = "tensor/" + op + " " + name,
                      .layout_eps = 1.0,
                      .dtype_eps = 4.0});
    }
  }
  rows.push_back({.name = "div of equal kinds",
                  .operands = {Apart({2, 3}), Apart({2, 3})},
                  .function = ops[3].second,
                  .layout_eps = 1.0,
                  .dtype_eps = 2.0});
  return rows;
}

std::vector<OpRow> Powers() {
  return {
      {.name = "neg",
       .operands = {Normal({3, 4})},
       .function = [](In in) { return Neg(in[0]); },
       .golden = "tensor/neg"},
      {.name = "square",
       .operands = {Normal({3, 4})},
       .function = [](In in) { return Square(in[0]); },
       .golden = "tensor/square"},
      {.name = "pow 3",
       .operands = {Normal({3, 4})},
       .function = [](In in) { return Pow(in[0], 3.0); },
       .golden = "tensor/pow 3"},
      {.name = "pow -1.5",
       .operands = {Positive({3, 4})},
       .function = [](In in) { return Pow(in[0], -1.5); },
       .golden = "tensor/pow -1.5"},
  };
}

std::vector<OpRow> Reductions() {
  std::vector<OpRow> rows = {
      {.name = "sum rows",
       .operands = {Normal({3, 4})},
       .function = [](In in) { return Sum(in[0], 1); },
       .golden = "tensor/sum rows"},
      {.name = "sum columns",
       .operands = {Normal({3, 4})},
       .function = [](In in) { return Sum(in[0], 0, {.keep_dims = true}); },
       .golden = "tensor/sum columns"},
      {.name = "sum outer and inner",
       .operands = {Normal({2, 3, 4})},
       .function =
           [](In in) {
             return Sum(in[0], std::array{0, -1});
           },
       .golden = "tensor/sum outer and inner"},
      {.name = "sum middle",
       .operands = {Normal({2, 3, 4})},
       .function = [](In in) { return Sum(in[0], 1); },
       .golden = "tensor/sum middle"},
      {.name = "sum all",
       .operands = {Normal({2, 3})},
       .function =
           [](In in) {
             return Sum(in[0], std::array{0, 1});
           },
       .golden = "tensor/sum all"},
      {.name = "sum of many rows",
       .operands = {Normal({150, 2})},
       .function = [](In in) { return Sum(in[0], 0); }},
      {.name = "mean inner",
       .operands = {Normal({2, 3, 4})},
       .function = [](In in) { return Mean(in[0], -1, {.keep_dims = true}); },
       .golden = "tensor/mean inner"},
      {.name = "mean outer two",
       .operands = {Normal({2, 3, 4})},
       .function =
           [](In in) {
             return Mean(in[0], std::array{0, 1});
           },
       .golden = "tensor/mean outer two"},
      {.name = "max inner",
       .operands = {Normal({3, 5})},
       .function = [](In in) { return Max(in[0], 1).values; },
       .golden = "tensor/max inner"},
      {.name = "max outer",
       .operands = {Normal({3, 5})},
       .function = [](In in) { return Max(in[0], 0, {.keep_dims = true}).values; },
       .golden = "tensor/max outer"},
      {.name = "max middle",
       .operands = {Normal({2, 3, 4})},
       .function = [](In in) { return Max(in[0], 1).values; },
       .golden = "tensor/max middle"},
  };
  for (OpRow& row : rows) row.layout_eps = 1.0;
  return rows;
}

std::vector<OpRow> All() {
  std::vector<OpRow> all;
  for (const auto& part : {Arithmetics(), Powers(), Reductions()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

SHERD_TEST_OP_TABLE(Tensor, All());

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

TEST(Broadcast, RefusesShapesThatDoNotMatch) {
  const Variable a = NormalTensor(Cpu(), DType::kF32, {2, 3}, 1);
  const Variable b = NormalTensor(Cpu(), DType::kF32, {2, 4}, 1);
  for (const std::string& text : {ErrorOf([&] { Add(a, b); }), ErrorOf([&] { Sub(a, b); }),
                                  ErrorOf([&] { Mul(a, b); }), ErrorOf([&] { Div(a, b); })}) {
    EXPECT_TRUE(Contains(text, "f32 [2, 3]"));
    EXPECT_TRUE(Contains(text, "f32 [2, 4]"));
  }
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         Add(a, NormalTensor(Cpu(), DType::kF64, {2, 3}, 1));
                       }),
                       "one dtype"));
}

TEST(Reduce, RefusesDimensionsThatAreNotThere) {
  const Variable x = NormalTensor(Cpu(), DType::kF32, {2, 3}, 1);
  EXPECT_TRUE(Contains(ErrorOf([&] { Sum(x, 2); }), "there is no dimension 2: x is f32 [2, 3]"));
  EXPECT_TRUE(Contains(ErrorOf([&] { Mean(x, -3); }), "there is no dimension -3"));
  EXPECT_TRUE(Contains(ErrorOf([&] { Sum(x, std::array{1, -1}); }), "named twice"));
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         Max(Tensor::Zeros(Cpu(), DType::kF32, {2, 0}), 1);
                       }),
                       "no elements"));
}

TEST(Reduce, OfNothing) {
  const Variable none = Tensor::Zeros(Cpu(), DType::kF32, {2, 0});
  EXPECT_EQ(Sum(none, 1).value().ToHost<float>(), (std::vector<float>{0.0f, 0.0f}));
  EXPECT_TRUE(std::isnan(Mean(none, 1).value().ToHost<float>()[1]));
}

TEST(Max, TakesTheFirstOfEqualElementsAndTheFirstNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = TensorOf<float>(Cpu(), {1, 3, 3, 2, nan, 5, nan, 9}, {2, 4});
  const MaxResult rows = Max(x, 1);
  EXPECT_EQ(rows.indices.ToHost<int64_t>(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(rows.values.value().ToHost<float>()[0], 3.0f);
  EXPECT_TRUE(std::isnan(rows.values.value().ToHost<float>()[1]));
  EXPECT_EQ(Max(x, 0).indices.ToHost<int64_t>(), (std::vector<int64_t>{1, 1, 1, 1}));
}

}  // namespace
}  // namespace sherd::testing
