#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "sherd/runtime/base/pooled.h"
#include "sherd/runtime/base/ref.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

class Storage;

// Who frees and re-allocates a storage, asked when somebody reads it while it is not resident.
class StorageOwner {
 public:
  // Says in words why the bytes at `byte_offset` are absent: "parameter 'w' of unit 'blocks.3' is
  // sharded (phase: after forward)".
  virtual std::string DescribeAbsent(const Storage& storage, int64_t byte_offset) const = 0;
  // Told of every access to the elements of a storage that is watched.
  virtual void OnAccess(const Storage&) const {}

 protected:
  ~StorageOwner() = default;
};

// A block of device memory that tensors are views of.
//
// The block can be freed and allocated again while views exist: they address it through this object
// and are valid whenever it is resident. That is how a unit frees its gathered parameters under the
// saved tensors of a tape.
// Threads: Allocate and Free by one thread at a time, ordered with the readers by the caller.
class Storage final : public RefCounted, public Pooled<Storage> {
 public:
  // Describes `bytes` of `device`; allocates nothing.
  Storage(Device device, int64_t bytes, MemoryCategory category);
  // Stands for the first `bytes` of `target`: Allocate and Free only change what resident() says.
  // This is how one rank's gathered parameters are its shard, under the same states and checks.
  // REQUIRES: target is resident for as long as this object is.
  Storage(Ref<Storage> target, int64_t bytes);
  // Memory of somebody else: resident from the start, counted under no category, and held until
  // Free, which the destructor calls at the latest. What to do with it then is the deleter of
  // `memory`; it runs on whatever thread lets go of the last view, and must not throw. Allocate
  // afterwards is kFailedPrecondition. REQUIRES: `memory` has `bytes` bytes.
  Storage(Device device, std::shared_ptr<void> memory, int64_t bytes);
  ~Storage();

  const Device& device() const { return device_; }
  int64_t bytes() const { return bytes_; }
  MemoryCategory category() const { return category_; }
  bool resident() const { return resident_; }
  // Whether the memory is somebody else's.
  bool external() const { return external_; }
  // The first byte. REQUIRES: resident().
  void* data() const { return data_; }

  // Makes the storage resident; its contents are undefined. No effect when it is already.
  void Allocate();
  // Gives the block back. No effect when not resident.
  void Free();

  // While set, reads of an absent storage are explained by `owner`, which must outlive the setting.
  void set_owner(const StorageOwner* owner) { owner_ = owner; }
  // The same for an owner that lives as long as the last storage it explains.
  void set_owner(std::shared_ptr<const StorageOwner> owner) {
    owner_ = owner.get();
    held_owner_ = std::move(owner);
  }
  const StorageOwner* owner() const { return owner_; }
  // Lets `watcher` know of every access, for as long as this object lives.
  void Watch(const StorageOwner& watcher) {
    owner_ = &watcher;
    watched_ = true;
  }
  bool watched() const { return watched_; }

 private:
  Device device_;
  int64_t bytes_;
  MemoryCategory category_;
  bool resident_ = false;
  bool watched_ = false;
  bool external_ = false;
  std::shared_ptr<void> memory_;  // of an external one, while resident
  void* data_ = nullptr;
  Ref<Storage> target_;
  const StorageOwner* owner_ = nullptr;
  std::shared_ptr<const StorageOwner> held_owner_;
};

}  // namespace sherd
