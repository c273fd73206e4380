#include "sherd/runtime/comm/internal/rendezvous.h"

#include <sched.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/internal/host_address.h"
#include "sherd/runtime/comm/internal/meeting_file.h"
#include "sherd/runtime/comm/internal/notice.h"
#include "sherd/runtime/comm/tcp_store.h"

namespace sherd::internal {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(50);
// One attempt to reach rank 0's store, before the notice that led there is read again.
constexpr absl::Duration kAttempt = absl::Seconds(1);
// Lets ranks that fail or leave read the last words. Less than the second in which all have to end:
// a rank that is stopped stays connected.
constexpr absl::Duration kLinger = absl::Milliseconds(600);

// How the notice gets from rank 0 to the others.
class NoticeBoard {
 public:
  virtual ~NoticeBoard() = default;
  virtual absl::Status Post(const Notice& notice) = 0;
  // The notice that hangs there now, or nothing. Waits a moment at most.
  virtual absl::StatusOr<std::optional<Notice>> Read() = 0;
  // Called on rank 0 once all have arrived, and by whoever fails and finds rank 0 gone.
  virtual void Remove() = 0;
  // Whether the notice hangs there for good unless somebody removes it.
  virtual bool stays_behind() const { return false; }
};

class AgentBoard final : public NoticeBoard {
 public:
  AgentBoard(std::shared_ptr<Store> store, const LaunchInfo& launch)
      : store_(std::move(store)), key_(Key(launch)) {}

  absl::Status Post(const Notice& notice) override { return store_->Set(key_, notice.ToString()); }
  absl::StatusOr<std::optional<Notice>> Read() override {
    absl::StatusOr<std::optional<std::string>> text = store_->TryGet(key_);
    if (!text.ok()) return text.status();
    return text->has_value() ? Notice::Parse(**text) : std::nullopt;
  }
  void Remove() override {}  // a rank that was too slow to read it would wait in vain

 private:
  // [Note: attempts of one job] The store's keys outlive an attempt. Where one agent counts
  // restarts for all ranks, each attempt has a key of its own. Agents of several hosts need not
  // agree on the count, so there one key serves all attempts, and a notice that leads to an earlier
  // one is refused and read again.
  static std::string Key(const LaunchInfo& launch) {
    const std::string key = absl::StrCat("sherd/meeting/", launch.job_id);
    return launch.one_host() ? absl::StrCat(key, "/", launch.restart) : key;
  }

  const std::shared_ptr<Store> store_;
  const std::string key_;
};

class FileBoard final : public NoticeBoard {
 public:
  explicit FileBoard(MeetingFile file) : file_(std::move(file)) {}
  absl::Status Post(const Notice& notice) override { return file_.Write(notice.ToString()); }
  absl::StatusOr<std::optional<Notice>> Read() override {
    absl::StatusOr<std::optional<std::string>> text = file_.Read();
    if (!text.ok()) return text.status();
    return text->has_value() ? Notice::Parse(**text) : std::nullopt;
  }
  void Remove() override { file_.Remove(); }
  bool stays_behind() const override { return true; }

 private:
  MeetingFile file_;
};

// Everybody knows where to meet.
class FixedBoard final : public NoticeBoard {
 public:
  explicit FixedBoard(Notice notice) : notice_(std::move(notice)) {}
  absl::Status Post(const Notice&) override { return absl::OkStatus(); }
  absl::StatusOr<std::optional<Notice>> Read() override { return std::optional<Notice>(notice_); }
  void Remove() override {}

 private:
  const Notice notice_;
};

// Whether the name means the host that uses it, whichever that is.
bool IsLoopbackEverywhere(const std::string& name) {
  return name == "localhost" || IsLoopback(name);
}

// One rank's way to the meeting.
class Rendezvous {
 public:
  Rendezvous(const LaunchInfo& launch, const Patience& patience)
      : launch_(launch), patience_(patience) {}

  absl::StatusOr<Meeting> Run() {
    absl::Status status = ChooseBoard();
    if (status.ok()) status = launch_.rank == 0 ? Host() : Find();
    if (status.ok()) status = CountCpus();
    if (status.ok()) {
      status = AwaitArrival(*meeting_.store, "meeting", launch_.rank, launch_.size, patience_);
    }
    if (posted_) {
      board_->Remove();
    } else if (!status.ok() && board_ != nullptr && board_->stays_behind()) {
      RemoveOrphan();
    }
    if (status.ok()) status = ReadCounts();
    if (status.ok()) status = ChooseAddress();
    if (status.ok()) return std::move(meeting_);
    return status;
  }

 private:
  absl::Duration Left() const { return patience_.left(); }
  bool fixed() const { return !launch_.master_address.empty() && !launch_.agent_store; }

  absl::Status ChooseBoard() {
    if (launch_.agent_store && !launch_.master_address.empty()) {
      absl::StatusOr<std::shared_ptr<Store>> agent =
          ConnectTorchStore(MasterHost(), launch_.master_port, Left());
      if (!agent.ok()) return agent.status();
      board_ = std::make_unique<AgentBoard>(*std::move(agent), launch_);
      return absl::OkStatus();
    }
    if (fixed()) {
      // The job's id is no secret, but tells jobs apart.
      board_ = std::make_unique<FixedBoard>(Notice{
          MasterHost(), launch_.master_port,
          launch_.secret.empty() ? absl::StrCat("job:", launch_.job_id.substr(0, 200)) : ""});
      return absl::OkStatus();
    }
    if (launch_.launcher == Launcher::kTorchrun || (launch_.local_known && !launch_.one_host())) {
      return absl::FailedPreconditionError(absl::StrCat(
          launch_.size, " ranks started by ", NameOf(launch_.launcher), ", ",
          launch_.local_known ? absl::StrCat(launch_.local_size, " of them on this host")
                              : std::string("on hosts unknown"),
          ", do not know where to meet: set MASTER_ADDR and MASTER_PORT on all of them"));
    }
    absl::StatusOr<MeetingFile> file = MeetingFile::Open(launch_.temp_directory, launch_.job_id);
    if (!file.ok()) return file.status();
    board_ = std::make_unique<FileBoard>(*std::move(file));
    return absl::OkStatus();
  }

  // The master's name may be one that only other hosts can resolve.
  std::string MasterHost() const {
    return launch_.one_host() ? LoopbackAddress() : launch_.master_address;
  }

  // What a client shows: what the notice says and what the user gave all ranks.
  std::string Secret(const Notice& notice) const {
    return absl::StrCat(notice.secret, launch_.secret);
  }

  // Where rank 0 listens: at the addresses by which the others come, and at no other.
  std::vector<std::string> ListenAddresses() {
    if (launch_.one_host() || launch_.master_address.empty()) return {LoopbackAddress()};
    if (launch_.agent_store && !launch_.own_address.empty()) return {launch_.own_address};
    std::vector<std::string> addresses = OwnAddressesFor(launch_.master_address);
    if (!std::all_of(addresses.begin(), addresses.end(), IsLoopback)) return addresses;
    // Here the master's name means this host itself. Others may know it by the same name, but
    // another address.
    if (!launch_.own_address.empty()) {
      addresses.push_back(launch_.own_address);
    } else if (launch_.local_known || !IsLoopbackEverywhere(launch_.master_address)) {
      const std::vector<std::string> all = InterfaceAddresses();
      addresses.insert(addresses.end(), all.begin(), all.end());
      if (all.size() > 1) {
        meeting_.warnings.push_back(absl::StrCat(
            "MASTER_ADDR '", launch_.master_address, "' is a loopback address here, so rank 0's ",
            "store listens on every interface: ", absl::StrJoin(all, ", "),
            "; SHERD_ADDRESS names the one to use"));
      }
    }
    if (addresses.empty()) addresses.push_back(LoopbackAddress());
    return addresses;
  }

  absl::Status Host() {
    Notice notice;
    notice.secret = RandomSecret();
    if (fixed()) notice = **board_->Read();
    const bool loopback = launch_.one_host() || launch_.master_address.empty();
    if (fixed() && !loopback && launch_.secret.empty()) {
      meeting_.warnings.push_back(
          absl::StrCat("whoever reaches ", HostPort(launch_.master_address, launch_.master_port),
                       " and guesses the job's id can join it: set SHERD_SECRET on all ranks"));
    }
    TcpStoreServer::Options options{.addresses = ListenAddresses(),
                                    .port = fixed() ? launch_.master_port : 0,
                                    .secret = Secret(notice),
                                    .linger = kLinger};
    absl::StatusOr<std::unique_ptr<TcpStoreServer>> server = TcpStoreServer::Listen(options);
    // The process of an earlier attempt may be on its way out.
    const absl::Time end = std::min(patience_.deadline, absl::Now() + absl::Seconds(10));
    while (!server.ok() && absl::Now() < end && !patience_.stopped()) {
      absl::SleepFor(kRetry);
      server = TcpStoreServer::Listen(options);
    }
    if (!server.ok()) {
      return absl::Status(server.status().code(),
                          absl::StrCat("rank 0 cannot serve the job's store: ",
                                       std::string(server.status().message())));
    }
    server_ = *std::move(server);
    meeting_.store = server_->local();
    notice.host = loopback ? LoopbackAddress() : OwnAddressTowardsMaster();
    notice.port = server_->port();
    absl::Status status = Claim();
    if (!status.ok()) return status;
    status = board_->Post(notice);
    posted_ = status.ok();
    return status;
  }

  // For a notice: rank 0 need not run on the master's host.
  std::string OwnAddressTowardsMaster() const {
    if (!launch_.own_address.empty()) return launch_.own_address;
    const std::string own = LocalAddressTowards(launch_.master_address);
    return own.empty() || IsLoopback(own) ? launch_.master_address : own;
  }

  absl::Status Find() {
    std::string reason = "it has not said where it listens";
    bool refused = false;
    while (absl::Now() < patience_.deadline) {
      if (patience_.stopped()) {
        return absl::CancelledError(absl::StrCat(
            "rank ", launch_.rank, " was told to stop while it waited for rank 0: ", reason));
      }
      absl::StatusOr<std::optional<Notice>> notice = board_->Read();
      if (!notice.ok()) return notice.status();
      if (notice->has_value()) {
        absl::Status status = TryNotice(**notice);
        if (status.ok()) return status;
        // A refusal says more than that rank 0, whose deadline has passed as well, is gone.
        const bool refusal = !absl::IsDeadlineExceeded(status);
        if (refusal || !refused) reason = std::string(status.message());
        refused = refused || refusal;
      }
      absl::SleepFor(kRetry);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("rank 0 of ", launch_.size, " did not arrive within ",
                     absl::FormatDuration(patience_.limit), ": ", reason));
  }

  // A notice that nobody answers for is of a rank 0 that has ended, in this attempt or an earlier.
  void RemoveOrphan() {
    absl::StatusOr<std::optional<Notice>> notice = board_->Read();
    if (!notice.ok() || !notice->has_value()) return;
    constexpr absl::Duration kMoment = absl::Milliseconds(200);
    const absl::Status answer =
        ConnectTcpStore((*notice)->host, (*notice)->port, Secret(**notice), kMoment).status();
    if (absl::IsDeadlineExceeded(answer)) board_->Remove();
  }

  absl::Status TryNotice(const Notice& notice) {
    absl::StatusOr<std::shared_ptr<Store>> store =
        ConnectTcpStore(notice.host, notice.port, Secret(notice), std::min(kAttempt, Left()));
    if (!store.ok()) return store.status();
    meeting_.store = *std::move(store);
    return Claim();
  }

  // Two processes that hold the same rank, or one that came to an earlier attempt's store, must not
  // both go on.
  absl::Status Claim() {
    absl::StatusOr<std::string> size =
        meeting_.store->CompareSet("size", "", absl::StrCat(launch_.size));
    if (!size.ok()) return size.status();
    if (*size != absl::StrCat(launch_.size)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", launch_.rank, " was started as one of ", launch_.size, ", others of ", *size));
    }
    absl::StatusOr<int64_t> claims = meeting_.store->Add(absl::StrCat("claim/", launch_.rank), 1);
    if (!claims.ok()) return claims.status();
    if (*claims == 1) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("another process is rank ", launch_.rank, " already"));
  }

  absl::Status CountCpus() {
    absl::StatusOr<int64_t> order = meeting_.store->Add(HostKey(), 1);
    if (!order.ok()) return order.status();
    arrival_order_ = static_cast<int>(*order) - 1;
    if (arrival_order_ == 0) {
      const absl::Status counted = meeting_.store->Add("hosts", 1).status();
      if (!counted.ok()) return counted;
    }
    return meeting_.store->Add(CpuKey(), 1).status();
  }

  absl::Status ReadCounts() {
    auto read = [this](const std::string& key, int& out) {
      absl::StatusOr<int64_t> count = meeting_.store->Add(key, 0);
      if (count.ok()) out = static_cast<int>(*count);
      return count.status();
    };
    int on_host = 1;
    absl::Status status = read(CpuKey(), meeting_.cpu_sharers);
    if (status.ok()) status = read(HostKey(), on_host);
    if (status.ok()) status = read("hosts", meeting_.hosts);
    meeting_.local_rank = launch_.local_known ? launch_.local_rank : arrival_order_;
    meeting_.local_size = launch_.local_known ? launch_.local_size : on_host;
    return status;
  }

  static std::string CpuKey() {
    std::string key = absl::StrCat(HostKey(), "/cpus/");
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return key;
    for (size_t byte = 0; byte < sizeof(set); ++byte) {
      absl::StrAppend(&key, absl::Hex(reinterpret_cast<const uint8_t*>(&set)[byte]));
    }
    return key;
  }

  absl::Status ChooseAddress() {
    if (!launch_.own_address.empty()) {
      meeting_.address = launch_.own_address;
      return absl::OkStatus();
    }
    meeting_.address = LoopbackAddress();
    if (launch_.one_host() || launch_.master_address.empty()) return absl::OkStatus();
    if (launch_.rank == 0) {
      // Rank 0 may know itself by a loopback name only; its guests know better.
      const std::string reached = server_->reached_address();
      if (!reached.empty()) meeting_.address = reached;
      return meeting_.store->Set("address/0", meeting_.address);
    }
    const std::string own = LocalAddressTowards(launch_.master_address);
    if (!own.empty() && !IsLoopback(own)) {
      meeting_.address = own;
      return absl::OkStatus();
    }
    absl::StatusOr<std::string> shared = GetPatiently(*meeting_.store, "address/0", patience_);
    if (shared.ok()) meeting_.address = *shared;
    return shared.status();
  }

  const LaunchInfo& launch_;
  const Patience& patience_;
  std::unique_ptr<NoticeBoard> board_;
  std::unique_ptr<TcpStoreServer> server_;  // rank 0; the meeting's store keeps it alive
  bool posted_ = false;                     // a notice that is not ours stays where it is
  int arrival_order_ = 0;
  Meeting meeting_;
};

}  // namespace

std::string RandomSecret() {
  unsigned char bytes[16] = {};
  SHERD_CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes), "no random numbers");
  std::string text;
  for (unsigned char byte : bytes) absl::StrAppend(&text, absl::Hex(byte, absl::kZeroPad2));
  return text;
}

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

std::string HostKey() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return absl::StrCat("host/", name, "/", boot);
}

absl::StatusOr<Meeting> Meet(const LaunchInfo& launch, const Patience& patience) {
  return Rendezvous(launch, patience).Run();
}

}  // namespace sherd::internal
