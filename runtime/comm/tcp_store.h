#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/runtime/comm/store.h"

namespace sherd {

// Serves a table to the ranks of one job over TCP.
//
// Starts one thread, which blocks all signals. A connection must begin with the secret; one that
// does not, or that breaks the protocol or a limit, is closed, and nothing else is disturbed. The
// secret keeps other jobs and strangers apart; nothing is encrypted. The protocol is described in
// runtime/comm/README.md.
// Ownership: destroyed when this handle and all of `local()`'s are gone; clients then see
//   kUnavailable.
class TcpStoreServer {
 public:
  struct Options {
    // The addresses to listen on, all at one port: loopback when all ranks share a host, otherwise
    // those of the interfaces by which peers come. Nobody reaches the server by any other.
    std::vector<std::string> addresses = {"127.0.0.1"};
    int port = 0;  // 0: any free one
    // At most 256 bytes. Compared in constant time, before anything else is read.
    std::string secret;
    // When there are as many, a further one takes the place of the oldest that has not shown the
    // secret; when all have, it is closed at once. A rank uses about three.
    int max_connections = 4096;
    // A connection that has not shown the secret by then is closed.
    absl::Duration secret_timeout = absl::Seconds(10);
    // How long the destructor waits for clients to close their connections, so that they can still
    // fetch what was set last.
    absl::Duration linger;
  };

  // Errors: kUnavailable when an address cannot be listened on, with the system's reason;
  // kInvalidArgument for a secret longer than 256 bytes or no address.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Listen(Options options);
  ~TcpStoreServer();

  int port() const;
  // The table itself, for the rank that hosts it: no connection needed.
  std::shared_ptr<Store> local() const;
  // The address of this host at which a client with the secret reached it, "" while all came
  // by loopback.
  std::string reached_address() const;

 private:
  class Impl;
  explicit TcpStoreServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Connects to a TcpStoreServer, trying again while nobody listens.
// Errors: kDeadlineExceeded with the last reason; kPermissionDenied when the server knows another
//   secret.
absl::StatusOr<std::shared_ptr<Store>> ConnectTcpStore(const std::string& host, int port,
                                                       const std::string& secret,
                                                       absl::Duration timeout);

// Connects to the store that torchrun's agent serves at MASTER_ADDR:MASTER_PORT, in the dialect of
// PyTorch up to 2.1 or from 2.2 on, whichever the server speaks.
// Errors: kDeadlineExceeded with the last reason.
// Source: torch/csrc/distributed/c10d/TCPStore*.cpp.
absl::StatusOr<std::shared_ptr<Store>> ConnectTorchStore(const std::string& host, int port,
                                                         absl::Duration timeout);

}  // namespace sherd
