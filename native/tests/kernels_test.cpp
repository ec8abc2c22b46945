// The kernels under the sanitizers (`make sanitize`): what their threads do to each other, and
// whether they keep to their memory at sizes that no vector width divides. What they compute is
// tested from Python against torch; here only that threads change nothing of it.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../kernels/attention.h"
#include "../kernels/linear.h"
#include "../kernels/thread_pool.h"

using namespace relevo;

namespace {

void check(bool condition, const char* what, int line) {
  if (condition) return;
  std::fprintf(stderr, "kernels_test.cpp:%d: %s\n", line, what);
  std::exit(1);
}
#define CHECK(condition) check(condition, #condition, __LINE__)

// Exactly as long as asked for, so that AddressSanitizer sees a read past the end.
template <typename T>
std::vector<T> values(int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    store(&out[i], static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 64);
  }
  return out;
}

template <typename T>
bool equal(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Every part runs once, with more and fewer threads from loop to loop.
void each_part_runs_once() {
  ThreadPool pool;
  for (int round = 0; round < 2000; ++round) {
    int threads = 1 + round % 4;
    std::vector<int> ran(static_cast<size_t>(threads), 0);  // plain: a race would be seen
    pool.run(threads, [&](int index, int of) {
      CHECK(of == threads);
      ran[static_cast<size_t>(index)] += 1;
    });
    for (int count : ran) CHECK(count == 1);
  }
}

void loops_of_several_callers() {
  ThreadPool pool;
  std::atomic<int> parts{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        int sum = 0;  // written by part 0 alone
        pool.run(2, [&](int index, int) {
          if (index == 0) sum += 1;
          parts += 1;
        });
        CHECK(sum == 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(parts == 3 * 300 * 2);
}

// Helpers that have gone to sleep, that look out, and that were never started.
void a_pool_that_ends() {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool;
    pool.run(threads, [](int, int) {});
    if (threads == 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

template <typename T>
void linear_alone_and_shared() {
  for (int64_t rows : {1, 2, 5, 7, 16}) {
    for (int64_t in : {1, 31, 64, 193}) {
      int64_t outputs = in + 6;
      auto x = values<T>(rows * in), weight = values<T>(outputs * in), bias = values<T>(outputs);
      std::vector<T> alone(static_cast<size_t>(rows * outputs)), shared(alone);
      linear(x.data(), weight.data(), bias.data(), alone.data(), rows, in, outputs, 1);
      linear(x.data(), weight.data(), bias.data(), shared.data(), rows, in, outputs, 3);
      CHECK(equal(alone, shared));
    }
  }
}

template <typename T>
void attention_alone_and_shared() {
  constexpr int64_t kTokens = 16, kHeads = 6, kKvHeads = 2, kRows = 3, kPages = 4;
  for (int64_t dim : {16, 24, 64}) {
    PoolLayer pool{nullptr, kKvHeads * 2 * kTokens * dim, kTokens, kKvHeads, dim};
    auto memory = values<T>(kRows * kPages * pool.page_elements);
    pool.base = memory.data();
    auto q = values<T>(kRows * kHeads * dim);
    std::vector<int32_t> pages;
    for (int32_t page = kRows * kPages; page > 0; --page) pages.push_back(page - 1);
    std::vector<int32_t> lengths{1, 17, kPages * kTokens};
    std::vector<T> alone(q.size()), shared(q.size());
    for (auto [out, threads] : {std::pair{&alone, 1}, std::pair{&shared, 3}}) {
      decode_attention(q.data(), kHeads * dim, out->data(), pages.data(), kPages, lengths.data(),
                       kRows, kHeads, 0.125F, threads, pool);
    }
    CHECK(equal(alone, shared));
    std::vector<T> keys(static_cast<size_t>(kKvHeads * 33 * dim)), copies(keys);
    gather(keys.data(), copies.data(), pages.data(), 33, pool);
  }
}

template <typename T>
void stores_into_its_own_pages() {
  constexpr int64_t kTokens = 4, kHeads = 4, kKvHeads = 2, kDim = 16, kPages = 3;
  PoolLayer pool{nullptr, kKvHeads * 2 * kTokens * kDim, kTokens, kKvHeads, kDim};
  std::vector<T> memory(static_cast<size_t>(kPages * pool.page_elements));
  pool.base = memory.data();
  auto qkv = values<T>(5 * (kHeads + 2 * kKvHeads) * kDim);
  auto cosines = values<float>(16 * kDim / 2), sines = values<float>(16 * kDim / 2);
  std::vector<int64_t> positions{0, 3, 7, 11, 15}, slots{0, 3, 4, 10, kPages * kTokens - 1};
  rotate_and_store(qkv.data(), cosines.data(), sines.data(), positions.data(), slots.data(), 5,
                   kHeads, pool);
}

template <typename T>
void kernels() {
  linear_alone_and_shared<T>();
  attention_alone_and_shared<T>();
  stores_into_its_own_pages<T>();
}

}  // namespace

int main() {
  each_part_runs_once();
  loops_of_several_callers();
  a_pool_that_ends();
  kernels<float>();
  kernels<bfloat16>();
  std::printf("9 passed, 0 failed\n");
  return 0;
}
