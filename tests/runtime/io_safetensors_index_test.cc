#include "sherd/runtime/io/safetensors_index.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sherd/runtime/io/json.h"
#include "sherd/runtime/io/safetensors_folder.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

class SafetensorsIndexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / "io_safetensors_index" / test->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  // A file of f32 tensors of one element each.
  void WriteTensors(const std::string& file, const std::vector<std::string>& names) {
    std::string header = "{";
    for (size_t i = 0; i < names.size(); ++i) {
      header += (i == 0 ? "\"" : ",\"") + names[i] + R"(":{"dtype":"F32","shape":[1],)" +
                "\"data_offsets\":[" + std::to_string(4 * i) + "," + std::to_string(4 * i + 4) +
                "]}";
    }
    header += "}";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size() & 0xFF);
    bytes[1] = static_cast<char>(header.size() >> 8);
    WriteText(file, bytes + header + std::string(4 * names.size(), '\1'));
  }
  void WriteText(const std::string& file, const std::string& text) {
    std::ofstream(folder_ / file, std::ios::binary | std::ios::trunc) << text;
  }
  void WriteIndex(const std::string& text) { WriteText("model.safetensors.index.json", text); }

  std::string Error() {
    const auto index = SafetensorsIndex::Open(folder_.string());
    return index.ok() ? "no error" : std::string(index.status().message());
  }
  void ExpectError(const std::string& part) {
    const std::string error = Error();
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nhas not: " << part;
  }

  fs::path folder_;
};

TEST_F(SafetensorsIndexTest, OneFileNeedsNoIndex) {
  WriteTensors("model.safetensors", {"a", "b"});
  WriteIndex("nonsense, which nobody reads");
  const auto index = SafetensorsIndex::Open(folder_.string());
  ASSERT_TRUE(index.ok()) << index.status();
  ASSERT_EQ(index->tensors().size(), 2u);
  ASSERT_NE(index->Find("b"), nullptr);
  EXPECT_EQ(index->Find("b")->bytes().size(), 4u);
  EXPECT_EQ(index->Find("c"), nullptr);
}

TEST_F(SafetensorsIndexTest, SeveralFilesAreOneSetOfTensors) {
  WriteTensors("x.safetensors", {"a"});
  WriteTensors("y.safetensors", {"b", "c"});
  WriteIndex(R"({"metadata":{"total_size":12},"weight_map":
      {"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"}})");
  auto opened = SafetensorsIndex::Open(folder_.string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const SafetensorsIndex index = *std::move(opened);
  EXPECT_EQ(index.files().size(), 2u);
  EXPECT_EQ(index.Find("a")->file->name(), (folder_ / "x.safetensors").string());
  EXPECT_EQ(index.Find("c")->entry->name, "c");
  EXPECT_EQ(index.Find("c")->bytes()[0], 1);
}

TEST_F(SafetensorsIndexTest, AFolderWithoutWeightsIsNamed) {
  ExpectError("folder " + folder_.string());
  ExpectError("has neither model.safetensors nor model.safetensors.index.json");
}

TEST_F(SafetensorsIndexTest, HostileIndexesAreErrors) {
  WriteTensors("x.safetensors", {"a"});
  WriteIndex("{");
  ExpectError("is no JSON: column 2");
  WriteIndex("[]");
  ExpectError("is an array, not an object");
  WriteIndex("{}");
  ExpectError("has no \"weight_map\"");
  WriteIndex(R"({"weight_map":3})");
  ExpectError("\"weight_map\" that is no object");
  WriteIndex(R"({"weight_map":{}})");
  ExpectError("without tensors");
  WriteIndex(R"({"weight_map":{"a":7}})");
  ExpectError("has tensor 'a' in an integer, not in a file");
  WriteIndex(R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})");
  ExpectError("key \"a\" comes twice");
}

TEST_F(SafetensorsIndexTest, NothingOutsideOfTheFolderIsRead) {
  fs::create_directories(folder_ / "sub");
  for (const char* const name : {"../x.safetensors", "/tmp/x.safetensors", "sub/x.safetensors",
                                 "..\\\\x.safetensors", "..safetensors", ".safetensors",
                                 "x.safetensors\\u0000", "\\u0000.safetensors", "x.bin", ""}) {
    WriteIndex(R"({"weight_map":{"a":")" + std::string(name) + "\"}}");
    ExpectError("no safetensors file of its folder");
    ExpectError("has tensor 'a' in '");
  }
}

TEST_F(SafetensorsIndexTest, IndexAndFilesSayTheSame) {
  WriteTensors("x.safetensors", {"a", "b"});
  WriteTensors("y.safetensors", {"c"});
  WriteIndex(R"({"weight_map":{"a":"x.safetensors"}})");
  ExpectError("says nothing of tensor 'b' in " + (folder_ / "x.safetensors").string());
  WriteIndex(R"({"weight_map":{"a":"x.safetensors","b":"x.safetensors","d":"x.safetensors"}})");
  ExpectError("has tensor 'd' in x.safetensors, where it is not");
  WriteIndex(R"({"weight_map":{"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"}})");
  ExpectError("has tensor 'b' in y.safetensors, where it is not: it is in " +
              (folder_ / "x.safetensors").string());
  WriteIndex(R"({"weight_map":{"a":"x.safetensors","b":"x.safetensors","c":"z.safetensors"}})");
  ExpectError((folder_ / "z.safetensors").string());
  WriteTensors("z.safetensors", {"a"});
  WriteIndex(R"({"weight_map":{"a":"x.safetensors","b":"x.safetensors","d":"z.safetensors"}})");
  ExpectError("tensor 'a' is in " + (folder_ / "x.safetensors").string() + " and in " +
              (folder_ / "z.safetensors").string());
  WriteText("z.safetensors", "short");
  ExpectError("ends inside the header's length");
}

std::vector<uint8_t> Bytes(int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  return bytes;
}

// Six tensors of 4, 8, 12, 0, 16 and 8 bytes, written in pieces that end anywhere.
TEST_F(SafetensorsIndexTest, FoldersAreSplitAndReadBack) {
  const std::vector<SafetensorsSpec> specs = {
      {"e", DType::kF32, {1}},    {"d", DType::kF32, {2}}, {"c", DType::kF32, {3, 1}},
      {"b", DType::kF32, {0, 4}}, {"a", DType::kF64, {2}}, {"f", DType::kBF16, {4}}};
  const struct {
    int64_t most;
    std::vector<std::string> files;
  } cases[] = {{1000, {"model.safetensors"}},
               {48, {"model.safetensors"}},
               {24,
                {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                 "model.safetensors.index.json"}},
               {12,
                {"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                 "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                 "model.safetensors.index.json"}}};
  const std::vector<uint8_t> bytes = Bytes(48);
  for (const auto& c : cases) {
    for (size_t piece : {size_t{48}, size_t{5}}) {
      fs::remove_all(folder_);
      auto writer = SafetensorsFolderWriter::Create(
          folder_.string(), specs, {.max_file_bytes = c.most, .metadata = {{"format", "pt"}}});
      ASSERT_TRUE(writer.ok()) << writer.status();
      for (size_t at = 0; at < bytes.size(); at += piece) {
        const auto part = std::span(bytes).subspan(at, std::min(piece, bytes.size() - at));
        ASSERT_TRUE(writer->Append(part).ok());
      }
      const auto names = writer->Close();
      ASSERT_TRUE(names.ok()) << names.status();
      EXPECT_EQ(*names, c.files) << c.most;
      const auto index = SafetensorsIndex::Open(folder_.string());
      ASSERT_TRUE(index.ok()) << index.status();
      EXPECT_EQ(index->files()[0]->metadata().at("format"), "pt");
      std::vector<uint8_t> read;
      for (const SafetensorsSpec& spec : specs) {
        const auto* const place = index->Find(spec.name);
        ASSERT_NE(place, nullptr) << spec.name;
        EXPECT_EQ(place->entry->shape, spec.shape);
        EXPECT_EQ(place->entry->type(), spec.dtype);
        read.insert(read.end(), place->bytes().begin(), place->bytes().end());
      }
      EXPECT_EQ(read, bytes) << c.most;
      EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}),
                static_cast<std::ptrdiff_t>(c.files.size()));
    }
  }
}

TEST_F(SafetensorsIndexTest, WritersRefuseWhatWouldBeMixedUp) {
  const std::vector<SafetensorsSpec> specs = {{"a", DType::kF32, {2}}, {"b", DType::kF32, {2}}};
  const std::string folder = folder_.string();
  EXPECT_EQ(SafetensorsFolderWriter::Create(folder, specs, {.max_file_bytes = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_NE(SafetensorsFolderWriter::Create(folder, {{"w", DType::kF32, {-1}}})
                .status()
                .message()
                .find("tensor 'w' cannot have shape [-1]"),
            std::string_view::npos);
  {
    auto writer = SafetensorsFolderWriter::Create(folder, specs, {.max_file_bytes = 8});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Append(Bytes(12)).ok());
    EXPECT_EQ(writer->Close().status().code(), absl::StatusCode::kFailedPrecondition);
    ASSERT_TRUE(writer->Append(Bytes(4)).ok());
    EXPECT_EQ(writer->Append(Bytes(1)).code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(writer->Close().ok());
  }
  const absl::Status again = SafetensorsFolderWriter::Create(folder, specs).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(again.message().find(folder), std::string_view::npos);
}

// What is not closed leaves a folder that no reader takes for complete.
TEST_F(SafetensorsIndexTest, AnUnfinishedFolderIsNone) {
  {
    auto writer = SafetensorsFolderWriter::Create(
        folder_.string(), {{"a", DType::kF32, {1}}, {"b", DType::kF32, {1}}},
        {.max_file_bytes = 4});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Append(Bytes(6)).ok());
  }
  ExpectError("has neither");
}

TEST(WriteJsonTest, WhatIsWrittenIsReadAsTheSameValue) {
  const std::string text =
      "{\n  \"a\": [\n    1,\n    2.0,\n    1e-05,\n    0.1\n  ],\n  \"b\": {},\n  \"c\": [],\n"
      "  \"d\\u000a\": null,\n  \"e\": {\n    \"x\": true,\n    \"y\": \"\\\"\"\n  }\n}";
  const auto json = ParseJson(text);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(WriteJson(*json), text);
}

}  // namespace
}  // namespace sherd
