// Kept values wait in host memory: exactly they leave the device, and they are back in time.

#include "sherd/checkpoint/offload.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "tests/checkpoint/llama.h"

namespace sherd::testing {
namespace {

constexpr int kBlocks = 4;

// Says when a copy runs, takes its time, and may fail.
class WatchedMemory final : public HostMemory {
 public:
  Tensor Allocate(const Device& device, DType dtype, const Shape& shape) override {
    ++allocations;
    return HostMemory::Allocate(device, dtype, shape);
  }
  void ToHost(const Tensor& from, const Tensor& to) override {
    if (stores++ == fail_store) ThrowInvalidArgument("the way out is closed");
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(200));
    HostMemory::ToHost(from, to);
  }
  void ToDevice(const Tensor& from, const Tensor& to) override {
    if (fetches++ == fail_fetch) ThrowInvalidArgument("the way back is closed");
    if (slow) std::this_thread::sleep_for(std::chrono::microseconds(200));
    HostMemory::ToDevice(from, to);
  }
  std::atomic<int> allocations{0}, stores{0}, fetches{0};
  int fail_store = -1, fail_fetch = -1;
  bool slow = false;
};

struct Model {
  std::shared_ptr<Offload> offload;
  std::shared_ptr<CheckpointStats> stats = std::make_shared<CheckpointStats>();
  Device device = Device::Cpu();
  LlamaStack model{device, DType::kF64, kBlocks};

  explicit Model(OffloadOptions options, const KeepPolicy& policy = KeepMatmuls())
      : offload(std::make_shared<Offload>(std::move(options))) {
    for (auto& block : model.blocks()) {
      Checkpoint(*block, {.policy = policy, .offload = offload, .stats = stats});
    }
  }
  int64_t Held(MemoryCategory category) const {
    return device.allocator().stats()[category].current_bytes;
  }
};

TEST(Offload, SameBitsWhateverThePrefetch) {
  for (int prefetch : {0, 1, 2, 9}) {
    for (const KeepPolicy& policy : {KeepMatmuls(), KeepAll()}) {
      for (bool twice : {false, true}) {
        SCOPED_TRACE(prefetch);
        auto memory = std::make_shared<WatchedMemory>();
        memory->slow = true;
        Model m({.prefetch = prefetch, .memory = memory}, policy);
        LlamaStack plain(m.device, DType::kF64, kBlocks);
        const StepOptions options{.calls = 2, .twice = twice};
        const StepValues want = RunStep(plain, m.device, DType::kF64, options);
        for (int step = 0; step < 2; ++step) {
          ExpectSameValues(RunStep(m.model, m.device, DType::kF64, options), want);
          m.offload->Synchronize();
          EXPECT_EQ(m.offload->regions(), 0);
          EXPECT_EQ(m.Held(MemoryCategory::kOffloaded), 0);
          EXPECT_EQ(m.stats->kept_bytes, 0);
        }
        EXPECT_EQ(memory->fetches, memory->stores * (twice ? 2 : 1));
        EXPECT_GT(memory->stores, 0);
      }
    }
  }
}

TEST(Offload, DeviceHoldsLessByExactlyWhatWasSent) {
  std::vector<int64_t> activations, offloaded, sent, kept;
  for (bool offloads : {false, true}) {
    const Device device = Device::Cpu();
    LlamaStack model(device, DType::kF64, kBlocks);
    auto stats = std::make_shared<CheckpointStats>();
    auto offload = std::make_shared<Offload>();
    for (auto& block : model.blocks()) {
      Checkpoint(
          *block,
          {.policy = KeepMatmuls(), .offload = offloads ? offload : nullptr, .stats = stats});
    }
    RunStep(model, device, DType::kF64, {.after_forward = [&] {
              offload->Synchronize();
              const MemoryStats held = device.allocator().stats();
              activations.push_back(held[MemoryCategory::kActivation].current_bytes);
              offloaded.push_back(held[MemoryCategory::kOffloaded].current_bytes);
              sent.push_back(stats->offloaded_bytes);
              kept.push_back(stats->kept_bytes);
            }});
  }
  // Every size here is a multiple of the allocator's 64 bytes but one: 3 x 10 statistics, rounded.
  const int64_t rounding = kBlocks * (256 - 240);
  EXPECT_EQ(offloaded[0], 0);
  EXPECT_EQ(sent[1], kept[1]);
  EXPECT_EQ(kept[0], kept[1]);
  EXPECT_EQ(activations[0] - activations[1], offloaded[1]);
  EXPECT_LE(offloaded[1] - sent[1], rounding + kBlocks * 4 * 64);
  EXPECT_GE(offloaded[1], sent[1]);
  EXPECT_GT(sent[1], 0);
}

TEST(Offload, ResultsOfTheCallStayOnTheDevice) {
  const Device device = Device::Cpu();
  auto offload = std::make_shared<Offload>();
  auto stats = std::make_shared<CheckpointStats>();
  const Variable x = Variable::Leaf(NormalTensor(device, DType::kF64, {64}, 1));
  Tape tape;
  const Recording on(tape);
  // silu's own result is read by nobody, the one before it by silu's backward.
  const auto [a, b] = Checkpoint(
      {.policy = KeepAll(), .offload = offload, .stats = stats},
      [](const Variable& in) {
        const Variable y = Scale(in, 2.0);
        const Variable z = Silu(Silu(y));
        return std::make_pair(y, z);
      },
      x);
  EXPECT_EQ(stats->kept_bytes, 2 * 64 * 8);
  EXPECT_EQ(stats->offloaded_bytes, 64 * 8) << "y is a result";
  tape.Backward(Sum(Add(a, b)));
}

TEST(Offload, NextCallsValuesAreOnTheirWay) {
  // With depth 0 every recompute waits for a fetch that it begins itself; with 1 only the first.
  for (int depth : {0, 1, 3}) {
    Model m({.prefetch = depth});
    RunStep(m.model, m.device, DType::kF64);
    EXPECT_EQ(m.offload->late_fetches(), depth == 0 ? kBlocks : 1) << depth;
  }
}

TEST(Offload, PrefetchHoldsNoMoreThanItsDepth) {
  const auto peak = [](int depth) {
    auto memory = std::make_shared<WatchedMemory>();
    Model m({.prefetch = depth, .memory = memory}, KeepAll());
    RunStep(m.model, m.device, DType::kF64, {.batch = 64, .after_forward = [&] {
                                               m.offload->Synchronize();
                                               m.device.allocator().ResetPeaks();
                                             }});
    return std::make_pair(m.device.allocator().stats()[MemoryCategory::kActivation].peak_bytes,
                          m.stats->offloaded_bytes / kBlocks);
  };
  const auto [none, block] = peak(0);
  const auto [one, same] = peak(1);
  EXPECT_EQ(block, same);
  EXPECT_LE(one, none + block + 64 * 16);
  EXPECT_GE(peak(kBlocks).first, one + block) << "so the depth matters";
}

TEST(Offload, ErrorsOfACopySurfaceAtTheWaitAndTheNextStepIsRight) {
  for (bool out : {true, false}) {
    auto memory = std::make_shared<WatchedMemory>();
    (out ? memory->fail_store : memory->fail_fetch) = 5;
    Model m({.memory = memory});
    LlamaStack plain(m.device, DType::kF64, kBlocks);
    const StepValues want = RunStep(plain, m.device, DType::kF64);
    bool forward_done = false;
    const std::string error = ErrorOf([&] {
      RunStep(m.model, m.device, DType::kF64, {.after_forward = [&] { forward_done = true; }});
    });
    EXPECT_TRUE(forward_done);
    EXPECT_TRUE(Contains(error, out ? "the way out is closed" : "the way back is closed"));
    EXPECT_TRUE(Contains(error, out ? "offload of the checkpointed call of block1"
                                    : "fetch of the checkpointed call of block2"));
    EXPECT_EQ(m.offload->regions(), 0);
    ExpectSameValues(RunStep(m.model, m.device, DType::kF64), want);
  }
}

TEST(Offload, ForwardWithoutABackward) {
  Model m({});
  Initialize(m.model, m.device, 1);
  const Variable x = Variable::Leaf(NormalTensor(m.device, DType::kF64, {2, 5, 6}, 1));
  {
    Tape tape;
    const Recording on(tape, {.samples = {0, 1}});
    m.model(x);
    EXPECT_EQ(m.offload->regions(), kBlocks);
    tape.Reset();
    EXPECT_EQ(m.offload->regions(), 0);
  }
  m.offload->Synchronize();
  EXPECT_EQ(m.Held(MemoryCategory::kOffloaded), 0);
  EXPECT_TRUE(Contains(ErrorOf([] { Offload({.prefetch = -1}); }), "prefetch of -1"));
}

TEST(Offload, TogetherWithABudget) {
  const Device device = Device::Cpu();
  LlamaStack plain(device, DType::kF64, kBlocks);
  LlamaStack model(device, DType::kF64, kBlocks);
  auto budget = std::make_shared<MemoryBudget>(9000);
  auto offload = std::make_shared<Offload>();
  for (auto& block : model.blocks()) Checkpoint(*block, {.budget = budget, .offload = offload});
  const StepValues want = RunStep(plain, device, DType::kF64);
  for (int step = 0; step < 3; ++step) {
    ExpectSameValues(RunStep(model, device, DType::kF64), want);
    EXPECT_LE(budget->report().peak_bytes, 9000);
  }
}

// A prefetch of a call whose backward comes later, and then keeps the record.
TEST(Offload, FetchedForOneBackwardAndReadByTwoMore) {
  const Device device = Device::Cpu();
  const auto body = [](const Variable& in) { return Silu(Silu(Scale(in, 2.0))); };
  std::vector<Tensor> grads;
  for (bool offloads : {false, true}) {
    auto offload = std::make_shared<Offload>();
    const CheckpointOptions options{.policy = KeepAll(), .offload = offloads ? offload : nullptr};
    const Variable x = Variable::Leaf(NormalTensor(device, DType::kF64, {16}, 1));
    Tape tape;
    const Recording on(tape);
    const Variable a = Sum(Checkpoint(options, body, x));
    const Variable b = Sum(Checkpoint(options, body, x));
    tape.Backward(b);
    tape.Backward(a, 2.0, {.retain = true});
    tape.Backward(a, 3.0, {.retain = true});
    tape.Backward(a, 5.0);
    grads.push_back(x.grad());
  }
  EXPECT_TRUE(SameBits(grads[0], grads[1]));
}

}  // namespace
}  // namespace sherd::testing
