#pragma once

#include <span>
#include <string_view>

#include "sherd/runtime/core/device.h"

// Which instruction set the CPU kernels of a device run on.
namespace sherd::cpu {

// Levels that hot loops are compiled for, least first.
enum class Isa {
  kBaseline,  // what the compiler targets by default: SSE2 on x86-64
  kAvx2,      // AVX2 and FMA
  kAvx512,    // AVX-512 F, BW, DQ and VL
};

// "baseline", "avx2", "avx512"
std::string_view NameOf(Isa isa);

// The levels this build contains and this processor can run, least first. Never empty.
std::span<const Isa> AvailableIsas();

// The level of a device: the highest available one, or what the environment variable SHERD_CPU_ISA
// names, which is read when a device is first asked. Errors: kInvalidArgument for a name that is
// unknown or not available.
Isa IsaOf(const Device& device);

// Sets the level of one device; for tests. REQUIRES: `isa` is available, no kernel is running.
void SetIsa(const Device& device, Isa isa);

// Whether the processor multiplies bf16 pairs at least as fast as f32. Intel's parts with
// AVX512-FP16 do so with AMX; where a hypervisor hides AMX from them, their VDPBF16PS does half the
// arithmetic of f32 (measured: 86 against 170 GFLOP/s), and unpacking to f32 is the faster way.
bool Bf16DotIsFast();

}  // namespace sherd::cpu
