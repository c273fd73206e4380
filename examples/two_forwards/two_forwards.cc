// One to three forwards of a layer before one backward, checkpointed inside or outside the
// sharding: the relative error of its gradient, and how often hooks ran a call. mpirun -n 2 <this
// program>
#include <cmath>
#include <cstdio>

#include "sherd/autograd/module_hooks.h"
#include "sherd/autograd/nn/layers.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/kernels/random.h"
#include "sherd/shard/fully_shard.h"
using namespace sherd;
void Backward(LinearLayer& layer, const Device& device, int first_input, int inputs) {
  Tape tape;
  const Recording on(tape);
  Variable sum = Tensor::Zeros(device, DType::kF64, {1});
  for (int k = first_input; k < first_input + inputs; ++k) {
    const Tensor x = Tensor::Empty(device, DType::kF64, {4, 8});
    kernels::FillNormal(x, /*key=*/7, /*first_element=*/k * 32, 0.0, 1.0);
    sum = Add(sum, Sum(Silu(layer(x))));
  }
  tape.Backward(sum);
}

int main() {
  World world = World::FromEnvironment().value();
  const char* orders[] = {"off", "inside", "outside", "inside, early stop", "outside, early stop"};
  bool right = true;
  for (int c = 0; c < 30; ++c) {
    const int calls = c % 3 + 1, order = c / 3 % 5, sharded = c / 15;
    double forwards = 0, backwards = 0, sums[2] = {0, 0};
    const Initializer normal = Initializer::Normal(0.3);
    LinearLayer layer(8, 8, normal, DType::kF64), plain(8, 8, normal, DType::kF64);
    AddHooks(layer, {.before_forward = [&](const Module&) { ++forwards; },
                     .after_backward = [&](const Module&) { ++backwards; }});
    if (order == 1 || order == 3) Checkpoint(layer, {.early_stop = order > 2});
    if (sharded)
      FullyShard(layer, world.mesh(),
                 {.reshard_after_forward = true, .scale = ScaleBy::kCaller});  // sums, not means
    if (order == 2 || order == 4) Checkpoint(layer, {.early_stop = order > 2});
    for (Module* m : {&layer, &plain}) Initialize(*m, world.device(), /*seed=*/1);
    const int inputs = sharded ? calls : calls * world.size();
    Backward(layer, world.device(), sharded ? calls * world.rank() : 0, inputs);
    Backward(plain, world.device(), 0, calls * world.size());
    const double* got = layer.weight().local_grad().data<double>();
    const double* want = plain.weight().local_grad().data<double>() + layer.weight().local_offset();
    for (int64_t i = 0; i < layer.weight().local().numel(); ++i)
      sums[0] += std::pow(got[i] - want[i], 2), sums[1] += std::pow(want[i], 2);
    world.group().AllReduce(sums, 2, DType::kF64);
    const double error = std::sqrt(sums[0] / sums[1]);
    right = right && error <= 1e-12 && forwards == inputs && backwards == inputs;
    if (world.rank() > 0) continue;
    if (calls == 1) std::printf("%s, %-20s", sharded ? "sharded" : "plain  ", orders[order]);
    std::printf(" | %d: %.1e  %g %g%s", calls, error, forwards / inputs, backwards / inputs,
                calls == 3 ? "\n" : "");
  }
  return world.Finish().ok() && right ? 0 : 1;
}
