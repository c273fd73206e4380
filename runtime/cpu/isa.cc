#include "sherd/runtime/cpu/isa.h"

#ifdef SHERD_KERNELS_X86
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

size_t CountAvailable() {
#ifdef SHERD_KERNELS_X86
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? 3 : 2;
#else
  return 1;
#endif
}

Isa Default() {
  const std::span<const Isa> available = AvailableIsas();
  const char* wanted = std::getenv("SHERD_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return available.back();
  std::string names;
  for (Isa isa : available) {
    if (NameOf(isa) == wanted) return isa;
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(NameOf(isa)));
  }
  ThrowInvalidArgument(
      absl::StrCat("SHERD_CPU_ISA is '", wanted, "'; this machine and build offer ", names));
}

struct IsaSlot {
  std::atomic<Isa> isa = Default();
};

}  // namespace

std::string_view NameOf(Isa isa) {
  constexpr std::string_view kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

std::span<const Isa> AvailableIsas() {
  static const size_t count = CountAvailable();
  return std::span<const Isa>(kAll).first(count);
}

Isa IsaOf(const Device& device) {
  return device.Slot<IsaSlot>().isa.load(std::memory_order_relaxed);
}

void SetIsa(const Device& device, Isa isa) {
  const std::span<const Isa> available = AvailableIsas();
  SHERD_CHECK(std::find(available.begin(), available.end(), isa) != available.end(),
              "an instruction set was chosen that is not available");
  device.Slot<IsaSlot>().isa.store(isa, std::memory_order_relaxed);
}

bool Bf16DotIsFast() {
#ifdef SHERD_KERNELS_X86
  static const bool fast = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return true;
    constexpr unsigned kAmxBf16 = 1u << 22, kAvx512Fp16 = 1u << 23;
    return !__builtin_cpu_is("intel") || !(edx & kAvx512Fp16) || (edx & kAmxBf16);
  }();
  return fast;
#else
  return true;
#endif
}

}  // namespace sherd::cpu
