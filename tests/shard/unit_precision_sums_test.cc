// Sums of gradients in mixed precision, to the bit: rounded for the wire, added up in f32 in the
// order of the ranks and of the micro-batches.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr std::optional<DType> kOwn = std::nullopt;

// One parameter of f32, whose gradients are numbers that each rank is told.
class Plain : public Module {
 public:
  explicit Plain(DType dtype = DType::kF32)
      : w(RegisterParameter("w", {11}, Initializer::Normal(1.0), dtype)) {}
  Parameter w;
};

// Not numbers of bf16.
std::vector<float> NumbersOf(int rank, int k) {
  const Tensor numbers =
      NormalTensor(Device::Cpu(), DType::kF32, {11},
                   1000 + 10 * static_cast<uint64_t>(k) + static_cast<uint64_t>(rank));
  return numbers.ToHost<float>();
}

float Narrow(float x) { return static_cast<float>(BFloat16(x)); }

// Sum of w times the numbers, on the tape.
Variable LossOfNumbers(Plain& model, const Device& device, int rank, int k) {
  const UnitScope scope(model);
  const Variable numbers = TensorOf<float>(device, NumbersOf(rank, k), {11});
  return Cast(Sum(Mul(model.w, numbers)), DType::kF64);
}

void ExpectPiece(const Parameter& parameter, const std::vector<float>& whole) {
  const std::vector<float> piece = parameter.local_grad().ToHost<float>();
  for (size_t i = 0; i < piece.size(); ++i) {
    EXPECT_EQ(piece[i], whole[i + static_cast<size_t>(parameter.local_offset())])
        << "element " << i;
  }
}

TEST(UnitPrecisionSums, ABf16WireIsSummedInF32InRankOrderToTheBit) {
  for (int ranks : {2, 3, 4}) {
    std::vector<float> want(11);
    for (size_t i = 0; i < 11; ++i) {
      float sum = Narrow(NumbersOf(0, 0)[i]);
      for (int r = 1; r < ranks; ++r) sum += Narrow(NumbersOf(r, 0)[i]);
      want[i] = sum;
    }
    RunRanks(ranks, [&](World& world) {
      Plain model;
      FullyShard(model, world.mesh(), Sums({.precision = {.reduce = DType::kBF16}}));
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      tape.Backward(LossOfNumbers(model, world.device(), world.rank(), 0));
      ExpectPiece(model.w, want);
    });
  }
}

// On two copies of two ranks, the sums inside are f32; they are rounded for the wire to the other
// copy, and so is their sum, on its way back.
TEST(UnitPrecisionSums, ABf16WireBetweenCopiesRoundsTheSumsOnceMore) {
  std::vector<float> want(11);
  for (size_t i = 0; i < 11; ++i) {
    const auto row = [&](int first) {
      return Narrow(Narrow(NumbersOf(first, 0)[i]) + Narrow(NumbersOf(first + 1, 0)[i]));
    };
    want[i] = Narrow(row(0) + row(2));
  }
  RunRanks(4, [&](World& world) {
    Plain model;
    FullyShard(model, world.MakeMesh(2), Sums({.precision = {.reduce = DType::kBF16}}));
    Initialize(model, world.device(), 1);
    Tape tape;
    const Recording on(tape);
    tape.Backward(LossOfNumbers(model, world.device(), world.rank(), 0));
    ExpectPiece(model.w, want);
  });
}

// Four micro-batches. Sent at the end, they are added up in f32 on each rank and rounded once; sent
// each, rounded each and added up in f32 where they are owned.
TEST(UnitPrecisionSums, MicroBatchesAreAddedUpInF32) {
  constexpr int kMicroBatches = 4;
  for (int ranks : {2, 3}) {
    for (WindowSync sync : {WindowSync::kLast, WindowSync::kCutEach, WindowSync::kFullEach}) {
      std::vector<float> want(11);
      for (size_t i = 0; i < 11; ++i) {
        const auto sum_of_ranks = [&](auto&& of) {
          float sum = Narrow(of(0));
          for (int r = 1; r < ranks; ++r) sum += Narrow(of(r));
          return sum;
        };
        if (sync == WindowSync::kLast) {
          want[i] = sum_of_ranks([&](int r) {
            float sum = NumbersOf(r, 0)[i];
            for (int k = 1; k < kMicroBatches; ++k) sum += NumbersOf(r, k)[i];
            return sum;
          });
        } else {
          for (int k = 0; k < kMicroBatches; ++k) {
            const float part = sum_of_ranks([&](int r) { return NumbersOf(r, k)[i]; });
            want[i] = k == 0 ? part : want[i] + part;
          }
        }
      }
      RunRanks(ranks, [&](World& world) {
        Plain model;
        FullyShard(model, world.mesh(), Sums({.precision = {.reduce = DType::kBF16}}));
        Initialize(model, world.device(), 1);
        Tape tape;
        for (int k = 0; k < kMicroBatches; ++k) {
          const bool last = k + 1 == kMicroBatches;
          SetGradientSync(model, last || sync == WindowSync::kFullEach ? GradientSync::kFull
                                 : sync == WindowSync::kLast           ? GradientSync::kNone
                                                                       : GradientSync::kCutOnly);
          const Recording on(tape);
          tape.Backward(LossOfNumbers(model, world.device(), world.rank(), k));
          tape.Reset();
        }
        FinishGradients(model);
        ExpectPiece(model.w, want);
      });
    }
  }
}

// Compute in bf16: its gradients are bf16 numbers, their sum over micro-batches is not.
TEST(UnitPrecisionSums, GradientsOfBf16ComputeAreAddedUpInF32) {
  RunRanks(2, [](World& world) {
    Plain model;
    FullyShard(model, world.mesh(), Sums({.precision = kBf16}));
    Initialize(model, world.device(), 1);
    SetGradientSync(model, GradientSync::kNone);
    std::vector<float> want(11, 0.0f);
    Tape tape;
    bool wide = false;
    for (int k = 0; k < 4; ++k) {
      const Recording on(tape);
      Variable loss;
      {
        const UnitScope scope(model);
        const Variable numbers =
            Cast(TensorOf<float>(world.device(), NumbersOf(world.rank(), k), {11}), DType::kBF16);
        loss = Sum(Cast(Mul(model.w, numbers), DType::kF64));
      }
      tape.Backward(loss);
      tape.Reset();
    }
    for (size_t i = 0; i < 11; ++i) {
      float sums[2];
      for (int r = 0; r < 2; ++r) {
        float& sum = sums[r];
        sum = Narrow(NumbersOf(r, 0)[i]);
        for (int k = 1; k < 4; ++k) sum += Narrow(NumbersOf(r, k)[i]);
        wide = wide || sum != Narrow(sum);
      }
      want[i] = sums[0] + sums[1];
    }
    EXPECT_TRUE(wide);
    FinishGradients(model);
    ExpectPiece(model.w, want);
  });
}

// Parameters of three dtypes in one unit, read in a scope.
class Mixed : public Module {
 public:
  Mixed()
      : single(RegisterParameter("single", {11}, Initializer::Normal(1.0), DType::kF32)),
        brain(RegisterParameter("brain", {11}, Initializer::Normal(1.0), DType::kBF16)),
        wide(RegisterParameter("wide", {11}, Initializer::Normal(1.0), DType::kF64)) {}
  Parameter single, brain, wide;
};

TEST(UnitPrecisionSums, AUnitOfSeveralDTypesKeepsThemApart) {
  for (bool narrow : {false, true}) {
    RunRecorded(2, [&](World& world, CollectiveLog& log) {
      Mixed model;
      FullyShard(model, world.mesh(),
                 Sums({.reshard_after_forward = true,
                       .precision = {.parameters = narrow ? std::optional(DType::kBF16) : kOwn}}));
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      Variable loss;
      {
        const UnitScope scope(model);
        for (const Parameter& p : model.parameters()) {
          const DType compute = narrow ? DType::kBF16 : p.dtype();
          EXPECT_EQ(p.variable().dtype(), compute) << p.name();
          const Variable numbers =
              Cast(TensorOf<float>(world.device(), NumbersOf(world.rank(), 0), {11}), compute);
          const Variable part = Sum(Cast(Mul(p, numbers), DType::kF64));
          loss = loss.defined() ? Add(loss, part) : part;
        }
      }
      tape.Backward(loss);
      for (const Parameter& p : model.parameters()) {
        const Tensor grad = p.local_grad();
        EXPECT_EQ(grad.dtype(), p.dtype());
        const std::vector<double> got = DoublesOf(grad);
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t at = i + static_cast<size_t>(p.local_offset());
          float parts[2];
          for (int r = 0; r < 2; ++r) {
            const float number = NumbersOf(r, 0)[at];
            parts[r] = narrow || p.dtype() == DType::kBF16 ? Narrow(number) : number;
          }
          const double sum = p.dtype() == DType::kF64 ? double{parts[0]} + double{parts[1]}
                                                      : double{parts[0] + parts[1]};
          const double want = p.dtype() == DType::kBF16 ? double{Narrow(parts[0] + parts[1])} : sum;
          EXPECT_EQ(got[i], want) << p.name();
        }
      }
      // Six elements of each on each rank; gathered for the scope and for its backward.
      EXPECT_EQ(log.bytes(CollectiveOp::kAllGather), 2 * 6 * (narrow ? 2 + 2 + 2 : 4 + 2 + 8));
      EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter), 6 * (4 + 2 + 8));
    });
  }
}

}  // namespace
}  // namespace sherd::testing
