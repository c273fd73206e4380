// A trainer with tensors, a backward, an optimizer and a loop of its own. Of Sherd it uses the unit
// engine alone: it says when a layer's weights are needed and when their gradient is written.
//
//   mpirun -np 2 embed
//
// Prints a line "rank step name element gradient" for each element that a rank owns.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/comm/world.h"
#include "sherd/shard/unit.h"

namespace {

constexpr int64_t kIn = 5, kHidden = 7, kOut = 3, kSamples = 4, kSteps = 3;
constexpr double kLearningRate = 0.1, kMomentum = 0.9;

// Our tensors: samples by channels.
struct Matrix {
  explicit Matrix(int64_t columns) : columns(columns), data(kSamples * columns) {}
  double& operator()(int64_t sample, int64_t c) { return data[sample * columns + c]; }
  double operator()(int64_t sample, int64_t c) const { return data[sample * columns + c]; }
  int64_t columns;
  std::vector<double> data;
};

// y = W x for every sample, W [out, in] cut over the ranks.
class Linear {
 public:
  Linear(const std::string& name, int64_t out, int64_t in, const sherd::Mesh& mesh)
      : out_(out),
        in_(in),
        unit_(name, {{.name = name, .shape = {out, in}, .dtype = sherd::DType::kF64}},
              sherd::ShardContext::Of(mesh)),
        momentum_(unit_.local(0).numel()) {
    // Element k of the whole is sin(k + 1) / 2, wherever it lives.
    double* weight = unit_.local(0).data<double>();
    for (int64_t k = 0; k < unit_.local(0).numel(); ++k) {
      weight[k] = 0.5 * std::sin(static_cast<double>(unit_.local_offset(0) + k + 1));
    }
  }

  Matrix Forward(const Matrix& x) {
    Matrix y(out_);
    unit_.EnterForward(version_);  // the weights are gathered
    const double* weight = unit_.full(0).data<double>();
    for (int64_t s = 0; s < kSamples; ++s) {
      for (int64_t o = 0; o < out_; ++o) {
        for (int64_t i = 0; i < in_; ++i) y(s, o) += weight[o * in_ + i] * x(s, i);
      }
    }
    unit_.ExitForward();  // and freed
    return y;
  }

  Matrix Backward(const Matrix& x, const Matrix& grad_y) {
    Matrix grad_x(in_);
    unit_.BeginBackward(version_);  // gathered again
    const double* weight = unit_.full(0).data<double>();
    const sherd::UnitGradient gradient = unit_.TakeGradient(0);  // where ours is to be written
    double* grad_weight = gradient.tensor.data<double>();
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i) {
        double sum = gradient.add ? grad_weight[o * in_ + i] : 0.0;
        for (int64_t s = 0; s < kSamples; ++s) {
          sum += grad_y(s, o) * x(s, i);
          grad_x(s, i) += grad_y(s, o) * weight[o * in_ + i];
        }
        grad_weight[o * in_ + i] = sum;
      }
    }
    unit_.EndBackward();  // freed; the gradient is on its way to the ranks that own it
    return grad_x;
  }

  // Gradient descent with momentum on the piece this rank owns.
  void Step(int rank, int64_t step) {
    const sherd::Tensor gradient = unit_.LocalGradient(0);
    double* weight = unit_.local(0).data<double>();
    for (int64_t k = 0; k < unit_.local(0).numel(); ++k) {
      const double g = gradient.data<double>()[k];
      std::printf("%d %ld %s %ld %.17g\n", rank, step, unit_.name().c_str(),
                  unit_.local_offset(0) + k, g);
      momentum_[k] = kMomentum * momentum_[k] + g;
      weight[k] -= kLearningRate * momentum_[k];
    }
    unit_.ClearGradient(0);
    ++version_;  // what was gathered before is out of date
  }

 private:
  const int64_t out_, in_;
  sherd::Unit unit_;
  std::vector<double> momentum_;
  int64_t version_ = 0;
};

// Learns y = cos(x) of the channels it has, from samples of each rank's own.
void Train(const sherd::World& world) {
  Linear first("first", kHidden, kIn, world.mesh());
  Linear second("second", kOut, kHidden, world.mesh());
  for (int64_t step = 0; step < kSteps; ++step) {
    Matrix x(kIn);
    for (int64_t k = 0; k < kSamples * kIn; ++k) {
      x.data[k] = std::sin(0.3 * static_cast<double>(k + 100 * world.rank() + 1000 * step));
    }
    Matrix hidden = first.Forward(x);
    for (double& h : hidden.data) h = std::tanh(h);
    const Matrix y = second.Forward(hidden);

    // Half the squared distance, the mean over the samples of all ranks: the ranks' gradients are
    // summed, so each divides by that number.
    Matrix grad_y(kOut);
    for (int64_t s = 0; s < kSamples; ++s) {
      for (int64_t o = 0; o < kOut; ++o) {
        grad_y(s, o) = (y(s, o) - std::cos(x(s, o))) / (kSamples * world.size());
      }
    }
    Matrix grad_hidden = second.Backward(hidden, grad_y);
    for (int64_t k = 0; k < kSamples * kHidden; ++k) {
      grad_hidden.data[k] *= 1.0 - hidden.data[k] * hidden.data[k];
    }
    first.Backward(x, grad_hidden);
    first.Step(world.rank(), step);
    second.Step(world.rank(), step);
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
    std::fprintf(stderr, "embed: %s\n", error.what());
    return 1;
  }
}
