#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sherd::internal {

// What a name or a number stands for. An IPv6 address may stand in brackets.
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
// `kind` is SOCK_STREAM or SOCK_DGRAM, `flags` those of getaddrinfo.
// Errors: kUnavailable naming the host, with the resolver's reason.
absl::StatusOr<Addresses> Resolve(const std::string& host, int port, int kind, int flags);

// "host:port", with brackets around an IPv6 address.
std::string HostPort(const std::string& host, int port);
// The number of an address; one of IPv4 in IPv6 clothes is written as IPv4. "" for other families.
std::string NumericAddress(const sockaddr* address, socklen_t length);

bool IsLoopback(std::string_view address);
// How this host calls itself: 127.0.0.1, or ::1 where there is no IPv4.
std::string LoopbackAddress();
// The address from which this host would reach `host`, "" when that has none. Sends nothing.
std::string LocalAddressTowards(const std::string& host);
// For each address of `host`: that address if it is one of this host's, else the one from which
// this host would reach it. Each once; empty when nothing is known. Sends nothing.
std::vector<std::string> OwnAddressesFor(const std::string& host);
// The addresses of this host's interfaces that are up, without loopback and link-local ones.
std::vector<std::string> InterfaceAddresses();

}  // namespace sherd::internal
