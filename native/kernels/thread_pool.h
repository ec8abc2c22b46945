// Threads that share the loops of the kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace relevo {

// A kernel of a decode step runs for tens of microseconds, less than a thread takes to start or to
// wake. Helpers therefore look out for the next loop for a moment before they sleep.
class ThreadPool {
 public:
  static ThreadPool& shared();
  ~ThreadPool();

  // Calls part(i, threads) for every i < threads, part 0 on the caller's thread, and returns when
  // all have. From any thread, one loop at a time. Every helper that there is looks at every loop,
  // also where it has no part in it: loops are expected to want the same number of threads.
  void run(int threads, const std::function<void(int, int)>& part);

 private:
  void help(int index, uint32_t round);

  std::mutex one_loop_;
  std::vector<std::thread> helpers_;  // guarded by one_loop_
  // A round's job is written before `round_` and read after it.
  const std::function<void(int, int)>* part_ = nullptr;
  int threads_ = 0;  // 0: the end
  std::atomic<uint32_t> round_{0};
  std::atomic<int> busy_{0};
};

}  // namespace relevo
