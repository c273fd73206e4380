#include "sherd/runtime/base/version.h"

#include <utility>

#define SHERD_TEXT(x) #x
#define SHERD_DOTTED(a, b, c) SHERD_TEXT(a) "." SHERD_TEXT(b) "." SHERD_TEXT(c)

namespace sherd {

std::string_view Version() {
  return SHERD_DOTTED(SHERD_VERSION_MAJOR, SHERD_VERSION_MINOR, SHERD_VERSION_PATCH);
}

BuildVersions BuiltWith() {
  return {.compiler = SHERD_COMPILER,
          .build_type = SHERD_BUILD_TYPE,
          .abseil = SHERD_ABSEIL_VERSION,
          .gloo = SHERD_GLOO_VERSION,
          .onednn = SHERD_ONEDNN_VERSION,
          .cuda = SHERD_CUDA_VERSION,
          .nccl = SHERD_NCCL_VERSION};
}

std::string DescribeBuild() {
  const BuildVersions with = BuiltWith();
  std::string text("sherd ");
  text.append(Version()).append(" (").append(with.compiler).append(", ").append(with.build_type);
  const std::pair<const char*, std::string_view> parts[] = {{"; Abseil ", with.abseil},
                                                            {", Gloo ", with.gloo},
                                                            {", oneDNN ", with.onednn},
                                                            {", CUDA ", with.cuda},
                                                            {", NCCL ", with.nccl}};
  for (const auto& [name, version] : parts) text.append(name).append(version);
  return text.append(")");
}

}  // namespace sherd
