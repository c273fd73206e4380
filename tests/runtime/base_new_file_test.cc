#include "sherd/runtime/base/new_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace sherd {
namespace {

// An empty folder of this test's own.
std::filesystem::path Folder() {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "base_new_file" / test->name();
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t FilesIn(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(NewFileTest, AppearsWholeWhenItIsPublished) {
  const std::filesystem::path folder = Folder();
  const std::filesystem::path path = folder / "a";
  std::ofstream(path) << "old";
  absl::StatusOr<NewFile> file = NewFile::Create(path.string());
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append(std::string_view("ab")).ok());
  NewFile moved = *std::move(file);
  ASSERT_TRUE(moved.Append(std::string_view("cd")).ok());
  EXPECT_EQ(ReadAll(path), "old");
  ASSERT_TRUE(moved.Publish().ok());
  EXPECT_EQ(ReadAll(path), "abcd");
  EXPECT_EQ(FilesIn(folder), 1);
}

TEST(NewFileTest, IsRemovedUnlessPublished) {
  const std::filesystem::path folder = Folder();
  {
    absl::StatusOr<NewFile> file = NewFile::Create((folder / "a").string());
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Append(std::string_view("ab")).ok());
    EXPECT_EQ(FilesIn(folder), 1);
  }
  EXPECT_EQ(FilesIn(folder), 0);
}

TEST(NewFileTest, LinkInTheTemporarysPlaceIsNotWrittenThrough) {
  const std::filesystem::path folder = Folder();
  std::ofstream(folder / "victim") << "precious";
  const std::string path = (folder / "a").string();
  std::filesystem::create_symlink(folder / "victim",
                                  path + "." + std::to_string(getpid()) + ".tmp");
  absl::StatusOr<NewFile> file = NewFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append(std::string_view("ab")).ok());
  ASSERT_TRUE(file->Publish().ok());
  EXPECT_EQ(ReadAll(folder / "victim"), "precious");
  EXPECT_EQ(ReadAll(path), "ab");
}

TEST(NewFileTest, WhatTheSystemRefusesIsSaidWithTheFile) {
  const std::filesystem::path folder = Folder();
  const std::string missing = (folder / "none" / "a").string();
  absl::Status status = NewFile::Create(missing).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "file " + missing + " cannot be made: No such file or directory");
  EXPECT_EQ(NewFile::Create(folder.string()).status().message(),
            "file " + folder.string() + " is a folder");
  const absl::Status full = [&] {
    // A disk that is full for this process: the write fails and nothing is left behind.
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit before = {};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small = {1000, before.rlim_max};
    absl::StatusOr<NewFile> file = NewFile::Create((folder / "a").string());
    setrlimit(RLIMIT_FSIZE, &small);
    const absl::Status written = file->Append(std::string(2000, 'x'));
    setrlimit(RLIMIT_FSIZE, &before);
    return written;
  }();
  EXPECT_EQ(full.message(),
            "file " + (folder / "a").string() + " cannot be written: File too large");
  EXPECT_EQ(FilesIn(folder), 0);
}

TEST(WriteWholeFileTest, IsOfThisUserAloneAndReplacesTheOldContents) {
  const std::filesystem::path folder = Folder();
  const std::string path = (folder / "whole").string();
  ASSERT_TRUE(WriteWholeFile(path, "a long first text").ok());
  ASSERT_TRUE(WriteWholeFile(path, "second").ok());
  EXPECT_EQ(ReadAll(path), "second");
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(FilesIn(folder), 1);
}

}  // namespace
}  // namespace sherd
