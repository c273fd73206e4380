#include "sherd/runtime/kernels/internal/loops_of.h"

#include "sherd/runtime/cpu/isa.h"

namespace sherd::kernels {

#define SHERD_DECLARE_LOOPS(isa)                                                              \
  namespace isa {                                                                             \
  extern const internal::ElementwiseLoops kElementwiseLoops;                                  \
  extern const internal::ReduceLoops kReduceLoops;                                            \
  extern const internal::RowLoops kRowLoops;                                                  \
  extern const internal::GemmLoops kGemmLoops;                                                \
  extern const internal::AttentionLoops kAttentionLoops;                                      \
  extern const internal::UpdateLoops kUpdateLoops;                                            \
  extern const internal::UnaryLoops kUnaryLoops;                                              \
  extern const internal::SoftmaxLoops kSoftmaxLoops;                                          \
  extern const internal::LayerNormLoops kLayerNormLoops;                                      \
  extern const internal::BroadcastLoops kBroadcastLoops;                                      \
  constexpr internal::Loops kLoops = {                                                        \
      &kElementwiseLoops, &kReduceLoops, &kRowLoops,     &kGemmLoops,      &kAttentionLoops,  \
      &kUpdateLoops,      &kUnaryLoops,  &kSoftmaxLoops, &kLayerNormLoops, &kBroadcastLoops}; \
  }

SHERD_DECLARE_LOOPS(baseline)
#ifdef SHERD_KERNELS_X86
SHERD_DECLARE_LOOPS(avx2)
SHERD_DECLARE_LOOPS(avx512)
#endif

namespace internal {

const Loops& LoopsOf(const Device& device) {
  switch (cpu::IsaOf(device)) {
#ifdef SHERD_KERNELS_X86
    case cpu::Isa::kAvx512:
      return avx512::kLoops;
    case cpu::Isa::kAvx2:
      return avx2::kLoops;
#endif
    default:
      return baseline::kLoops;
  }
}

}  // namespace internal
}  // namespace sherd::kernels
