// Memory of the device "acme": blocks of the host's, each taken by itself, and pools.  A pool is one region whose blocks
// are handed out first fit, so that a freed block is the next one's: who works with stale bookkeeping writes over values.

#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace acme {

constexpr c10::DeviceType kAcme = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr size_t kAlignment = 256, kRegion = size_t(1) << 30, kGuard = 4096, kReserved = size_t(1) << 16;
constexpr int kPoison = 0xFF;  // floats of such bytes are NaN

inline std::atomic<int64_t> held{0}, allocations{0};
inline thread_local c10::DeviceIndex current = 0;
inline thread_local bool recording_here = false;  // nothing runs, so memory is not touched

inline std::mutex lock;
inline std::map<char*, size_t> blocks;   // memory in use outside of pools, by where it begins
inline std::map<char*, size_t> regions;  // of all pools

inline size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

inline bool within(const std::map<char*, size_t>& known, const char* address) {
  auto after = known.upper_bound(const_cast<char*>(address));
  return after != known.begin() && address < std::prev(after)->first + std::prev(after)->second;
}

inline bool owns(const void* address) {
  std::lock_guard<std::mutex> guard(lock);
  return within(blocks, static_cast<const char*>(address)) || within(regions, static_cast<const char*>(address));
}

class Pool {
 public:
  using Blocks = std::vector<std::pair<char*, size_t>>;

  explicit Pool(c10::DeviceIndex device) : device(device) {
    void* memory = mmap(nullptr, kRegion + kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED && mprotect(memory, kRegion, PROT_READ | PROT_WRITE) == 0, "acme has no room for a pool");
    start_ = static_cast<char*>(memory);
    std::lock_guard<std::mutex> guard(lock);
    regions[start_] = kRegion;
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> guard(lock);
      regions.erase(start_);
    }
    munmap(start_, kRegion + kGuard);
  }

  char* allocate(size_t bytes) {
    bytes = aligned(bytes, kAlignment);
    allocated += static_cast<int64_t>(bytes);
    char* found = start_;
    {
      std::lock_guard<std::mutex> guard(lock_);
      for (const auto& [begin, block] : blocks_) {
        if (found + bytes <= begin) break;
        found = begin + block.bytes;
      }
      TORCH_CHECK(found + bytes <= start_ + kRegion, "acme: a pool is full");
      blocks_[found] = {bytes, true};
      used_ = std::max(used_, static_cast<size_t>(found + bytes - start_));
    }
    if (!recording_here) std::memset(found, kPoison, bytes);
    return found;
  }

  void free(char* begin) {
    std::lock_guard<std::mutex> guard(lock_);
    blocks_.erase(begin);
  }

  Blocks checkpoint() {
    std::lock_guard<std::mutex> guard(lock_);
    Blocks found;
    for (const auto& [begin, block] : blocks_) found.emplace_back(begin, block.bytes);
    return found;
  }

  void restore(const Blocks& wanted, const std::vector<char*>& dead) {
    std::lock_guard<std::mutex> guard(lock_);
    for (const auto& [begin, block] : blocks_)
      TORCH_CHECK(!block.owned, "a pool cannot be restored while a tensor allocated from it lives: ", block.bytes,
                  " bytes at ", static_cast<void*>(begin));
    std::map<char*, Block> restored;
    for (const auto& [begin, bytes] : wanted) restored[begin] = {bytes, false};
    for (char* begin : dead)
      TORCH_CHECK(restored.erase(begin), "no block of the checkpoint begins at the dead address ", static_cast<void*>(begin));
    blocks_ = std::move(restored);
  }

  size_t reserved() {
    std::lock_guard<std::mutex> guard(lock_);
    return aligned(used_, kReserved);
  }

  char* start() const { return start_; }

  const c10::DeviceIndex device;
  std::atomic<int64_t> allocated{0};  // bytes of all blocks that were ever handed out

 private:
  struct Block {
    size_t bytes;
    bool owned;  // by a tensor, which gives it back
  };
  std::mutex lock_;
  std::map<char*, Block> blocks_;
  char* start_ = nullptr;
  size_t used_ = 0;
};

inline thread_local std::shared_ptr<Pool> allocating_in;

struct PooledBlock {  // keeps the pool
  std::shared_ptr<Pool> pool;
  char* begin;
};

inline void release_pooled(void* context) {
  std::unique_ptr<PooledBlock> block(static_cast<PooledBlock*>(context));
  block->pool->free(block->begin);
}

inline void release(void* memory) {
  if (memory == nullptr) return;
  {
    std::lock_guard<std::mutex> guard(lock);
    held -= static_cast<int64_t>(blocks.at(static_cast<char*>(memory)));
    blocks.erase(static_cast<char*>(memory));
  }
  std::free(memory);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kAcme, current);
    if (bytes > 0 && allocating_in != nullptr) {
      if (allocating_in->device == current) {
        char* begin = allocating_in->allocate(bytes);
        return {begin, new PooledBlock{allocating_in, begin}, &release_pooled, device};
      }
      TORCH_CHECK(!recording_here, "acme: memory of another device cannot be taken while something is recorded");
    }
    void* memory = nullptr;
    if (bytes > 0) {
      TORCH_CHECK(posix_memalign(&memory, kAlignment, bytes) == 0, "acme is out of memory");
      std::lock_guard<std::mutex> guard(lock);
      blocks[static_cast<char*>(memory)] = bytes;
      held += static_cast<int64_t>(bytes);
      ++allocations;
    }
    return {memory, memory, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override { default_copy_data(target, source, bytes); }
};
inline Allocator allocator;

}  // namespace acme
