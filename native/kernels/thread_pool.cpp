#include "thread_pool.h"

#include <chrono>

namespace relevo {
namespace {

constexpr auto kLookOut = std::chrono::microseconds(200);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// True when `done()` is, false after kLookOut.
template <typename Done>
bool look_out(Done done) {
  auto until = std::chrono::steady_clock::now() + kLookOut;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  return done();
}

}  // namespace

ThreadPool& ThreadPool::shared() {
  static ThreadPool pool;
  return pool;
}

ThreadPool::~ThreadPool() {
  threads_ = 0;
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run(int threads, const std::function<void(int, int)>& part) {
  if (threads <= 1) return part(0, 1);
  std::lock_guard<std::mutex> lock(one_loop_);
  while (static_cast<int>(helpers_.size()) < threads - 1) {
    int index = static_cast<int>(helpers_.size()) + 1;
    helpers_.emplace_back([this, index, round = round_.load()] { help(index, round); });
  }
  part_ = &part;
  threads_ = threads;
  busy_.store(static_cast<int>(helpers_.size()));
  round_.fetch_add(1);
  round_.notify_all();
  part(0, threads);
  while (!look_out([this] { return busy_.load() == 0; })) std::this_thread::yield();
}

void ThreadPool::help(int index, uint32_t round) {
  for (;; ++round) {
    if (!look_out([&] { return round_.load() != round; })) round_.wait(round);
    if (threads_ == 0) return;
    if (index < threads_) (*part_)(index, threads_);
    busy_.fetch_sub(1);
  }
}

}  // namespace relevo
