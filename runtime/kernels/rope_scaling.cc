#include "sherd/runtime/kernels/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd::kernels {
namespace {

constexpr double kTurn = 2.0 * std::numbers::pi;

void Require(bool condition, std::string_view what, double got) {
  if (condition) return;
  ThrowInvalidArgument(absl::StrCat(std::string(what), ", got ", got), {.op = "rope_scaling"});
}

void Check(const RopeScaling& s, int64_t head_size) {
  if (s.type == RopeScalingType::kNone) return;
  Require(s.factor >= 1.0 && std::isfinite(s.factor), "factor is at least 1", s.factor);
  if (s.type == RopeScalingType::kLinear) return;
  Require(s.original_max_position_embeddings >= 1, "original_max_position_embeddings is at least 1",
          static_cast<double>(s.original_max_position_embeddings));
  if (s.type == RopeScalingType::kDynamic) {
    Require(head_size > 2, "dynamic scaling needs a head size above 2",
            static_cast<double>(head_size));
  } else if (s.type == RopeScalingType::kLlama3) {
    Require(s.low_freq_factor > 0.0, "low_freq_factor is positive", s.low_freq_factor);
    Require(s.high_freq_factor > s.low_freq_factor, "high_freq_factor is above low_freq_factor",
            s.high_freq_factor);
  } else {
    Require(s.beta_slow > 0.0, "beta_slow is positive", s.beta_slow);
    Require(s.beta_fast >= s.beta_slow, "beta_fast is at least beta_slow", s.beta_fast);
    Require(s.attention_factor >= 0.0, "attention_factor is not negative", s.attention_factor);
  }
}

double Llama3(double frequency, const RopeScaling& s) {
  const auto trained = static_cast<double>(s.original_max_position_embeddings);
  const double wavelength = kTurn / frequency;
  if (wavelength > trained / s.low_freq_factor) return frequency / s.factor;
  if (wavelength < trained / s.high_freq_factor) return frequency;
  const double smooth =
      (trained / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1.0 - smooth) * frequency / s.factor + smooth * frequency;
}

// Where between [scaled, as trained] each pair lies, for kYarn.
class YarnRamp {
 public:
  YarnRamp(int64_t head_size, double theta, const RopeScaling& s) {
    const auto channels = static_cast<double>(head_size);
    const auto pair_of = [&](double turns) {
      const auto trained = static_cast<double>(s.original_max_position_embeddings);
      return channels * std::log(trained / (turns * kTurn)) / (2.0 * std::log(theta));
    };
    low_ = std::max(std::floor(pair_of(s.beta_fast)), 0.0);
    high_ = std::min(std::ceil(pair_of(s.beta_slow)), channels - 1.0);
    if (low_ == high_) high_ += 0.001;  // a step, not a division by zero
  }

  // 0: as trained, 1: divided by the factor.
  double operator()(int64_t i) const {
    return std::clamp((static_cast<double>(i) - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  double low_, high_;
};

template <typename T>
RopeTables Tables(const Device& device, const Shape& shape, const std::vector<double>& frequencies,
                  double factor) {
  std::vector<T> cos(static_cast<size_t>(shape.numel())), sin(cos.size());
  const auto half = static_cast<int64_t>(frequencies.size());
  for (int64_t t = 0; t < shape[0]; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<size_t>(i)];
      cos[static_cast<size_t>(t * half + i)] = static_cast<T>(factor * std::cos(angle));
      sin[static_cast<size_t>(t * half + i)] = static_cast<T>(factor * std::sin(angle));
    }
  }
  return {Tensor::FromHost<T>(device, cos, shape), Tensor::FromHost<T>(device, sin, shape)};
}

}  // namespace

std::vector<double> RopeFrequencies(int64_t positions, int64_t head_size, double theta,
                                    const RopeScaling& s) {
  SHERD_CHECK(head_size % 2 == 0, "rotary embedding needs an even head size");
  Check(s, head_size);
  const auto channels = static_cast<double>(head_size);
  const auto trained = static_cast<double>(s.original_max_position_embeddings);
  const auto wanted = static_cast<double>(positions);
  double base = theta;
  if (s.type == RopeScalingType::kDynamic && wanted > trained) {
    base *= std::pow(s.factor * wanted / trained - (s.factor - 1.0), channels / (channels - 2.0));
  }
  std::vector<double> frequencies(static_cast<size_t>(head_size / 2));
  for (int64_t i = 0; i < head_size / 2; ++i) {
    double& f = frequencies[static_cast<size_t>(i)];
    f = std::pow(base, -2.0 * static_cast<double>(i) / channels);
    if (s.type == RopeScalingType::kLinear) f /= s.factor;
    if (s.type == RopeScalingType::kLlama3) f = Llama3(f, s);
    if (s.type == RopeScalingType::kYarn) {
      const double ramp = YarnRamp(head_size, theta, s)(i);
      f = f / s.factor * ramp + f * (1.0 - ramp);
    }
  }
  return frequencies;
}

double RopeAttentionFactor(const RopeScaling& s) {
  if (s.type != RopeScalingType::kYarn) return 1.0;
  return s.attention_factor != 0.0 ? s.attention_factor : 0.1 * std::log(s.factor) + 1.0;
}

RopeTables MakeRopeTables(const Device& device, DType dtype, int64_t positions, int64_t head_size,
                          double theta, const RopeScaling& scaling) {
  SHERD_CHECK(dtype == DType::kF32 || dtype == DType::kF64, "rope tables are f32 or f64");
  const std::vector<double> frequencies = RopeFrequencies(positions, head_size, theta, scaling);
  const double factor = RopeAttentionFactor(scaling);
  const Shape shape = {positions, head_size / 2};
  return dtype == DType::kF64 ? Tables<double>(device, shape, frequencies, factor)
                              : Tables<float>(device, shape, frequencies, factor);
}

}  // namespace sherd::kernels
