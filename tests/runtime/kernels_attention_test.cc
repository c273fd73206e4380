#include "sherd/runtime/kernels/attention.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

struct Problem {
  int64_t b, t, s, heads, key_heads, d;
  bool causal;
};

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
        const int64_t end = std::max<int64_t>(0, p.causal ? std::min(p.s, t + p.s - p.t + 1) : p.s);
        std::vector<double> weight(static_cast<size_t>(end)), d_weight(weight.size());
        double most = -std::numeric_limits<double>::infinity(), sum = 0.0, delta = 0.0;
        for (int64_t s = 0; s < end; ++s) {
          double& w = weight[static_cast<size_t>(s)];
          for (int64_t c = 0; c < p.d; ++c) w += scale * q[at_q + c] * k[at_k(s) + c];
          most = std::max(most, w);
        }
        for (double& w : weight) sum += w = std::exp(w - most);
        r.lse[static_cast<size_t>((b * p.heads + h) * p.t + t)] =
            end == 0 ? -std::numeric_limits<double>::infinity() : most + std::log(sum);
        for (int64_t s = 0; s < end; ++s) {
          double& w = weight[static_cast<size_t>(s)];
          w /= sum;
          for (int64_t c = 0; c < p.d; ++c) {
            r.out[static_cast<size_t>(at_q + c)] += w * v[at_k(s) + c];
            d_weight[static_cast<size_t>(s)] += grad[at_q + c] * v[at_k(s) + c];
          }
          delta += w * d_weight[static_cast<size_t>(s)];
        }
        for (int64_t s = 0; s < end; ++s) {
          const double w = weight[static_cast<size_t>(s)];
          const double d_score = w * (d_weight[static_cast<size_t>(s)] - delta) * scale;
          for (int64_t c = 0; c < p.d; ++c) {
            r.q[static_cast<size_t>(at_q + c)] += d_score * k[at_k(s) + c];
            r.k[static_cast<size_t>(at_k(s) + c)] += d_score * q[at_q + c];
            r.v[static_cast<size_t>(at_k(s) + c)] += w * grad[at_q + c];
          }
        }
      }
    }
  }
  return r;
}

void Check(const Problem& p, DType dtype, Write write, Lay lay) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(p.d));
  const Shape q_shape = {p.b, p.t, p.heads, p.d}, k_shape = {p.b, p.s, p.key_heads, p.d};
  const Values q = RandomValues(dtype, q_shape, 1), k = RandomValues(dtype, k_shape, 2);
  const Values v = RandomValues(dtype, k_shape, 3), grad = RandomValues(dtype, q_shape, 4);
  const Values before_q = RandomValues(dtype, q_shape, 5),
               before_k = RandomValues(dtype, k_shape, 6);
  const Grads want = Reference(p, scale, q, k, v, grad);
  // The backward of 16-bit types starts from an `out` that was rounded.
  const double tolerance = (SizeOf(dtype) == 2 ? 5 : 4) * ToleranceOf(dtype);
  CheckEverywhere({want.out, want.lse, Written(write, before_q, want.q),
                   Written(write, before_k, want.k), Written(write, before_k, want.v)},
                  tolerance, Describe(dtype, write, q_shape) + " " + k_shape.ToString(),
                  [&](const Device& device) {
                    const AttentionOptions options = {.causal = p.causal, .scale = scale};
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

TEST(AttentionTest, AgreesWithTheDefinition) {
  const Problem problems[] = {{1, 1, 1, 1, 1, 1, true},      {2, 5, 5, 3, 3, 7, true},
                              {1, 64, 64, 2, 2, 32, true},   {2, 65, 65, 4, 2, 20, true},
                              {1, 130, 130, 2, 1, 64, true}, {1, 77, 77, 2, 2, 17, false},
                              {1, 128, 128, 1, 1, 48, false}};
  for (const Problem& p : problems) {
    for (DType dtype : kFloats) {
      Check(p, dtype, Write::kOverwrite, Lay::kContiguous);
      Check(p, dtype, Write::kAdd, Lay::kPadded);
    }
  }
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
