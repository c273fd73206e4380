#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "sherd/runtime/base/thread_pool.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/cpu/isa.h"
#include "sherd/runtime/kernels/elementwise.h"

// How kernels are compared with plain f64 loops, for every dtype, instruction set and thread count.
namespace sherd::kernels::test {

inline constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
inline constexpr Write kWrites[] = {Write::kOverwrite, Write::kAdd};

inline DType WideOf(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

// The value as the dtype stores it.
inline double Rounded(double x, DType dtype) {
  if (dtype == DType::kF64) return x;
  if (dtype == DType::kF32) return static_cast<float>(x);
  if (dtype == DType::kF16) return static_cast<float>(Float16(static_cast<float>(x)));
  return static_cast<float>(BFloat16(static_cast<float>(x)));
}

// A tensor's values on the host, representable in its dtype.
struct Values {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<double> v;

  double operator[](int64_t i) const { return v[static_cast<size_t>(i)]; }
  double& operator[](int64_t i) { return v[static_cast<size_t>(i)]; }
};

// Normal values times `scale`, the same for the same seed.
inline Values RandomValues(DType dtype, const Shape& shape, uint64_t seed, double scale = 1.0) {
  Values values = {dtype, shape, std::vector<double>(static_cast<size_t>(shape.numel()))};
  for (size_t i = 0; i < values.v.size(); ++i) {
    const auto words = Philox4x32(seed, i, 77);
    values.v[i] = Rounded(scale * Normal(words[0], words[1]), dtype);
  }
  return values;
}

inline Values Like(const Values& x) {
  return {x.dtype, x.shape, std::vector<double>(x.v.size(), 0.0)};
}

// How a tensor lies in memory.
enum class Lay {
  kContiguous,
  kPadded,  // a slice of a tensor whose last dimension is longer; what lies between is NaN
};

inline void Poke(const Tensor& x, int64_t elem, double value) {
  char* const at = static_cast<char*>(x.raw()) + elem * SizeOf(x.dtype());
  if (x.dtype() == DType::kF64) {
    std::memcpy(at, &value, 8);
  } else if (x.dtype() == DType::kF32) {
    const float f = static_cast<float>(value);
    std::memcpy(at, &f, 4);
  } else if (x.dtype() == DType::kF16) {
    const Float16 h(static_cast<float>(value));
    std::memcpy(at, &h, 2);
  } else {
    const BFloat16 b(static_cast<float>(value));
    std::memcpy(at, &b, 2);
  }
}

inline double Peek(const Tensor& x, int64_t elem) {
  const char* const at = static_cast<const char*>(x.raw()) + elem * SizeOf(x.dtype());
  if (x.dtype() == DType::kF64) {
    double d;
    std::memcpy(&d, at, 8);
    return d;
  }
  if (x.dtype() == DType::kF32) {
    float f;
    std::memcpy(&f, at, 4);
    return f;
  }
  if (x.dtype() == DType::kF16) {
    Float16 h;
    std::memcpy(&h, at, 2);
    return static_cast<float>(h);
  }
  BFloat16 b;
  std::memcpy(&b, at, 2);
  return static_cast<float>(b);
}

// Where row-major element `i` of `x` lies, in elements from the first.
inline int64_t Place(const Tensor& x, int64_t i) {
  int64_t place = 0;
  for (int d = x.rank() - 1; d >= 0; --d) {
    place += i % x.dim(d) * x.strides()[d];
    i /= x.dim(d);
  }
  return place;
}

inline Tensor ToTensor(const Device& device, const Values& values, Lay lay = Lay::kContiguous) {
  Tensor x;
  if (lay == Lay::kContiguous) {
    x = Tensor::Empty(device, values.dtype, values.shape);
  } else {
    Shape wide = values.shape;
    const int last = wide.rank() - 1;
    wide[last] += 5;
    const Tensor whole = Tensor::Empty(device, values.dtype, wide);
    for (int64_t i = 0; i < whole.numel(); ++i) {
      Poke(whole, i, std::numeric_limits<double>::quiet_NaN());
    }
    x = whole.Slice(last, 3, 3 + values.shape[last]);
  }
  for (int64_t i = 0; i < x.numel(); ++i) Poke(x, Place(x, i), values[i]);
  return x;
}

// The values of `x`; fails the test if something was written between the rows of a padded tensor.
inline std::vector<double> FromTensor(const Tensor& x) {
  std::vector<double> v(static_cast<size_t>(x.numel()));
  for (int64_t i = 0; i < x.numel(); ++i) v[static_cast<size_t>(i)] = Peek(x, Place(x, i));
  if (!x.is_contiguous() && x.offset_elems() == 3) {
    const int64_t elems = x.storage()->bytes() / SizeOf(x.dtype());
    int64_t untouched = 0;
    for (int64_t i = 0; i < elems; ++i) untouched += std::isnan(Peek(x, i - 3));
    EXPECT_GE(untouched, elems - x.numel()) << "written outside of the view";
  }
  return v;
}

inline double ToleranceOf(DType dtype) {
  if (dtype == DType::kF16) return 7.5e-4;
  return dtype == DType::kF64 ? 2e-14 : dtype == DType::kF32 ? 4e-6 : 6e-3;
}

// Elements agree to `tolerance`, relative to the larger of 1 and the element.
inline void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                       double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double worst = 0.0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double error = std::abs(got[i] - want[i]) / std::max(1.0, std::abs(want[i]));
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) error = 0.0;
    if (!(error <= worst) && !std::isnan(worst)) {  // a NaN stays the worst
      worst = error;
      at = i;
    }
  }
  EXPECT_LE(worst, tolerance) << what << ": element " << at << " of " << got.size() << " is "
                              << got[at] << ", expected " << want[at];
}

// What a kernel wrote, one vector for each output.
using Results = std::vector<std::vector<double>>;

inline bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 8) == 0);
}

// A device for every available instruction set with 1 and with 3 threads, made once.
struct IsaDevices {
  cpu::Isa isa;
  Device one, three;
};

inline const std::vector<IsaDevices>& AllIsas() {
  static const std::vector<IsaDevices>& places = *[] {
    auto* made = new std::vector<IsaDevices>();
    for (cpu::Isa isa : cpu::AvailableIsas()) {
      made->push_back({isa, Device::Cpu(), Device::Cpu({.threads = 3})});
      cpu::SetIsa(made->back().one, isa);
      cpu::SetIsa(made->back().three, isa);
    }
    return made;
  }();
  return places;
}

// Runs `run(device)` on every instruction set with 1 and 3 threads, checks each result against
// `want`, and that threads do not change bits.
template <typename F>
void CheckEverywhere(const Results& want, double tolerance, const std::string& what, const F& run) {
  for (const auto& [isa, one, three] : AllIsas()) {
    const std::string where = what + " on " + std::string(cpu::NameOf(isa));
    const Results alone = run(one), together = run(three);
    EXPECT_EQ(three.allocator().stats()[MemoryCategory::kWorkspace].current_bytes, 0) << where;
    ASSERT_EQ(alone.size(), want.size());
    for (size_t r = 0; r < want.size(); ++r) {
      const std::string which = where + ", result " + std::to_string(r);
      ExpectNear(alone[r], want[r], tolerance, which);
      EXPECT_TRUE(SameBits(alone[r], together[r])) << "threads change bits: " << which;
    }
  }
}

// What a kernel leaves in an output that held `before`.
inline std::vector<double> Written(Write write, const Values& before,
                                   const std::vector<double>& r) {
  std::vector<double> out = r;
  if (write == Write::kAdd) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += before.v[i];
  }
  return out;
}

inline std::string Describe(DType dtype, Write write, const Shape& shape) {
  return std::string(NameOf(dtype)) + (write == Write::kAdd ? " add " : " ") + shape.ToString();
}

}  // namespace sherd::kernels::test
