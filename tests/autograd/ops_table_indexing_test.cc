// Indices, choices and normalised rows, through every check of the op table.

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/similarity.h"
#include "tests/support/op_table.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using In = OpInputs;

const std::vector<int64_t> kRepeated = {4, 1, 4, 0, 4, 1};

std::vector<OpRow> Rows() {
  return {
      {.name = "index_select rows",
       .operands = {Normal({5, 3}), GivenIds(kRepeated, {6})},
       .function = [](In in) { return IndexSelect(in[0], 0, in[1]); },
       .golden = "indexing/index_select rows"},
      {.name = "index_select columns",
       .operands = {Normal({2, 5}), GivenIds(kRepeated, {6})},
       .function = [](In in) { return IndexSelect(in[0], -1, in[1]); },
       .golden = "indexing/index_select columns"},
      {.name = "index_select middle",
       .operands = {Normal({2, 5, 3}), GivenIds(kRepeated, {6}).I32()},
       .function = [](In in) { return IndexSelect(in[0], 1, in[1]); },
       .golden = "indexing/index_select middle"},
      {.name = "gather_rows",
       .operands = {Normal({5, 3}), GivenIds(kRepeated, {2, 3})},
       .function = [](In in) { return GatherRows(in[0], in[1]); },
       .golden = "indexing/gather_rows"},
      {.name = "scatter_rows",
       .operands = {Normal({6, 3}), GivenIds(kRepeated, {6})},
       .function = [](In in) { return ScatterRows(in[0], in[1], 5); },
       .golden = "indexing/scatter_rows"},
      {.name = "scatter_rows of two dimensions",
       .operands = {Normal({2, 3, 2}), GivenIds(kRepeated, {2, 3})},
       .function = [](In in) { return ScatterRows(in[0], in[1], 5); },
       .golden = "indexing/scatter_rows of two dimensions"},
  };
}

std::vector<OpRow> Elements() {
  return {
      {.name = "gather inner",
       .operands = {Normal({3, 4}), Ids({3, 5}, 4)},
       .function = [](In in) { return Gather(in[0], 1, in[1]); },
       .golden = "indexing/gather inner"},
      {.name = "gather outer",
       .operands = {Normal({4, 3}), Ids({6, 2}, 4).I32()},
       .function = [](In in) { return Gather(in[0], 0, in[1]); },
       .golden = "indexing/gather outer"},
      {.name = "gather middle",
       .operands = {Normal({2, 4, 3}), Ids({2, 5, 3}, 4)},
       .function = [](In in) { return Gather(in[0], -2, in[1]); },
       .golden = "indexing/gather middle"},
      {.name = "scatter_add inner",
       .operands = {Normal({3, 4}), Ids({2, 5}, 4), Normal({2, 5})},
       .function = [](In in) { return ScatterAdd(in[0], 1, in[1], in[2]); },
       .golden = "indexing/scatter_add inner"},
      {.name = "scatter_add outer",
       .operands = {Normal({4, 3}), Ids({6, 3}, 4), Normal({6, 3})},
       .function = [](In in) { return ScatterAdd(in[0], 0, in[1], in[2]); },
       .golden = "indexing/scatter_add outer"},
      {.name = "scatter_add of equal shapes",
       .operands = {Normal({4, 3}), Ids({4, 3}, 4), Normal({4, 3})},
       .function = [](In in) { return ScatterAdd(in[0], 0, in[1], in[2]); }},
      {.name = "where",
       .operands = {Mask({3, 4}), Normal({3, 4}), Normal({3, 4})},
       .function = [](In in) { return Where(in[0], in[1], in[2]); },
       .golden = "indexing/where"},
      {.name = "where broadcast",
       .operands = {Mask({3, 4}).I32(), Normal({4}), Normal({3, 1})},
       .function = [](In in) { return Where(in[0], in[1], in[2]); },
       .golden = "indexing/where broadcast"},
      {.name = "where broadcast mask",
       .operands = {Mask({3, 1}), Normal({3, 4}), Normal({1})},
       .function = [](In in) { return Where(in[0], in[1], in[2]); },
       .golden = "indexing/where broadcast mask",
       .layout_eps = 1.0},
  };
}

std::vector<OpRow> Similarities() {
  std::vector<OpRow> rows = {
      {.name = "l2_normalize",
       .operands = {Normal({3, 5})},
       .function = [](In in) { return L2Normalize(in[0]); },
       .golden = "indexing/l2_normalize"},
      {.name = "l2_normalize below eps",
       .operands = {Normal({3, 5})},
       .function = [](In in) { return L2Normalize(in[0], 100.0); },
       .golden = "indexing/l2_normalize below eps"},
      {.name = "cosine_similarity",
       .operands = {Normal({3, 5}), Normal({3, 5})},
       .function = [](In in) { return CosineSimilarity(in[0], in[1]); },
       .golden = "indexing/cosine_similarity",
       .layout_eps = 2.0},
      {.name = "cosine_similarity of all pairs",
       .operands = {Normal({3, 1, 5}), Normal({2, 5})},
       .function = [](In in) { return CosineSimilarity(in[0], in[1]); },
       .golden = "indexing/cosine_similarity of all pairs",
       .layout_eps = 2.0},
  };
  for (OpRow& row : rows) row.dtype_eps = 4.0;
  return rows;
}

std::vector<OpRow> All() {
  std::vector<OpRow> all;
  for (const auto& part : {Rows(), Elements(), Similarities()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

SHERD_TEST_OP_TABLE(Indexing, All());

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Variable Floats(const Shape& shape) { return NormalTensor(Cpu(), DType::kF32, shape, 1); }
Variable Indices(const std::vector<int64_t>& ids, const Shape& shape) {
  return TensorOf<int64_t>(Cpu(), ids, shape);
}

TEST(IndexErrors, NameTheIndexItsPlaceAndTheExtent) {
  const Variable bad = Indices({0, 1, 2, 5}, {2, 2});
  const std::string text = "5 at index 3 is outside [0, 3)";
  EXPECT_TRUE(Contains(ErrorOf([&] { IndexSelect(Floats({3, 2}), 0, bad); }), "id " + text));
  EXPECT_TRUE(Contains(ErrorOf([&] { ScatterRows(Floats({2, 2, 4}), bad, 3); }), "id " + text));
  EXPECT_TRUE(Contains(ErrorOf([&] { Gather(Floats({2, 3}), 1, bad); }), "index " + text));
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         ScatterAdd(Floats({2, 3}), 1, bad, Floats({2, 2}));
                       }),
                       "index " + text));
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         GatherRows(Floats({3, 2}), Indices({-1}, {1}));
                       }),
                       "id -1 at index 0 is outside [0, 3)"));
}

TEST(IndexErrors, NameOperandsThatDoNotFit) {
  EXPECT_TRUE(
      Contains(ErrorOf([] { IndexSelect(Floats({3}), 0, Floats({3})); }), "ids is f32 [3]"));
  EXPECT_TRUE(Contains(ErrorOf([] {
                         ScatterRows(Floats({3, 2}), Indices({0}, {1}), 2);
                       }),
                       "ids is i64 [1]"));
  EXPECT_TRUE(Contains(ErrorOf([] {
                         Gather(Floats({2, 3}), 1, Indices({0, 0, 0}, {3, 1}));
                       }),
                       "index is i64 [3, 1]"));
  EXPECT_TRUE(
      Contains(ErrorOf([] { Where(Floats({2}), Floats({2}), Floats({2})); }), "mask is f32 [2]"));
  EXPECT_TRUE(Contains(ErrorOf([] {
                         Where(Indices({0, 1}, {2}), Floats({2}), Floats({3}));
                       }),
                       "b is f32 [3]"));
}

TEST(Where, WhatIsNotChosenMayBeNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Variable a = TensorOf<float>(Cpu(), {1.0f, nan}, {2});
  const Variable b = TensorOf<float>(Cpu(), {nan, 2.0f}, {2});
  EXPECT_EQ(Where(Indices({7, 0}, {2}), a, b).value().ToHost<float>(),
            (std::vector<float>{1.0f, 2.0f}));
}

TEST(L2Normalize, ARowOfZerosStaysZero) {
  const Variable zeros = Tensor::Zeros(Cpu(), DType::kF32, {1, 3});
  EXPECT_EQ(L2Normalize(zeros).value().ToHost<float>(), (std::vector<float>{0, 0, 0}));
}

}  // namespace
}  // namespace sherd::testing
