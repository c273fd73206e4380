#include "data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/turns.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread.h"

namespace data {
namespace {

// Cuts the samples of a window in order: a micro-batch ends before the sample that would make
// longest x rows exceed the budget.
std::vector<Range> CutByTokens(const Samples& samples, std::span<const int64_t> window,
                               int64_t budget) {
  std::vector<Range> cut;
  int64_t longest = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(window.size()); ++i) {
    const int64_t length = samples.length(window[static_cast<size_t>(i)]);
    longest = std::max(longest, length);
    if (cut.empty() || longest * (i + 1 - cut.back().begin) > budget) {
      cut.push_back({i, i});
      longest = length;
    }
    cut.back().end = i + 1;
  }
  return cut;
}

void Check(const Samples& samples, const LoaderOptions& o, int rank, int size) {
  const std::pair<const char*, int64_t> positive[] = {
      {"window", o.window}, {"rows", o.rows}, {"epochs", o.epochs}, {"prefetch", o.prefetch}};
  for (const auto& [name, value] : positive) {
    if (value < 1) {
      sherd::ThrowInvalidArgument(absl::StrCat("LoaderOptions::", name, " is ", value));
    }
  }
  if (rank < 0 || rank >= size) {
    sherd::ThrowInvalidArgument(absl::StrCat("rank ", rank, " of ", size, " ranks"));
  }
  if (samples.size() < 1) sherd::ThrowInvalidArgument("there are no samples to load");
  for (int64_t i = 0; o.token_budget > 0 && i < samples.size(); ++i) {
    if (samples.length(i) > o.token_budget) {
      sherd::ThrowInvalidArgument(absl::StrCat("sample ", i, " has ", samples.length(i),
                                               " tokens, the token budget is ", o.token_budget));
    }
  }
}

// A micro-batch before it is put on a device; the names are those of Batch.
struct HostBatch {
  std::vector<int64_t> samples, tokens, labels, positions, segments;
  std::vector<int64_t> cu_seqlens;  // empty where no row has several pieces
  int64_t columns = 0;
};

HostBatch MakeHostBatch(const Samples& samples, std::span<const int64_t> which) {
  HostBatch made;
  made.samples.assign(which.begin(), which.end());
  for (int64_t i : which) made.columns = std::max(made.columns, samples.length(i));
  const auto columns = static_cast<size_t>(made.columns);
  for (auto* all : {&made.tokens, &made.positions, &made.segments}) {
    all->assign(columns * which.size(), 0);
  }
  made.labels.assign(columns * which.size(), kIgnored);
  bool several = false;
  made.cu_seqlens.push_back(0);
  for (size_t r = 0; r < which.size(); ++r) {
    const PackedRow row = samples.Row(which[r]);
    const auto first = static_cast<int64_t>(r * columns);
    const auto place = [&](const std::vector<int64_t>& from, std::vector<int64_t>& to) {
      std::copy(from.begin(), from.end(), to.begin() + first);
    };
    place(row.tokens, made.tokens);
    place(row.labels, made.labels);
    place(row.positions, made.positions);
    place(row.segments, made.segments);
    several = several || row.bounds.size() > 2;
    for (size_t i = 1; i < row.bounds.size(); ++i) made.cu_seqlens.push_back(first + row.bounds[i]);
    if (made.cu_seqlens.back() < first + made.columns) {
      made.cu_seqlens.push_back(first + made.columns);
    }
  }
  if (!several) made.cu_seqlens.clear();
  return made;
}

Batch ToDevice(HostBatch made, const sherd::Device& device) {
  const auto rows = static_cast<int64_t>(made.samples.size());
  const auto tensor = [&](const std::vector<int64_t>& values) {
    return sherd::Tensor::FromHost<int64_t>(device, values, {rows, made.columns});
  };
  Batch batch{tensor(made.tokens),
              tensor(made.labels),
              tensor(made.positions),
              tensor(made.segments),
              {},
              std::move(made.samples)};
  if (!made.cu_seqlens.empty()) {
    batch.cu_seqlens = sherd::Tensor::FromHost<int64_t>(
        device, made.cu_seqlens, {static_cast<int64_t>(made.cu_seqlens.size())});
  }
  return batch;
}

}  // namespace

Batch MakeBatch(const Samples& samples, std::span<const int64_t> which,
                const sherd::Device& device) {
  return ToDevice(MakeHostBatch(samples, which), device);
}

// What a call returns: a micro-batch, the end of a window, an error or the end of the run.
struct Loader::Made {
  enum class Kind { kBatch, kWindowEnd, kError, kRunEnd } kind = Kind::kRunEnd;
  HostBatch batch;
  Cursor next;  // of a window's end: where the next begins
  std::exception_ptr error;
};

// The thread and what it made ahead.
class Loader::Worker {
 public:
  explicit Worker(const Loader& loader)
      : loader_(loader),
        turns_(
            loader.order_, loader.at_, loader.options_.window,
            [&loader](std::span<const int64_t> window) { return loader.Cut(window); }, loader.rank_,
            loader.size_) {
    thread_ = sherd::StartThread([this] { Run(); });
  }
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Waits for the next thing made; an error or the run's end stays the answer for good.
  Made Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !queue_.empty(); });
    const bool last =
        queue_.front().kind == Made::Kind::kError || queue_.front().kind == Made::Kind::kRunEnd;
    if (last) return queue_.front();
    Made made = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    return made;
  }

 private:
  void Run() {
    pthread_setname_np(pthread_self(), "data loader");
    try {
      while (turns_.next().epoch < loader_.options_.epochs) {
        while (const std::optional<std::vector<int64_t>> which = turns_()) {
          if (!Put({Made::Kind::kBatch, MakeHostBatch(loader_.samples_, *which), {}, {}})) return;
        }
        if (!Put({Made::Kind::kWindowEnd, {}, turns_.next(), {}})) return;
      }
      Put({});
    } catch (...) {
      Put({Made::Kind::kError, {}, {}, std::current_exception()});
    }
  }

  // Waits for room; false when the loader goes.
  bool Put(Made made) {
    std::unique_lock lock(mutex_);
    const auto most = static_cast<size_t>(loader_.options_.prefetch);
    changed_.wait(lock, [&] { return stop_ || queue_.size() < most; });
    if (stop_) return false;
    queue_.push_back(std::move(made));
    changed_.notify_all();
    return true;
  }

  const Loader& loader_;
  Turns turns_;  // of the thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<Made> queue_;
  std::thread thread_;
};

Loader::Loader(const Samples& samples, const LoaderOptions& options, int rank, int size,
               const sherd::Device& device)
    : samples_(samples),
      options_(options),
      rank_(rank),
      size_(size),
      device_(device),
      order_((Check(samples, options, rank, size), samples.size()), options.seed) {}

Loader::~Loader() = default;

std::vector<Range> Loader::Cut(std::span<const int64_t> window) const {
  if (options_.token_budget > 0) return CutByTokens(samples_, window, options_.token_budget);
  return CutMicroBatches(static_cast<int64_t>(window.size()), options_.rows);
}

std::optional<Batch> Loader::operator()() {
  if (worker_ == nullptr) worker_ = std::make_unique<Worker>(*this);
  Made made = worker_->Next();
  if (made.kind == Made::Kind::kError) std::rethrow_exception(made.error);
  if (made.kind == Made::Kind::kWindowEnd) at_ = made.next;
  if (made.kind != Made::Kind::kBatch) return std::nullopt;
  return ToDevice(std::move(made.batch), device_);
}

std::string Loader::state() const { return order_.Save(at_); }

absl::Status Loader::Restore(const std::string& state) {
  const absl::StatusOr<Cursor> at = order_.Restore(state);
  if (!at.ok()) return at.status();
  worker_.reset();
  at_ = *at;
  return absl::OkStatus();
}

}  // namespace data
