#pragma once

#include <cstdint>
#include <memory>

namespace sherd {

// Addresses that memory is put behind when it is asked for: what a CachingAllocator hands out.
//
// Threads: one at a time.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  AddressRange() = default;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  virtual char* base() const = 0;
  virtual int64_t bytes() const = 0;
  // Memory comes and goes in multiples of this.
  virtual int64_t page() const = 0;
  // Puts memory behind every page that [begin, end) touches, where there is none yet. False if
  // there is no memory left; what was there before still is.
  virtual bool Commit(int64_t begin, int64_t end) = 0;
  // Gives back the memory of whole pages. REQUIRES: begin and end are multiples of page(), nobody
  // uses them.
  virtual void Decommit(int64_t begin, int64_t end) = 0;
};

// Addresses of the host, at most `bytes` of them, where memory comes with the first access.
// Errors: throws kResourceExhausted if even addresses are refused.
std::unique_ptr<AddressRange> MakeHostRange(int64_t bytes);

}  // namespace sherd
