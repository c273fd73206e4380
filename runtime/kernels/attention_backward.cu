#include <algorithm>

#include "sherd/runtime/cuda/internal/attention_mma.h"
#include "sherd/runtime/cuda/internal/attention_plain.h"
#include "sherd/runtime/cuda/internal/attention_prepare.h"
#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/cuda/internal/reduce.h"
#include "sherd/runtime/kernels/attention.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/attention_operands.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

using namespace attention;  // NOLINT: the insides of this op

constexpr int kDeltaThreads = 256;

// delta[b, h, t] = the sum over D of grad * out: what each score's gradient is less, the derivative
// of the softmax's denominator. A warp for a query and head.
template <typename T>
__global__ void __launch_bounds__(kDeltaThreads) Deltas(const Args args) {
  using C = Compute<T>;
  const int64_t rows = args.batch * args.heads * args.queries;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t step = int64_t{gridDim.x} * (kDeltaThreads / 32);
  for (int64_t row = int64_t{blockIdx.x} * (kDeltaThreads / 32) + warp; row < rows; row += step) {
    const int64_t t = row / args.heads % args.queries, h = row % args.heads;
    const int64_t b = row / args.heads / args.queries;
    const T* const grad = args.grad.At<const T>(b, t, h);
    const T* const out = args.out.At<const T>(b, t, h);
    C sum = 0;
    for (int c = lane; c < args.head_size; c += 32) sum += Widen(grad[c]) * Widen(out[c]);
    sum = WarpReduce(sum, Plus{});
    if (lane == 0) static_cast<C*>(args.delta)[(b * args.heads + h) * args.queries + t] = sum;
  }
}

LaunchShape ShapeOf(int64_t slots, int64_t heads, int64_t pieces, int threads,
                    int64_t shared_bytes) {
  return {.grid = dim3(static_cast<unsigned>(slots), static_cast<unsigned>(heads),
                       static_cast<unsigned>(pieces)),
          .block = static_cast<unsigned>(threads),
          .shared_bytes = shared_bytes};
}

template <typename T, int kTile, int kColumns>
void RunPlain(const Device& device, const Prepared& p) {
  const Args& args = p.args;
  const int d = args.head_size;
  if (args.grad_q.data != nullptr) {
    const int64_t bytes = PlainSharedBytes<Compute<T>, kTile>(d, /*operands=*/4, /*squares=*/1);
    Launch(device, ShapeOf(p.query_slots, args.heads, 1, kPlainThreads, bytes),
           PlainGradQueries<T, kTile, kColumns>, args);
  }
  if (args.grad_k.data != nullptr || args.grad_v.data != nullptr) {
    const int64_t bytes = PlainSharedBytes<Compute<T>, kTile>(d, /*operands=*/4, /*squares=*/2);
    Launch(device, ShapeOf(p.key_slots, args.heads / args.group, 1, kPlainThreads, bytes),
           PlainGradKeys<T, kTile, kColumns>, args);
  }
}

template <typename T, int kD>
void RunMma(const Device& device, const Prepared& p) {
  const Args& args = p.args;
  const int64_t bytes = MmaSharedBytes<T, kD>(/*operands=*/4);
  if (args.grad_q.data != nullptr) {
    Launch(device, ShapeOf(p.query_slots, args.heads, 1, kMmaThreads, bytes), MmaGradQueries<T, kD>,
           args);
  }
  if (args.grad_k.data != nullptr || args.grad_v.data != nullptr) {
    constexpr int kPiece = std::min(kD, kMmaGradColumns);
    Launch(device, ShapeOf(p.key_slots, args.heads / args.group, kD / kPiece, kMmaThreads, bytes),
           MmaGradKeys<T, kD, kPiece>, args);
  }
}

void FillIfOverwritten(const Tensor& x, kernels::Write write) {
  if (x.defined() && write == kernels::Write::kOverwrite) kernels::Fill(x, 0.0);
}

}  // namespace

void Kernels::AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                const Tensor& v, const Tensor& out, const Tensor& lse,
                                const kernels::AttentionOptions& options, const Tensor& grad_q,
                                kernels::Write write_q, const Tensor& grad_k,
                                kernels::Write write_k, const Tensor& grad_v,
                                kernels::Write write_v) const {
  const Tensor w = kernels::PackInnermost(grad), x = kernels::PackInnermost(q),
               y = kernels::PackInnermost(k), z = kernels::PackInnermost(v);
  kernels::internal::CheckAttention(x, y, z, out, lse);
  kernels::internal::CheckLike(w, x);
  kernels::internal::CheckLike(grad_q, x);
  kernels::internal::CheckLike(grad_k, y);
  kernels::internal::CheckLike(grad_v, y);
  if (x.numel() == 0) {
    FillIfOverwritten(grad_k, write_k);
    FillIfOverwritten(grad_v, write_v);
    return;
  }
  const Device& device = out.device();
  Prepared p = Prepare(x, y, z, out, lse, options, TileOf(x.dtype()));
  const Tensor delta = Tensor::Empty(device, lse.dtype(), lse.shape(), MemoryCategory::kWorkspace);
  Args& args = p.args;
  args.grad = HeadsOf(w);
  args.delta = delta.raw();
  args.grad_q = HeadsOf(grad_q);
  args.grad_k = HeadsOf(grad_k);
  args.grad_v = HeadsOf(grad_v);
  args.add_q = write_q == kernels::Write::kAdd;
  args.add_k = write_k == kernels::Write::kAdd;
  args.add_v = write_v == kernels::Write::kAdd;
  const int d = args.head_size;
  WithFloat(x.dtype(), [&](auto element) {
    using T = decltype(element);
    Launch(device,
           {.grid = GridFor(device, delta.numel(), kDeltaThreads / 32), .block = kDeltaThreads},
           Deltas<T>, args);
    if constexpr (sizeof(T) == 2) {
      d <= 64    ? RunMma<T, 64>(device, p)
      : d <= 128 ? RunMma<T, 128>(device, p)
                 : RunMma<T, 256>(device, p);
    } else if constexpr (sizeof(T) == 4) {
      d <= 128 ? RunPlain<T, 32, 8>(device, p) : RunPlain<T, 32, 16>(device, p);
    } else {
      RunPlain<T, 16, 16>(device, p);
    }
  });
}

}  // namespace sherd::cuda
