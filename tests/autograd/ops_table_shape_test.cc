// Biased and batched products, views and copies, through every check of the op table.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "tests/support/op_table.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using In = OpInputs;

std::vector<OpRow> Products() {
  const auto linear = [](In in) { return Linear(in[0], in[1], in[2]); };
  const auto row = [](const std::string& name, const Shape& a, const Shape& b,
                      MatmulOptions options) {
    return OpRow{.name = name,
                 .operands = {Normal(a), Normal(b)},
                 .function = [=](In in) { return Matmul(in[0], in[1], options); },
                 .golden = "shape/" + name};
  };
  std::vector<OpRow> rows = {
      {.name = "linear bias",
       .operands = {Normal({3, 4}), Normal({5, 4}), Normal({5})},
       .function = linear,
       .golden = "shape/linear bias"},
      {.name = "linear bias of three dimensions",
       .operands = {Normal({2, 3, 4}), Normal({5, 4}), Normal({5})},
       .function = linear,
       .golden = "shape/linear bias of three dimensions"},
      {.name = "linear bias of a vector",
       .operands = {Normal({4}), Normal({5, 4}), Normal({5})},
       .function = linear,
       .golden = "shape/linear bias of a vector"},
      {.name = "linear bias of equal shapes",
       .operands = {Normal({4}), Normal({4, 4}), Normal({4})},
       .function = linear},
      row("matmul batches", {2, 3, 4}, {2, 4, 5}, {}),
      row("matmul two batch dimensions", {2, 2, 3, 4}, {2, 2, 4, 2}, {}),
      row("matmul batch with one", {2, 3, 4}, {4, 5}, {}),
      row("matmul one with batch", {3, 4}, {2, 4, 5}, {}),
      row("matmul batches a transposed", {2, 4, 3}, {2, 4, 5}, {.transpose_a = true}),
      row("matmul batch a transposed with one", {2, 4, 3}, {4, 5}, {.transpose_a = true}),
      row("matmul one transposed with batch", {4, 3}, {2, 4, 5}, {.transpose_a = true}),
      row("matmul batches b transposed", {2, 3, 4}, {2, 5, 4}, {.transpose_b = true}),
      row("matmul batch with one transposed", {2, 3, 4}, {5, 4}, {.transpose_b = true}),
      row("matmul one with batch transposed", {3, 4}, {2, 5, 4}, {.transpose_b = true}),
      row("matmul batches both transposed", {2, 4, 3}, {2, 5, 4}, {true, true}),
      {.name = "matmul batches of squares",
       .operands = {Normal({2, 3, 3}), Normal({2, 3, 3})},
       .function = [](In in) { return Matmul(in[0], in[1], {.transpose_b = true}); }},
  };
  for (OpRow& r : rows) {
    r.layout_eps = 2.0;
    r.dtype_eps = 2.0;
  }
  return rows;
}

std::vector<OpRow> Views() {
  return {
      {.name = "transpose",
       .operands = {Normal({2, 3, 4})},
       .function = [](In in) { return Transpose(in[0], 0, -1); },
       .golden = "shape/transpose"},
      {.name = "permute",
       .operands = {Normal({2, 3, 4})},
       .function =
           [](In in) {
             return Permute(in[0], std::array{2, 0, 1});
           },
       .golden = "shape/permute"},
      {.name = "expand",
       .operands = {Normal({3, 1})},
       .function =
           [](In in) {
             return Expand(in[0], {2, 3, 4});
           },
       .golden = "shape/expand"},
      {.name = "pad",
       .operands = {Normal({2, 3})},
       .function =
           [](In in) {
             return Pad(in[0], std::array<int64_t, 4>{1, 2, 0, 1}, 0.5);
           },
       .golden = "shape/pad"},
      {.name = "stack outer",
       .operands = {Normal({2, 3}), Normal({2, 3})},
       .function = [](In in) { return Stack(in, 0); },
       .golden = "shape/stack outer"},
      {.name = "stack inner",
       .operands = {Normal({2, 3}), Normal({2, 3})},
       .function = [](In in) { return Stack(in, -1); },
       .golden = "shape/stack inner"},
      {.name = "x + x^T",
       .operands = {Normal({3, 3})},
       .function = [](In in) { return Add(in[0], Transpose(in[0], 0, 1)); }},
      {.name = "a product of transposed views",
       .operands = {Normal({4, 3}), Normal({4, 5})},
       .function =
           [](In in) {
             return Matmul(Transpose(in[0], 0, 1), Transpose(Transpose(in[1], 0, 1), 0, 1));
           },
       .layout_eps = 2.0},
      {.name = "heads of a projection",
       .operands = {Normal({2, 3, 4})},
       .function =
           [](In in) {
             return Permute(Reshape(in[0], {2, 3, 2, 2}), std::array{0, 2, 1, 3});
           }},
  };
}

std::vector<OpRow> All() {
  std::vector<OpRow> all = Products();
  for (OpRow& row : Views()) all.push_back(std::move(row));
  return all;
}

SHERD_TEST_OP_TABLE(Shape, All());

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Variable Floats(const Shape& shape) { return NormalTensor(Cpu(), DType::kF32, shape, 1); }

TEST(ShapeErrors, NameTheOperands) {
  EXPECT_TRUE(Contains(ErrorOf([] {
                         Linear(Floats({2, 3}), Floats({4, 3}), Floats({3}));
                       }),
                       "bias is f32 [3]"));
  EXPECT_TRUE(Contains(ErrorOf([] {
                         Matmul(Floats({2, 3, 4}), Floats({3, 4, 5}));
                       }),
                       "b is f32 [3, 4, 5]"));
  EXPECT_TRUE(Contains(ErrorOf([] { Transpose(Floats({2, 3}), 0, 2); }), "no dimension 2"));
  EXPECT_TRUE(Contains(ErrorOf([] { Permute(Floats({2, 3}), std::array{0, 0}); }), "[0, 0]"));
  EXPECT_TRUE(Contains(ErrorOf([] { Permute(Floats({2}), std::array<int, 8>{}); }), "[permute]"));
  EXPECT_TRUE(Contains(ErrorOf([] { Expand(Floats({2, 3}), {2, 4}); }), "to [2, 4]"));
  EXPECT_TRUE(Contains(ErrorOf([] {
                         Pad(Floats({2}), std::array<int64_t, 2>{1, -1});
                       }),
                       "[1, -1]"));
  EXPECT_TRUE(Contains(ErrorOf([] {
                         Stack(std::array{Floats({2}), Floats({3})}, 0);
                       }),
                       "operand 1"));
  EXPECT_TRUE(Contains(ErrorOf([] { Stack(std::array{Floats({2})}, 3); }), "no dimension 3"));
}

TEST(LinearBias, UndefinedIsNone) {
  const Variable x = Floats({2, 3}), weight = Floats({4, 3});
  EXPECT_TRUE(SameBits(Linear(x, weight, Variable()).value(), Linear(x, weight).value()));
}

}  // namespace
}  // namespace sherd::testing
