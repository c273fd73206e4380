#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/clip_grad.h"
#include "sherd/shard/fully_shard.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace sherd::testing {

// x + down(silu(up(norm(x)))), of odd sizes.
class ShardBlock : public Module {
 public:
  static constexpr int64_t kChannels = 5;
  ShardBlock()
      : norm(kChannels, 1e-5, DType::kF64),
        up(kChannels, 7, Initializer::Normal(0.4), DType::kF64),
        down(7, kChannels, Initializer::Normal(0.4), DType::kF64) {
    RegisterModule("norm", norm);
    RegisterModule("up", up);
    RegisterModule("down", down);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](ShardBlock& self, const Variable& x) {
          if (self.fails) ThrowInvalidArgument("the block broke");
          return Add(x, self.down(Silu(self.up(self.norm(x)))));
        },
        x);
  }
  RmsNormLayer norm;
  LinearLayer up;
  LinearLayer down;
  bool fails = false;
};

// Calls its blocks in the order it is told, then its head; -1 - i only participates in block i.
class ShardModel : public Module {
 public:
  explicit ShardModel(int count = 3)
      : head(ShardBlock::kChannels, 3, Initializer::Normal(0.4), DType::kF64) {
    for (int i = 0; i < count; ++i) {
      blocks.push_back(std::make_unique<ShardBlock>());
      RegisterModule("block" + std::to_string(i), *blocks.back());
    }
    RegisterModule("head", head);
  }
  Variable operator()(const Variable& x, const std::vector<int>& order) {
    return Call(
        *this,
        [](ShardModel& self, const Variable& x, const std::vector<int>& order) {
          Variable y = x;
          for (int i : order) {
            if (i < 0) {
              Participate(*self.blocks[static_cast<size_t>(-1 - i)]);
            } else {
              y = (*self.blocks[static_cast<size_t>(i)])(y);
            }
          }
          return self.head(y);
        },
        x, order);
  }
  ShardBlock& block(int i) { return *blocks[static_cast<size_t>(i)]; }

  std::vector<std::unique_ptr<ShardBlock>> blocks;
  LinearLayer head;
};

// The same options, for a backward whose gradients are plain sums over the ranks.
inline FullyShardOptions Sums(FullyShardOptions options = {}) {
  options.scale = ScaleBy::kCaller;
  return options;
}

inline void ShardAll(ShardModel& model, const Mesh& mesh, FullyShardOptions options = {}) {
  for (auto& block : model.blocks) FullyShard(*block, mesh, options);
  FullyShard(model, mesh, {.scale = options.scale});
}

inline Variable InputOf(const Device& device, int rank, uint64_t step = 0) {
  return NormalTensor(device, DType::kF64, {3, ShardBlock::kChannels},
                      100 + 1000 * step + static_cast<uint64_t>(rank));
}

// Fills the memory that the device will hand out next with NaN, so that whoever reads what nobody
// wrote is seen.
inline void PoisonFreeMemory(const Device& device) {
  std::vector<Tensor> blocks;
  const auto poison = [&](int64_t bytes) {
    blocks.push_back(Tensor::Empty(device, DType::kF64, {bytes / 8}));
    kernels::Fill(blocks.back(), std::numeric_limits<double>::quiet_NaN());
  };
  for (int64_t bytes = 64; bytes <= 4096; bytes += 64) {
    for (int k = 0; k < 8; ++k) poison(bytes);
  }
  poison(int64_t{1} << 20);
}

inline Variable Energy(const Variable& y) { return Sum(Mul(y, y)); }

// The elements of any float dtype.
inline std::vector<double> DoublesOf(const Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  if (tensor.dtype() == DType::kF64) return tensor.ToHost<double>();
  const Tensor wide = Tensor::Empty(tensor.device(), DType::kF64, tensor.shape());
  kernels::Cast(tensor, wide);
  return wide.ToHost<double>();
}

// Values by parameter name, whole.
using Whole = std::map<std::string, std::vector<double>>;

// Whether the pieces this rank has of a parameter count in a sum over all ranks: of those that hold
// the same pieces, one does.
inline bool Counts(const Module& model, const Parameter& parameter) {
  for (const Unit* unit : UnitsOf(model)) {
    for (int i = 0; i < unit->parameters(); ++i) {
      if (unit->local(i).storage() == parameter.local().storage()) return unit->counts_in_norm();
    }
  }
  return true;
}

// The gradients that the ranks hold together; no entry: no gradient on any rank. COLLECTIVE. With
// `mark`, what a unit reduced counts as a gradient even if this rank did not contribute, as after a
// window's agreement.
inline Whole GradientsOf(const Module& model, ProcessGroup* group, bool mark = true) {
  for (Unit* unit : UnitsOf(model)) {
    if (!mark) break;
    for (int i = 0; i < unit->parameters(); ++i) {
      if (unit->HeldGradient(i).defined()) unit->MarkUsed(i);
    }
  }
  Whole all;
  for (const Parameter& parameter : model.parameters()) {
    const Tensor grad = parameter.local_grad();
    if (!grad.defined()) continue;
    std::vector<double> whole(static_cast<size_t>(parameter.numel()), 0.0);
    const std::vector<double> piece = DoublesOf(grad);
    if (Counts(model, parameter)) {
      std::copy(piece.begin(), piece.end(), whole.begin() + parameter.local_offset());
    }
    const bool sharded = parameter.state().host != nullptr;
    if (group != nullptr && sharded)
      group->AllReduce(whole.data(), static_cast<int64_t>(whole.size()), DType::kF64);
    all[parameter.name()] = std::move(whole);
  }
  return all;
}

// The values of all parameters, whole. COLLECTIVE.
inline Whole ValuesOf(const Module& model, ProcessGroup* group) {
  Whole all;
  for (const Parameter& parameter : model.parameters()) {
    std::vector<double> whole(static_cast<size_t>(parameter.numel()), 0.0);
    const std::vector<double> piece = DoublesOf(parameter.local());
    if (Counts(model, parameter)) {
      std::copy(piece.begin(), piece.end(), whole.begin() + parameter.local_offset());
    }
    if (group != nullptr)
      group->AllReduce(whole.data(), static_cast<int64_t>(whole.size()), DType::kF64);
    all[parameter.name()] = std::move(whole);
  }
  return all;
}

inline void ExpectClose(const Whole& got, const Whole& want, double tolerance = 1e-12) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, values] : want) {
    const auto it = got.find(name);
    if (it == got.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(it->second[i] - values[i], 2);
      norm += values[i] * values[i];
    }
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm) + (norm == 0.0 ? tolerance : 0.0))
        << name;
  }
}

// The norm of whole gradients, element by element.
inline double PlainNorm(const Whole& gradients, NormType type) {
  double sum = 0.0, most = 0.0;
  for (const auto& [name, values] : gradients) {
    for (double value : values) {
      sum += type == NormType::kOne ? std::abs(value) : value * value;
      most = std::max(most, std::abs(value));
    }
  }
  return type == NormType::kOne ? sum : type == NormType::kTwo ? std::sqrt(sum) : most;
}

// What one rank's step adds to the loss.
using StepLoss = std::function<Variable(ShardModel&, const Device&, int rank)>;

// The sum over ranks of the gradients of `loss`, on one plain model.
inline Whole PlainGradients(int ranks, const StepLoss& loss) {
  const Device device = Device::Cpu();
  ShardModel model;
  Initialize(model, device, 1);
  Tape tape;
  for (int rank = 0; rank < ranks; ++rank) {
    const Recording on(tape);
    const Variable value = loss(model, device, rank);
    if (value.requires_grad()) tape.Backward(value);
    tape.Reset();
  }
  return GradientsOf(model, nullptr);
}

inline void ExpectPlainGradients(int ranks, const StepLoss& loss, FullyShardOptions options = {},
                                 RankOptions rank_options = {}) {
  SCOPED_TRACE(ranks);
  const Whole want = PlainGradients(ranks, loss);
  RunRanks(
      ranks,
      [&](World& world) {
        ShardModel model;
        ShardAll(model, world.mesh(), Sums(options));
        Initialize(model, world.device(), 1);
        PoisonFreeMemory(world.device());
        Tape tape;
        const Recording on(tape);
        tape.Backward(loss(model, world.device(), world.rank()));
        ExpectClose(GradientsOf(model, &world.group()), want);
      },
      rank_options);
}

}  // namespace sherd::testing
