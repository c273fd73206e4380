#include "sherd/runtime/io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sherd/runtime/io/safetensors_writer.h"

namespace sherd {
namespace {

using Shape64 = std::vector<int64_t>;

std::string PathOf(const std::string& name) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "io_safetensors" / test->name();
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = PathOf(name);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A file of that header, and `data` zeros.
std::string FileOf(const std::string& header, size_t data = 0) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header + std::string(data, '\0');
}

std::string ErrorOf(const std::string& bytes) {
  const auto file = SafetensorsFile::Open(WriteFile("x.safetensors", bytes));
  if (file.ok()) return "no error";
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(file.status().message());
}

// `part` of the error, so that a failure shows the whole.
void ExpectError(const std::string& bytes, const std::string& part) {
  const std::string error = ErrorOf(bytes);
  EXPECT_NE(error.find(part), std::string::npos) << error << "\nhas not: " << part;
  EXPECT_NE(error.find("x.safetensors"), std::string::npos) << error;
}

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const std::string& name) {
  const std::span<const uint8_t> bytes = file.Bytes(*file.Find(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Written by the package safetensors 0.8.0 of PyPI: w.weight, f32 [2, 3], is 0, 1/4, ... 5/4; ids
// 1 -2 3; h, f16, 1.5 -2; scalar, f64, 7; none has no elements.
std::string Golden() {
  return FileOf(
             "{\"__metadata__\":{\"note\":\"\xC3\xBC \\\"q\\\"\",\"format\":\"pt\"},"
             "\"ids\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]},"
             "\"scalar\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[24,32]},"
             "\"none\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[32,32]},"
             "\"w.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[32,56]},"
             "\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[56,60]}}") +
         FromHex(
             "0100000000000000feffffffffffffff03000000000000000000000000001c40"
             "000000000000803e0000003f0000403f0000803f0000a03f003e00c0");
}

TEST(SafetensorsTest, ReadsWhatTheReferenceWrote) {
  const std::string bytes = Golden();
  ASSERT_EQ(bytes.size(), 412u);
  const auto file = SafetensorsFile::Open(WriteFile("golden.safetensors", bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->entries().size(), 5u);
  EXPECT_EQ(file->metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "\xC3\xBC \"q\""}}));
  EXPECT_EQ(Values<int64_t>(*file, "ids"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(Values<float>(*file, "w.weight"),
            (std::vector<float>{0, 0.25F, 0.5F, 0.75F, 1, 1.25F}));
  EXPECT_EQ(Values<double>(*file, "scalar"), std::vector<double>{7});
  EXPECT_EQ(Values<uint16_t>(*file, "h"), (std::vector<uint16_t>{0x3E00, 0xC000}));
  const SafetensorsEntry& weight = *file->Find("w.weight");
  EXPECT_EQ(weight.shape, (Shape64{2, 3}));
  EXPECT_EQ(weight.type(), DType::kF32);
  EXPECT_EQ(weight.numel(), 6);
  EXPECT_EQ(file->Find("scalar")->shape, Shape64{});
  EXPECT_EQ(file->Find("scalar")->numel(), 1);
  EXPECT_EQ(file->Find("none")->bytes, 0);
  EXPECT_EQ(file->Find("nobody"), nullptr);
}

TEST(SafetensorsTest, TypesThatNoTensorHasAreListedAll) {
  const auto file = SafetensorsFile::Open(
      WriteFile("types.safetensors",
                FileOf("{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}  ", 3)));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("a")->type(), std::nullopt);
  EXPECT_EQ(file->Find("a")->dtype, "U8");
}

TEST(SafetensorsTest, HeadersThatCannotBeAreRefused) {
  ExpectError("1234567", "ends inside the header's length: 7 bytes");
  ExpectError(FileOf("{}").substr(0, 9), "has a header of 2 bytes in a file of 9 bytes");
  std::string huge = FileOf("{}");
  huge.replace(0, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
  ExpectError(huge, "has a header of 18446744073709551615 bytes; at most 100000000 are read");
  ExpectError(FileOf(" {}"), "begins without '{'");
  ExpectError(FileOf("{]"), "is no JSON: column 2");
  ExpectError(FileOf("{\"a\":1,\"a\":2}"), "key \"a\" comes twice");
  ExpectError(FileOf("{\"__metadata__\":[]}"), "metadata that are no object");
  ExpectError(FileOf("{\"__metadata__\":{\"k\":1}}"), "metadata 'k' that is no string");
}

TEST(SafetensorsTest, EntriesThatCannotBeAreNamed) {
  const auto with = [](const std::string& entry, size_t data = 4) {
    return FileOf("{\"t\":" + entry + "}", data);
  };
  ExpectError(with("7"), "tensor 't' that is an integer, not an object");
  ExpectError(with("{\"dtype\":\"F32\",\"shape\":[1]}"), "'t' without \"data_offsets\"");
  ExpectError(with("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}"),
              "'t' with other keys");
  ExpectError(with("{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}"),
              "'t' of unknown dtype 'F31'");
  ExpectError(with("{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}"),
              "whose dtype is no string");
  for (const char* shape : {"1", "[-1]", "[1.0]", "[\"1\"]", "[9223372036854775808]"}) {
    ExpectError(
        with(std::string("{\"dtype\":\"F32\",\"shape\":") + shape + ",\"data_offsets\":[0,4]}"),
        "'t' whose shape is no array of counts");
  }
  for (const char* offsets : {"4", "[0]", "[0,4,4]", "[-1,4]"}) {
    ExpectError(
        with(std::string("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":") + offsets + "}"),
        "'t' whose data_offsets are no two counts");
  }
  ExpectError(with("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}"),
              "'t' at bytes [4, 0) of 4");
  ExpectError(with("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"),
              "'t' at bytes [0, 8) of 4");
  ExpectError(with("{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}"),
              "'t' of 4 bytes, but F32 [2] takes 8");
  // The product of the extents wraps around to 4 in 64 bits.
  ExpectError(with("{\"dtype\":\"F32\",\"shape\":[4611686018427387905,4],\"data_offsets\":[0,4]}"),
              "takes more than 2^63");
}

TEST(SafetensorsTest, TensorsLieSideBySideAndFillTheFile) {
  const std::string a = "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},";
  ExpectError(FileOf(a + "\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[2,4]}}", 4),
              "'b' at byte 2, but the one before reaches to byte 4");
  ExpectError(FileOf(a + "\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[6,8]}}", 8),
              "'b' at byte 6, but the one before ends at byte 4");
  ExpectError(FileOf(a + "\"b\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[4,6]}}", 9),
              "has 9 bytes of tensors, of which 3 belong to none");
  ExpectError(FileOf("{}", 1), "has 1 bytes of tensors, of which 1 belong to none");
  // Twice the same bytes, as a copy of a tensor would have.
  ExpectError(FileOf(a + "\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4),
              "'b' at byte 0, but the one before reaches to byte 4");
}

TEST(SafetensorsTest, EveryTruncationAndEveryChangedByteIsReadOrRefused) {
  const std::string golden = Golden();
  for (size_t size = 0; size < golden.size(); ++size) {
    const auto file = SafetensorsFile::Open(WriteFile("cut.safetensors", golden.substr(0, size)));
    EXPECT_FALSE(file.ok()) << size;
  }
  const size_t header_end = golden.size() - 60;
  for (size_t at = 0; at < header_end; ++at) {
    for (const char byte : {'\0', '9', '\xFF', '"', '}'}) {
      std::string changed = golden;
      changed[at] = byte;
      const auto file = SafetensorsFile::Open(WriteFile("changed.safetensors", changed));
      if (!file.ok()) continue;
      for (const SafetensorsEntry& entry : file->entries()) {
        ASSERT_GE(entry.offset, static_cast<int64_t>(header_end));
        ASSERT_LE(entry.offset + entry.bytes, static_cast<int64_t>(golden.size()));
        EXPECT_EQ(file->Bytes(entry).size(), static_cast<size_t>(entry.bytes));
      }
    }
  }
}

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(SafetensorsWriterTest, WritesWhatTheReaderReads) {
  const std::string path = PathOf("w.safetensors");
  std::filesystem::remove(path);
  const std::vector<SafetensorsSpec> specs = {
      {"b \"x\"\n", DType::kBF16, {2, 1, 3}}, {"none", DType::kF64, {0}}, {"a", DType::kI32, {}}};
  auto writer = SafetensorsWriter::Create(path, specs, {{"step", "7"}, {"\xC3\xBC", "\\"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Append(BytesOf("01234567")).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->Append(BytesOf("89abcdef")).ok());
  ASSERT_TRUE(writer->Close().ok());

  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(),
            (std::map<std::string, std::string>{{"step", "7"}, {"\xC3\xBC", "\\"}}));
  EXPECT_EQ(Values<char>(*file, "b \"x\"\n"),
            (std::vector<char>{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b'}));
  EXPECT_EQ(file->Find("b \"x\"\n")->shape, (Shape64{2, 1, 3}));
  EXPECT_EQ(file->Find("b \"x\"\n")->dtype, "BF16");
  EXPECT_EQ(Values<char>(*file, "a"), (std::vector<char>{'c', 'd', 'e', 'f'}));
  EXPECT_EQ(file->entries()[0].offset % 8, 0);
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
    EXPECT_EQ((SafetensorsEntry{.dtype = std::string(SafetensorsNameOf(dtype))}.type()), dtype);
  }
}

TEST(SafetensorsWriterTest, WhatIsNotClosedLeavesTheOldFileAndNothingElse) {
  const std::string path = WriteFile("kept.safetensors", "precious");
  {
    auto writer = SafetensorsWriter::Create(path, {{"a", DType::kI32, {2}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(writer->Append(BytesOf("0123")).ok());
    const absl::Status closed = writer->Close();
    EXPECT_EQ(closed.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(closed.message().find("4 bytes of tensors were not appended"), std::string::npos);
    EXPECT_FALSE(writer->Append(BytesOf("01234")).ok());
  }
  EXPECT_EQ(ReadAll(path), "precious");
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(SafetensorsWriterTest, WhatCannotBeWrittenIsNamedBeforeAnythingIs) {
  const std::string path = PathOf("bad.safetensors");
  const auto error = [&](const std::vector<SafetensorsSpec>& specs,
                         const std::map<std::string, std::string>& metadata = {}) -> std::string {
    const auto writer = SafetensorsWriter::Create(path, specs, metadata);
    EXPECT_FALSE(std::filesystem::exists(path));
    return writer.ok() ? "no error" : std::string(writer.status().message());
  };
  const std::string file = "safetensors file " + path + ": ";
  EXPECT_EQ(error({{"a", DType::kF32, {1}}, {"a", DType::kF32, {2}}}),
            file + "tensor 'a' comes twice");
  EXPECT_EQ(error({{"__metadata__", DType::kF32, {1}}}),
            file + "a tensor cannot be called __metadata__");
  EXPECT_EQ(error({{"a", DType::kF32, {2, -1}}}), file + "tensor 'a' cannot have shape [2, -1]");
  EXPECT_EQ(error({{"a", DType::kF32, {int64_t{1} << 62, 2}}}),
            file + "tensor 'a' cannot have shape [4611686018427387904, 2]");
  EXPECT_EQ(error({{"\xFF", DType::kF32, {1}}}), file + "tensor '\xFF' is not UTF-8");
  EXPECT_EQ(error({}, {{"k", "\xC0"}}), file + "metadata 'k' is not UTF-8");
}

}  // namespace
}  // namespace sherd
