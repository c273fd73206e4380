#include "sherd/runtime/comm/gloo_context.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/broadcast.h"
#include "sherd/runtime/comm/internal/gloo_wire.h"
#include "sherd/runtime/comm/internal/rendezvous.h"
#include "sherd/runtime/comm/tcp_store.h"

namespace sherd {
namespace {

// What rank 0 tells the others: where its store is, or why there is none.
struct Notice {
  uint32_t port = 0;  // 0: none
  std::array<char, 64> secret{};
  std::array<char, 256> address{};
  std::array<char, 512> why{};
};

template <size_t kBytes>
void Put(std::array<char, kBytes>& field, const std::string& text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), kBytes - 1));
}

absl::Status BroadcastFromRankZero(const std::shared_ptr<gloo::Context>& context, Notice& notice,
                                   const GlooContextOptions& options) {
  const internal::SigpipeGuard sigpipe;
  try {
    gloo::BroadcastOptions call(context);
    call.setOutput(reinterpret_cast<char*>(&notice), sizeof(notice));
    call.setRoot(0);
    call.setTag(options.tag);
    call.setTimeout(absl::ToChronoMilliseconds(options.timeout));
    gloo::broadcast(call);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("the Gloo context of rank ", context->rank, " of ",
                                               context->size,
                                               " could not carry a broadcast: ", error.what()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> StoreFromGloo(std::shared_ptr<gloo::Context> context,
                                                     const GlooContextOptions& options) {
  if (context == nullptr) return absl::InvalidArgumentError("no Gloo context was given");
  if (context->size == 1) return MakeMemoryStore();
  Notice notice;
  std::shared_ptr<Store> store;
  absl::Status refused;
  if (context->rank == 0) {
    const std::string secret = internal::RandomSecret();
    auto server = TcpStoreServer::Listen(
        {.addresses = {options.address}, .secret = secret, .linger = absl::Seconds(2)});
    if (server.ok() && options.address.size() < notice.address.size()) {
      store = (*server)->local();
      notice.port = static_cast<uint32_t>((*server)->port());
      Put(notice.secret, secret);
      Put(notice.address, options.address);
    } else {
      refused =
          server.ok() ? absl::InvalidArgumentError("the address is too long") : server.status();
      Put(notice.why, std::string(refused.message()));
    }
  }
  const absl::Status told = BroadcastFromRankZero(context, notice, options);
  if (!told.ok()) return told;
  if (!refused.ok()) return refused;
  if (notice.port == 0) {
    return absl::UnavailableError(absl::StrCat("rank 0 has no store: ", notice.why.data()));
  }
  if (context->rank == 0) return store;
  return ConnectTcpStore(notice.address.data(), static_cast<int>(notice.port), notice.secret.data(),
                         options.timeout);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> GroupFromGloo(std::shared_ptr<gloo::Context> context,
                                                            GlooOptions options) {
  auto store =
      StoreFromGloo(context, {.address = options.address, .timeout = options.connect_timeout});
  if (!store.ok()) return store.status();
  return ConnectGloo(*store, context->rank, context->size, std::move(options));
}

absl::StatusOr<World> WorldFromGloo(std::shared_ptr<gloo::Context> context, WorldOptions options) {
  GlooContextOptions meeting{.timeout = options.rendezvous_timeout};
  if (!options.address.empty()) meeting.address = options.address;
  auto store = StoreFromGloo(context, meeting);
  if (!store.ok()) return store.status();
  return World::FromStore(*store, context->rank, context->size, std::move(options));
}

}  // namespace sherd
