#include "tests/fuzz/input_files.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace sherd::fuzz {

void Require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

InputFiles::InputFiles() {
  // Links on a disk cost a hundred times as much.
  const std::filesystem::path memory = "/dev/shm";
  const bool there = access(memory.c_str(), W_OK) == 0;
  const auto where = there ? memory : std::filesystem::temp_directory_path();
  folder_ = (where / "sherd-fuzz-XXXXXX").string();
  Require(mkdtemp(folder_.data()) != nullptr, "no temporary folder");
}

InputFiles::~InputFiles() {
  for (const std::string& path : paths_) unlink(path.c_str());
  for (const int descriptor : descriptors_) close(descriptor);
  rmdir(folder_.c_str());
}

std::string InputFiles::Add(const std::string& name, std::string_view bytes) {
  const int descriptor = memfd_create("input", MFD_CLOEXEC);
  Require(descriptor >= 0, "no file in memory");
  descriptors_.push_back(descriptor);
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    Require(written > 0, "an input cannot be written");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  paths_.push_back(folder_ + "/" + name);
  const std::string memory = "/proc/self/fd/" + std::to_string(descriptor);
  Require(symlink(memory.c_str(), paths_.back().c_str()) == 0, "no link to an input");
  return paths_.back();
}

std::string_view TakeSized(std::string_view& input) {
  size_t size = 0;
  for (size_t i = 0; i < 2 && !input.empty(); ++i, input.remove_prefix(1)) {
    size |= size_t{static_cast<uint8_t>(input[0])} << (8 * i);
  }
  const std::string_view taken = input.substr(0, size);
  input.remove_prefix(taken.size());
  return taken;
}

uint64_t Touch(std::span<const uint8_t> bytes) {
  uint64_t sum = 0;
  for (const uint8_t byte : bytes) sum += byte;
  return sum;
}

}  // namespace sherd::fuzz
