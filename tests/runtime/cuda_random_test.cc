#include "sherd/runtime/kernels/dropout.h"
#include "sherd/runtime/kernels/random.h"
#include "tests/runtime/cuda_support.h"

namespace sherd::kernels::test {
namespace {

constexpr uint64_t kKey = 0x123456789abcdef0u;

TEST(CudaDropoutTest, DropsWhatTheCpuDrops) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (const Shape& shape : {Shape{3, 7}, Shape{2, 64}, Shape{2, 5, 40}, Shape{2, 3, 4, 24},
                                 Shape{2, 9, 3, 65}, Shape{300, 3, 8}}) {
        for (View view : {View::kContiguous, View::kOffset, View::kPadded, View::kTransposed}) {
          for (double p : {0.0, 0.1, 0.9, 1.0}) {
            std::vector<int64_t> samples;
            for (int64_t b = 0; b < shape[0]; ++b) samples.push_back((int64_t{5} << 33) + 99 - b);
            const Pair x = LaidPair(view, dtype, shape, 1);
            const View to = view == View::kTransposed ? View::kOddPadded : view;
            const Pair out = LaidPair(to, dtype, shape, 2);
            Dropout(x.cpu, kKey, samples, p, out.cpu, write);
            Dropout(x.gpu, kKey, samples, p, out.gpu, write);
            ExpectSame(out, "dropout " + Describe(dtype, write, shape) + NameOf(view));
          }
        }
      }
    }
  }
}

TEST(CudaDropoutTest, InPlaceAndOfNothing) {
  const std::vector<int64_t> samples = {4, 2};
  const Pair x = LaidPair(View::kContiguous, DType::kBF16, {2, 333}, 1);
  Dropout(x.cpu, kKey, samples, 0.5, x.cpu);
  Dropout(x.gpu, kKey, samples, 0.5, x.gpu);
  ExpectSame(x, "dropout in place");
  const Pair none = LaidPair(View::kContiguous, DType::kF32, {2, 0}, 1);
  Dropout(none.gpu, kKey, samples, 0.5, none.gpu);
}

TEST(CudaRandomTest, AnElementDependsOnItsIndexAlone) {
  for (DType dtype : kFloats) {
    for (int64_t n : {1, 2, 3, 1001, 9000}) {
      for (int64_t first : {int64_t{0}, int64_t{1}, int64_t{3}, (int64_t{1} << 40) + 7}) {
        const Pair x = LaidPair(View::kContiguous, dtype, {n}, 1);
        FillNormal(x.cpu, kKey, first, 0.5, 2.0);
        FillNormal(x.gpu, kKey, first, 0.5, 2.0);
        ExpectSame(x, "normal values", dtype == DType::kF64 ? 1e-15 : 0.0);
        FillUniform(x.cpu, kKey, first, -1.0, 3.0);
        FillUniform(x.gpu, kKey, first, -1.0, 3.0);
        ExpectSame(x, "uniform values");
      }
    }
  }
}

TEST(CudaRandomTest, FillsAPieceOnly) {
  const Pair x = LaidPair(View::kOffset, DType::kF16, {37}, 1);
  FillNormal(x.cpu, kKey, 5, 0.0, 1.0);
  FillNormal(x.gpu, kKey, 5, 0.0, 1.0);
  ExpectSame(x, "a piece");
}

}  // namespace
}  // namespace sherd::kernels::test
