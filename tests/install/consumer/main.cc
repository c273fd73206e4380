// A program of somebody else, built outside the tree: a sharded training step with a module of its
// own.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"

namespace {

constexpr int64_t kVocabulary = 16;

class NextToken : public sherd::Module {
 public:
  NextToken()
      : embedding_(kVocabulary, 8, sherd::Initializer::Normal(0.5)),
        head_(8, kVocabulary, sherd::Initializer::Normal(0.5)) {
    RegisterModule("embedding", embedding_);
    RegisterModule("head", head_);
  }
  sherd::Variable operator()(const sherd::Variable& tokens) {
    return sherd::Call(
        *this,
        [](NextToken& self, const sherd::Variable& tokens) {
          return self.head_(self.embedding_(tokens));
        },
        tokens);
  }

 private:
  sherd::EmbeddingLayer embedding_;
  sherd::LinearLayer head_;
};

struct Batch {
  sherd::Tensor tokens;
  sherd::Tensor labels;
};

// Learns that token t is followed by 5 t + 3; returns the mean loss of the last step.
double Train(const sherd::World& world) {
  NextToken model;
  sherd::FullyShard(sherd::Checkpoint(model), world.mesh());
  sherd::Initialize(model, world.device(), 1);
  sherd::AdamW optimizer(model.parameters());
  const sherd::CausalLmLoss loss;
  sherd::Accumulation accumulation(model, {.micro_batches = 2});
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  for (int64_t t = 0; t < kVocabulary; ++t) {
    tokens.push_back(t);
    labels.push_back((5 * t + 3) % kVocabulary);
  }
  auto loader = [&] {
    return std::optional(
        Batch{sherd::Tensor::FromHost<int64_t>(world.device(), tokens, {1, kVocabulary}),
              sherd::Tensor::FromHost<int64_t>(world.device(), labels, {1, kVocabulary})});
  };
  sherd::Tape tape;
  sherd::StepResult result;
  while (result.step < 60) {
    auto window = accumulation.Next(loader, loss);
    for (const Batch& batch : *window) {
      const sherd::Recording on(tape);
      window->Backward(loss(model(batch.tokens), batch.labels));
    }
    result = window->Finish(optimizer, 0.1, {.clip = 1.0});
  }
  return result.loss;
}

}  // namespace

int main() {
  try {
    absl::StatusOr<sherd::World> world = sherd::World::FromEnvironment();
    if (!world.ok()) {
      std::fprintf(stderr, "consumer: %s\n", std::string(world.status().message()).c_str());
      return 1;
    }
    const double loss = Train(*world);
    std::printf("consumer: loss %.4f after 60 sharded steps\n", loss);
    return loss < 0.1 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
