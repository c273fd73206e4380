#include "sherd/runtime/kernels/dropout.h"

#include "sherd/runtime/core/random.h"
#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/operands.h"
#include "sherd/runtime/kernels/internal/dropout_rows.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;
// Channels that a thread takes: those of two calls of Philox.
constexpr int kChannels = 8;

struct DropoutArgs {
  const char* x;
  char* out;
  DType dtype;
  kernels::internal::DropoutRows from, to;
  const int64_t* samples;
  uint64_t key;
  uint32_t threshold;
  double scale;
  bool add;
  bool packed;  // kChannels channels are aligned in both
};

// The words of channels [c, c + kChannels) of row (t, h) of sample s.
__device__ inline void WordsOf(const DropoutArgs& args, uint64_t sample, uint64_t row, int64_t c,
                               uint32_t (&words)[kChannels]) {
#pragma unroll
  for (int call = 0; call < kChannels / 4; ++call) {
    const auto four = Philox4x32(args.key, sample, row | static_cast<uint64_t>(c / 4 + call));
#pragma unroll
    for (int i = 0; i < 4; ++i) words[4 * call + i] = four[static_cast<size_t>(i)];
  }
}

// Of elements of e bytes: reads e (2e where it adds), writes e.
template <typename C>
__global__ void DropoutKernel(const DropoutArgs args) {
  const int64_t groups = (args.from.channels + kChannels - 1) / kChannels;
  const int64_t per_sample = args.from.positions * args.from.heads;
  const int64_t items = args.from.batch * per_sample * groups;
  const C scale = static_cast<C>(args.scale);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x; item < items; item += step) {
    const int64_t i = item / groups, c = item % groups * kChannels;
    const int64_t b = i / per_sample, t = i % per_sample / args.from.heads, h = i % args.from.heads;
    const int64_t from = args.from.OffsetOf(b, t, h) + c, to = args.to.OffsetOf(b, t, h) + c;
    uint32_t words[kChannels];
    WordsOf(args, static_cast<uint64_t>(args.samples[b]), kernels::internal::DropoutCounter(t, h),
            c, words);
    constexpr int kWords = kChannels * static_cast<int>(sizeof(C)) / 4;
    if (args.packed && c + kChannels <= args.from.channels) {
      const int bytes = ElemBytes(args.dtype);
      uint32_t x[kWords] = {}, old[kWords] = {};
      LoadWords(args.x + from * bytes, kChannels * bytes, x);
      if (args.add) LoadWords(args.out + to * bytes, kChannels * bytes, old);
      C value[kChannels], before[kChannels] = {};
      Decode(x, args.dtype, value);
      if (args.add) Decode(old, args.dtype, before);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        const C kept = math::DropOf(value[j], words[j], args.threshold, scale);
        value[j] = args.add ? before[j] + kept : kept;
      }
      Encode(value, args.dtype, x);
      StoreWords(args.out + to * bytes, kChannels * bytes, x);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      if (c + j >= args.from.channels) continue;
      const C x = LoadAs<C>(args.x, args.dtype, from + j);
      const C kept = math::DropOf(x, words[j], args.threshold, scale);
      StoreAs(args.out, args.dtype, to + j,
              args.add ? LoadAs<C>(args.out, args.dtype, to + j) + kept : kept);
    }
  }
}

bool IsAligned(const Tensor& x) {
  const int64_t bytes = SizeOf(x.dtype());
  bool aligned = reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
  for (int i = 0; i + 1 < x.rank(); ++i) {
    aligned = aligned && (x.dim(i) == 1 || x.strides()[i] * bytes % 16 == 0);
  }
  return aligned;
}

}  // namespace

void Kernels::Dropout(const Tensor& x, uint64_t key, std::span<const int64_t> row_samples, double p,
                      const Tensor& out, kernels::Write write) const {
  if (!kernels::IsInnermostPacked(x)) {
    return Dropout(kernels::PackInnermost(x), key, row_samples, p, out, write);
  }
  SHERD_CHECK(x.shape() == out.shape() && x.dtype() == out.dtype(),
              "the output of dropout does not fit its input");
  DropoutArgs args = {};
  args.from = kernels::internal::DropoutRowsOf(x);
  args.to = kernels::internal::DropoutRowsOf(out);
  kernels::internal::CheckDropout(x, args.from, p, row_samples);
  if (x.numel() == 0) return;
  const double threshold = kernels::internal::DropoutThreshold(p);
  if (threshold >= 0x1p32) {
    if (write == kernels::Write::kOverwrite) Fill(out, 0.0);
    return;
  }
  const Tensor samples = Tensor::FromHost<int64_t>(x.device(), row_samples, {args.from.batch},
                                                   MemoryCategory::kWorkspace);
  args.x = static_cast<const char*>(x.raw());
  args.out = static_cast<char*>(out.raw());
  args.dtype = x.dtype();
  args.samples = samples.data<int64_t>();
  args.key = key;
  args.threshold = static_cast<uint32_t>(threshold);
  args.scale = 1.0 / (1.0 - p);
  args.add = write == kernels::Write::kAdd;
  args.packed = IsAligned(x) && IsAligned(out);
  const int64_t groups = (args.from.channels + kChannels - 1) / kChannels;
  const int64_t items = args.from.batch * args.from.positions * args.from.heads * groups;
  WithCompute(x.dtype(), [&]<typename C>(C) {
    Launch(x.device(), {.grid = GridFor(x.device(), items, kThreads), .block = kThreads},
           DropoutKernel<C>, args);
  });
}

}  // namespace sherd::cuda
