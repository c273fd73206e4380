#pragma once

#include <string>
#include <string_view>

// The version of these headers; the build reads it from here.
//
// Until 1.0 a new minor version may change interfaces, a new patch version does not: see README.md
// for how long what is deprecated stays. A shared library's name ends in major.minor.
#define SHERD_VERSION_MAJOR 0
#define SHERD_VERSION_MINOR 1
#define SHERD_VERSION_PATCH 0

namespace sherd {

// The version of the library that is running, "0.1.0". It differs from the macros where a program
// was compiled with the headers of another one.
std::string_view Version();

// What the library was built by and with, each as "name version" or a version. "unknown" where a
// parent project's target did not say, "none" where this build has no such part.
struct BuildVersions {
  std::string_view compiler;
  std::string_view build_type;
  std::string_view abseil;
  std::string_view gloo;
  std::string_view onednn;  // used by the target matmul alone
  std::string_view cuda;
  std::string_view nccl;
};

// Those of this library. Cost: none.
BuildVersions BuiltWith();

// One line of all the above, for logs and reports of faults.
std::string DescribeBuild();

}  // namespace sherd
