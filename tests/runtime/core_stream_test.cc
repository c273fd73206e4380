#include "sherd/runtime/core/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

// What `work` throws at its wait, or "" if nothing.
std::string WaitText(const Work& work) {
  try {
    work.Wait();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(WorkTest, DefaultOneIsComplete) {
  const Work work;
  EXPECT_TRUE(work.done());
  work.Wait();
}

TEST(StreamTest, JobsRunInOrderOnAThreadOfTheirOwn) {
  Stream stream("gather");
  std::vector<int> order;
  std::thread::id id;
  Work last;
  for (int i = 0; i < 100; ++i) {
    last = stream.Enqueue({}, [&order, &id, i] {
      order.push_back(i);
      id = std::this_thread::get_id();
    });
  }
  last.Wait();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(StreamTest, WorkIsDoneOnlyAfterItsJob) {
  Stream stream("gather");
  std::promise<void> gate;
  const Work work = stream.Enqueue({}, [opened = gate.get_future().share()] { opened.wait(); });
  EXPECT_FALSE(work.done());
  gate.set_value();
  work.Wait();
  EXPECT_TRUE(work.done());
}

TEST(StreamTest, StreamsOfOneThreadBeginJobsInTheOrderOfBoth) {
  std::vector<int> order;
  auto first = std::make_unique<Stream>("gather");
  auto second = std::make_unique<Stream>("reduce", Device(), *first);
  std::promise<void> gate;
  first->Enqueue({}, [opened = gate.get_future().share()] { opened.wait(); });
  for (int i = 0; i < 50; ++i) {
    (i % 3 == 0 ? first : second)->Enqueue({}, [&order, i] { order.push_back(i); });
  }
  gate.set_value();
  first = nullptr;  // runs its own, and leaves the thread to the other
  second->Enqueue({}, [&order] { order.push_back(50); });
  second = nullptr;
  ASSERT_EQ(order.size(), 51u);
  for (int i = 0; i < 51; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(StreamTest, AFailureRefusesTheJobsOfItsStreamAlone) {
  Stream first("gather");
  Stream second("reduce", Device(), first);
  EXPECT_EQ(WaitText(first.Enqueue({}, [] { ThrowInvalidArgument("peer left"); })), "peer left");
  EXPECT_EQ(WaitText(second.Enqueue({}, [] {})), "");
  EXPECT_EQ(WaitText(first.Enqueue({}, [] {})), "peer left");
}

TEST(StreamTest, WaitThrowsTheJobsErrorEachTimeWithTheContextOfEnqueue) {
  Stream stream("reduce");
  const Work work =
      stream.Enqueue({.op = "reduce_scatter", .module_path = "blocks.3", .site = {"loop.cc", 9}},
                     [] { ThrowInvalidArgument("peer left"); });
  const std::string expected = "[reduce_scatter] peer left (in blocks.3) at loop.cc:9";
  EXPECT_EQ(WaitText(work), expected);
  EXPECT_EQ(WaitText(work), expected);
}

TEST(StreamTest, ForeignExceptionsBecomeErrors) {
  {
    Stream stream("a");
    EXPECT_EQ(WaitText(stream.Enqueue({.op = "send"}, [] { throw std::runtime_error("broken"); })),
              "[send] broken");
  }
  Stream stream("b");
  EXPECT_EQ(WaitText(stream.Enqueue({.op = "send"}, [] { throw 7; })),
            "[send] an exception that is no std::exception");
}

TEST(StreamTest, AfterAFailureJobsAreRefusedWithTheFirstError) {
  Stream stream("gather");
  const Work bad = stream.Enqueue({.op = "first"}, [] { ThrowInvalidArgument("cause"); });
  bool ran = false;
  const Work refused = stream.Enqueue({.op = "second"}, [&ran] { ran = true; });
  EXPECT_EQ(WaitText(refused), "[first] cause");
  EXPECT_FALSE(ran);
  EXPECT_THROW(stream.Synchronize(), Error);
  EXPECT_THROW(stream.Synchronize(), Error);
}

TEST(StreamTest, RecoverMakesItTakeJobsAgain) {
  Stream stream("gather");
  const Work bad = stream.Enqueue({.op = "first"}, [] { ThrowInvalidArgument("cause"); });
  EXPECT_NE(WaitText(bad), "");
  stream.Recover();
  bool ran = false;
  stream.Enqueue({}, [&ran] { ran = true; }).Wait();
  EXPECT_TRUE(ran);
  EXPECT_EQ(WaitText(bad), "[first] cause");  // what has failed stays so
}

TEST(StreamTest, SynchronizeWaitsForAllBefore) {
  Stream stream("gather");
  std::atomic<int> ran = 0;
  for (int i = 0; i < 10; ++i) {
    stream.Enqueue({}, [&ran] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++ran;
    });
  }
  stream.Synchronize();
  EXPECT_EQ(ran, 10);
}

TEST(StreamTest, DestructorRunsWhatIsQueued) {
  int ran = 0;
  {
    Stream stream("gather");
    for (int i = 0; i < 50; ++i) stream.Enqueue({}, [&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(StreamTest, WhatAJobHoldsIsReleasedBeforeItIsDone) {
  Stream stream("gather");
  for (bool fails : {false, true}) {
    auto held = std::make_shared<int>(0);
    const Work work = stream.Enqueue({}, [held, fails] {
      if (fails) ThrowInvalidArgument("cause");
    });
    WaitText(work);
    EXPECT_EQ(held.use_count(), 1);
  }
}

TEST(StreamTest, ManyThreadsEnqueueAndWait) {
  Stream stream("gather");
  std::atomic<int> ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) stream.Enqueue({}, [&ran] { ++ran; }).Wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, 200);
}

}  // namespace
}  // namespace sherd
