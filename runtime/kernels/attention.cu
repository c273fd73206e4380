#include "sherd/runtime/kernels/attention.h"

#include "sherd/runtime/cuda/internal/attention_mma.h"
#include "sherd/runtime/cuda/internal/attention_plain.h"
#include "sherd/runtime/cuda/internal/attention_prepare.h"
#include "sherd/runtime/cuda/internal/kernels.h"
#include "sherd/runtime/kernels/internal/attention_operands.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::cuda {
namespace {

using namespace attention;  // NOLINT: the insides of this op

LaunchShape ShapeOf(const Prepared& p, int threads, int64_t shared_bytes) {
  return {.grid = dim3(static_cast<unsigned>(p.query_slots), static_cast<unsigned>(p.args.heads)),
          .block = static_cast<unsigned>(threads),
          .shared_bytes = shared_bytes};
}

template <typename T, int kTile, int kColumns>
void RunPlain(const Device& device, const Prepared& p) {
  Launch(device,
         ShapeOf(p, kPlainThreads,
                 PlainSharedBytes<Compute<T>, kTile>(p.args.head_size, /*operands=*/3,
                                                     /*squares=*/1)),
         PlainForward<T, kTile, kColumns>, p.args);
}

template <typename T, int kD>
void RunMma(const Device& device, const Prepared& p) {
  Launch(device, ShapeOf(p, kMmaThreads, MmaSharedBytes<T, kD>(/*operands=*/3)), MmaForward<T, kD>,
         p.args);
}

}  // namespace

void Kernels::Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const kernels::AttentionOptions& options, const Tensor& out,
                        const Tensor& lse) const {
  const Tensor x = kernels::PackInnermost(q), y = kernels::PackInnermost(k),
               z = kernels::PackInnermost(v);
  kernels::internal::CheckAttention(x, y, z, out, lse);
  if (x.numel() == 0) return;
  const Device& device = out.device();
  const Prepared p = Prepare(x, y, z, out, lse, options, TileOf(x.dtype()));
  const int d = p.args.head_size;
  WithFloat(x.dtype(), [&](auto element) {
    using T = decltype(element);
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
