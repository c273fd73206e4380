// Memory that belongs to the program around us: wrapped, handed on, or the source of ours.

#include "sherd/runtime/interop/external.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/interop/dlpack.h"

namespace sherd {
namespace {

template <typename Body>
std::string TextOf(absl::StatusCode code, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(External, ReadsAndWritesTheCallersElements) {
  const Device device = Device::Cpu();
  std::vector<double> values = {1, 2, 3, 4, 5, 6};
  const Tensor tensor =
      WrapMemory(device, DType::kF64, {2, 3}, std::shared_ptr<void>(values.data(), [](void*) {}));
  EXPECT_EQ(tensor.data<double>(), values.data());
  EXPECT_EQ(tensor.Transpose(0, 1).ToHost<double>(), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  values[4] = 50;
  EXPECT_EQ(tensor.Slice(0, 1, 2).ToHost<double>(), (std::vector<double>{4, 50, 6}));
  tensor.data<double>()[0] = -1;
  EXPECT_EQ(values[0], -1);
  EXPECT_EQ(device.allocator().stats().total.peak_bytes, 0) << "not ours, so not counted";
}

TEST(External, TheLastViewLetsGoOnce) {
  int released = 0;
  auto* memory = new float[4]{1, 2, 3, 4};
  Tensor last;
  {
    const Tensor tensor = WrapMemory(Device::Cpu(), DType::kF32, {4},
                                     std::shared_ptr<void>(memory, [&released](void* p) {
                                       ++released;
                                       delete[] static_cast<float*>(p);
                                     }));
    last = tensor.Slice(0, 2, 4);
  }
  EXPECT_EQ(released, 0);
  EXPECT_EQ(last.ToHost<float>(), (std::vector<float>{3, 4}));
  last = Tensor();
  EXPECT_EQ(released, 1);
}

TEST(External, GivenBackMemoryIsNotTakenAgain) {
  auto memory = std::make_shared<std::vector<float>>(4);
  const Tensor tensor =
      WrapMemory(Device::Cpu(), DType::kF32, {4}, std::shared_ptr<void>(memory, memory->data()));
  EXPECT_EQ(memory.use_count(), 2);
  EXPECT_TRUE(tensor.storage()->external());
  tensor.storage()->Free();
  EXPECT_EQ(memory.use_count(), 1);
  EXPECT_FALSE(tensor.resident());
  EXPECT_TRUE(
      Has(TextOf(absl::StatusCode::kFailedPrecondition, [&] { tensor.storage()->Allocate(); }),
          "given back"));
}

TEST(External, StridesMustStayInside) {
  const Device device = Device::Cpu();
  std::vector<int32_t> values = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto wrap = [&](const Shape& shape, const Shape& strides) {
    return WrapMemory(device, DType::kI32, shape, strides,
                      std::shared_ptr<void>(values.data(), [](void*) {}), 8 * 4);
  };
  EXPECT_EQ(wrap({2, 2}, {5, 2}).ToHost<int32_t>(), (std::vector<int32_t>{0, 2, 5, 7}));
  EXPECT_EQ(wrap({2, 3}, {0, 1}).ToHost<int32_t>(), (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(wrap({0, 3}, {100, 1}).numel(), 0) << "nothing lies nowhere";
  const auto refused = [&](const Shape& shape, const Shape& strides) {
    return TextOf(absl::StatusCode::kInvalidArgument, [&] { wrap(shape, strides); });
  };
  EXPECT_TRUE(Has(refused({2, 2}, {5, 3}), "strides [5, 3]"));
  EXPECT_TRUE(Has(refused({3}, {int64_t{1} << 62}), "does not fit"));
  EXPECT_TRUE(Has(refused({2, 2}, {1}), "strides [1]"));
}

TEST(External, RefusesNullAndMisalignedMemory) {
  const Device device = Device::Cpu();
  std::vector<double> values(3);
  char* odd = reinterpret_cast<char*>(values.data()) + 4;
  EXPECT_TRUE(Has(TextOf(absl::StatusCode::kInvalidArgument,
                         [&] {
                           WrapMemory(device, DType::kF64, {2},
                                      std::shared_ptr<void>(odd, [](void*) {}));
                         }),
                  "multiple of an element's size"));
  EXPECT_TRUE(Has(TextOf(absl::StatusCode::kInvalidArgument,
                         [&] { WrapMemory(device, DType::kF64, {2}, nullptr); }),
                  "f64 [2] is null"));
  EXPECT_EQ(WrapMemory(device, DType::kF64, {0}, nullptr).numel(), 0);
}

// Comes and goes, as the gathered parameters of a unit do.
class Visitor final : public StorageOwner {
 public:
  std::string DescribeAbsent(const Storage&, int64_t) const override { return "away"; }
};

TEST(Dlpack, RefusesStreamsAndMemoryThatComesAndGoes) {
  const Device device = Device::Cpu();
  const Tensor tensor = Tensor::Zeros(device, DType::kF32, {3});
  EXPECT_TRUE(
      Has(TextOf(absl::StatusCode::kInvalidArgument, [&] { ToDlpack(tensor, {.stream = 1}); }),
          "stream 1"));
  EXPECT_TRUE(
      Has(TextOf(absl::StatusCode::kInvalidArgument, [&] { ToDlpack(Tensor()); }), "undefined"));
  const Visitor owner;
  tensor.storage()->set_owner(&owner);
  EXPECT_TRUE(Has(TextOf(absl::StatusCode::kFailedPrecondition, [&] { ToDlpack(tensor); }),
                  "comes and goes"));
  tensor.storage()->set_owner(nullptr);
  dlpack::ManagedVersioned* managed = ToDlpack(tensor);
  EXPECT_TRUE(Has(TextOf(absl::StatusCode::kInvalidArgument,
                         [&] { FromDlpack(device, managed, {.stream = 2}); }),
                  "stream 2"));
  managed->deleter(managed);
}

TEST(Dlpack, ThereAndBackIsTheSameMemory) {
  const Device device = Device::Cpu();
  Tensor tensor = Tensor::Zeros(device, DType::kF64, {4, 5}).Slice(1, 1, 4).Transpose(0, 1);
  double* first = tensor.data<double>();
  Tensor back = FromDlpack(device, ToDlpack(tensor));
  EXPECT_EQ(back.data<double>(), first);
  EXPECT_EQ(back.shape(), (Shape{3, 4}));
  EXPECT_EQ(back.strides(), (Shape{1, 5}));
  tensor = Tensor();
  EXPECT_EQ(device.allocator().stats().total.current_bytes, 192) << "20 f64, in lines of 64 bytes";
  back.data<double>()[5] = 1;
  back = Tensor();
  EXPECT_EQ(device.allocator().stats().total.current_bytes, 0);
}

// Keeps a record of who holds what.
struct Counted {
  MemorySource Source() {
    return {.allocate = [this](int64_t bytes) -> void* {
              if (bytes > limit) return nullptr;
              void* block = std::aligned_alloc(64, static_cast<size_t>(bytes));
              blocks[block] = bytes;
              return block;
            },
            .free =
                [this](void* block, int64_t bytes) {
                  EXPECT_EQ(blocks.at(block), bytes);
                  blocks.erase(block);
                  std::free(block);
                }};
  }
  int64_t limit = int64_t{1} << 20;
  std::map<void*, int64_t> blocks;
};

TEST(MemorySource, GivesAndTakesEveryBlock) {
  Counted counted;
  const Device device = Device::Cpu({.memory = counted.Source()});
  {
    const Tensor tensor = Tensor::Zeros(device, DType::kF32, {100});
    ASSERT_EQ(counted.blocks.size(), 1u);
    EXPECT_EQ(counted.blocks.begin()->first, tensor.raw());
    EXPECT_EQ(counted.blocks.begin()->second, 448) << "400 bytes in lines of 64";
    const MemoryStats stats = device.allocator().stats();
    EXPECT_EQ(stats.total.current_bytes, 448);
    EXPECT_EQ(stats[MemoryCategory::kActivation].current_bytes, 448);
  }
  EXPECT_TRUE(counted.blocks.empty());
  const MemoryStats stats = device.allocator().stats();
  EXPECT_EQ(stats.total.current_bytes, 0);
  EXPECT_EQ(stats.total.peak_bytes, 448);
  EXPECT_EQ(stats.cached_bytes, 0) << "what comes back is the source's to keep";
  device.allocator().Trim();
}

TEST(MemorySource, SaysWhenThereIsNoMore) {
  Counted counted;
  counted.limit = 1000;
  const Device device = Device::Cpu({.memory = counted.Source()});
  const Tensor held = Tensor::Zeros(device, DType::kF32, {100}, MemoryCategory::kOptimizer);
  const std::string text = TextOf(absl::StatusCode::kResourceExhausted,
                                  [&] { Tensor::Zeros(device, DType::kF64, {200}); });
  EXPECT_TRUE(Has(text, "asked for 1600 bytes")) << text;
  EXPECT_TRUE(Has(text, "optimizer state")) << text;
  EXPECT_EQ(device.allocator().stats().total.current_bytes, 448);
}

TEST(MemorySource, NeedsBothFunctions) {
  EXPECT_TRUE(Has(
      TextOf(
          absl::StatusCode::kInvalidArgument,
          [] { Device::Cpu({.memory = {.allocate = [](int64_t) -> void* { return nullptr; }}}); }),
      "one to free"));
}

}  // namespace
}  // namespace sherd
