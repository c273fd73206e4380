// A client's conversation with the store's server, without sockets.
#include <chrono>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/runtime/comm/internal/store_session.h"
#include "sherd/runtime/comm/store.h"

namespace sherd {
namespace {

using internal::StoreOp;
using internal::StoreRequest;
using internal::StoreResponse;
using internal::StoreSession;

constexpr char kSecret[] = "a secret";
const StoreSession::Clock::time_point kNoon{std::chrono::hours(12)};

std::string Length(uint32_t n) {
  return {static_cast<char>(n), static_cast<char>(n >> 8), static_cast<char>(n >> 16),
          static_cast<char>(n >> 24)};
}
std::string Greeting(const std::string& secret) {
  return std::string("SHERD\0\0\1", 8) + Length(static_cast<uint32_t>(secret.size())) + secret;
}

class Session : public ::testing::Test {
 protected:
  std::shared_ptr<Store> table_ = MakeMemoryStore();
  StoreSession session_{kSecret, *table_};
};

TEST_F(Session, BeforeTheSecretNothingIsExecuted) {
  const std::string set = Encode(StoreRequest{.op = StoreOp::kSet, .key = "k", .value = "v"});
  EXPECT_TRUE(session_.Receive(Greeting("a secreT") + set, kNoon));
  EXPECT_TRUE(session_.Resume(kNoon));
  EXPECT_TRUE(session_.closing());
  EXPECT_FALSE(session_.trusted());
  EXPECT_EQ(session_.output(), "N");
  EXPECT_EQ(*table_->TryGet("k"), std::nullopt);
  // Not even when the right secret follows.
  EXPECT_TRUE(session_.Receive(Greeting(kSecret) + set, kNoon));
  EXPECT_EQ(session_.output(), "N");
  EXPECT_EQ(*table_->TryGet("k"), std::nullopt);
}

TEST_F(Session, AStrangerHasRoomForOneGreetingOnly) {
  EXPECT_EQ(session_.room(), 8u + 4u + 256u);
  EXPECT_TRUE(session_.Receive(Greeting(std::string(256, 's')).substr(0, 267), kNoon));
  EXPECT_EQ(session_.room(), 1u);
  EXPECT_FALSE(session_.trusted());
}

TEST_F(Session, ALengthBeyondItsLimitEndsItBeforeTheBytesCome) {
  EXPECT_FALSE(session_.Receive(std::string("SHERD\0\0\1", 8) + Length(257), kNoon));
  StoreSession friendly(kSecret, *table_);
  EXPECT_TRUE(friendly.Receive(Greeting(kSecret), kNoon));
  EXPECT_TRUE(friendly.Receive(Length((2 << 20) + 8192), kNoon)) << "the longest message";
  StoreSession rude(kSecret, *table_);
  EXPECT_TRUE(rude.Receive(Greeting(kSecret), kNoon));
  EXPECT_FALSE(rude.Receive(Length((2 << 20) + 8193), kNoon));
}

TEST_F(Session, PiecesOfAnySizeMeanTheSame) {
  const std::string bytes = Greeting(kSecret) +
                            Encode(StoreRequest{.op = StoreOp::kSet, .key = "k", .value = "v"}) +
                            Encode(StoreRequest{.op = StoreOp::kAdd, .number = 3, .key = "n"}) +
                            Encode(StoreRequest{.op = StoreOp::kTryGet, .key = "k"}) +
                            Encode(StoreRequest{.op = StoreOp::kDelete, .key = "k"});
  const std::string expected = "Y" + Encode(StoreResponse{}) + Encode(StoreResponse{.number = 3}) +
                               Encode(StoreResponse{.value = "v"}) +
                               Encode(StoreResponse{.number = 1});
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    std::shared_ptr<Store> table = MakeMemoryStore();
    StoreSession session(kSecret, *table);
    for (size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(session.Receive(std::string_view(bytes).substr(at, piece), kNoon)) << piece;
    }
    EXPECT_EQ(session.output(), expected) << piece;
  }
}

TEST_F(Session, AWaitHoldsBackWhatFollowsUntilItsKeyComesOrItsTimeIsUp) {
  const std::string wait =
      Encode(StoreRequest{.op = StoreOp::kGet, .number = 1000, .key = "gate"}) +
      Encode(StoreRequest{.op = StoreOp::kAdd, .number = 1, .key = "n"});
  EXPECT_TRUE(session_.Receive(Greeting(kSecret) + wait, kNoon));
  EXPECT_EQ(session_.output(), "Y");
  EXPECT_TRUE(session_.waiting());
  EXPECT_EQ(session_.room(), 0u);
  EXPECT_TRUE(session_.Resume(kNoon + std::chrono::milliseconds(999)));
  EXPECT_EQ(session_.output(), "Y");
  ASSERT_TRUE(table_->Set("gate", "open").ok());
  EXPECT_TRUE(session_.Resume(kNoon + std::chrono::milliseconds(999)));
  const std::string after =
      "Y" + Encode(StoreResponse{.value = "open"}) + Encode(StoreResponse{.number = 1});
  EXPECT_EQ(session_.output(), after);
  EXPECT_FALSE(session_.waiting());
  ASSERT_TRUE(*table_->Delete("gate"));
  EXPECT_TRUE(session_.Receive(wait, kNoon));
  EXPECT_TRUE(session_.Resume(kNoon + std::chrono::milliseconds(1000)));
  const std::string late = session_.output().substr(after.size());
  EXPECT_EQ(late.substr(4, 1), std::string(1, 4)) << "kDeadlineExceeded";
  EXPECT_EQ(*table_->Add("n", 0), 2);
}

}  // namespace
}  // namespace sherd
