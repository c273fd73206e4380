// A trainer that keeps its loop, batches, buffers and optimizer, and takes modules, the tape and
// FullyShard from Sherd.
//
//   mpirun -np 2 embed_tape
//
// Does what ../embed does by hand, and prints the same lines: "rank step name element gradient" for
// each element that a rank owns.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/interop/external.h"
#include "sherd/shard/fully_shard.h"

namespace {

constexpr int64_t kIn = 5, kHidden = 7, kOut = 3, kSamples = 4, kSteps = 3;
constexpr double kLearningRate = 0.1, kMomentum = 0.9;

// The batches of the host program: buffers that many may hold.
struct HostBatch {
  std::shared_ptr<std::vector<double>> inputs;
  std::shared_ptr<std::vector<double>> targets;
};

HostBatch LoadBatch(int rank, int64_t step) {
  HostBatch batch{std::make_shared<std::vector<double>>(kSamples * kIn),
                  std::make_shared<std::vector<double>>(kSamples * kOut)};
  for (int64_t k = 0; k < kSamples * kIn; ++k) {
    (*batch.inputs)[k] = std::sin(0.3 * static_cast<double>(k + 100 * rank + 1000 * step));
  }
  for (int64_t k = 0; k < kSamples * kOut; ++k) {
    (*batch.targets)[k] = std::cos((*batch.inputs)[k / kOut * kIn + k % kOut]);
  }
  return batch;
}

// A tensor that reads the host program's buffer, and keeps it alive as long as the tape needs it.
sherd::Tensor Borrow(const sherd::Device& device,
                     const std::shared_ptr<std::vector<double>>& buffer, int64_t columns) {
  const auto rows = static_cast<int64_t>(buffer->size()) / columns;
  return sherd::WrapMemory(device, sherd::DType::kF64, {rows, columns},
                           std::shared_ptr<void>(buffer, buffer->data()));
}

class Network : public sherd::Module {
 public:
  Network()
      : first(kIn, kHidden, sherd::Initializer::Constant(0), sherd::DType::kF64),
        second(kHidden, kOut, sherd::Initializer::Constant(0), sherd::DType::kF64) {
    RegisterModule("first", first);
    RegisterModule("second", second);
  }
  sherd::Variable operator()(const sherd::Variable& x) {
    return sherd::Call(
        *this,
        [](Network& self, const sherd::Variable& x) {
          return self.second(sherd::Tanh(self.first(x)));
        },
        x);
  }
  sherd::LinearLayer first, second;
};

// The host program's optimizer: knows spans of numbers, and not whose they are.
class Momentum {
 public:
  void Step(double* values, const double* gradient, int64_t count) {
    velocity_.resize(count);
    for (int64_t k = 0; k < count; ++k) {
      velocity_[k] = kMomentum * velocity_[k] + gradient[k];
      values[k] -= kLearningRate * velocity_[k];
    }
  }

 private:
  std::vector<double> velocity_;
};

void Train(const sherd::World& world) {
  Network network;
  // This program divides by the samples of all ranks itself.
  const sherd::FullyShardOptions options{.scale = sherd::ScaleBy::kCaller};
  sherd::FullyShard(network.first, world.mesh(), options);
  sherd::FullyShard(network.second, world.mesh(), options);
  sherd::FullyShard(network, world.mesh(), options);
  sherd::Initialize(network, world.device(), /*seed=*/1);
  const std::vector<sherd::Parameter> parameters = network.parameters();
  for (const sherd::Parameter& p : parameters) {  // values from elsewhere: this rank's piece
    double* piece = p.MutableLocal().data<double>();
    for (int64_t k = 0; k < p.local().numel(); ++k) {
      piece[k] = 0.5 * std::sin(static_cast<double>(p.local_offset() + k + 1));
    }
  }
  std::vector<Momentum> optimizers(parameters.size());
  sherd::Tape tape;
  for (int64_t step = 0; step < kSteps; ++step) {
    const HostBatch batch = LoadBatch(world.rank(), step);
    {
      const sherd::Recording on(tape);
      const sherd::Variable y = network(Borrow(world.device(), batch.inputs, kIn));
      const sherd::Variable error =
          sherd::Sub(y, sherd::Variable(Borrow(world.device(), batch.targets, kOut)));
      tape.Backward(
          sherd::Scale(sherd::Sum(sherd::Square(error)), 0.5 / (kSamples * world.size())));
    }
    tape.Reset();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const sherd::Parameter& p = parameters[i];
      const double* gradient = p.local_grad().data<double>();
      for (int64_t k = 0; k < p.local().numel(); ++k) {
        const std::string layer = p.name().substr(0, p.name().find('.'));
        std::printf("%d %ld %s %ld %.17g\n", world.rank(), step, layer.c_str(),
                    p.local_offset() + k, gradient[k]);
      }
      optimizers[i].Step(p.MutableLocal().data<double>(), gradient, p.local().numel());
      p.ClearGrad();
    }
  }
}

}  // namespace

int main() {
  try {
    absl::StatusOr<sherd::World> world = sherd::World::FromEnvironment();
    sherd::ThrowIfError(world.status());
    Train(*world);
    sherd::ThrowIfError(world->Finish());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_tape: %s\n", error.what());
    return 1;
  }
}
