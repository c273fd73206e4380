// What the library says of itself, against what the compiler and the headers say here.

#include "sherd/runtime/base/version.h"

#include <dnnl_version.h>
#include <gloo/config.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

TEST(Version, IsThatOfItsHeaders) {
  EXPECT_EQ(std::string(Version()),
            absl::StrCat(SHERD_VERSION_MAJOR, ".", SHERD_VERSION_MINOR, ".", SHERD_VERSION_PATCH));
  EXPECT_EQ(std::string(Version()), SHERD_PROJECT_VERSION) << "what packages are named after";
}

TEST(Version, NamesWhatTheLibraryWasBuiltWith) {
  const BuildVersions with = BuiltWith();
#ifdef __clang__
  EXPECT_EQ(std::string(with.compiler).find(absl::StrCat("Clang ", __clang_major__, ".")), 0u);
#else
  EXPECT_EQ(std::string(with.compiler),
            absl::StrCat("GNU ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__));
#endif
  EXPECT_EQ(std::string(with.build_type), SHERD_PROJECT_BUILD_TYPE);
#ifdef ABSL_LTS_RELEASE_VERSION
  EXPECT_EQ(std::string(with.abseil), absl::StrCat(ABSL_LTS_RELEASE_VERSION));
#endif
  EXPECT_EQ(std::string(with.gloo),
            absl::StrCat(GLOO_VERSION_MAJOR, ".", GLOO_VERSION_MINOR, ".", GLOO_VERSION_PATCH));
  EXPECT_EQ(std::string(with.onednn),
            absl::StrCat(DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR, ".", DNNL_VERSION_PATCH));
  EXPECT_EQ(std::string(with.cuda), "none");
  EXPECT_EQ(std::string(with.nccl), "none");
}

TEST(Version, OneLineSaysItAll) {
  const std::string line = DescribeBuild();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const BuildVersions with = BuiltWith();
  for (const std::string& part :
       {absl::StrCat("sherd ", std::string(Version()), " ("), std::string(with.compiler),
        std::string(with.build_type), absl::StrCat("Abseil ", std::string(with.abseil)),
        absl::StrCat("Gloo ", std::string(with.gloo)),
        absl::StrCat("oneDNN ", std::string(with.onednn)), std::string("CUDA none"),
        std::string("NCCL none")}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
}

}  // namespace
}  // namespace sherd
