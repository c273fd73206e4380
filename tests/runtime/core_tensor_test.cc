#include "sherd/runtime/core/tensor.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/thread_pool.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/shape.h"
#include "sherd/runtime/core/storage.h"

namespace sherd {
namespace {

using Floats = std::vector<float>;

// The tensor of `shape` whose elements count from 0 in row-major order.
Tensor Iota(const Device& device, const Shape& shape) {
  Floats values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0f);
  return Tensor::FromHost<float>(device, values, shape);
}

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

TEST(ShapeTest, CountsRowsAndStrides) {
  const Shape shape = {2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.back(), 4);
  EXPECT_EQ(shape.back(2), 2);
  EXPECT_EQ(shape.ContiguousStrides(), (Shape{12, 4, 1}));
  EXPECT_EQ(shape.Prefix(2), (Shape{2, 3}));
  EXPECT_EQ(shape.Append(5), (Shape{2, 3, 4, 5}));
  EXPECT_EQ(shape.ToString(), "[2, 3, 4]");
}

TEST(ShapeTest, ScalarAndEmpty) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ(Shape().rows(), 1);
  EXPECT_EQ(Shape().ToString(), "[]");
  EXPECT_EQ((Shape{3, 0}).numel(), 0);
  EXPECT_EQ((Shape{3, 0}).rows(), 0);
  EXPECT_NE((Shape{1, 2}), (Shape{1, 2, 1}));
}

TEST(ShapeTest, RefusesNegativeExtentsAndTooMany) {
  EXPECT_EQ(TextOf(absl::StatusCode::kInvalidArgument,
                   [] {
                     Shape({2, -1});
                   }),
            "a shape has no negative extents, got [2, -1]");
  EXPECT_EQ(TextOf(absl::StatusCode::kInvalidArgument,
                   [] {
                     Shape({1, 1, 1, 1, 1, 1, 1});
                   }),
            "a shape has at most 6 extents, got [1, 1, 1, 1, 1, 1, 1]");
  EXPECT_THROW(Shape({1, 1, 1, 1, 1, 1}).Append(1), Error);
}

TEST(DeviceTest, IdsDecideEqualityAndMemoryIsCountedApart) {
  const Device a = Device::Cpu();
  const Device same_id = Device::Cpu();
  const Device other = Device::Cpu({.index = 1, .threads = 2});
  EXPECT_TRUE(a == same_id);
  EXPECT_FALSE(a == other);
  EXPECT_EQ(other.id().ToString(), "cpu:1");
  EXPECT_EQ(other.pool().threads(), 2);
  const Tensor tensor = Tensor::Zeros(a, DType::kF32, {16});
  EXPECT_EQ(a.allocator().stats().total.current_bytes, 64);
  EXPECT_EQ(same_id.allocator().stats().total.current_bytes, 0);
}

TEST(DeviceTest, RefusesBadOptions) {
  EXPECT_THROW(Device::Cpu({.index = -1}), Error);
  EXPECT_THROW(Device::Cpu({.threads = 0}), Error);
  EXPECT_FALSE(Device().defined());
  EXPECT_THROW(Device().id(), Error);
}

struct Counter {
  int value = 0;
};
struct OtherCounter {
  int value = 10;
};

TEST(DeviceTest, SlotIsOneObjectPerTypeAndDevice) {
  const Device a = Device::Cpu();
  const Device b = Device::Cpu();
  a.Slot<Counter>().value = 5;
  const Device copy = a;
  EXPECT_EQ(copy.Slot<Counter>().value, 5);
  EXPECT_EQ(b.Slot<Counter>().value, 0);
  EXPECT_EQ(a.Slot<OtherCounter>().value, 10);
}

TEST(DeviceTest, TensorKeepsItsDeviceAlive) {
  Tensor tensor = Iota(Device::Cpu(), {3});
  EXPECT_EQ(tensor.ToHost<float>(), (Floats{0, 1, 2}));
}

TEST(StorageTest, AllocateAndFreeCountUnderTheCategory) {
  const Device device = Device::Cpu();
  Storage storage(device, 100, MemoryCategory::kUnsharded);
  EXPECT_FALSE(storage.resident());
  EXPECT_EQ(device.allocator().stats().total.current_bytes, 0);
  for (int i = 0; i < 2; ++i) {
    storage.Allocate();
    storage.Allocate();
    EXPECT_TRUE(storage.resident());
    EXPECT_EQ(device.allocator().stats()[MemoryCategory::kUnsharded].current_bytes, 128);
    storage.Free();
    storage.Free();
    EXPECT_FALSE(storage.resident());
    EXPECT_EQ(device.allocator().stats().total.current_bytes, 0);
  }
}

TEST(StorageTest, DestructorGivesTheBlockBack) {
  const Device device = Device::Cpu();
  {
    Storage storage(device, 100, MemoryCategory::kUnsharded);
    storage.Allocate();
  }
  EXPECT_EQ(device.allocator().stats().total.current_bytes, 0);
}

TEST(StorageTest, ViewsOutliveFreeAndSeeTheNewBlock) {
  const Device device = Device::Cpu();
  const Ref<Storage> storage = MakeRef<Storage>(device, 6 * 4, MemoryCategory::kUnsharded);
  const Tensor view = Tensor::View(storage, 2, DType::kF32, {2, 2});
  EXPECT_FALSE(view.resident());
  storage->Allocate();
  const Tensor whole = Tensor::View(storage, 0, DType::kF32, {6});
  for (int i = 0; i < 6; ++i) whole.data<float>()[i] = static_cast<float>(i);
  EXPECT_EQ(view.ToHost<float>(), (Floats{2, 3, 4, 5}));
  storage->Free();
  EXPECT_THROW(view.data<float>(), Error);
  const Tensor elsewhere = Tensor::Zeros(device, DType::kF32, {6});  // takes the block freed above
  storage->Allocate();
  whole.data<float>()[2] = 7.0f;
  EXPECT_EQ(view.data<float>()[0], 7.0f);
  EXPECT_EQ(view.data<float>(), whole.data<float>() + 2);
  EXPECT_EQ(elsewhere.ToHost<float>(), Floats(6, 0.0f));
}

TEST(StorageTest, AliasFollowsItsTargetAndCountsNothing) {
  const Device device = Device::Cpu();
  const Tensor shard = Iota(device, {4});
  const int64_t before = device.allocator().stats().total.current_bytes;
  const Ref<Storage> alias = MakeRef<Storage>(shard.storage(), 8);
  const Tensor view = Tensor::View(alias, 0, DType::kF32, {2});
  EXPECT_THROW(view.data<float>(), Error);
  alias->Allocate();
  EXPECT_EQ(view.data<float>(), shard.data<float>());
  EXPECT_EQ(device.allocator().stats().total.current_bytes, before);
  alias->Free();
  EXPECT_FALSE(view.resident());
  EXPECT_EQ(device.allocator().stats().total.current_bytes, before);
  EXPECT_EQ(shard.ToHost<float>(), (Floats{0, 1, 2, 3}));
}

struct NamedOwner final : StorageOwner {
  std::string DescribeAbsent(const Storage& storage, int64_t byte_offset) const override {
    return "parameter at byte " + std::to_string(byte_offset) + " of " +
           std::to_string(storage.bytes()) + " is sharded";
  }
};

TEST(StorageTest, ReadOfAnAbsentOneIsExplainedByItsOwner) {
  const Device device = Device::Cpu();
  const NamedOwner owner;
  const Ref<Storage> storage = MakeRef<Storage>(device, 64, MemoryCategory::kUnsharded);
  const Tensor view = Tensor::View(storage, 3, DType::kF32, {2});
  const auto code = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(TextOf(code, [&] { view.data<float>(); }),
            "a tensor of shape [2] was read after its memory was freed");
  storage->set_owner(&owner);
  EXPECT_EQ(TextOf(code, [&] { view.data<float>(); }), "parameter at byte 12 of 64 is sharded");
  EXPECT_EQ(TextOf(code, [&] { view.raw(); }), "parameter at byte 12 of 64 is sharded");
  EXPECT_EQ(TextOf(code, [&] { view.ToHost<float>(); }), "parameter at byte 12 of 64 is sharded");
  storage->set_owner(nullptr);
}

TEST(TensorTest, FromHostAndBackInEveryType) {
  const Device device = Device::Cpu();
  const auto round_trip = [&]<typename T>(std::vector<T> values) {
    const Tensor tensor =
        Tensor::FromHost<T>(device, values, {static_cast<int64_t>(values.size())});
    EXPECT_EQ(tensor.dtype(), DTypeOf<T>);
    EXPECT_EQ(tensor.ToHost<T>(), values);
  };
  round_trip(std::vector<float>{1.5f, -2.0f});
  round_trip(std::vector<double>{1e300, -2.0});
  round_trip(std::vector<int32_t>{1, -2, 3});
  round_trip(std::vector<int64_t>{int64_t{1} << 40, -2});
  const std::vector<BFloat16> brains = {BFloat16(1.0f), BFloat16(-3.0f)};
  const Tensor tensor = Tensor::FromHost<BFloat16>(device, brains, {2});
  EXPECT_EQ(static_cast<float>(tensor.ToHost<BFloat16>()[1]), -3.0f);
  EXPECT_EQ(tensor.bytes(), 4);
}

TEST(TensorTest, CopiesShareElements) {
  const Tensor a = Iota(Device::Cpu(), {3});
  const Tensor b = a;
  b.data<float>()[1] = 9.0f;
  EXPECT_EQ(a.ToHost<float>(), (Floats{0, 9, 2}));
}

TEST(TensorTest, TransposeAndPermuteAreViews) {
  const Tensor a = Iota(Device::Cpu(), {2, 3});
  EXPECT_EQ(a.Transpose(0, 1).ToHost<float>(), (Floats{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(a.Transpose(0, 1).data<float>(), a.data<float>());
  EXPECT_EQ(a.Transpose(1, 1).ToHost<float>(), a.ToHost<float>());
  const int order[] = {2, 0, 1};
  const Tensor b = Iota(Device::Cpu(), {2, 2, 3}).Permute(order);
  EXPECT_EQ(b.shape(), Shape({3, 2, 2}));
  EXPECT_EQ(b.ToHost<float>(), (Floats{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}));
}

TEST(TensorTest, TransposeAndPermuteRefuseDimensionsThatAreNotThere) {
  const Tensor a = Iota(Device::Cpu(), {2, 3});
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(TextOf(invalid, [&] { a.Transpose(0, 2); }),
            "[transpose] cannot exchange dimensions 0 and 2 of f32 [2, 3] on cpu:0");
  for (const std::vector<int>& order : {std::vector<int>{0}, {0, 0}, {0, 2}, {0, 1, 1}, {-1, 0}}) {
    EXPECT_NE(TextOf(invalid, [&] { a.Permute(order); }).find("is no order of"), std::string::npos);
  }
}

TEST(TensorTest, ExpandRepeatsByStrideZero) {
  const Tensor a = Iota(Device::Cpu(), {2, 1});
  EXPECT_EQ(a.Expand({2, 2, 3}).ToHost<float>(), (Floats{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(a.Expand({2, 2, 3}).strides(), Shape({0, 1, 0}));
  EXPECT_EQ(a.Expand({2, 0}).numel(), 0);
  EXPECT_EQ(Iota(Device::Cpu(), {}).Expand({2}).ToHost<float>(), (Floats{0, 0}));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(TextOf(invalid,
                   [&] {
                     a.Expand({3, 3});
                   }),
            "[expand] cannot expand f32 [2, 1] on cpu:0 to [3, 3]");
  EXPECT_NE(TextOf(invalid, [&] { a.Expand({2}); }), "nothing was thrown");
}

TEST(TensorTest, SliceIsAView) {
  const Tensor a = Iota(Device::Cpu(), {3, 4});
  const Tensor rows = a.Slice(0, 1, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 4}));
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(rows.ToHost<float>(), (Floats{4, 5, 6, 7, 8, 9, 10, 11}));
  const Tensor columns = a.Slice(1, 1, 3);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(columns.strides(), (Shape{4, 1}));
  EXPECT_EQ(columns.offset_elems(), 1);
  EXPECT_EQ(columns.ToHost<float>(), (Floats{1, 2, 5, 6, 9, 10}));
  EXPECT_EQ(columns.Slice(0, 1, 2).ToHost<float>(), (Floats{5, 6}));
  columns.data<float>()[0] = -1.0f;
  EXPECT_EQ(a.ToHost<float>()[1], -1.0f);
  EXPECT_EQ(a.Slice(0, 2, 2).numel(), 0);
}

TEST(TensorTest, ExtentsOfOneDoNotBreakContiguity) {
  const Tensor a = Iota(Device::Cpu(), {1, 2, 3});
  EXPECT_TRUE(a.Slice(1, 1, 2).is_contiguous());
  EXPECT_EQ(a.Slice(1, 1, 2).Reshape({3}).ToHost<float>(), (Floats{3, 4, 5}));
  EXPECT_FALSE(Iota(Device::Cpu(), {2, 3}).Slice(1, 0, 1).is_contiguous());
  EXPECT_TRUE(Iota(Device::Cpu(), {1, 3}).Slice(1, 0, 2).is_contiguous());
  EXPECT_TRUE(Iota(Device::Cpu(), {2, 3}).Slice(1, 1, 1).is_contiguous());  // no elements
}

TEST(TensorTest, ReshapeKeepsElements) {
  const Tensor a = Iota(Device::Cpu(), {2, 6});
  const Tensor b = a.Reshape({3, 4});
  EXPECT_EQ(b.strides(), (Shape{4, 1}));
  EXPECT_EQ(b.ToHost<float>(), a.ToHost<float>());
  EXPECT_EQ(b.data<float>(), a.data<float>());
  EXPECT_EQ(Iota(Device::Cpu(), {1}).Reshape({}).shape(), Shape());
}

TEST(TensorTest, ReshapeSplitsAndMergesStridedViews) {
  const Tensor a = Iota(Device::Cpu(), {2, 2, 6});
  const Tensor view = a.Slice(2, 0, 4);  // strides 12, 6, 1
  const Floats elements = view.ToHost<float>();
  EXPECT_EQ(view.Reshape({2, 2, 2, 2}).strides(), (Shape{12, 6, 2, 1}));
  EXPECT_EQ(view.Reshape({4, 4}).strides(), (Shape{6, 1}));
  EXPECT_EQ(view.Reshape({4, 1, 2, 2}).ToHost<float>(), elements);
  EXPECT_EQ(view.Reshape({1, 4, 4}).ToHost<float>(), elements);
  EXPECT_EQ(view.Reshape({2, 2, 4, 1}).ToHost<float>(), elements);
  EXPECT_EQ(TextOf(absl::StatusCode::kInvalidArgument, [&] { view.Reshape({16}); }),
            "[reshape] cannot view f32 [2, 2, 4] on cpu:0 as shape [16]");
  EXPECT_THROW(view.Reshape({2, 8}), Error);
}

// Every reshape that succeeds shows the elements in order; one of a contiguous tensor always
// succeeds.
TEST(TensorTest, ReshapeOfAnySliceIsRightOrRefused) {
  const Device device = Device::Cpu();
  const Tensor a = Iota(device, {4, 4, 4});
  const std::vector<Shape> targets = {
      {8},    {2, 4},    {4, 2}, {2, 2, 2}, {1, 8},       {8, 1},    {16},      {4, 4},
      {2, 8}, {8, 2},    {32},   {4, 8},    {2, 4, 4},    {4, 2, 4}, {4, 4, 2}, {2, 2, 2, 4},
      {1, 1}, {2, 1, 4}, {2, 2}, {1},       {2, 2, 1, 4}, {64},      {4}};
  int views = 0;
  int refused = 0;
  for (int64_t i : {1, 2, 4}) {
    for (int64_t j : {1, 2, 4}) {
      for (int64_t k : {1, 2, 4}) {
        const Tensor slice = a.Slice(0, 0, i).Slice(1, 4 - j, 4).Slice(2, 0, k);
        for (const Shape& target : targets) {
          if (target.numel() != slice.numel()) continue;
          try {
            EXPECT_EQ(slice.Reshape(target).ToHost<float>(), slice.ToHost<float>())
                << slice.ToString() << " to " << target.ToString();
            ++views;
          } catch (const Error&) {
            EXPECT_FALSE(slice.is_contiguous()) << slice.ToString() << " to " << target.ToString();
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(views, 40);
  EXPECT_GT(refused, 10);
}

TEST(TensorTest, RefusesWhatDoesNotFit) {
  const Device device = Device::Cpu();
  const auto code = absl::StatusCode::kInvalidArgument;
  const Tensor a = Iota(device, {2, 3});
  EXPECT_EQ(TextOf(code, [&] { a.Reshape({4}); }),
            "[reshape] cannot view f32 [2, 3] on cpu:0 as shape [4]");
  EXPECT_EQ(TextOf(code, [&] { a.Slice(1, 2, 4); }),
            "[slice] cannot take [2, 4) of dimension 1 of f32 [2, 3] on cpu:0");
  EXPECT_THROW(a.Slice(2, 0, 1), Error);
  EXPECT_THROW(a.Slice(-1, 0, 1), Error);
  EXPECT_THROW(a.Slice(0, 1, 0), Error);
  EXPECT_THROW(a.Slice(0, -1, 1), Error);
  EXPECT_EQ(TextOf(code, [&] { Tensor::View(a.storage(), 3, DType::kF64, {1}); }),
            "a view of [1] f64 at element 3 does not fit a storage of 24 bytes");
  EXPECT_THROW(Tensor::View(a.storage(), -1, DType::kF32, {1}), Error);
  EXPECT_NO_THROW(Tensor::View(a.storage(), 6, DType::kF32, {0}));
  const Floats two = {1, 2};
  EXPECT_EQ(TextOf(code, [&] { Tensor::FromHost<float>(device, two, {3}); }),
            "2 values do not fill a tensor of shape [3]");
}

TEST(TensorTest, RefusesAnotherElementType) {
  const Tensor a = Iota(Device::Cpu(), {2});
  EXPECT_NE(
      TextOf(absl::StatusCode::kInternal, [&] { a.data<double>(); }).find("another element type"),
      std::string::npos);
  EXPECT_THROW(a.ToHost<int32_t>(), Error);
  EXPECT_THROW(Tensor().data<float>(), Error);
}

TEST(TensorTest, NamesItself) {
  EXPECT_EQ(Iota(Device::Cpu({.index = 3}), {2, 3}).ToString(), "f32 [2, 3] on cpu:3");
  EXPECT_EQ(Tensor().ToString(), "an undefined tensor");
}

TEST(TensorTest, EmptyTensorsAndScalars) {
  const Device device = Device::Cpu();
  const Tensor none = Tensor::Zeros(device, DType::kF32, {0, 4});
  EXPECT_EQ(none.numel(), 0);
  EXPECT_TRUE(none.ToHost<float>().empty());
  EXPECT_TRUE(none.resident());
  const Tensor scalar = Tensor::Zeros(device, DType::kF64, {});
  EXPECT_EQ(scalar.ToHost<double>(), std::vector<double>{0.0});
}

}  // namespace
}  // namespace sherd
