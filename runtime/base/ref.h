#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace sherd {

// Base of objects owned by `Ref<T>` handles: an intrusive, atomic reference count.
//
// Instead of std::shared_ptr where handles are many and small: one pointer each, and a handle can
// be made from a plain pointer to the object at any time.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

 protected:
  ~RefCounted() = default;

 private:
  template <typename T>
  friend class Ref;
  std::atomic<int32_t> count_{0};
};

// A shared owner of a RefCounted object; one pointer wide.
//
// Ownership: the last Ref deletes the object as a T. Threads: handles to one object may be copied
// and dropped on any thread; one handle is not to be written from two.
template <typename T>
class Ref {
 public:
  // An empty handle.
  Ref() = default;
  // One more owner of `object`, which may have others already. REQUIRES: it was made by new.
  explicit Ref(T* object) : object_(object) { Acquire(); }
  Ref(const Ref& other) : object_(other.object_) { Acquire(); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Release(); }

  // The object, or null when empty; -> and * need one.
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  // Whether there is an object.
  explicit operator bool() const { return object_ != nullptr; }
  // Whether both own the same object.
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

  // Whether this handle is the only one, so that the object may be changed in place. False when
  // empty. Threads: a true answer stays true until the caller copies the handle.
  bool unique() const {
    return object_ != nullptr && object_->count_.load(std::memory_order_acquire) == 1;
  }

 private:
  // Order matters only when the count falls: all writes through other handles come before the
  // delete.
  void Acquire() {
    if (object_ != nullptr) object_->count_.fetch_add(1, std::memory_order_relaxed);
  }
  void Release() {
    if (object_ != nullptr && object_->count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete object_;
    }
  }
  T* object_ = nullptr;
};

// A new T with its first owner.
template <typename T, typename... Args>
Ref<T> MakeRef(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace sherd
