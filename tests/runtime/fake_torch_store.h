#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sherd::testing {

// A stand-in for the store that torchrun's agent serves, written from PyTorch's TCPStore.cpp: reads
// requests as that does, in the dialect up to 2.1 or from 2.2 on. One thread a connection.
class FakeTorchStore {
 public:
  explicit FakeTorchStore(bool modern);
  ~FakeTorchStore();

  int port() const { return port_; }

 private:
  void Accept();
  void Serve(int fd);
  bool ServeOne(int fd);
  bool Answer(int fd, int op);

  const bool modern_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace sherd::testing
