#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/runtime/comm/gloo_group.h"
#include "sherd/runtime/comm/store.h"
#include "sherd/runtime/comm/world.h"

namespace gloo {
class Context;
}  // namespace gloo

namespace sherd {

// The ways in for a program that has connected its ranks with Gloo already.
//
// The caller's context carries one broadcast, by which the ranks find a store that rank 0 serves;
// then they connect anew, through devices of our own, so that our failures and deadlines close
// nothing of the caller's, and its tags stay its own. Ranks are those of the context.
// Threads: on the thread that calls; SIGPIPE is blocked meanwhile. The context serves nobody else
//   with tag `tag` during the call, and is not used after it.
// Errors: kUnavailable, with Gloo's words, when the context is broken or not connected;
//   kInvalidArgument for none; those of ConnectGloo.
struct GlooContextOptions {
  // Where rank 0 can be reached by all; loopback is right when they share a host.
  std::string address = "127.0.0.1";
  // Of the broadcast, among the caller's own collectives on that context.
  uint32_t tag = 0x5e4d;
  // How long the broadcast, and connecting to the store, may take.
  absl::Duration timeout = absl::Minutes(5);
};

// A table that the ranks of `context` share, served by its rank 0, empty. COLLECTIVE.
// Ownership: the store outlives the context.
absl::StatusOr<std::shared_ptr<Store>> StoreFromGloo(std::shared_ptr<gloo::Context> context,
                                                     const GlooContextOptions& options = {});

// A group of the ranks of `context`. `options.address` is where peers reach this rank, its
// connect_timeout also bounds the broadcast. COLLECTIVE.
absl::StatusOr<std::unique_ptr<ProcessGroup>> GroupFromGloo(std::shared_ptr<gloo::Context> context,
                                                            GlooOptions options);

// A World of the ranks of `context`. COLLECTIVE.
absl::StatusOr<World> WorldFromGloo(std::shared_ptr<gloo::Context> context,
                                    WorldOptions options = {});

}  // namespace sherd
