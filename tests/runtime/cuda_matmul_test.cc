#include "sherd/runtime/kernels/matmul.h"

#include <thread>
#include <utility>

#include "sherd/runtime/base/error.h"
#include "tests/runtime/cuda_support.h"

// Products of an emulated cuBLASLt beside plain loops in f64.
namespace sherd::kernels::test {
namespace {

using testing::MoveTo;

struct Sizes {
  int64_t m, n, k;
};

constexpr std::pair<DType, DType> kDTypes[] = {
    {DType::kF32, DType::kF32},  {DType::kF64, DType::kF64}, {DType::kBF16, DType::kBF16},
    {DType::kBF16, DType::kF32}, {DType::kF16, DType::kF16}, {DType::kF16, DType::kF32}};

std::vector<double> Product(const Values& a, bool ta, const Values& b, bool tb, Sizes s) {
  std::vector<double> c(static_cast<size_t>(s.m * s.n), 0.0);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += a[ta ? k * s.m + i : i * s.k + k] * b[tb ? j * s.k + k : k * s.n + j];
      }
      c[static_cast<size_t>(i * s.n + j)] = sum;
    }
  }
  return c;
}

Tensor OnGpu(const Values& values, Lay lay = Lay::kContiguous) {
  return MoveTo(Gpu(), ToTensor(Device::Cpu(), values, lay));
}

void CheckProduct(DType in, DType out_dtype, Sizes s, bool ta, bool tb, Write write, Lay lay) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, s.k)));
  const Values a = RandomValues(in, ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1, scale);
  const Values b = RandomValues(in, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2);
  const Values before = RandomValues(out_dtype, {s.m, s.n}, 3);
  const Tensor out = OnGpu(before, lay);
  Matmul(OnGpu(a, lay), ta, OnGpu(b, lay), tb, out, write);
  ExpectNear(HostValues(out), Written(write, before, Product(a, ta, b, tb, s)),
             ToleranceOf(out_dtype),
             Describe(in, write, {s.m, s.n, s.k}) + (ta ? " ta" : "") + (tb ? " tb" : ""));
}

TEST(CudaMatmulTest, AgreesWithPlainLoops) {
  for (auto [in, out] : kDTypes) {
    for (Sizes s : {Sizes{1, 1, 1}, Sizes{1, 7, 5}, Sizes{33, 1, 17}, Sizes{9, 4, 1},
                    Sizes{19, 67, 70}, Sizes{16, 32, 64}}) {
      for (bool ta : {false, true}) {
        for (bool tb : {false, true}) {
          CheckProduct(in, out, s, ta, tb, Write::kOverwrite, Lay::kContiguous);
          CheckProduct(in, out, s, ta, tb, Write::kAdd, Lay::kPadded);
        }
      }
    }
  }
}

TEST(CudaMatmulTest, EmptySumIsZero) {
  for (auto [in, out_dtype] : kDTypes) {
    const Values before = RandomValues(out_dtype, {3, 4}, 1);
    for (Write write : kWrites) {
      const Tensor out = OnGpu(before);
      const Tensor a = Tensor::Empty(Gpu(), in, {3, 0}), b = Tensor::Empty(Gpu(), in, {0, 4});
      Matmul(a, false, b, false, out, write);
      EXPECT_EQ(HostValues(out), Written(write, before, std::vector<double>(12, 0.0)));
    }
    Matmul(Tensor::Empty(Gpu(), in, {0, 3}), false, Tensor::Empty(Gpu(), in, {3, 4}), false,
           Tensor::Empty(Gpu(), out_dtype, {0, 4}));
    Matmul(Tensor::Empty(Gpu(), in, {2, 3}), false, Tensor::Empty(Gpu(), in, {3, 0}), false,
           Tensor::Empty(Gpu(), out_dtype, {2, 0}));
  }
}

// Views whose elements are adjacent along neither dimension, or repeat, are copied; columns that
// are adjacent are read as a transpose.
TEST(CudaMatmulTest, ReadsOperandsOfAnyStrides) {
  for (DType dtype : kFloats) {
    const Values a = RandomValues(dtype, {6, 10}, 1), b = RandomValues(dtype, {10, 9}, 2);
    const std::vector<double> want = Product(a, false, b, false, {6, 9, 10});
    const Tensor x = OnGpu(a), y = OnGpu(b);
    const auto product = [&](const Tensor& left, const Tensor& right) {
      const Tensor out = Tensor::Empty(Gpu(), dtype, {6, 9});
      Matmul(left, false, right, false, out);
      return HostValues(out);
    };
    const Tensor columns = Tensor::Empty(Gpu(), dtype, {10, 6}).Transpose(0, 1);
    Copy(x, columns);
    ExpectNear(product(columns, y), want, ToleranceOf(dtype) * 4, "columns");
    const Tensor sparse = Tensor::Empty(Gpu(), dtype, {10, 9, 2}).Slice(2, 1, 2).Reshape({10, 9});
    Copy(y, sparse);
    ExpectNear(product(x, sparse), want, ToleranceOf(dtype) * 4, "sparse");
    const Values row = RandomValues(dtype, {1, 10}, 3);
    Values rows = Like({dtype, {6, 10}, std::vector<double>(60)});
    for (int64_t i = 0; i < 60; ++i) rows[i] = row[i % 10];
    ExpectNear(product(OnGpu(row).Expand({6, 10}), y), Product(rows, false, b, false, {6, 9, 10}),
               ToleranceOf(dtype) * 4, "a repeated row");
  }
}

// Addresses that 16 bytes do not divide are plans of their own.
TEST(CudaMatmulTest, ReadsAndWritesAnyAddress) {
  for (DType dtype : kFloats) {
    const Values a = RandomValues(dtype, {8, 16}, 1), b = RandomValues(dtype, {16, 8}, 2);
    const std::vector<double> want = Product(a, false, b, false, {8, 8, 16});
    const auto check = [&](int64_t offset_a, int64_t offset_b, int64_t offset_out) {
      const auto place = [&](const Tensor& x, int64_t offset) {
        const Tensor to = Tensor::Empty(Gpu(), dtype, {x.numel() + offset})
                              .Slice(0, offset, x.numel() + offset)
                              .Reshape(x.shape());
        Copy(x, to);
        return to;
      };
      const Tensor out = place(Tensor::Zeros(Gpu(), dtype, {8, 8}), offset_out);
      Matmul(place(OnGpu(a), offset_a), false, place(OnGpu(b), offset_b), false, out);
      ExpectNear(HostValues(out), want, ToleranceOf(dtype) * 4, "an address");
    };
    check(0, 0, 0);
    for (int64_t offset : {1, 2, 3}) {
      check(offset, 0, 0);
      check(0, offset, 0);
      check(0, 0, offset);
      check(offset, offset, offset);
    }
  }
}

TEST(CudaMatmulTest, AStepThatRepeatsAllocatesNothing) {
  const Tensor a = OnGpu(RandomValues(DType::kBF16, {8, 16}, 1));
  const Tensor out = Tensor::Empty(Gpu(), DType::kF32, {8, 8});
  Matmul(a, false, a, true, out);
  const int64_t before = Gpu().allocator().stats().allocations;
  const int64_t held = Gpu().allocator().stats()[MemoryCategory::kWorkspace].current_bytes;
  emulated::ResetStatistics();
  for (int i = 0; i < 3; ++i) Matmul(a, false, a, true, out, Write::kAdd);
  EXPECT_EQ(Gpu().allocator().stats().allocations, before);
  // One workspace, of 32 or 4 MiB by the device's capability, and what aligns it.
  EXPECT_TRUE(held == (int64_t{32} << 20) + 256 || held == (int64_t{4} << 20) + 256) << held;
  EXPECT_EQ(emulated::ReadStatistics().matmuls, 3);
  EXPECT_EQ(emulated::ReadStatistics().synchronisations, 0);
}

TEST(CudaMatmulTest, QueuesOfOneDeviceHaveWorkspacesOfTheirOwn) {
  const Values a = RandomValues(DType::kF32, {8, 16}, 1);
  const Tensor x = OnGpu(a);
  const std::vector<double> want = Product(a, false, a, true, {8, 8, 16});
  const Tensor first = Tensor::Empty(Gpu(), DType::kF32, {8, 8});
  Matmul(x, false, x, true, first);
  const int64_t one = Gpu().allocator().stats()[MemoryCategory::kWorkspace].current_bytes;
  const DeviceBackend& backend = *Gpu().backend();
  const auto queue = backend.MakeQueue("another");
  const Tensor out = Tensor::Empty(Gpu(), DType::kF32, {8, 8});
  {
    const QueueScope scope(backend, *queue);
    Matmul(x, false, x, true, out);
    queue->Synchronize();
  }
  EXPECT_EQ(Gpu().allocator().stats()[MemoryCategory::kWorkspace].current_bytes, 2 * one);
  ExpectNear(HostValues(out), want, ToleranceOf(DType::kF32) * 4, "another queue");
}

TEST(CudaMatmulTest, InfinityPropagates) {
  for (DType dtype : kFloats) {
    Values a = RandomValues(dtype, {4, 8}, 1);
    const Values b = RandomValues(dtype, {8, 4}, 2);
    a[9] = std::numeric_limits<double>::infinity();
    const Tensor out = Tensor::Empty(Gpu(), dtype, {4, 4});
    Matmul(OnGpu(a), false, OnGpu(b), false, out);
    const std::vector<double> got = HostValues(out);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isinf(got[i]), i / 4 == 1) << i;
  }
}

}  // namespace
}  // namespace sherd::kernels::test
