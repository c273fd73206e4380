#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace data {

// Writes `bytes` to a file of this test program's own; returns its name.
inline std::string WriteFile(const std::string& name, std::string_view bytes) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / test->test_suite_name() / test->name();
  std::filesystem::create_directories(folder);
  const std::string path = folder / name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.flush().good()) << path;
  return path;
}

// For EXPECT_PRED2, which shows both strings.
inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace data
