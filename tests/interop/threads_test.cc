// Every thread that the library starts has the name that runtime/README.md lists.

#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "sherd/runtime/base/thread.h"
#include "sherd/runtime/comm/tcp_store.h"
#include "sherd/shard/context.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Names = std::map<std::string, int>;

// How many threads of this process go by each name.
Names RunningThreads() {
  Names names;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    std::ifstream comm(std::string("/proc/self/task/") + task->d_name + "/comm");
    std::string name;
    if (task->d_name[0] != '.' && std::getline(comm, name)) ++names[name];
  }
  closedir(tasks);
  return names;
}

// Those that were not there before.
Names Started(const Names& before) {
  Names started = RunningThreads();
  for (const auto& [name, count] : before) {
    if ((started[name] -= count) == 0) started.erase(name);
  }
  return started;
}

// Waits for it a while: a thread that was joined stays in the list until the system has cleared up.
bool Comes(const Names& before, const Names& want) {
  for (int i = 0; i < 1000 && Started(before) != want; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Names now = Started(before);
  EXPECT_EQ(now, want);
  return now == want;
}

TEST(Threads, OfADeviceAreThePool) {
  const Names before = RunningThreads();
  const Device one = Device::Cpu({.threads = 1});
  EXPECT_TRUE(Comes(before, Names{})) << "a device of one thread computes on the caller's";
  const Device three = Device::Cpu({.threads = 3});
  EXPECT_TRUE(Comes(before, (Names{{"sherd/pool", 2}})));
}

TEST(Threads, OfAStoreServeIt) {
  const Names before = RunningThreads();
  auto server = TcpStoreServer::Listen({.secret = "s"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_TRUE(Comes(before, (Names{{"sherd/store", 1}})));
}

TEST(Threads, OfARankAreItsGroupAndItsStreams) {
  const Names before = RunningThreads();
  RunRanks(2, [&](World& world) {
    const auto context = ShardContext::Of(world.mesh());
    world.group().Barrier();
    if (world.rank() == 0) {
      Names want{{"sherd/gloo", 2},
                 {"sherd/watchdog", 2},
                 {"sherd/herald", 2},
                 {"sherd/gather", 2},
                 {"sherd/reduce", 2}};
      // The ranks themselves are threads of this test, which go by the program's name.
      Names started = Started(before);
      for (const auto& [name, count] : before) started.erase(name);
      EXPECT_EQ(started, want);
    }
    world.group().Barrier();
  });
  EXPECT_TRUE(Comes(before, Names{})) << "and they end with it";
}

TEST(Threads, CallersKeepTheirName) {
  char before[16], after[16];
  pthread_getname_np(pthread_self(), before, sizeof(before));
  { const ThreadNamed named("a name of more than fifteen characters"); }
  pthread_getname_np(pthread_self(), after, sizeof(after));
  EXPECT_STREQ(before, after);
  std::string seen;
  StartThread(
      [&seen] {
        char name[16];
        pthread_getname_np(pthread_self(), name, sizeof(name));
        seen = name;
      },
      "a name of more than fifteen characters")
      .join();
  EXPECT_EQ(seen, "a name of more ");
}

}  // namespace
}  // namespace sherd::testing
