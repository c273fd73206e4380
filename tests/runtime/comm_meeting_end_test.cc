// Meetings that end before all have come, and what they leave behind.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/runtime/comm/tcp_store.h"
#include "sherd/runtime/comm/world.h"

namespace sherd {
namespace {

// Ranks that are threads, but meet as processes of mpirun would: through a file.
class MeetingEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/sherd_meeting_end_", getpid());
    file_directory_ = absl::StrCat(directory_, "/sherd-", geteuid());
    ASSERT_EQ(mkdir(directory_.c_str(), 0700), 0);
  }
  void TearDown() override {
    ASSERT_EQ(std::system(absl::StrCat("rm -rf '", directory_, "'").c_str()), 0);
  }
  LaunchInfo OnOneHost(int rank, int size) const {
    LaunchInfo launch;
    launch.launcher = Launcher::kOpenMpi;
    launch.rank = launch.local_rank = rank;
    launch.size = launch.local_size = size;
    launch.job_id = "job/1";
    launch.temp_directory = directory_;
    return launch;
  }
  bool FileIsThere() const { return access((file_directory_ + "/job_1").c_str(), F_OK) == 0; }
  void LeaveNotice(const std::string& text) const {
    ASSERT_EQ(mkdir(file_directory_.c_str(), 0700), 0);
    std::ofstream(file_directory_ + "/job_1") << text;
  }
  // Rank 1 comes to a notice that leads nowhere.
  absl::Status JoinInVain() const {
    return World::FromLaunch(OnOneHost(1, 2),
                             {.threads = 1, .rendezvous_timeout = absl::Milliseconds(300)})
        .status();
  }

  std::string directory_;
  std::string file_directory_;
};

TEST_F(MeetingEnd, ARankThatIsToldToStopEndsTheWaitOfAll) {
  std::vector<std::thread> ranks;
  // Rank 0 is asked once it has arrived. Rank 1 looks for it, then arrives, too, and is asked on.
  std::atomic<bool> zero_waits{false};
  int asked = 0;
  const auto one_stops = [&] { return zero_waits && ++asked > 20; };
  const auto zero_stops = [&] {
    zero_waits = true;
    return false;
  };
  for (int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      const absl::Status status =
          World::FromLaunch(
              OnOneHost(rank, 3),
              {.threads = 1,
               .rendezvous_timeout = absl::Hours(1),
               .should_stop = rank == 0 ? std::function<bool()>(zero_stops) : one_stops})
              .status();
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_EQ(status.message(), "rank 1 was told to stop while it waited for rank 2 of 3");
    });
  }
  for (std::thread& thread : ranks) thread.join();
  EXPECT_FALSE(FileIsThere());
}

TEST_F(MeetingEnd, WhoWaitsForRankZeroCanBeToldToStop) {
  const absl::Status status =
      World::FromLaunch(
          OnOneHost(1, 2),
          {.threads = 1, .rendezvous_timeout = absl::Hours(1), .should_stop = [] { return true; }})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_NE(status.message().find("rank 1 was told to stop while it waited for rank 0"),
            std::string::npos)
      << status;
}

TEST_F(MeetingEnd, WhoeverFailsTakesTheNoticeOfADeadRankZeroAway) {
  LeaveNotice("127.0.0.1 1 abc");
  const absl::Status status = JoinInVain();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_FALSE(FileIsThere());
}

TEST_F(MeetingEnd, TheNoticeOfALivingRankZeroStays) {
  auto server = TcpStoreServer::Listen({.secret = "abc"});
  ASSERT_TRUE(server.ok());
  // Another process is rank 1 already: this one is not to keep the rest from coming.
  ASSERT_TRUE((*server)->local()->Set("claim/1", "1").ok());
  LeaveNotice(absl::StrCat("127.0.0.1 ", (*server)->port(), " abc"));
  EXPECT_FALSE(JoinInVain().ok());
  EXPECT_TRUE(FileIsThere());
}

}  // namespace
}  // namespace sherd
