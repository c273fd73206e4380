#include "llm/tokenizer_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace llm {

bool HasTokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path in(folder);
  return fs::exists(in / "tokenizer.json", ignored) ||
         (fs::exists(in / "vocab.json", ignored) && fs::exists(in / "merges.txt", ignored));
}

absl::Status CopyTokenizer(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  constexpr const char* kFiles[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "vocab.txt",
                                    "chat_template.jinja",
                                    "generation_config.json"};
  for (const char* name : kFiles) {
    std::error_code error;
    const fs::path file = fs::path(from) / name;
    if (!fs::exists(file, error)) continue;
    fs::copy_file(file, fs::path(to) / name, fs::copy_options::overwrite_existing, error);
    if (!error) continue;
    return absl::UnavailableError(
        absl::StrCat("file ", file.string(), " cannot be copied to ", to, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace llm
