// Transfers that cast reuse two pieces of memory for each peer, and wait before they do: here one
// rank has everything to send and nothing to receive, so that only those waits hold it back.

#include "sherd/runtime/comm/internal/gloo_exchange.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/core/device.h"

namespace sherd::internal {
namespace {

constexpr int64_t kPieces = 40;
constexpr int64_t kElems = kPieces * kMinPieceBytes / 2;  // bf16 travels

// Whole numbers, exact in bf16, that differ from piece to piece.
float Element(int64_t i) { return static_cast<float>(i % 61); }

std::vector<float> Elements() {
  std::vector<float> elements(static_cast<size_t>(kElems));
  for (int64_t i = 0; i < kElems; ++i) elements[static_cast<size_t>(i)] = Element(i);
  return elements;
}

int64_t CountWrong(const std::vector<float>& got, float times) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < kElems; ++i) {
    wrong += got[static_cast<size_t>(i)] != times * Element(i) ? 1 : 0;
  }
  return wrong;
}

// Two ranks; all elements are rank 0's.
const std::vector<Region> kRegions = {{0, kElems * 2}, {0, 0}};

// Runs one transfer of bf16 between buffers of f32 on each of two ranks.
void RunTransfer(CollectiveOp op, const std::function<void(Exchange&, int rank)>& body) {
  const std::shared_ptr<Store> store = MakeMemoryStore();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto link = GlooLink::Connect(
          store, rank, 2, {.device = Device::Cpu({.index = rank}), .piece_bytes = kMinPieceBytes});
      ASSERT_TRUE(link.ok()) << link.status();
      Channel& channel = (*link)->OpenWorld();
      const CollectiveCall call{.op = op,
                                .bytes = kElems * 2,
                                .dtype = DType::kBF16,
                                .types = {DType::kF32, DType::kBF16, DType::kF32}};
      const SigpipeGuard sigpipe;
      (*link)->Begin(channel, call);
      try {
        Exchange exchange(**link, channel, call);
        exchange.Agree();
        body(exchange, rank);
      } catch (const Interrupted& how) {
        ADD_FAILURE() << "rank " << rank << " was interrupted: " << how.text;
      }
      (*link)->End(channel);
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

TEST(CommExchange, ARankThatOnlySendsToBeSummedOverwritesNothingOnItsWay) {
  std::vector<float> sums(static_cast<size_t>(kElems));
  RunTransfer(CollectiveOp::kReduceScatter, [&](Exchange& exchange, int rank) {
    const std::vector<float> full = Elements();
    exchange.Reduce(reinterpret_cast<const char*>(full.data()), kRegions,
                    rank == 0 ? reinterpret_cast<char*>(sums.data()) : nullptr, /*add=*/false);
  });
  EXPECT_EQ(CountWrong(sums, 2.0f), 0);
}

TEST(CommExchange, ARankThatOnlySpreadsOverwritesNothingOnItsWay) {
  std::vector<float> got(static_cast<size_t>(kElems), -1.0f);
  RunTransfer(CollectiveOp::kAllReduce, [&](Exchange& exchange, int rank) {
    std::vector<float> own = Elements();
    exchange.GatherCast(reinterpret_cast<char*>(rank == 0 ? own.data() : got.data()), kRegions);
  });
  EXPECT_EQ(CountWrong(got, 1.0f), 0);
}

}  // namespace
}  // namespace sherd::internal
