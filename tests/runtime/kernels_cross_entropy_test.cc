#include "sherd/runtime/kernels/cross_entropy.h"

#include "sherd/runtime/base/error.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

constexpr int64_t kIgnore = -100;

struct Case {
  DType dtype;
  int64_t n, v;
  Write write = Write::kOverwrite;
  Lay lay = Lay::kContiguous;
  bool in_place = false;
  CrossEntropyOptions options = {};
  std::vector<int64_t> pieces = {};  // where pieces begin; empty: in one
};

struct Expected {
  double loss = 0.0, count = 0.0;
  std::vector<double> lse, grad;
};

// By the definition: cross-entropy with a smoothed target distribution, and z lse^2.
Expected ExpectedOf(const Case& c, const Values& logits, const std::vector<int64_t>& targets,
                    double scale) {
  const double s = c.options.label_smoothing, z = c.options.z_loss, v = static_cast<double>(c.v);
  Expected e;
  e.grad.assign(logits.v.size(), 0.0);
  for (int64_t i = 0; i < c.n; ++i) {
    double sum = 0.0;
    for (int64_t j = 0; j < c.v; ++j) sum += std::exp(logits[i * c.v + j]);
    const double lse = std::log(sum);
    e.lse.push_back(lse);
    const int64_t target = targets[static_cast<size_t>(i)];
    if (target == kIgnore) continue;
    e.count += 1.0;
    e.loss += z * lse * lse;
    for (int64_t j = 0; j < c.v; ++j) {
      const double wanted = (j == target ? 1.0 - s : 0.0) + s / v;
      e.loss -= wanted * (logits[i * c.v + j] - lse);
      e.grad[static_cast<size_t>(i * c.v + j)] =
          scale * ((1.0 + 2.0 * z * lse) * std::exp(logits[i * c.v + j] - lse) - wanted);
    }
  }
  return e;
}

void Check(const Case& c) {
  const Values logits = RandomValues(c.dtype, {c.n, c.v}, 1, 3.0);
  const Values before = c.in_place ? logits : RandomValues(c.dtype, {c.n, c.v}, 2);
  std::vector<int64_t> targets(static_cast<size_t>(c.n));
  for (int64_t i = 0; i < c.n; ++i) {
    targets[static_cast<size_t>(i)] = i % 5 == 2 ? kIgnore : i * 7 % c.v;
  }
  const Expected e = ExpectedOf(c, logits, targets, 0.25);
  CheckEverywhere(
      {{e.loss}, {e.count}, e.lse, Written(c.write, before, e.grad)}, ToleranceOf(c.dtype),
      Describe(c.dtype, c.write, {c.n, c.v}), [&](const Device& device) {
        const Tensor t = ToTensor(device, logits, c.lay);
        const Tensor ids = Tensor::FromHost<int64_t>(device, targets, {c.n});
        const Tensor lse = Tensor::Empty(device, WideOf(c.dtype), {c.n});
        const Tensor out = c.in_place ? t : ToTensor(device, before, c.lay);
        CrossEntropyResult r;
        if (c.pieces.empty()) {
          r = CrossEntropy(t, ids, c.options, lse);
          CrossEntropyBackward(t, ids, c.options, lse, 0.25, out, c.write);
        } else {
          CrossEntropyPieces pieces(ids, c.v, c.options);
          const auto for_each = [&](const auto& f) {
            for (size_t i = 0; i < c.pieces.size(); ++i) {
              const bool last = i + 1 == c.pieces.size();
              f(c.pieces[i], last ? c.v : c.pieces[i + 1]);
            }
          };
          for_each([&](int64_t a, int64_t b) { pieces.Add(t.Slice(1, a, b), a); });
          r = pieces.Finish(lse);
          for_each([&](int64_t a, int64_t b) {
            pieces.Backward(t.Slice(1, a, b), a, lse, 0.25, out.Slice(1, a, b), c.write);
          });
        }
        return Results{
            {r.loss_sum}, {static_cast<double>(r.count)}, FromTensor(lse), FromTensor(out)};
      });
}

TEST(CrossEntropyTest, AgreesWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      Check({dtype, 1, 1, write});
      Check({dtype, 13, 37, write, Lay::kPadded});
      Check({dtype, 200, 501, write});
    }
    Check({dtype, 13, 37, Write::kOverwrite, Lay::kPadded, true});
    Check({dtype, 200, 501, Write::kOverwrite, Lay::kContiguous, true});
  }
}

TEST(CrossEntropyTest, SmoothsLabelsAndPenalisesLargeSums) {
  for (DType dtype : kFloats) {
    const CrossEntropyOptions both = {.label_smoothing = 0.1, .z_loss = 0.01};
    Check({dtype, 13, 37, Write::kAdd, Lay::kPadded, false, {.label_smoothing = 0.3}});
    Check({dtype, 13, 37, Write::kOverwrite, Lay::kContiguous, false, {.z_loss = 0.02}});
    Check({dtype, 130, 201, Write::kOverwrite, Lay::kContiguous, true, both});
  }
}

TEST(CrossEntropyTest, ClassesMayComeInPieces) {
  for (DType dtype : kFloats) {
    const CrossEntropyOptions both = {.label_smoothing = 0.1, .z_loss = 0.01};
    Check({dtype, 13, 37, Write::kOverwrite, Lay::kContiguous, false, {}, {0, 1, 20}});
    Check({dtype, 13, 37, Write::kAdd, Lay::kPadded, false, both, {0, 16, 32}});
    Check({dtype, 130, 201, Write::kOverwrite, Lay::kContiguous, true, both, {0, 200}});
  }
}

TEST(CrossEntropyTest, APieceOfMinusInfinityChangesNothing) {
  const Device device = Device::Cpu();
  const double none = -std::numeric_limits<double>::infinity();
  const Tensor logits = ToTensor(device, {DType::kF64, {1, 4}, {1.0, 2.0, none, none}});
  const Tensor ids = Tensor::FromHost<int64_t>(device, std::vector<int64_t>{0}, {1});
  const Tensor lse = Tensor::Empty(device, DType::kF64, {1});
  CrossEntropyPieces pieces(ids, 4, {});
  pieces.Add(logits.Slice(1, 0, 2), 0);
  pieces.Add(logits.Slice(1, 2, 4), 2);
  EXPECT_NEAR(pieces.Finish(lse).loss_sum, std::log1p(std::exp(1.0)), 1e-15);
}

TEST(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  const Device device = Device::Cpu();
  const Values logits = {DType::kF32, {2, 3}, {1e30, 0.0, -1e30, -5e4, -5e4, -5e4}};
  const Tensor ids = Tensor::FromHost<int32_t>(device, std::vector<int32_t>{0, 1}, {2});
  const Tensor lse = Tensor::Empty(device, DType::kF32, {2});
  const CrossEntropyResult r = CrossEntropy(ToTensor(device, logits), ids, {}, lse);
  EXPECT_NEAR(r.loss_sum, std::log(3.0), 1e-2);  // lse is kept in f32, near -5e4
}

TEST(CrossEntropyTest, AllRowsIgnoredCountNothing) {
  const Device device = Device::Cpu();
  const Tensor logits = ToTensor(device, RandomValues(DType::kF32, {2, 3}, 1));
  const Tensor ids = Tensor::FromHost<int64_t>(device, std::vector<int64_t>{kIgnore, kIgnore}, {2});
  const Tensor lse = Tensor::Empty(device, DType::kF32, {2});
  const CrossEntropyResult r = CrossEntropy(logits, ids, {}, lse);
  EXPECT_EQ(r.count, 0);
  EXPECT_EQ(r.loss_sum, 0.0);
  CrossEntropyBackward(logits, ids, {}, lse, 1.0, logits);
  EXPECT_EQ(FromTensor(logits), std::vector<double>(6, 0.0));
}

TEST(CrossEntropyTest, BadTargetIsNamedAndNothingIsWritten) {
  const Device device = Device::Cpu();
  const Tensor logits = ToTensor(device, RandomValues(DType::kF32, {3, 4}, 1));
  const Tensor ids = Tensor::FromHost<int32_t>(device, std::vector<int32_t>{0, kIgnore, 4}, {3});
  const Tensor lse = Tensor::Zeros(device, DType::kF32, {3});
  const std::vector<double> before = FromTensor(logits);
  try {
    CrossEntropy(logits, ids, {}, lse);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("target 4 at index 2 is outside [0, 4)"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(FromTensor(lse), std::vector<double>(3, 0.0));
  EXPECT_THROW(CrossEntropyBackward(logits, ids, {}, lse, 1.0, logits), Error);
  EXPECT_EQ(FromTensor(logits), before);
}

}  // namespace
}  // namespace sherd::kernels::test
