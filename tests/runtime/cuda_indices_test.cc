#include <functional>

#include "sherd/runtime/kernels/embedding.h"
#include "sherd/runtime/kernels/indexing.h"
#include "tests/runtime/cuda_support.h"
#include "tests/support/tensors.h"

// Embeddings and indices: moves are exact, sums are taken in the order of places and so exact too.
namespace sherd::kernels::test {
namespace {

constexpr View kInputs[] = {View::kContiguous, View::kOddPadded, View::kPadded, View::kTransposed};

using sherd::testing::Contains;
using sherd::testing::ErrorOf;

class CudaIndicesTest : public ::testing::TestWithParam<DType> {
 protected:
  Tensor Random(const Shape& shape) { return test::Random(dtype_, shape, ++seed_); }
  // Numbers in [0, limit) that repeat; every fifth is 1.
  Tensor Ids(const Shape& shape, int64_t limit, bool narrow = false) {
    std::vector<int64_t> ids(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto words = Philox4x32(++seed_, i, 5);
      ids[i] = i % 5 == 0 ? std::min<int64_t>(1, limit - 1)
                          : static_cast<int64_t>(words[0] % static_cast<uint64_t>(limit));
    }
    if (!narrow) return sherd::testing::TensorOf(Cpu(), ids, shape);
    return sherd::testing::TensorOf(Cpu(), std::vector<int32_t>(ids.begin(), ids.end()), shape);
  }
  // The error of the next wait after `run`.
  std::string NextError(const std::function<void()>& run) {
    run();
    return ErrorOf([&] { HostBits(On(Random({1}))); });
  }
  void ExpectNames(const std::string& error, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_TRUE(Contains(error, part));
  }

  const DType dtype_ = GetParam();
  uint64_t seed_ = 0;
};

TEST_P(CudaIndicesTest, Embedding) {
  for (int64_t cols : {1, 8, 31, 33, 256, 1000, 5000}) {
    for (View lie : kInputs) {
      const Tensor table = Laid(lie, dtype_, {17, cols}, ++seed_);
      const Tensor ids = Ids({5, 9}, 17, lie == View::kOddPadded);
      const View to = lie == View::kTransposed ? View::kPadded : lie;
      const Tensor out = Laid(to, dtype_, {45, cols}, ++seed_), d_out = On(out);
      kernels::Embedding(On(ids), On(table), d_out);
      kernels::Embedding(ids, table, out);
      ExpectSame({out, d_out}, Describe(dtype_, Write::kOverwrite, {45, cols}) + NameOf(lie), 0);
    }
  }
}

TEST_P(CudaIndicesTest, EmbeddingBackwardSumsRepeatedIdsInOrder) {
  for (int64_t cols : {1, 8, 31, 33, 1000, 5000}) {
    for (View lie : kInputs) {
      for (Write write : kWrites) {
        for (DType to_dtype : {dtype_, DType::kF32}) {
          const int64_t rows = cols < 100 ? 60 : 9;
          const std::string what = Describe(dtype_, write, {rows, cols}) + NameOf(lie);
          const Tensor grad = Laid(lie, dtype_, {rows, cols}, ++seed_);
          const Tensor ids = Ids({rows}, rows / 3, lie == View::kOddPadded);
          const View to = lie == View::kTransposed ? View::kContiguous : lie;
          const Tensor table = Laid(to, to_dtype, {rows / 3, cols}, ++seed_);
          const Tensor d_table = On(table);
          EmbeddingBackward(On(grad), On(ids), d_table, write);
          EmbeddingBackward(grad, ids, table, write);
          ExpectSame({table, d_table}, what, to_dtype == dtype_ ? 0 : 1e-6);
        }
      }
    }
  }
}

TEST_P(CudaIndicesTest, EmbeddingBackwardOfLongBatches) {
  // Beyond a tile of the sort, with ids that repeat across tiles.
  for (int64_t rows : {2047, 2049, 9001}) {
    const Tensor grad = Random({rows, 3}), ids = Ids({rows}, rows / 3);
    const Tensor table = Random({rows / 3, 3}), d_table = On(table);
    EmbeddingBackward(On(grad), On(ids), d_table);
    EmbeddingBackward(grad, ids, table);
    ExpectSame({table, d_table}, std::to_string(rows) + " rows", 0);
  }
}

TEST_P(CudaIndicesTest, EmbeddingBackwardNeedsNoMemoryForItsVocabulary) {
  const int64_t vocabulary = 2000003;
  const Tensor table = Tensor::Zeros(Gpu(), dtype_, {vocabulary, 1});
  const Tensor grad = Random({4, 1});
  const Tensor ids =
      sherd::testing::TensorOf<int64_t>(Cpu(), {vocabulary - 1, 0, vocabulary - 1, 1999999}, {4});
  const Tensor d_grad = On(grad), d_ids = On(ids);
  CachingAllocator& allocator = Gpu().allocator();
  allocator.ResetPeaks();
  const int64_t before = allocator.stats()[MemoryCategory::kWorkspace].current_bytes;
  EmbeddingBackward(d_grad, d_ids, table, Write::kAdd);
  EXPECT_LE(allocator.stats()[MemoryCategory::kWorkspace].peak_bytes - before, 4096);
  const auto last = table.Slice(0, vocabulary - 4, vocabulary);
  Tensor want = ToTensor(Cpu(), {dtype_, {4, 1}, {Peek(grad, 3), 0, 0, 0}});
  const double sum = Rounded(Rounded(Peek(grad, 0) + Peek(grad, 2), WideOf(dtype_)), dtype_);
  Poke(want, 3, sum);
  EXPECT_EQ(HostBits(last),
            std::string(static_cast<const char*>(want.raw()), static_cast<size_t>(want.bytes())));
}

TEST_P(CudaIndicesTest, IdsOutOfRangeAreSkippedAndNamed) {
  const Tensor table = Random({6, 40}), ids = Ids({4}, 6), out = Random({4, 40});
  ids.data<int64_t>()[2] = 6;
  const Tensor d_out = On(out), d_table = On(table);
  ExpectNames(NextError([&] { kernels::Embedding(On(ids), d_table, d_out); }),
              {"[embedding]", "id 6", " 2 ", "[0, 6)"});
  ids.data<int64_t>()[2] = -3;
  ExpectNames(NextError([&] { EmbeddingBackward(d_out, On(ids), d_table); }),
              {"[embedding_backward]", "id -3", " 2 ", "[0, 6)"});
  ExpectNames(NextError([&] { IndexSelect(d_table, 0, On(ids), d_out); }),
              {"[index_select]", "id -3", " 2 ", "[0, 6)"});
  ExpectNames(NextError([&] { IndexAdd(d_out, 0, On(ids), d_table); }),
              {"[index_add]", "id -3", " 2 ", "[0, 6)"});
  const Tensor index = Ids({2, 40}, 6);
  index.data<int64_t>()[50] = 123456789012345;
  const Tensor part = On(Random({2, 40}));
  ExpectNames(NextError([&] { kernels::Gather(d_table, 0, On(index), part); }),
              {"[gather]", "index 123456789012345", " 50 ", "[0, 6)"});
  ExpectNames(NextError([&] { ScatterAdd(part, 0, On(index), d_table); }),
              {"[scatter_add]", "index 123456789012345", " 50 ", "[0, 6)"});
  const Tensor none = On(Tensor::Empty(Cpu(), dtype_, {0, 40}));
  ExpectNames(NextError([&] { kernels::Gather(none, 0, On(index), part); }), {"[0, 0)"});
  // The others were written, and nothing is left to be said.
  EXPECT_EQ(NextError([] {}), "no error");
  const Tensor right = Ids({4}, 6);
  right.data<int64_t>()[2] = 5;
  ids.data<int64_t>()[0] = right.data<int64_t>()[0];
  const Tensor d_select = On(out);
  NextError([&] { IndexSelect(On(table), 0, On(ids), d_select); });
  const Tensor want = Tensor::Empty(Cpu(), dtype_, {4, 40});
  IndexSelect(table, 0, right, want);
  EXPECT_EQ(HostBits(d_select.Slice(0, 0, 1)), std::string(static_cast<const char*>(want.raw()),
                                                           static_cast<size_t>(want.bytes() / 4)));
  EXPECT_EQ(HostBits(d_select.Slice(0, 2, 3)),
            std::string(static_cast<const char*>(out.raw()) + out.bytes() / 2,
                        static_cast<size_t>(out.bytes() / 4)))
      << "the row of the wrong id was written";
}

TEST_P(CudaIndicesTest, IndexSelectAndIndexAdd) {
  for (const Shape& shape :
       {Shape{7}, Shape{7, 31}, Shape{3, 7, 16}, Shape{2, 5, 7}, Shape{2, 3, 1000}}) {
    for (int dim = 0; dim < shape.rank(); ++dim) {
      for (bool turned : {false, true}) {
        Tensor x = Random(shape);
        if (turned && shape.rank() == 3) {
          x = Random({shape[2], shape[1], shape[0]}).Transpose(0, 2);
        }
        const int64_t count = 19;
        Shape part = shape;
        part[dim] = count;
        const Tensor ids = Ids({count}, shape[dim], turned), out = Random(part), d_out = On(out);
        IndexSelect(On(x), dim, On(ids), d_out);
        IndexSelect(x, dim, ids, out);
        ExpectSame({out, d_out}, "index_select of " + shape.ToString(), 0);
        for (Write write : kWrites) {
          const Tensor to = Random(shape), d_to = On(to);
          IndexAdd(On(out), dim, On(ids), d_to, write);
          IndexAdd(out, dim, ids, to, write);
          ExpectSame({to, d_to}, "index_add of " + shape.ToString(), 0);
        }
      }
    }
  }
}

TEST_P(CudaIndicesTest, GatherAndScatterAdd) {
  struct Case {
    Shape whole, index;
    int dim;
  };
  // Lines that a thread looks through, and longer ones, which are sorted.
  for (const Case& c : {Case{{9}, {4}, 0}, Case{{5, 9}, {5, 1}, 1}, Case{{5, 9}, {3, 64}, 1},
                        Case{{5, 9}, {3, 65}, 1}, Case{{6, 4, 5}, {130, 4, 3}, 0},
                        Case{{2, 50, 3}, {2, 1500, 3}, 1}}) {
    for (bool turned : {false, true}) {
      const auto lay = [&](Shape shape) {
        if (!turned || shape.rank() < 2) return Random(shape);
        const int last = shape.rank() - 1;
        std::swap(shape[0], shape[last]);
        return Random(shape).Transpose(0, last);
      };
      const Tensor whole = lay(c.whole), part = lay(c.index), d_part = On(part);
      const Tensor index = Ids(c.index, c.whole[c.dim], turned);
      for (Write write : kWrites) {
        const Tensor to = lay(c.whole), d_to = On(to);
        ScatterAdd(On(part), c.dim, On(index), d_to, write);
        ScatterAdd(part, c.dim, index, to, write);
        ExpectSame({to, d_to}, "scatter_add of " + c.index.ToString(), 0);
      }
      kernels::Gather(On(whole), c.dim, On(index), d_part);
      kernels::Gather(whole, c.dim, index, part);
      ExpectSame({part, d_part}, "gather of " + c.index.ToString(), 0);
    }
  }
}

TEST_P(CudaIndicesTest, Where) {
  for (bool narrow : {false, true}) {
    for (Write write : kWrites) {
      const Tensor a = Random({3, 1, 33}), b = Random({5, 1}), mask = Ids({3, 5, 1}, 2, narrow);
      for (int given = 0; given < 4; ++given) {
        const Tensor out = Random({33, 5, 3}).Transpose(0, 2), d_out = On(out);
        const Tensor from_a = given & 1 ? a : Tensor(), from_b = given & 2 ? b : Tensor();
        kernels::Where(On(mask), On(from_a), On(from_b), d_out, write);
        kernels::Where(mask, from_a, from_b, out, write);
        ExpectSame({out, d_out}, "where", 0);
      }
    }
  }
}

TEST_P(CudaIndicesTest, EmptyOnes) {
  const Tensor none = On(Tensor::Empty(Cpu(), DType::kI64, {0})), table = On(Random({4, 3}));
  const Tensor no_rows = On(Tensor::Empty(Cpu(), dtype_, {0, 3}));
  kernels::Embedding(none, table, no_rows);
  EmbeddingBackward(no_rows, none, table, Write::kAdd);
  IndexSelect(table, 0, none, no_rows);
  IndexAdd(no_rows, 0, none, table);
  EXPECT_EQ(HostBits(table), std::string(static_cast<size_t>(table.bytes()), '\0'));
  const Tensor index = On(Tensor::Empty(Cpu(), DType::kI64, {0, 3}));
  kernels::Gather(table, 0, index, no_rows);
  ScatterAdd(no_rows, 0, index, table);
  kernels::Where(index, {}, {}, no_rows);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaIndicesTest, ::testing::ValuesIn(kFloats),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace sherd::kernels::test
