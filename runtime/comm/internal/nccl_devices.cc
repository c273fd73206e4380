// Which ranks share a device.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/nccl_group.h"
#include "sherd/runtime/cuda/internal/check.h"

namespace sherd {
namespace {

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// The same for all processes of a machine, and no other's.
std::string BootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// What names a device among all, and what to call it in messages; neither has a line's end.
struct Identity {
  std::string key;
  std::string name;
};

Identity IdentityOf(const Device& device, const std::string& host) {
  cudaDeviceProp p = {};
  cuda::Check(cudaGetDeviceProperties(&p, device.id().index), "cudaGetDeviceProperties");
  const std::string place =
      absl::StrFormat("%04x:%02x:%02x", p.pciDomainID, p.pciBusID, p.pciDeviceID);
  const std::string machine = host.empty() ? HostName() : host;
  Identity identity{.key = absl::StrCat(
                        host.empty() ? absl::StrCat(HostName(), " ", BootId()) : host, " ", place),
                    .name = absl::StrCat(device.id().ToString(), " (", p.name, ", PCI ", place,
                                         " of host '", machine, "')")};
  // Containers of one machine have host names of their own, and may have one device.
  std::string unique;
  for (char c : p.uuid.bytes) absl::StrAppend(&unique, absl::Hex(c & 0xff, absl::kZeroPad2));
  if (host.empty() && unique.find_first_not_of('0') != std::string::npos) identity.key = unique;
  return identity;
}

}  // namespace

std::string FindSharedDevice(ProcessGroup& control, const Device& device, const std::string& host) {
  const Identity own = IdentityOf(device, host);
  const std::vector<std::string> texts =
      GatherTexts(control, absl::StrCat(own.key, "\n", own.name), {.op = "compare devices"});
  std::map<std::string, std::vector<int>> ranks;
  for (size_t r = 0; r < texts.size(); ++r) {
    ranks[texts[r].substr(0, texts[r].find('\n'))].push_back(static_cast<int>(r));
  }
  for (const auto& [key, sharers] : ranks) {
    if (sharers.size() == 1) continue;
    const std::string& text = texts[static_cast<size_t>(sharers[0])];
    return absl::StrCat("ranks ", absl::StrJoin(sharers, " and "), " have one device, ",
                        text.substr(text.find('\n') + 1));
  }
  return "";
}

}  // namespace sherd
