#include "sherd/runtime/kernels/embedding.h"

#include "sherd/runtime/base/error.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

// Ids with many repeats of a few.
std::vector<int64_t> Ids(int64_t n, int64_t vocabulary) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = Philox4x32(9, static_cast<uint64_t>(i), 0)[0];
    ids[static_cast<size_t>(i)] = i % 3 == 0 ? 1 : word % static_cast<uint32_t>(vocabulary);
  }
  return ids;
}

Tensor IdTensor(const Device& device, const std::vector<int64_t>& ids, DType dtype) {
  const Shape shape = {static_cast<int64_t>(ids.size())};
  if (dtype == DType::kI64) return Tensor::FromHost<int64_t>(device, ids, shape);
  return Tensor::FromHost<int32_t>(device, std::vector<int32_t>(ids.begin(), ids.end()), shape);
}

struct Sizes {
  int64_t n, vocabulary, c;
};

// `kept`: the dtype of the table's gradient.
void Check(DType dtype, DType kept, DType id_dtype, const Sizes& sizes, Write write, Lay lay) {
  const auto [n, vocabulary, c] = sizes;
  const std::vector<int64_t> ids = Ids(n, vocabulary);
  const Values table = RandomValues(dtype, {vocabulary, c}, 1),
               grad = RandomValues(dtype, {n, c}, 2);
  const Values before = RandomValues(kept, {vocabulary, c}, 3);
  std::vector<double> out(static_cast<size_t>(n * c)), sum(table.v.size());
  for (int64_t i = 0; i < n * c; ++i) {
    const int64_t at = ids[static_cast<size_t>(i / c)] * c + i % c;
    out[static_cast<size_t>(i)] = table[at];
    sum[static_cast<size_t>(at)] += grad[i];
  }
  // What is gathered is exact; only the gradient is rounded.
  CheckEverywhere({out, Written(write, before, sum)}, 4 * ToleranceOf(kept),
                  Describe(dtype, write, {n, vocabulary, c}), [&](const Device& device) {
                    const Tensor tids = IdTensor(device, ids, id_dtype);
                    const Tensor to = ToTensor(device, Like({dtype, {n, c}, out}), lay);
                    Embedding(tids, ToTensor(device, table, lay), to);
                    const Tensor grad_table = ToTensor(device, before, lay);
                    EmbeddingBackward(ToTensor(device, grad, lay), tids, grad_table, write);
                    return Results{FromTensor(to), FromTensor(grad_table)};
                  });
}

TEST(EmbeddingTest, GathersRowsAndAddsTheirGradients) {
  for (DType dtype : kFloats) {
    for (DType kept : {dtype, WideOf(dtype)}) {
      for (Write write : kWrites) {
        Check(dtype, kept, DType::kI32, {7, 5, 3}, write, Lay::kContiguous);
        Check(dtype, kept, DType::kI64, {65, 40, 33}, write, Lay::kPadded);
        Check(dtype, kept, DType::kI64, {700, 400, 250}, write, Lay::kContiguous);
      }
    }
  }
}

TEST(EmbeddingTest, RepeatedIdsOfBf16AreSummedBeforeRounding) {
  const Device device = Device::Cpu();
  const int64_t n = 600;
  const Tensor grad = Tensor::Empty(device, DType::kBF16, {n, 4});
  Fill(grad, 1.0);
  const Tensor ids = IdTensor(device, std::vector<int64_t>(n, 2), DType::kI64);
  const Tensor table = Tensor::Empty(device, DType::kBF16, {5, 4});
  EmbeddingBackward(grad, ids, table);
  EXPECT_EQ(FromTensor(table)[8], 600.0);  // bf16 sums stop at 256
  EXPECT_EQ(FromTensor(table)[4], 0.0);
}

TEST(EmbeddingTest, BadIdIsNamedAndNothingIsWritten) {
  const Device device = Device::Cpu();
  const Tensor table = Tensor::Zeros(device, DType::kF32, {5, 2});
  for (int64_t bad : {int64_t{5}, int64_t{-1}}) {
    const Tensor ids = IdTensor(device, {0, 4, bad, 1}, DType::kI32);
    const Tensor out = Tensor::Empty(device, DType::kF32, {4, 2});
    Fill(out, 3.0);
    try {
      Embedding(ids, table, out);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
      const std::string want = "id " + std::to_string(bad) + " at index 2 is outside [0, 5)";
      EXPECT_NE(std::string(error.what()).find(want), std::string::npos) << error.what();
    }
    EXPECT_EQ(FromTensor(out), std::vector<double>(8, 3.0));
    const Tensor grad_table = Tensor::Empty(device, DType::kF32, {5, 2});
    Fill(grad_table, 4.0);
    EXPECT_THROW(EmbeddingBackward(out, ids, grad_table), Error);
    EXPECT_EQ(FromTensor(grad_table), std::vector<double>(10, 4.0));
  }
}

}  // namespace
}  // namespace sherd::kernels::test
