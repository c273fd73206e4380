#include "tests/runtime/fake_torch_store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace sherd::testing {
namespace {

// Blocking reads and writes, as the old server's. They throw when the peer is gone.
void ReadAll(int fd, void* out, size_t bytes) {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = recv(fd, at, bytes, 0);
    if (got <= 0) throw std::runtime_error("gone");
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

template <typename T>
T Read(int fd) {
  T value;
  ReadAll(fd, &value, sizeof(value));
  return value;
}

std::string ReadText(int fd) {
  const auto length = Read<uint64_t>(fd);
  if (length > (uint64_t{1} << 24)) throw std::runtime_error("bad_alloc");
  std::string text(length, '\0');
  ReadAll(fd, text.data(), length);
  return text;
}

void Write(int fd, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent <= 0) throw std::runtime_error("gone");
    done += static_cast<size_t>(sent);
  }
}

template <typename T>
void WriteValue(int fd, T value) {
  Write(fd, std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
}

void WriteText(int fd, const std::string& text) {
  WriteValue<uint64_t>(fd, text.size());
  Write(fd, text);
}

}  // namespace

FakeTorchStore::FakeTorchStore(bool modern) : modern_(modern) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("cannot listen");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

FakeTorchStore::~FakeTorchStore() {
  stop_ = true;
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  close(listener_);
}

void FakeTorchStore::Accept() {
  for (;;) {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_.push_back(fd);
    }
    threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void FakeTorchStore::Serve(int fd) {
  try {
    if (modern_ && (Read<uint8_t>(fd) != 0 || Read<uint32_t>(fd) != 0x3C85F7CE)) {
      throw std::runtime_error("no greeting");
    }
    while (ServeOne(fd)) {
    }
  } catch (const std::exception&) {
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase(open_, fd);
  close(fd);
}

bool FakeTorchStore::ServeOne(int fd) {
  const int op = Read<uint8_t>(fd);
  // From here on in the newer numbers, which begin with VALIDATE; DELETE_KEY is 8 in both.
  return Answer(fd, op == 8 ? op : op + (modern_ ? 0 : 1));
}

bool FakeTorchStore::Answer(int fd, int op) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (op == 1) {  // SET
    const std::string key = ReadText(fd);
    const std::string value = ReadText(fd);
    lock.lock();
    values_[key] = value;
  } else if (op == 2) {  // COMPARE_SET
    const std::string key = ReadText(fd);
    const std::string expected = ReadText(fd);
    const std::string desired = ReadText(fd);
    lock.lock();
    auto found = values_.find(key);
    if (found == values_.end() && !expected.empty()) {
      WriteText(fd, expected);
    } else {
      if (found == values_.end() || found->second == expected) values_[key] = desired;
      WriteText(fd, values_[key]);
    }
  } else if (op == 3) {  // GET
    const std::string key = ReadText(fd);
    lock.lock();
    if (values_.count(key) == 0 && !modern_) return false;
    WriteText(fd, values_[key]);
  } else if (op == 4) {  // ADD
    const std::string key = ReadText(fd);
    const auto delta = Read<int64_t>(fd);
    lock.lock();
    const int64_t old = values_.count(key) != 0 ? std::stoll(values_[key]) : 0;
    values_[key] = std::to_string(old + delta);
    WriteValue<int64_t>(fd, old + delta);
  } else if (op == 5 || op == 6) {  // CHECK, WAIT
    std::vector<std::string> keys(Read<uint64_t>(fd));
    for (std::string& key : keys) key = ReadText(fd);
    lock.lock();
    auto all = [&] {
      for (const std::string& key : keys) {
        if (values_.count(key) == 0) return false;
      }
      return true;
    };
    if (op == 6) changed_.wait(lock, [&] { return stop_ || all(); });
    WriteValue<uint8_t>(fd, all() ? 0 : 1);
  } else if (op == 7) {  // GETNUMKEYS
    lock.lock();
    WriteValue<int64_t>(fd, static_cast<int64_t>(values_.size()));
  } else if (op == 8) {  // DELETE_KEY
    const std::string key = ReadText(fd);
    lock.lock();
    WriteValue<int64_t>(fd, static_cast<int64_t>(values_.erase(key)));
  } else {
    return false;
  }
  changed_.notify_all();
  return true;
}

}  // namespace sherd::testing
