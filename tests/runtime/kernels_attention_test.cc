#include "sherd/runtime/kernels/attention.h"

#include <algorithm>

#include "sherd/runtime/base/error.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

struct Problem {
  int64_t b, t, s, heads, key_heads, d;
  bool causal;
  std::vector<int64_t> mask = {}, lengths = {}, cu_seqlens = {};
  double dropout = 0.0;
};

constexpr uint64_t kKey = 77;
int64_t SampleOf(int64_t b) { return 1000 + 3 * b; }

// Whether query t of row b sees key s, by the words of the header.
bool Sees(const Problem& p, int64_t b, int64_t t, int64_t s) {
  if (p.causal && s > t + p.s - p.t) return false;
  if (!p.mask.empty() && p.mask[static_cast<size_t>(b * p.s + s)] == 0) return false;
  if (!p.lengths.empty() && s >= p.lengths[static_cast<size_t>(b)]) return false;
  if (p.cu_seqlens.empty()) return true;
  const auto document = [&](int64_t token) {
    return std::upper_bound(p.cu_seqlens.begin(), p.cu_seqlens.end(), b * p.t + token) -
           p.cu_seqlens.begin();
  };
  return document(t) == document(s) && b * p.t + t < p.cu_seqlens.back();
}

// What dropout multiplies a probability with.
double Factor(const Problem& p, int64_t b, int64_t h, int64_t t, int64_t s) {
  if (p.dropout == 0.0) return 1.0;
  const uint64_t element = static_cast<uint64_t>(h) << 52 | static_cast<uint64_t>(t) << 26 |
                           static_cast<uint64_t>(s / 4);
  const uint32_t word =
      Philox4x32(kKey, static_cast<uint64_t>(SampleOf(b)), element)[static_cast<size_t>(s % 4)];
  return static_cast<double>(word) * 0x1p-32 >= p.dropout ? 1.0 / (1.0 - p.dropout) : 0.0;
}

struct Grads {
  std::vector<double> out, lse, q, k, v;
};

// Everything by the definition, one query at a time.
Grads Reference(const Problem& p, double scale, const Values& q, const Values& k, const Values& v,
                const Values& grad) {
  Grads r;
  r.out.assign(q.v.size(), 0.0);
  r.q.assign(q.v.size(), 0.0);
  r.lse.assign(static_cast<size_t>(p.b * p.heads * p.t), 0.0);
  r.k.assign(k.v.size(), 0.0);
  r.v.assign(k.v.size(), 0.0);
  for (int64_t b = 0; b < p.b; ++b) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t t = 0; t < p.t; ++t) {
        const int64_t at_q = ((b * p.t + t) * p.heads + h) * p.d;
        const int64_t kh = h / (p.heads / p.key_heads);
        const auto at_k = [&](int64_t s) { return ((b * p.s + s) * p.key_heads + kh) * p.d; };
        std::vector<int64_t> seen;
        for (int64_t s = 0; s < p.s; ++s) {
          if (Sees(p, b, t, s)) seen.push_back(s);
        }
        std::vector<double> weight(seen.size()), d_weight(seen.size());
        double most = -std::numeric_limits<double>::infinity(), sum = 0.0, delta = 0.0;
        for (size_t i = 0; i < seen.size(); ++i) {
          for (int64_t c = 0; c < p.d; ++c) weight[i] += scale * q[at_q + c] * k[at_k(seen[i]) + c];
          most = std::max(most, weight[i]);
        }
        for (double& w : weight) sum += w = std::exp(w - most);
        r.lse[static_cast<size_t>((b * p.heads + h) * p.t + t)] =
            seen.empty() ? -std::numeric_limits<double>::infinity() : most + std::log(sum);
        for (size_t i = 0; i < seen.size(); ++i) {
          const double factor = Factor(p, b, h, t, seen[i]);
          weight[i] /= sum;
          for (int64_t c = 0; c < p.d; ++c) {
            r.out[static_cast<size_t>(at_q + c)] += factor * weight[i] * v[at_k(seen[i]) + c];
            r.v[static_cast<size_t>(at_k(seen[i]) + c)] += factor * weight[i] * grad[at_q + c];
            d_weight[i] += factor * grad[at_q + c] * v[at_k(seen[i]) + c];
          }
          delta += weight[i] * d_weight[i];
        }
        for (size_t i = 0; i < seen.size(); ++i) {
          const double d_score = weight[i] * (d_weight[i] - delta) * scale;
          for (int64_t c = 0; c < p.d; ++c) {
            r.q[static_cast<size_t>(at_q + c)] += d_score * k[at_k(seen[i]) + c];
            r.k[static_cast<size_t>(at_k(seen[i]) + c)] += d_score * q[at_q + c];
          }
        }
      }
    }
  }
  return r;
}

// The options of a problem on a device; masks in i32 or i64.
AttentionOptions OptionsOf(const Problem& p, const Device& device,
                           const std::vector<int64_t>& samples) {
  AttentionOptions options = {.causal = p.causal,
                              .scale = 1.0 / std::sqrt(static_cast<double>(p.d)),
                              .dropout = p.dropout,
                              .random_key = kKey,
                              .row_samples = samples};
  const auto wide = [&](const std::vector<int64_t>& x, const Shape& shape) {
    return x.empty() ? Tensor() : Tensor::FromHost<int64_t>(device, x, shape);
  };
  options.key_mask = wide(p.mask, {p.b, p.s});
  options.cu_seqlens = wide(p.cu_seqlens, {static_cast<int64_t>(p.cu_seqlens.size())});
  if (!p.lengths.empty()) {
    const std::vector<int32_t> narrow(p.lengths.begin(), p.lengths.end());
    options.key_lengths = Tensor::FromHost<int32_t>(device, narrow, {p.b});
  }
  return options;
}

// Puts NaN wherever a key is that no query of its row sees.
void Poison(const Problem& p, Values& x) {
  for (int64_t b = 0; b < p.b; ++b) {
    for (int64_t s = 0; s < p.s; ++s) {
      bool seen = false;
      for (int64_t t = 0; t < p.t; ++t) seen = seen || Sees(p, b, t, s);
      const int64_t row = p.key_heads * p.d;
      for (int64_t i = 0; i < row && !seen; ++i) {
        x[(b * p.s + s) * row + i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
  }
}

void Check(const Problem& p, DType dtype, Write write, Lay lay) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(p.d));
  const Shape q_shape = {p.b, p.t, p.heads, p.d}, k_shape = {p.b, p.s, p.key_heads, p.d};
  const Values q = RandomValues(dtype, q_shape, 1), grad = RandomValues(dtype, q_shape, 4);
  Values k = RandomValues(dtype, k_shape, 2), v = RandomValues(dtype, k_shape, 3);
  const Values before_q = RandomValues(dtype, q_shape, 5),
               before_k = RandomValues(dtype, k_shape, 6);
  const Grads want = Reference(p, scale, q, k, v, grad);
  if (!p.mask.empty() || !p.lengths.empty() || !p.cu_seqlens.empty()) {
    Poison(p, k);
    Poison(p, v);
  }
  std::vector<int64_t> samples;
  for (int64_t b = 0; b < p.b; ++b) samples.push_back(SampleOf(b));
  // The backward of 16-bit types starts from an `out` that was rounded.
  const double tolerance = (SizeOf(dtype) == 2 ? 5 : 4) * ToleranceOf(dtype);
  CheckEverywhere({want.out, want.lse, Written(write, before_q, want.q),
                   Written(write, before_k, want.k), Written(write, before_k, want.v)},
                  tolerance, Describe(dtype, write, q_shape) + " " + k_shape.ToString(),
                  [&](const Device& device) {
                    const AttentionOptions options = OptionsOf(p, device, samples);
                    const Tensor tq = ToTensor(device, q, lay), tk = ToTensor(device, k, lay);
                    const Tensor tv = ToTensor(device, v, lay), tgrad = ToTensor(device, grad, lay);
                    const Tensor out = ToTensor(device, Like(q), lay);
                    const Tensor lse = Tensor::Zeros(device, WideOf(dtype), {p.b, p.heads, p.t});
                    Attention(tq, tk, tv, options, out, lse);
                    const Tensor grad_q = ToTensor(device, before_q, lay);
                    const Tensor grad_k = ToTensor(device, before_k, lay);
                    const Tensor grad_v = ToTensor(device, before_k, lay);
                    AttentionBackward(tgrad, tq, tk, tv, out, lse, options, grad_q, write, grad_k,
                                      write, grad_v, write);
                    return Results{FromTensor(out), FromTensor(lse), FromTensor(grad_q),
                                   FromTensor(grad_k), FromTensor(grad_v)};
                  });
}

void CheckAll(const Problem& p) {
  for (DType dtype : kFloats) {
    Check(p, dtype, Write::kOverwrite, Lay::kContiguous);
    Check(p, dtype, Write::kAdd, Lay::kPadded);
  }
}

TEST(AttentionTest, AgreesWithTheDefinition) {
  const Problem problems[] = {{1, 1, 1, 1, 1, 1, true},      {2, 5, 5, 3, 3, 7, true},
                              {1, 64, 64, 2, 2, 32, true},   {2, 65, 65, 4, 2, 20, true},
                              {1, 130, 130, 2, 1, 64, true}, {1, 77, 77, 2, 2, 17, false},
                              {1, 128, 128, 1, 1, 48, false}};
  for (const Problem& p : problems) CheckAll(p);
}

TEST(AttentionTest, KeysMayOutnumberQueriesAndTheReverse) {
  for (bool causal : {true, false}) {
    for (DType dtype : kFloats) {
      Check({1, 70, 150, 2, 2, 16, causal}, dtype, Write::kOverwrite, Lay::kContiguous);
      Check({1, 3, 90, 2, 1, 16, causal}, dtype, Write::kAdd, Lay::kPadded);
      Check({1, 150, 70, 2, 2, 16, causal}, dtype, Write::kOverwrite, Lay::kPadded);
    }
  }
}

// Rows of `keys`: all but the first, all but the last n, with holes, of one key, of none.
std::vector<int64_t> Masks(int64_t keys) {
  std::vector<int64_t> mask;
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t s = 0; s < keys; ++s) {
      const bool see[5] = {s >= keys / 2 + 3, s < keys / 2 + 3, s % 3 != 1 && s % 7 != 2,
                           s == keys / 2, false};
      mask.push_back(see[row] ? 1 + s : 0);  // any number but 0 shows a key
    }
  }
  return mask;
}

TEST(AttentionTest, NobodySeesMaskedKeysWhateverLiesInThem) {
  for (bool causal : {true, false}) {
    CheckAll({5, 9, 9, 2, 1, 8, causal, Masks(9)});
    CheckAll({5, 130, 130, 2, 2, 17, causal, Masks(130)});
    CheckAll({5, 20, 150, 2, 1, 8, causal, Masks(150)});
    CheckAll({5, 150, 70, 2, 2, 8, causal, Masks(70)});
  }
}

TEST(AttentionTest, KeyLengthsCutEachRow) {
  for (bool causal : {true, false}) {
    CheckAll({4, 130, 130, 4, 2, 20, causal, {}, {130, 65, 1, 0}});
    CheckAll({3, 20, 90, 1, 1, 8, causal, {}, {80, 64, 3}});
    // Both at once: what either hides is hidden.
    CheckAll({5, 40, 40, 1, 1, 8, causal, Masks(40), {40, 20, 33, 20, 40}});
  }
}

TEST(AttentionTest, PackedDocumentsSeeOnlyThemselves) {
  for (bool causal : {true, false}) {
    CheckAll({1, 9, 9, 2, 1, 8, causal, {}, {}, {0, 1, 4, 4, 9}});
    CheckAll({1, 200, 200, 4, 2, 20, causal, {}, {}, {0, 70, 71, 190}});
    // Documents end with their row, whatever the lengths say; the rest is in none.
    CheckAll({2, 70, 70, 2, 2, 16, causal, {}, {}, {0, 30, 70, 101, 120}});
    CheckAll({2, 10, 10, 1, 1, 4, causal, {}, {}, {0}});
  }
}

TEST(AttentionTest, PackedDocumentsAreAsExactAsEachAlone) {
  const Device device = Device::Cpu();
  const Problem packed = {1, 150, 150, 2, 1, 16, true, {}, {}, {0, 67, 150}};
  const Values x = RandomValues(DType::kF32, {1, 150, 2, 16}, 1);
  const Values y = RandomValues(DType::kF32, {1, 150, 1, 16}, 2);
  const auto run = [&](int64_t begin, int64_t end, const AttentionOptions& options) {
    const Tensor q = ToTensor(device, x).Slice(1, begin, end);
    const Tensor k = ToTensor(device, y).Slice(1, begin, end);
    const Tensor out = Tensor::Empty(device, DType::kF32, q.shape());
    const Tensor lse = Tensor::Empty(device, DType::kF32, {1, 2, end - begin});
    Attention(q, k, k, options, out, lse);
    return FromTensor(out);
  };
  std::vector<double> alone;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 67}, {67, 150}}) {
    const std::vector<double> part = run(begin, end, {.causal = true, .scale = 0.25});
    alone.insert(alone.end(), part.begin(), part.end());
  }
  EXPECT_EQ(run(0, 150, OptionsOf(packed, device, {})), alone);
}

TEST(AttentionTest, DropsProbabilitiesByTheWordsOfTheirCoordinates) {
  for (bool causal : {true, false}) {
    CheckAll({2, 9, 9, 4, 2, 8, causal, {}, {}, {}, 0.4});
    CheckAll({2, 130, 130, 2, 1, 20, causal, {}, {}, {}, 0.1});
    CheckAll({1, 20, 150, 2, 2, 8, causal, {}, {}, {}, 0.9});
    CheckAll({5, 70, 70, 2, 1, 8, causal, Masks(70), {}, {}, 0.3});
    // Documents that begin anywhere: positions are those in the row.
    CheckAll({2, 90, 90, 2, 1, 8, causal, {}, {}, {0, 3, 73, 101, 160}, 0.3});
  }
}

TEST(AttentionTest, BadLengthsAreNamedBeforeAnythingIsWritten) {
  const Device device = Device::Cpu();
  const Values values = RandomValues(DType::kF32, {2, 5, 1, 4}, 1);
  const Tensor x = ToTensor(device, values), out = ToTensor(device, values);
  const Tensor lse = Tensor::Zeros(device, DType::kF32, {2, 1, 5});
  const auto error = [&](const Problem& p) -> std::string {
    try {
      Attention(x, x, x, OptionsOf(p, device, {}), out, lse);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const auto expect = [&](const Problem& p, const std::string& part) {
    EXPECT_NE(error(p).find(part), std::string::npos) << error(p);
  };
  expect({2, 5, 5, 1, 1, 4, true, {}, {5, 6}}, "key length 6 of row 1 is outside [0, 5]");
  expect({2, 5, 5, 1, 1, 4, true, {}, {-1, 5}}, "key length -1 of row 0");
  expect({2, 5, 5, 1, 1, 4, true, {}, {}, {0, 4, 3}}, "they are 0, 4, 3");
  expect({2, 5, 5, 1, 1, 4, true, {}, {}, {1, 4}}, "they are 1, 4");
  expect({2, 5, 5, 1, 1, 4, true, {}, {}, {0, 11}}, "at most the 10 tokens");
  expect({2, 5, 5, 1, 1, 4, true, {}, {}, {}, 1.0}, "dropout lies in [0, 1), got 1");
  EXPECT_EQ(FromTensor(out), values.v);
}

TEST(AttentionTest, LargestHeadSize) {
  Check({1, 40, 40, 1, 1, 256, true}, DType::kF32, Write::kOverwrite, Lay::kContiguous);
  Check({1, 40, 40, 1, 1, 255, true}, DType::kF64, Write::kOverwrite, Lay::kContiguous);
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  const Device device = Device::Cpu();
  Values q = RandomValues(DType::kF32, {1, 80, 1, 8}, 1, 60.0);
  const Tensor x = ToTensor(device, q), out = ToTensor(device, Like(q));
  const Tensor lse = Tensor::Zeros(device, DType::kF32, {1, 1, 80});
  Attention(x, x, x, {.causal = true, .scale = 1.0}, out, lse);
  for (double value : FromTensor(out)) EXPECT_TRUE(std::isfinite(value));
}

TEST(AttentionTest, NanReachesTheQueriesThatSeeItAndNoOther) {
  const Device device = Device::Cpu();
  const Values values = RandomValues(DType::kF32, {1, 80, 1, 8}, 1);
  Values bad = values;
  bad[70 * 8 + 3] = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = ToTensor(device, values), out = ToTensor(device, Like(values));
  const Tensor lse = Tensor::Zeros(device, DType::kF32, {1, 1, 80});
  Attention(x, ToTensor(device, bad), x, {.causal = true, .scale = 1.0}, out, lse);
  const std::vector<double> got = FromTensor(out);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 8 >= 70) << i;
}

TEST(AttentionTest, UndefinedGradientsAreSkipped) {
  const Device device = Device::Cpu();
  const Values values = RandomValues(DType::kF64, {1, 70, 2, 8}, 1);
  const Tensor x = ToTensor(device, values), out = ToTensor(device, Like(values));
  const Tensor lse = Tensor::Zeros(device, DType::kF64, {1, 2, 70});
  const AttentionOptions options = {.causal = true, .scale = 0.3};
  Attention(x, x, x, options, out, lse);
  const auto run = [&](bool q, bool k, bool v) {
    Tensor grads[3];
    const bool want[3] = {q, k, v};
    for (int i = 0; i < 3; ++i) {
      if (want[i]) grads[i] = ToTensor(device, Like(values));
    }
    AttentionBackward(x, x, x, x, out, lse, options, grads[0], Write::kOverwrite, grads[1],
                      Write::kOverwrite, grads[2], Write::kOverwrite);
    Results results;
    for (const Tensor& grad : grads) {
      results.push_back(grad.defined() ? FromTensor(grad) : std::vector<double>());
    }
    return results;
  };
  const auto all = run(true, true, true);
  EXPECT_EQ(run(true, false, false)[0], all[0]);
  EXPECT_EQ(run(false, true, false)[1], all[1]);
  EXPECT_EQ(run(false, false, true)[2], all[2]);
}

}  // namespace
}  // namespace sherd::kernels::test
