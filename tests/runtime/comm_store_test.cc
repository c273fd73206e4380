// The stores: one behaviour for all, the TCP server under hostile bytes, and torchrun's two
// dialects.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "sherd/runtime/comm/tcp_store.h"
#include "sherd/runtime/core/random.h"
#include "tests/runtime/fake_torch_store.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSecret[] = "a secret";

// A store under test, and a second handle to the same table.
struct Stores {
  std::shared_ptr<void> server;
  std::shared_ptr<Store> a;
  std::shared_ptr<Store> b;
};

Stores Memory() {
  std::shared_ptr<Store> store = MakeMemoryStore();
  return {nullptr, store, store};
}

Stores Prefixed() {
  std::shared_ptr<Store> store = MakeMemoryStore();
  return {nullptr, MakePrefixStore(store, "p/"), MakePrefixStore(store, "p/")};
}

Stores Tcp() {
  auto server = TcpStoreServer::Listen({.secret = kSecret});
  EXPECT_TRUE(server.ok()) << server.status();
  std::shared_ptr<TcpStoreServer> shared = *std::move(server);
  auto client = ConnectTcpStore("127.0.0.1", shared->port(), kSecret, absl::Seconds(5));
  EXPECT_TRUE(client.ok()) << client.status();
  return {shared, *client, shared->local()};
}

Stores Torch(bool modern) {
  auto server = std::make_shared<testing::FakeTorchStore>(modern);
  auto a = ConnectTorchStore("127.0.0.1", server->port(), absl::Seconds(5));
  auto b = ConnectTorchStore("127.0.0.1", server->port(), absl::Seconds(5));
  EXPECT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  return {server, *a, *b};
}

using Maker = std::pair<const char*, std::function<Stores()>>;
class AnyStore : public ::testing::TestWithParam<Maker> {
 protected:
  void SetUp() override { stores_ = GetParam().second(); }
  Store& a() { return *stores_.a; }
  Store& b() { return *stores_.b; }

 private:
  Stores stores_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, AnyStore,
                         ::testing::Values(Maker{"memory", Memory}, Maker{"prefix", Prefixed},
                                           Maker{"tcp", Tcp},
                                           Maker{"torch_old", [] { return Torch(false); }},
                                           Maker{"torch_new", [] { return Torch(true); }}),
                         [](const auto& test) { return std::string(test.param.first); });

TEST_P(AnyStore, SetGetTryGetDelete) {
  const std::string binary("zero \0 byte\xff", 12);
  EXPECT_EQ(*a().TryGet("k"), std::nullopt);
  ASSERT_TRUE(a().Set("k", binary).ok());
  EXPECT_EQ(*b().Get("k", absl::Seconds(5)), binary);
  EXPECT_EQ(**b().TryGet("k"), binary);
  ASSERT_TRUE(b().Set("k", "").ok());
  EXPECT_EQ(*a().Get("k", absl::Seconds(5)), "");
  EXPECT_TRUE(*a().Delete("k"));
  EXPECT_FALSE(*b().Delete("k"));
  EXPECT_EQ(*b().TryGet("k"), std::nullopt);
}

TEST_P(AnyStore, GetWaitsForTheOtherSide) {
  std::thread other([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(b().Set("late", "value").ok());
  });
  const auto start = Clock::now();
  EXPECT_EQ(*a().Get("late", absl::Seconds(20)), "value");
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(90));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  other.join();
}

TEST_P(AnyStore, GetGivesUpAtItsDeadlineAndNamesTheKey) {
  const auto start = Clock::now();
  const absl::Status status = a().Get("never", absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_NE(status.message().find("never"), std::string::npos) << status;
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(150));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(3));
  EXPECT_TRUE(a().Set("after", "1").ok()) << "the store works on";
}

TEST_P(AnyStore, ABlockedGetHoldsUpNoOtherCall) {
  std::thread blocked([this] { EXPECT_EQ(*a().Get("gate", absl::Seconds(20)), "open"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = Clock::now();
  EXPECT_TRUE(a().Set("other", "1").ok());
  EXPECT_EQ(*a().Add("number", 2), 2);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
  EXPECT_TRUE(a().Set("gate", "open").ok());
  blocked.join();
}

TEST_P(AnyStore, AddCountsFromZeroOnAllSides) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      Store& store = t % 2 == 0 ? a() : b();
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(store.Add("count", 1).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*a().Add("count", -1), 399);
  EXPECT_EQ(*b().Get("count", absl::Seconds(1)), "399");
}

TEST_P(AnyStore, CompareSetLetsOneWin) {
  EXPECT_EQ(*a().CompareSet("k", "", "first"), "first");
  EXPECT_EQ(*b().CompareSet("k", "", "second"), "first");
  EXPECT_EQ(*b().CompareSet("k", "first", "third"), "third");
  EXPECT_EQ(*a().TryGet("k"), "third");
  EXPECT_EQ(*a().CompareSet("absent", "expected", "x"), "expected");
  EXPECT_EQ(*a().TryGet("absent"), std::nullopt);
}

TEST_P(AnyStore, LimitsAreErrorsAndHarmNothing) {
  const std::string long_key(Store::kMaxKeyBytes + 1, 'k');
  const std::string long_value(Store::kMaxValueBytes + 1, 'v');
  EXPECT_EQ(a().Set(long_key, "v").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a().Set("k", long_value).code(), absl::StatusCode::kInvalidArgument);
  const std::string longest(Store::kMaxValueBytes, 'v');
  ASSERT_TRUE(a().Set("k", longest).ok());
  EXPECT_EQ(*b().Get("k", absl::Seconds(10)), longest);
}

TEST_P(AnyStore, WaitNamesTheFirstMissingKey) {
  ASSERT_TRUE(a().Set("one", "1").ok());
  const std::vector<std::string> keys = {"one", "two"};
  const absl::Status status = b().Wait(keys, absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("two"), std::string::npos) << status;
  ASSERT_TRUE(a().Set("two", "2").ok());
  EXPECT_TRUE(b().Wait(keys, absl::Seconds(5)).ok());
}

TEST(MemoryStore, AnEmptyKeyIsRefused) {
  EXPECT_EQ(MakeMemoryStore()->Set("", "v").code(), absl::StatusCode::kInvalidArgument);
}

TEST(TcpStore, AnotherSecretIsRefused) {
  auto server = TcpStoreServer::Listen({.secret = kSecret});
  ASSERT_TRUE(server.ok());
  for (const char* wrong : {"", "a secreT", "a secret and more"}) {
    EXPECT_EQ(
        ConnectTcpStore("127.0.0.1", (*server)->port(), wrong, absl::Seconds(5)).status().code(),
        absl::StatusCode::kPermissionDenied)
        << wrong;
  }
}

TEST(TcpStore, ClientsFailWhenTheServerGoes) {
  auto server = TcpStoreServer::Listen({.secret = kSecret});
  ASSERT_TRUE(server.ok());
  auto client = ConnectTcpStore("127.0.0.1", (*server)->port(), kSecret, absl::Seconds(5));
  ASSERT_TRUE(client.ok());
  absl::Status waiting;
  std::thread blocked([&] { waiting = (*client)->Get("k", absl::Seconds(60)).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = Clock::now();
  server->reset();
  blocked.join();
  EXPECT_EQ(waiting.code(), absl::StatusCode::kUnavailable) << waiting;
  EXPECT_EQ((*client)->Set("k", "v").code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(3));
}

TEST(TcpStore, LingerLetsClientsFetchTheLastWord) {
  auto server = TcpStoreServer::Listen({.secret = kSecret, .linger = absl::Seconds(5)});
  ASSERT_TRUE(server.ok());
  auto client = ConnectTcpStore("127.0.0.1", (*server)->port(), kSecret, absl::Seconds(5));
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE((*server)->local()->Set("last", "word").ok());
  std::thread end([&] { server->reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(*(*client)->Get("last", absl::Seconds(1)), "word");
  const auto start = Clock::now();
  client->reset();  // the last connection: nothing to wait for
  end.join();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
}

TEST(TcpStore, NobodyListeningIsADeadline) {
  const absl::Status status =
      ConnectTcpStore("127.0.0.1", 1, kSecret, absl::Milliseconds(200)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

// Sends bytes to a port of this host. Returns whether the other side closed within two seconds.
bool SendRaw(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const timeval limit{2, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  static_cast<void>(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
  }
  const bool closed = got == 0 || errno == ECONNRESET;
  close(fd);
  return closed;
}

std::string Length(uint32_t n) { return std::string(reinterpret_cast<const char*>(&n), 4); }

TEST(TcpStore, HostileBytesCloseTheirConnectionAndNothingElse) {
  auto server = TcpStoreServer::Listen({.secret = kSecret});
  ASSERT_TRUE(server.ok());
  const int port = (*server)->port();
  auto client = ConnectTcpStore("127.0.0.1", port, kSecret, absl::Seconds(5));
  ASSERT_TRUE(client.ok());
  const std::string magic("SHERD\0\0\1", 8);
  const std::string greeting = magic + Length(8) + kSecret;
  const std::string unknown_op = std::string(1, 99) + std::string(8, 0) + std::string(12, 0);
  const std::map<std::string, std::string> attacks = {
      {"a web request", "GET / HTTP/1.1\r\n\r\n"},
      {"a torch client", std::string("\0\xce\xf7\x85\x3c\7\7\7\7", 9)},
      {"a secret of 4 GiB", magic + Length(0xFFFFFFFF)},
      {"a wrong secret", magic + Length(8) + "b secret" + Length(5)},
      {"a message of 4 GiB", greeting + Length(0xFFFFFFFF) + "x"},
      {"a message just over the limit", greeting + Length((2 << 20) + 8193)},
      {"an empty message", greeting + Length(0)},
      {"an unknown operation", greeting + Length(21) + unknown_op},
      {"a key longer than its message", greeting + Length(21) + std::string(1, 1) +
                                            std::string(8, 0) + Length(0x7FFFFFFF) +
                                            std::string(8, 0)},
      {"bytes after the fields",
       greeting + Length(22) + std::string(1, 3) + std::string(8, 0) + std::string(13, 0)},
  };
  for (const auto& [what, bytes] : attacks) {
    EXPECT_TRUE(SendRaw(port, bytes)) << what << " was not cut off";
    EXPECT_TRUE((*client)->Set("alive", what).ok()) << "after " << what;
  }
  // Noise behind a good greeting: whatever it parses as, the server lives.
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::string noise = greeting;
    for (uint64_t i = 0; i < seed % 97; ++i) noise.push_back(static_cast<char>(Mix64(seed, i)));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    static_cast<void>(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL));
    close(fd);
  }
  EXPECT_EQ(**(*client)->TryGet("alive"), attacks.rbegin()->first);
}

TEST(TcpStore, SilentConnectionsAreClosedAndLimited) {
  auto server = TcpStoreServer::Listen(
      {.secret = kSecret, .max_connections = 8, .secret_timeout = absl::Milliseconds(300)});
  ASSERT_TRUE(server.ok());
  std::vector<std::thread> silent;
  std::atomic<int> closed{0};
  for (int i = 0; i < 20; ++i) {
    silent.emplace_back([&] { closed += SendRaw((*server)->port(), "SHERD") ? 1 : 0; });
  }
  for (std::thread& thread : silent) thread.join();
  EXPECT_EQ(closed, 20);
  EXPECT_TRUE(ConnectTcpStore("127.0.0.1", (*server)->port(), kSecret, absl::Seconds(5)).ok());
}

TEST(TcpStore, ARequestInManyPiecesIsAnswered) {
  auto server = TcpStoreServer::Listen({.secret = kSecret});
  ASSERT_TRUE(server.ok());
  const std::string key = "piecewise";
  std::string message = std::string(1, 1) + std::string(8, 0) +
                        Length(static_cast<uint32_t>(key.size())) + key + Length(1) + "v" +
                        Length(0);
  message = std::string("SHERD\0\0\1", 8) + Length(8) + kSecret +
            Length(static_cast<uint32_t>(message.size())) + message;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>((*server)->port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  for (char c : message) {
    ASSERT_EQ(send(fd, &c, 1, MSG_NOSIGNAL), 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(*(*server)->local()->Get(key, absl::Seconds(5)), "v");
  close(fd);
}

}  // namespace
}  // namespace sherd
