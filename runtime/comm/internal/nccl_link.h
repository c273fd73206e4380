#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "sherd/runtime/comm/nccl_group.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/device.h"

namespace sherd::internal {

class NcclLink;

// The communicator of one group, fork or part, made when it is first needed, and what runs on it.
//
// [Note: nobody is inside NCCL when it is aborted] Communicators do not block, so every call into
// NCCL is short and made under `mutex_`. The watchdog takes it to look and to abort; whoever waits
// until NCCL is ready looks again and again, and finds the communicator gone.
// Threads: Launch one at a time; the rest is the watchdog's.
class NcclChannel {
 public:
  // `control` carries the unique id among `members`, ranks of the link.
  NcclChannel(NcclLink& link, std::shared_ptr<ProcessGroup> control, std::string name,
              std::vector<int> members);
  // Waits for what runs, unless the link has failed, and ends the communicator.
  ~NcclChannel();

  using Body = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  // Queues what `body` asks NCCL for on the calling thread's queue, as one group of calls.
  // Errors: throws the link's failure, which is NCCL's where it refuses.
  void Launch(const CollectiveCall& call, const Body& body);

  // What is wrong with the communicator or late on it; OK where nothing is. For the watchdog.
  absl::Status Check();
  void Abort();

  const std::string& name() const { return name_; }
  const std::vector<int>& members() const { return members_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    CollectiveCall call;
    std::shared_ptr<const DeviceEvent> end;
    Clock::time_point since;  // when it became the first
  };

  void Connect(const CollectiveCall& call);
  void AwaitReady(const CollectiveCall& call);
  bool AllDone();
  std::string Describe(const CollectiveCall& call) const;
  // The text of what NCCL answered. REQUIRES: `mutex_` is held.
  std::string TextOf(ncclResult_t result) const;
  [[noreturn]] void Refuse(const CollectiveCall& call, const std::string& text);

  NcclLink& link_;
  const std::shared_ptr<ProcessGroup> control_;
  const std::string name_;
  const std::vector<int> members_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  bool ready_ = false;
  std::deque<Running> running_;
};

// The communicators of one rank and their fate, shared by a group, its forks and parts.
//
// A link fails once. Fail hands the reason to the control group, which spreads it, and the watchdog
// of every rank that finds its control group dead aborts all communicators.
// Threads: safe.
class NcclLink {
 public:
  NcclLink(std::shared_ptr<ProcessGroup> control, Device device, const NcclOptions& options);
  ~NcclLink();

  const Device& device() const { return device_; }
  const NcclOptions& options() const { return options_; }
  int rank() const { return control_->rank(); }

  void Fail(const absl::Status& why) noexcept;
  void Abort(const absl::Status& why) noexcept;
  absl::Status failure();
  void ThrowIfFailed();

 private:
  friend class NcclChannel;
  void Register(NcclChannel* channel);
  void Unregister(NcclChannel* channel);
  void Watch();
  absl::Status Look();

  const std::shared_ptr<ProcessGroup> control_;
  const Device device_;
  const NcclOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  absl::Status failure_;
  bool stop_ = false;
  std::mutex
      channels_mutex_;  // held while the watchdog looks at channels: they do not go meanwhile
  std::vector<NcclChannel*> channels_;
  std::thread watchdog_;
};

// The calling thread's queue of `device`, which is made current.
cudaStream_t StreamOf(const Device& device);

}  // namespace sherd::internal
