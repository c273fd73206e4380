#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/optim/sgd.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"
#include "tests/shard/ragged.h"
#include "tests/shard/steps.h"

namespace sherd::testing {

// Tokens whose gradients, by the one weight of OneWeight, are these numbers.
struct Tokens {
  std::vector<double> gradients;
  int64_t items = -1;  // reported and counted; -1: one for each
  int64_t count() const { return items < 0 ? static_cast<int64_t>(gradients.size()) : items; }
  static Tokens Of(int64_t n, double gradient) {
    return {std::vector<double>(static_cast<size_t>(n), gradient)};
  }
};

inline int64_t CountTokens(const Tokens& batch) { return batch.count(); }

// y = w x, w = 0 at first: the gradient of the sum of y by w is the sum of x. On one rank.
struct OneWeight {
  explicit OneWeight(World& world, bool sharded = true, DType dtype = DType::kF64)
      : world(world), model(1, 1, Initializer::Constant(0.0), dtype) {
    if (sharded) FullyShard(model, world.mesh());
    Initialize(model, world.device(), 1);
  }

  // The sum over the tokens, times `factor`.
  LossSum Loss(const Tokens& batch, double factor = 1.0) {
    std::vector<double> x = batch.gradients;
    for (double& value : x) value *= factor;
    const Variable input(
        Tensor::FromHost<double>(world.device(), x, {static_cast<int64_t>(x.size()), 1}));
    return {Sum(model(input)), batch.count()};
  }
  template <typename Window>
  void RunAll(Window& window) {
    for (const Tokens& batch : window) {
      const Recording on(tape);
      window.Backward(Loss(batch));
    }
  }
  // The weight, wherever it is. COLLECTIVE.
  double Value() { return ValuesOf(model, &world.group()).at("weight")[0]; }

  World& world;
  LinearLayer model;
  Tape tape;
};

inline std::string ErrorText(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// As RunRanks, where every rank sees an error that ends the world: it cannot be finished then.
inline void RunRanksToTheirEnd(int ranks, const std::function<void(World&)>& body) {
  EXPECT_NE(ErrorText([&] { RunRanks(ranks, body); }), "no error");
}

}  // namespace sherd::testing
