// Who reaches rank 0's listener, and how far a stranger comes with it.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "sherd/runtime/comm/internal/host_address.h"
#include "sherd/runtime/comm/internal/socket.h"
#include "sherd/runtime/comm/tcp_store.h"
#include "sherd/runtime/comm/world.h"

namespace sherd {
namespace {

using internal::Socket;

constexpr char kSecret[] = "a secret";

bool Answers(const std::string& address, int port) {
  return internal::Dial(address, port, absl::Now() + absl::Seconds(2)).ok();
}

int FreePort() {
  auto probe = TcpStoreServer::Listen({});
  EXPECT_TRUE(probe.ok()) << probe.status();
  return (*probe)->port();
}

// Two ranks that believe to be on two hosts, of which `master` is the first.
struct TwoHosts {
  explicit TwoHosts(const std::string& master, const std::string& secret = "") {
    for (int rank = 0; rank < 2; ++rank) {
      launches[rank].launcher = Launcher::kTorchrun;
      launches[rank].rank = rank;
      launches[rank].size = 2;
      launches[rank].master_address = master;
      launches[rank].master_port = port;
      launches[rank].secret = secret;
    }
  }
  // Joins both, calls `body` on rank 0 while the job runs, and returns the warnings.
  template <typename Body>
  std::vector<std::string> Run(const Body& body) {
    std::mutex mutex;
    std::vector<std::string> warnings;
    WorldOptions options{.threads = 1, .rendezvous_timeout = absl::Seconds(20)};
    options.log = [&](const LogRecord& record) {
      std::lock_guard<std::mutex> lock(mutex);
      if (record.level == LogLevel::kWarning) warnings.emplace_back(record.text);
    };
    auto join = [&](int rank) {
      absl::StatusOr<World> world = World::FromLaunch(launches[rank], options);
      ASSERT_TRUE(world.ok()) << world.status();
      int64_t sum = rank;
      world->group().AllReduce(&sum, 1, DType::kI64);
      EXPECT_EQ(sum, 1);
      if (rank == 0) body();
      EXPECT_TRUE(world->Finish().ok());
    };
    std::thread other([&] { join(1); });
    join(0);
    other.join();
    return warnings;
  }

  int port = FreePort();
  LaunchInfo launches[2];
};

TEST(Listener, OnSeveralHostsItListensWhereThePeersComeAndNowhereElse) {
  const std::vector<std::string> interfaces = internal::InterfaceAddresses();
  if (interfaces.empty()) GTEST_SKIP() << "this host has loopback addresses only";
  for (const std::string& address : interfaces) {
    TwoHosts job(address, kSecret);
    const std::vector<std::string> warnings = job.Run([&] {
      EXPECT_TRUE(Answers(address, job.port)) << address;
      EXPECT_FALSE(Answers("127.0.0.1", job.port)) << address;
      for (const std::string& other : interfaces) {
        if (other != address) {
          EXPECT_FALSE(Answers(other, job.port)) << other;
        }
      }
    });
    EXPECT_TRUE(warnings.empty()) << warnings[0];
  }
}

TEST(Listener, AMasterThatIsLoopbackHereIsReachedFromElsewhereToo) {
  const std::vector<std::string> interfaces = internal::InterfaceAddresses();
  // As where /etc/hosts gives a host's own name to 127.0.1.1.
  TwoHosts job("127.0.1.1", kSecret);
  job.Run([&] {
    EXPECT_TRUE(Answers("127.0.1.1", job.port));
    for (const std::string& address : interfaces) EXPECT_TRUE(Answers(address, job.port));
  });
  if (interfaces.empty()) return;
  TwoHosts narrow("127.0.1.1", kSecret);
  for (LaunchInfo& launch : narrow.launches) launch.own_address = interfaces.back();
  const std::vector<std::string> warnings = narrow.Run([&] {
    EXPECT_TRUE(Answers(interfaces.back(), narrow.port));
    for (size_t i = 0; i + 1 < interfaces.size(); ++i) {
      EXPECT_FALSE(Answers(interfaces[i], narrow.port)) << interfaces[i];
    }
  });
  EXPECT_TRUE(warnings.empty()) << warnings[0];
}

TEST(Listener, OnOneHostItListensOnLoopbackAlone) {
  const std::vector<std::string> interfaces = internal::InterfaceAddresses();
  // Whatever the master is called: the launcher says that all ranks are here.
  TwoHosts job(interfaces.empty() ? "127.0.0.1" : interfaces[0]);
  for (int rank = 0; rank < 2; ++rank) {
    job.launches[rank].local_rank = rank;
    job.launches[rank].local_size = 2;
  }
  const std::vector<std::string> warnings = job.Run([&] {
    EXPECT_TRUE(Answers("127.0.0.1", job.port));
    for (const std::string& address : interfaces) EXPECT_FALSE(Answers(address, job.port));
  });
  EXPECT_TRUE(warnings.empty()) << warnings[0];
}

TEST(Listener, AJobOfSeveralHostsWithoutASecretIsWarnedAbout) {
  const std::vector<std::string> interfaces = internal::InterfaceAddresses();
  if (interfaces.empty()) GTEST_SKIP() << "this host has loopback addresses only";
  TwoHosts job(interfaces[0]);
  const std::vector<std::string> warnings = job.Run([] {});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("set SHERD_SECRET"), std::string::npos) << warnings[0];
}

// Both ranks give up in the end.
void ExpectNoMeeting(LaunchInfo (&launches)[2]) {
  const WorldOptions options{.threads = 1, .rendezvous_timeout = absl::Seconds(2)};
  absl::Status status[2];
  std::thread other([&] { status[1] = World::FromLaunch(launches[1], options).status(); });
  status[0] = World::FromLaunch(launches[0], options).status();
  other.join();
  EXPECT_NE(status[0].message().find("rank 1 of 2 did not arrive"), std::string::npos) << status[0];
  EXPECT_NE(status[1].message().find("it knows another secret"), std::string::npos) << status[1];
}

TEST(Listener, RanksWithAnotherSecretDoNotJoinAtTheMasterPort) {
  TwoHosts job("127.0.0.1", kSecret);
  job.launches[1].secret = "another";
  ExpectNoMeeting(job.launches);
}

TEST(Listener, RanksWithAnotherSecretDoNotJoinThroughTheFileEither) {
  TwoHosts job("");
  for (int rank = 0; rank < 2; ++rank) {
    LaunchInfo& launch = job.launches[rank];
    launch.launcher = Launcher::kOpenMpi;
    launch.local_rank = rank;
    launch.local_size = 2;
    launch.job_id = absl::StrCat("secrets-", getpid());
    launch.secret = rank == 0 ? kSecret : "another";
  }
  ExpectNoMeeting(job.launches);
}

TEST(Listener, SeveralAddressesShareAPort) {
  std::vector<std::string> addresses = {"127.0.0.1", "127.0.0.2"};
  if (internal::ListenOn("::1", 0).ok()) addresses.push_back("::1");
  auto server = TcpStoreServer::Listen({.addresses = addresses, .secret = kSecret});
  ASSERT_TRUE(server.ok()) << server.status();
  for (const std::string& address : addresses) {
    auto client = ConnectTcpStore(address, (*server)->port(), kSecret, absl::Seconds(5));
    ASSERT_TRUE(client.ok()) << client.status();
    EXPECT_EQ(*(*client)->Add("visits", 0), 0);
  }
  EXPECT_FALSE(Answers("127.0.0.3", (*server)->port()));
  EXPECT_EQ(TcpStoreServer::Listen({.addresses = {}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Listener, SilentStrangersDoNotKeepARankOut) {
  auto server = TcpStoreServer::Listen(
      {.secret = kSecret, .max_connections = 8, .secret_timeout = absl::Hours(1)});
  ASSERT_TRUE(server.ok());
  const absl::Time soon = absl::Now() + absl::Seconds(20);
  auto rank = ConnectTcpStore("127.0.0.1", (*server)->port(), kSecret, absl::Seconds(5));
  ASSERT_TRUE(rank.ok());
  std::vector<Socket> strangers;
  for (int i = 0; i < 30; ++i) {
    absl::StatusOr<Socket> stranger = internal::Dial("127.0.0.1", (*server)->port(), soon);
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    strangers.push_back(*std::move(stranger));
  }
  auto late = ConnectTcpStore("127.0.0.1", (*server)->port(), kSecret, absl::Seconds(10));
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE((*late)->Set("late", "1").ok());
  EXPECT_TRUE((*rank)->Set("first", "1").ok()) << "one that has shown the secret keeps its place";
  // The first strangers had to go.
  char byte = 0;
  EXPECT_TRUE(absl::IsUnavailable(internal::ReceiveAll(strangers[0], &byte, 1, soon)));
}

TEST(Listener, AStrangerThatSendsByteByByteIsCutOffInTime) {
  auto server =
      TcpStoreServer::Listen({.secret = kSecret, .secret_timeout = absl::Milliseconds(400)});
  ASSERT_TRUE(server.ok());
  const std::string greeting =
      std::string("SHERD\0\0\1", 8) + std::string("\10\0\0\0", 4) + kSecret;
  const absl::Time begin = absl::Now();
  absl::StatusOr<Socket> slow =
      internal::Dial("127.0.0.1", (*server)->port(), begin + absl::Seconds(5));
  ASSERT_TRUE(slow.ok());
  size_t sent = 0;
  absl::Status status;
  for (; sent < greeting.size() && status.ok(); ++sent) {
    status = internal::SendAll(*slow, greeting.substr(sent, 1), absl::Now() + absl::Seconds(5));
    char byte = 0;
    const absl::Status got =
        internal::ReceiveAll(*slow, &byte, 1, absl::Now() + absl::Milliseconds(100));
    if (absl::IsUnavailable(got)) status = got;
    ASSERT_FALSE(got.ok()) << "the right secret after " << absl::Now() - begin;
  }
  EXPECT_FALSE(status.ok()) << "it could send all " << sent << " bytes";
}

}  // namespace
}  // namespace sherd
