#include "sherd/runtime/comm/internal/host_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/comm/internal/socket.h"

namespace sherd::internal {
namespace {

Socket DatagramSocket(const addrinfo& address) {
  return Socket(
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
}

// The end of a datagram socket that is connected to `address`: that only looks up the route.
std::string SourceTowards(const addrinfo& address) {
  Socket socket = DatagramSocket(address);
  if (!socket || connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) return "";
  return LocalAddress(socket);
}

bool IsOwn(const addrinfo& address) {
  Socket socket = DatagramSocket(address);
  sockaddr_storage copy{};
  std::copy_n(reinterpret_cast<const char*>(address.ai_addr), address.ai_addrlen,
              reinterpret_cast<char*>(&copy));
  // Any port: only the address is asked about.
  if (copy.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(copy).sin_port = 0;
  if (copy.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(copy).sin6_port = 0;
  return socket &&
         bind(socket.fd(), reinterpret_cast<const sockaddr*>(&copy), address.ai_addrlen) == 0;
}

void AddOnce(std::string address, std::vector<std::string>& all) {
  if (address.empty() || std::find(all.begin(), all.end(), address) != all.end()) return;
  all.push_back(std::move(address));
}

bool IsLinkLocal(std::string_view address) {
  return address.substr(0, 8) == "169.254." || address.find('%') != std::string_view::npos ||
         address.substr(0, 5) == "fe80:";
}

}  // namespace

absl::StatusOr<Addresses> Resolve(const std::string& host, int port, int kind, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = kind;
  hints.ai_flags = flags;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve host '", host, "': ", gai_strerror(rc)));
  }
  return Addresses(found, &freeaddrinfo);
}

std::string HostPort(const std::string& host, int port) {
  const bool bare = host.find(':') != std::string::npos && host.front() != '[';
  return bare ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string NumericAddress(const sockaddr* address, socklen_t length) {
  if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    char text[INET_ADDRSTRLEN] = "";
    if (IN6_IS_ADDR_V4MAPPED(&six)) {
      inet_ntop(AF_INET, six.s6_addr + 12, text, sizeof(text));
      return text;
    }
  } else if (address->sa_family != AF_INET) {
    return "";
  }
  char text[NI_MAXHOST] = "";
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

bool IsLoopback(std::string_view address) {
  return address.substr(0, 4) == "127." || address == "::1";
}

std::string LoopbackAddress() {
  absl::StatusOr<Addresses> four = Resolve("127.0.0.1", 0, SOCK_DGRAM, AI_NUMERICHOST);
  absl::StatusOr<Addresses> six = Resolve("::1", 0, SOCK_DGRAM, AI_NUMERICHOST);
  const bool only_six = four.ok() && six.ok() && !IsOwn(**four) && IsOwn(**six);
  return only_six ? "::1" : "127.0.0.1";
}

std::string LocalAddressTowards(const std::string& host) {
  absl::StatusOr<Addresses> addresses = Resolve(host, 9, SOCK_DGRAM, AI_NUMERICSERV);
  if (!addresses.ok()) return "";
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) {
    std::string source = SourceTowards(*a);
    if (!source.empty()) return source;
  }
  return "";
}

std::vector<std::string> OwnAddressesFor(const std::string& host) {
  std::vector<std::string> all;
  absl::StatusOr<Addresses> addresses = Resolve(host, 9, SOCK_DGRAM, AI_NUMERICSERV);
  if (!addresses.ok()) return all;
  for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) {
    AddOnce(IsOwn(*a) ? NumericAddress(a->ai_addr, a->ai_addrlen) : SourceTowards(*a), all);
  }
  return all;
}

std::vector<std::string> InterfaceAddresses() {
  std::vector<std::string> all;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return all;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const bool six = i->ifa_addr->sa_family == AF_INET6;
    std::string address =
        NumericAddress(i->ifa_addr, six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (!IsLoopback(address) && !IsLinkLocal(address)) AddOnce(std::move(address), all);
  }
  freeifaddrs(first);
  return all;
}

}  // namespace sherd::internal
