#include "tests/support/ranks.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace sherd::testing {
namespace {

// The exception that was thrown first, whichever rank threw it.
class FirstError {
 public:
  void Note(std::exception_ptr error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  void Rethrow() const {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

void RunRank(const std::shared_ptr<Store>& store, int rank, int size,
             const std::function<void(World&)>& body, const RankOptions& options,
             FirstError& first) {
  try {
    absl::StatusOr<World> world =
        World::FromStore(store, rank, size,
                         {.device = options.device,
                          .cuda_index = options.cuda_index,
                          .cuda_memory_bytes = options.cuda_memory_bytes,
                          .driver = options.driver,
                          .threads = options.threads,
                          .rendezvous_timeout = options.rendezvous_timeout,
                          .collective_timeout = options.collective_timeout,
                          .piece_bytes = options.piece_bytes,
                          .log = options.log,
                          .wrap_group = options.wrap_group});
    ThrowIfError(world.status());
    try {
      body(*world);
      ThrowIfError(world->Finish());
    } catch (const std::exception& error) {
      first.Note(std::current_exception());
      world->group().Abort(absl::UnknownError(error.what()));
    } catch (...) {
      first.Note(std::current_exception());
      world->group().Abort(absl::UnknownError("an exception of unknown type"));
    }
  } catch (...) {
    first.Note(std::current_exception());
  }
}

}  // namespace

void RunRanksOver(const Transport& transport, int world_size,
                  const std::function<void(World&)>& body, RankOptions options) {
  options.wrap_group = [&transport, wrap = options.wrap_group](std::shared_ptr<ProcessGroup> g) {
    g = transport(std::move(g));
    return wrap ? wrap(std::move(g)) : g;
  };
  FirstError first;
  const std::shared_ptr<Store> store = MakeMemoryStore();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] { RunRank(store, rank, world_size, body, options, first); });
  }
  for (std::thread& thread : ranks) thread.join();
  first.Rethrow();
}

}  // namespace sherd::testing
