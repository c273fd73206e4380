#include "sherd/runtime/comm/internal/nccl_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread.h"
#include "sherd/runtime/comm/internal/call_record.h"
#include "sherd/runtime/cuda/internal/backend.h"

namespace sherd::internal {
namespace {

constexpr std::chrono::milliseconds kTick{20};
// How long a communicator that is not needed any more may take to finish in order.
constexpr std::chrono::seconds kGoodbye{2};

// What the first rank of a group tells the others.
struct Invitation {
  ncclResult_t result = ncclSuccess;
  ncclUniqueId id = {};
};

// Waits a little longer each time, so that what is quick is not slowed down.
class Patience {
 public:
  void Rest() {
    std::this_thread::sleep_for(rest_);
    rest_ = std::min(2 * rest_, std::chrono::microseconds(1000));
  }

 private:
  std::chrono::microseconds rest_{10};
};

}  // namespace

cudaStream_t StreamOf(const Device& device) { return cuda::BackendOf(device).stream(); }

NcclChannel::NcclChannel(NcclLink& link, std::shared_ptr<ProcessGroup> control, std::string name,
                         std::vector<int> members)
    : link_(link),
      control_(std::move(control)),
      name_(std::move(name)),
      members_(std::move(members)) {
  link_.Register(this);
}

NcclChannel::~NcclChannel() {
  try {
    for (Patience patience; link_.failure().ok() && !AllDone();) patience.Rest();
  } catch (const Error& error) {
    link_.Fail(error.status());
  }
  link_.Unregister(this);
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;
  const Clock::time_point until = Clock::now() + kGoodbye;
  bool finished = link_.failure().ok();
  if (finished) {
    ncclResult_t result = ncclCommFinalize(comm_);
    for (Patience patience; result == ncclInProgress && Clock::now() < until; patience.Rest()) {
      if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) break;
    }
    finished = result == ncclSuccess;
  }
  finished ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
}

std::string NcclChannel::TextOf(ncclResult_t result) const {
  std::string text = absl::StrCat("NCCL: ", ncclGetErrorString(result));
  const char* more = comm_ == nullptr ? nullptr : ncclGetLastError(comm_);
  if (more != nullptr && *more != '\0') absl::StrAppend(&text, " (", more, ")");
  return text;
}

std::string NcclChannel::Describe(const CollectiveCall& call) const {
  const int root = call.root < 0 ? -1 : members_[static_cast<size_t>(call.root)];
  return absl::StrCat(internal::Describe(RecordOf(call), root), " on '", name_, "'");
}

void NcclChannel::Refuse(const CollectiveCall& call, const std::string& text) {
  link_.Fail(absl::InternalError(
      absl::StrCat("rank ", link_.rank(), " failed in ", Describe(call), ": ", text)));
  link_.ThrowIfFailed();
  ThrowError(Error(absl::StatusCode::kInternal, text));
}

void NcclChannel::Connect(const CollectiveCall& call) {
  Invitation invitation;
  if (control_->rank() == 0) invitation.result = ncclGetUniqueId(&invitation.id);
  control_->Broadcast(&invitation, sizeof(invitation), 0, {.op = "connect"});
  std::string refused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    StreamOf(link_.device());  // makes the device current
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t result = invitation.result;
    if (result == ncclSuccess) {
      result = ncclCommInitRankConfig(&comm_, control_->size(), invitation.id, control_->rank(),
                                      &config);
    }
    if (result != ncclSuccess && result != ncclInProgress) refused = TextOf(result);
  }
  if (!refused.empty()) Refuse(call, absl::StrCat("a communicator cannot be made: ", refused));
  AwaitReady(call);
  std::lock_guard<std::mutex> lock(mutex_);
  ready_ = true;
}

// Returns when NCCL has taken what it was asked for, connections to peers included.
void NcclChannel::AwaitReady(const CollectiveCall& call) {
  const auto timeout = absl::ToChronoNanoseconds(link_.options().timeout);
  const Clock::time_point begin = Clock::now();
  for (Patience patience;; patience.Rest()) {
    link_.ThrowIfFailed();
    std::string wrong;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ncclResult_t result = ncclInProgress;
      if (comm_ != nullptr) {
        const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
        if (asked != ncclSuccess) result = asked;
      }
      if (result == ncclSuccess) return;
      if (result != ncclInProgress) wrong = TextOf(result);
    }
    if (!wrong.empty()) Refuse(call, wrong);
    if (Clock::now() - begin > timeout) {
      link_.Fail(absl::DeadlineExceededError(absl::StrCat(
          Describe(call), " timed out on rank ", link_.rank(), ": not all of its ", members_.size(),
          " ranks connected within ", absl::FormatDuration(link_.options().timeout))));
    }
  }
}

void NcclChannel::Launch(const CollectiveCall& call, const Body& body) {
  link_.ThrowIfFailed();
  if (!ready_) Connect(call);
  DeviceQueue& queue = link_.device().backend()->queue();
  std::string refused;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ != nullptr) {
      const cudaStream_t stream = StreamOf(link_.device());
      ncclResult_t result = ncclGroupStart();
      if (result == ncclSuccess) {
        const ncclResult_t asked = body(comm_, stream);
        result = ncclGroupEnd();
        if (asked != ncclSuccess && asked != ncclInProgress) result = asked;
      }
      if (result != ncclSuccess && result != ncclInProgress) refused = TextOf(result);
    }
  }
  if (!refused.empty()) Refuse(call, refused);
  AwaitReady(call);
  std::shared_ptr<const DeviceEvent> end = queue.Record();
  std::lock_guard<std::mutex> lock(mutex_);
  running_.push_back({call, std::move(end), Clock::now()});
}

bool NcclChannel::AllDone() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::all_of(running_.begin(), running_.end(),
                     [](const Running& running) { return running.end->Done(); });
}

absl::Status NcclChannel::Check() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr || !ready_) return absl::OkStatus();
  const Clock::time_point now = Clock::now();
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result != ncclSuccess && result != ncclInProgress) {
    const std::string at =
        running_.empty() ? absl::StrCat("'", name_, "'") : Describe(running_.front().call);
    return absl::UnavailableError(
        absl::StrCat("rank ", link_.rank(), " failed in ", at, ": ", TextOf(result)));
  }
  while (!running_.empty() && running_.front().end->Done()) {
    running_.pop_front();
    if (!running_.empty()) running_.front().since = now;
  }
  if (running_.empty() ||
      now - running_.front().since < absl::ToChronoNanoseconds(link_.options().timeout)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat(Describe(running_.front().call), " timed out on rank ", link_.rank(),
                   ": it was not done within ", absl::FormatDuration(link_.options().timeout), "; ",
                   running_.size() - 1, " more are queued behind it"));
}

void NcclChannel::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

NcclLink::NcclLink(std::shared_ptr<ProcessGroup> control, Device device, const NcclOptions& options)
    : control_(std::move(control)), device_(std::move(device)), options_(options) {
  if (control_->size() > 1) watchdog_ = StartThread([this] { Watch(); }, "sherd/nccl");
}

NcclLink::~NcclLink() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void NcclLink::Fail(const absl::Status& why) noexcept {
  control_->Fail(why);
  const absl::Status first = control_->Failure();  // another rank may have been quicker
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) failure_ = first.ok() ? why : first;
  wake_.notify_all();
}

void NcclLink::Abort(const absl::Status& why) noexcept {
  control_->Abort(why);
  Fail(why);
}

absl::Status NcclLink::failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void NcclLink::ThrowIfFailed() { ThrowIfError(failure()); }

void NcclLink::Register(NcclChannel* channel) {
  std::lock_guard<std::mutex> lock(channels_mutex_);
  channels_.push_back(channel);
}

void NcclLink::Unregister(NcclChannel* channel) {
  std::lock_guard<std::mutex> lock(channels_mutex_);
  std::erase(channels_, channel);
}

// What is wrong, of any channel, or with the ranks.
absl::Status NcclLink::Look() {
  if (absl::Status status = control_->Failure(); !status.ok()) return status;
  std::lock_guard<std::mutex> lock(channels_mutex_);
  for (NcclChannel* channel : channels_) {
    try {
      if (absl::Status status = channel->Check(); !status.ok()) return status;
    } catch (const Error& error) {
      return absl::Status(error.code(), absl::StrCat("rank ", rank(), " failed on '",
                                                     channel->name(), "': ", error.message()));
    }
  }
  return absl::OkStatus();
}

void NcclLink::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    if (failure_.ok()) {
      lock.unlock();
      const absl::Status status = Look();
      if (!status.ok()) Fail(status);
      lock.lock();
    }
    if (!failure_.ok()) {
      lock.unlock();
      {
        std::lock_guard<std::mutex> channels(channels_mutex_);
        for (NcclChannel* channel : channels_) channel->Abort();
      }
      lock.lock();
    }
    if (!stop_) wake_.wait_for(lock, kTick);
  }
}

}  // namespace sherd::internal
