#pragma once

#include <cstdint>
#include <vector>

#include "sherd/runtime/kernels/rope.h"

// Rotary tables for more positions than a model was trained with.
namespace sherd::kernels {

// With f_i = theta^(-2i/D), the frequency of channel pair i, L = original_max_position_embeddings
// and n the positions of the table:
enum class RopeScalingType : uint8_t {
  kNone,
  // f_i / factor. Source: Chen et al. 2023, "Extending Context Window of Large Language Models via
  // Positional Interpolation".
  kLinear,
  // theta grows to theta (factor n / L - (factor - 1))^(D / (D - 2)) when n > L, and stays else.
  // The table is that of a sequence of n positions: make another for another length. Source:
  // "NTK-aware" scaling, in the form of Peng et al. 2023, appendix B.
  kDynamic,
  // By wavelength w = 2 pi / f_i: f_i / factor for w > L / low_freq_factor, f_i for
  // w < L / high_freq_factor, and between them the mixture (1 - s) f_i / factor + s f_i with
  // s = (L / w - low_freq_factor) / (high_freq_factor - low_freq_factor). Source: Llama 3.1, as
  // its model card and Dubey et al. 2024 describe it.
  kLlama3,
  // Mixes f_i / factor and f_i by a ramp over i, from the pair that turns beta_fast times within L
  // (rounded down, at least 0) to the one that turns beta_slow times (rounded up, at most D - 1);
  // the pair that turns r times is D ln(L / (2 pi r)) / (2 ln theta). Cosines and sines are
  // multiplied with attention_factor. Source: Peng et al. 2023, "YaRN".
  kYarn,
};

// Options by the names of Hugging Face's rope_scaling.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  // How much longer sequences become, at least 1. Unused by kNone.
  double factor = 1.0;
  // L: the positions the model was trained with. Unused by kNone and kLinear.
  int64_t original_max_position_embeddings = 0;
  // Of kLlama3.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // Of kYarn.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  // Of kYarn: what cosines and sines are multiplied with, so scores with its square. 0: YaRN's own,
  // 0.1 ln(factor) + 1.
  double attention_factor = 0.0;
};

// The frequency of each of the D / 2 channel pairs, for a table of `positions`.
// Errors: as the maker below.
std::vector<double> RopeFrequencies(int64_t positions, int64_t head_size, double theta,
                                    const RopeScaling& scaling);

// What the tables are multiplied with: 1 but for kYarn.
double RopeAttentionFactor(const RopeScaling& scaling);

// Tables for positions [0, positions) with scaled frequencies, computed in f64.
//
// Errors: kInvalidArgument naming the option: a factor below 1, a missing
//   original_max_position_embeddings, high_freq_factor not above low_freq_factor, beta_fast below
//   beta_slow or not positive, a negative attention_factor, a head size of 2 for kDynamic.
// REQUIRES: as MakeRopeTables without scaling.
RopeTables MakeRopeTables(const Device& device, DType dtype, int64_t positions, int64_t head_size,
                          double theta, const RopeScaling& scaling);

}  // namespace sherd::kernels
