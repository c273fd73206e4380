#include "sherd/runtime/comm/internal/gloo_link.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/runtime/base/thread.h"
#include "sherd/runtime/comm/internal/arrival.h"
#include "sherd/runtime/core/random.h"

namespace sherd::internal {
namespace {

constexpr uint64_t kSentinelSlot = static_cast<uint64_t>(WireKind::kSentinel) << 56;

// Our Store as Gloo wants to see one. Gloo expects exceptions.
class StoreAdapter final : public gloo::rendezvous::Store {
 public:
  StoreAdapter(sherd::Store& store, const Patience& patience)
      : store_(store), patience_(patience) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    ThrowIfError(store_.Set(Key(key), std::string_view(data.data(), data.size())));
  }
  std::vector<char> get(const std::string& key) override {
    absl::StatusOr<std::string> value = GetPatiently(store_, Key(key), patience_);
    ThrowIfError(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  static std::string Key(const std::string& key) { return "pairs/" + key; }

  sherd::Store& store_;
  const Patience& patience_;
};

}  // namespace

GlooLink::GlooLink(std::shared_ptr<Store> store, int rank, int size, const GlooOptions& options)
    : store_(std::move(store)), rank_(rank), size_(size), options_(options), herald_(store_) {}

absl::StatusOr<std::shared_ptr<GlooLink>> GlooLink::Connect(std::shared_ptr<Store> store, int rank,
                                                            int size, const GlooOptions& options) {
  SigpipeGuard sigpipe;
  std::shared_ptr<GlooLink> link(new GlooLink(std::move(store), rank, size, options));
  if (absl::Status status = link->ConnectMesh(); !status.ok()) return status;
  link->PostSentinels();
  link->watchdog_ = StartThread([raw = link.get()] { raw->Watch(); }, "sherd/watchdog");
  return link;
}

absl::Status GlooLink::ConnectMesh() {
  const Patience patience(options_.connect_timeout, options_.should_stop);
  if (absl::Status status = AwaitArrival(*store_, "here", rank_, size_, patience); !status.ok()) {
    return status;
  }
  try {
    gloo::transport::tcp::attr attr;
    attr.hostname = options_.address;
    {
      SignalsBlocked blocked;  // both inherited by the device's thread
      ThreadNamed named("sherd/gloo");
      device_ = gloo::transport::tcp::CreateDevice(attr);
    }
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    // Gloo waits for a connection five times as long as it is told.
    context->setTimeout(absl::ToChronoMilliseconds(
        std::clamp(options_.connect_timeout / 5, absl::Seconds(1), absl::Seconds(20))));
    StoreAdapter adapter(*store_, patience);
    context->connectFullMesh(adapter, device_);
    // A context that is not connected has nothing to close, and throws when told to.
    context_ = std::move(context);
  } catch (const std::exception& error) {
    // A peer that was connected and failed before us has said why.
    if (ConsultStore()) return failure_;
    const auto* own = dynamic_cast<const Error*>(&error);
    return absl::Status(own == nullptr ? absl::StatusCode::kUnavailable : own->code(),
                        absl::StrCat("rank ", rank_, " of ", size_, " at ", options_.address,
                                     " could not connect to its peers: ", error.what()));
  }
  return absl::OkStatus();
}

void GlooLink::PostSentinels() {
  sentinel_memory_.resize(static_cast<size_t>(size_));
  sentinels_.resize(static_cast<size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    auto& sentinel = sentinels_[static_cast<size_t>(peer)];
    sentinel = NewBuffer(&sentinel_memory_[static_cast<size_t>(peer)], 1);
    try {
      sentinel->recv(peer, kSentinelSlot, 0, 1);
    } catch (const std::exception& error) {
      // Broken already: the first collective fails and finds out why.
    }
  }
}

GlooLink::~GlooLink() {
  SigpipeGuard sigpipe;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_watchdog_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  // A posted receive whose buffer is gone when data arrives keeps Gloo's thread spinning, so
  // connections go first.
  if (context_ != nullptr) context_->closeConnections();
  channels_.clear();
  sentinels_.clear();
  context_.reset();
  device_.reset();
}

std::unique_ptr<gloo::transport::UnboundBuffer> GlooLink::NewBuffer(void* data, int64_t bytes) {
  return context_->createUnboundBuffer(data, static_cast<size_t>(bytes));
}

Channel& GlooLink::OpenWorld() {
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return Open("world", /*id=*/0, std::move(all));
}

Channel& GlooLink::OpenChannel(Channel& parent, std::string name, std::vector<int> members) {
  uint64_t id = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    id = Mix64(parent.id, ++parent.children) >> (64 - kChannelBits);
  }
  if (parent.id != 0) name = absl::StrCat(parent.name, "/", name);
  return Open(std::move(name), id, std::move(members));
}

Channel& GlooLink::Open(std::string name, uint64_t id, std::vector<int> members) {
  Channel* channel = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Channel& other : channels_) {
      SHERD_CHECK(other.id != id, absl::StrCat("'", name, "' and '", other.name, "' have one id"));
    }
    channel = &channels_.emplace_back();
    channel->id = id;
  }
  channel->name = std::move(name);
  channel->rank =
      static_cast<int>(std::lower_bound(members.begin(), members.end(), rank_) - members.begin());
  channel->members = std::move(members);
  channel->received.resize(channel->members.size());
  channel->send_header = std::make_unique<WireBuffer>(*this, &channel->sent, sizeof(CallHeader));
  channel->receive_header = std::make_unique<WireBuffer>(
      *this, channel->received.data(),
      static_cast<int64_t>(channel->received.size() * sizeof(CallHeader)));
  SigpipeGuard sigpipe;
  PostHeaders(*channel);
  std::lock_guard<std::mutex> lock(mutex_);
  channel->ready = true;
  return *channel;
}

void GlooLink::PostHeaders(Channel& channel) {
  constexpr int64_t kBytes = sizeof(CallHeader);
  std::fill(channel.received.begin(), channel.received.end(), CallHeader{});
  try {
    for (size_t i = 0; i < channel.members.size(); ++i) {
      if (channel.members[i] == rank_) continue;
      channel.receive_header->Receive(channel.members[i], WireSlot(WireKind::kHeader, channel),
                                      static_cast<int64_t>(i) * kBytes, kBytes);
    }
  } catch (const Interrupted& broken) {
    channel.posting_failed = broken.text;
  }
}

void GlooLink::Register(gloo::transport::UnboundBuffer* buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.insert(buffer);
  if (failure_.ok()) return;
  buffer->abortWaitRecv();
  buffer->abortWaitSend();
}

void GlooLink::Unregister(gloo::transport::UnboundBuffer* buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.erase(buffer);
}

void GlooLink::Begin(Channel& channel, const CollectiveCall& call) {
  std::unique_lock<std::mutex> lock(mutex_);
  failed_.wait(lock, [this] { return !deciding_; });
  ThrowIfError(failure_);
  channel.running = true;
  channel.call = RecordOf(call);
  channel.expired = false;
  channel.waiting_for = -1;
  channel.agreed = false;
  channel.deadline = std::chrono::steady_clock::now() +
                     absl::ToChronoNanoseconds(std::min(options_.timeout, absl::Hours(24 * 365)));
  ++running_;
}

void GlooLink::CheckInTime(const Channel& channel) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (channel.expired) throw Interrupted{};
}

void GlooLink::End(Channel& channel) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    channel.running = false;
    last_ = &channel;
    channel.agreed = false;
    --running_;
    if (failure_.ok()) return;
  }
  wake_watchdog_.notify_all();
}

void GlooLink::Fail(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  FailLocked(status, /*publish=*/true);
}

absl::Status GlooLink::failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void GlooLink::Abort(const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  FailLocked(absl::AbortedError(absl::StrCat(
                 "rank ", rank_, " aborted: ", std::string(why.message()), WhereaboutsLocked())),
             /*publish=*/true);
}

std::string GlooLink::WhereaboutsLocked() const {
  const auto name = [](const Channel& channel) {
    const int32_t root = channel.call.root;
    return absl::StrCat(
        Describe(channel.call, root < 0 ? -1 : channel.members[static_cast<size_t>(root)]), " on '",
        channel.name, "'");
  };
  std::string text;
  for (const Channel& channel : channels_) {
    if (!channel.running) continue;
    absl::StrAppend(&text, text.empty() ? absl::StrCat("; rank ", rank_, " was in ") : " and ",
                    name(channel));
  }
  if (!text.empty() || last_ == nullptr) return text;
  return absl::StrCat("; the last collective of rank ", rank_, " was ", name(*last_));
}

void GlooLink::FailLocked(const absl::Status& status, bool publish) {
  if (!failure_.ok()) return;
  failure_ = status;
  publish_failure_ = publish;
  for (gloo::transport::UnboundBuffer* buffer : waiting_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
  failed_.notify_all();
  wake_watchdog_.notify_all();
}

// What the other members have announced on a channel nobody here is going to use any more.
void GlooLink::Tell(Channel& channel) {
  std::vector<NamedCall> announced;
  // Without its buffer nothing writes into `received` any more.
  channel.receive_header.reset();
  for (size_t i = 0; i < channel.members.size(); ++i) {
    if (channel.members[i] == rank_) continue;
    const CallHeader& header = channel.agreed ? channel.sent : channel.received[i];
    if (header.magic != 0) announced.push_back({channel.members[i], header.call, ""});
  }
  std::lock_guard<std::mutex> lock(mutex_);
  channel.announced = std::move(announced);
  channel.told = true;
  failed_.notify_all();
}

bool GlooLink::AllToldLocked() const {
  return std::all_of(channels_.begin(), channels_.end(),
                     [](const Channel& c) { return !c.running || c.told; });
}

absl::Status GlooLink::DescribeDeadline(Channel& channel, const CollectiveCall& call) {
  std::vector<Channel*> idle;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Channel& other : channels_) {
      if (other.ready && !other.running) idle.push_back(&other);
    }
  }
  for (Channel* other : idle) Tell(*other);
  Tell(channel);
  std::unique_lock<std::mutex> lock(mutex_);
  failed_.wait_for(lock, std::chrono::seconds(1), [this] { return AllToldLocked(); });

  const CallRecord own = RecordOf(call);
  const int root = call.root < 0 ? -1 : channel.members[static_cast<size_t>(call.root)];
  std::string text =
      absl::StrCat(Describe(own, root), " on '", channel.name, "' timed out on rank ", rank_, ": ");
  std::set<int> missing;
  if (!channel.agreed) {
    missing.insert(channel.members.begin(), channel.members.end());
    missing.erase(rank_);
    for (const NamedCall& came : channel.announced) missing.erase(came.rank);
    absl::StrAppend(&text, RankList(missing), " of ", size_, " did not call it");
  } else if (channel.waiting_for < 0) {
    absl::StrAppend(&text, "it was not done");
  } else {
    missing.insert(channel.waiting_for);
    absl::StrAppend(&text, "the exchange with ", RankList(missing), " was not done");
  }
  absl::StrAppend(&text, " within ", absl::FormatDuration(options_.timeout));
  for (const Channel& other : channels_) {
    if (&other == &channel) continue;
    for (const NamedCall& there : other.announced) {
      if (missing.count(there.rank) == 0) continue;
      const int32_t at = there.record.root;
      absl::StrAppend(&text, "; rank ", there.rank, " is in ",
                      Describe(there.record, at < 0 ? -1 : other.members[static_cast<size_t>(at)]),
                      " on '", other.name, "'");
    }
  }
  return absl::DeadlineExceededError(text);
}

void GlooLink::Explain(Channel& channel, const CollectiveCall& call, const Interrupted& how) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (failure_.ok() && channel.expired && !deciding_) {
    deciding_ = true;
    lock.unlock();
    const absl::Status late = DescribeDeadline(channel, call);
    lock.lock();
    deciding_ = false;
    FailLocked(late, /*publish=*/true);
    failed_.notify_all();
  } else if (failure_.ok() && how.text.empty()) {
    // Another channel's deadline has passed; see [Note: what a deadline's error tells].
    lock.unlock();
    Tell(channel);
    lock.lock();
  }
  if (failure_.ok()) {
    // Without a text our own watchdog ended the wait: the channel that expired says why.
    if (!how.text.empty()) {
      suspect_ = true;
      hurry_ = true;
      wake_watchdog_.notify_all();
    }
    failed_.wait_for(lock, std::chrono::seconds(10), [&] { return !failure_.ok(); });
  }
  if (failure_.ok()) {
    FailLocked(absl::UnavailableError(absl::StrCat("a connection broke: ", how.text)), true);
  }
  const absl::Status failure = failure_;
  lock.unlock();
  ThrowError(Error(failure));
}

}  // namespace sherd::internal
