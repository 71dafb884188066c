// Runs the kernels of a plan through the CUDA driver API: one call for each run of consecutive kernels.
//
// A segment is a flat table of int64 words, written by turret/native/table.py and decoded once, here.  Nothing in
// it depends on the machine's compiler, so that a plan read from the cache runs without one.  The driver is opened
// at run time and its few functions are declared below: no CUDA header is needed, and none of torch's.

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "turret_enums.h"  // Operation, ParameterKind, PartKind, Status: the tables are in enums.py

namespace {

using Result = int;
using Handle = void*;
using Address = std::uint64_t;

constexpr int kMaxDevices = 64;
constexpr int kMaxParameters = 512;
constexpr int kMaxAssumed = 64;
constexpr int kMaxVariants = 8;
constexpr int kMaxDepth = 64;
constexpr int kMaxArguments = 1 << 15;  // bytes that a kernel is handed; CUDA's limit is 32,764
constexpr int kMaxAttributes = 16;
void* const kBuffer = reinterpret_cast<void*>(1);      // CU_LAUNCH_PARAM_BUFFER_POINTER
void* const kBufferSize = reinterpret_cast<void*>(2);  // CU_LAUNCH_PARAM_BUFFER_SIZE
constexpr int kMaxDynamicShared = 8;    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kAnyClusterSize = 14;     // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
constexpr int kClusterDimension = 4;    // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kCooperative = 2;         // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
constexpr int kProgrammatic = 6;        // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kProgrammaticInGraphs = 12030;  // version of the driver from which on a capture records such launches
constexpr int kPortableClusterSize = 8;
constexpr int kRelaxed = 2;             // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr std::int64_t kSharedWithoutAsking = 48 * 1024;

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned words[16];
  } value;
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  Handle stream;
  LaunchAttribute* attributes;
  unsigned count;
};

struct Driver {
  Result (*init)(unsigned);
  Result (*version)(int*);
  Result (*device_get)(int*, int);
  Result (*retain)(Handle*, int);
  Result (*get_current)(Handle*);
  Result (*set_current)(Handle);
  Result (*exchange_mode)(int*);
  Result (*load)(Handle*, const void*);
  Result (*get_function)(Handle*, Handle, const char*);
  Result (*set_attribute)(Handle, int, int);
  Result (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                   void**);
  Result (*launch_ex)(const LaunchConfig*, Handle, void**, void**);
  Result (*clear)(Address, unsigned char, std::size_t, Handle);
  Result (*fill)(Address, unsigned, std::size_t, Handle);
  Result (*copy)(Address, Address, std::size_t, Handle);
  Result (*error_text)(Result, const char**);
  bool programmatic = false;
};

Driver driver;
std::atomic<bool> opened{false};
std::mutex opening;
Handle contexts[kMaxDevices];
thread_local std::string message;

bool fail(const std::string& what, Result result) {
  const char* text = nullptr;
  if (opened && driver.error_text(result, &text) == 0 && text != nullptr) {
    message = what + ": " + text;
  } else {
    message = what + ": driver error " + std::to_string(result);
  }
  return false;
}

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) message = std::string("the CUDA driver has no ") + name;
  return function != nullptr;
}

bool open_driver(const char* path) {
  std::lock_guard<std::mutex> guard(opening);
  if (opened) return true;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    message = std::string("the CUDA driver cannot be opened: ") + dlerror();
    return false;
  }
  Driver& d = driver;
  const bool complete = find(library, "cuInit", d.init) && find(library, "cuDriverGetVersion", d.version) &&
                        find(library, "cuDeviceGet", d.device_get) &&
                        find(library, "cuDevicePrimaryCtxRetain", d.retain) &&
                        find(library, "cuCtxGetCurrent", d.get_current) &&
                        find(library, "cuCtxSetCurrent", d.set_current) &&
                        find(library, "cuThreadExchangeStreamCaptureMode", d.exchange_mode) &&
                        find(library, "cuModuleLoadData", d.load) &&
                        find(library, "cuModuleGetFunction", d.get_function) &&
                        find(library, "cuFuncSetAttribute", d.set_attribute) &&
                        find(library, "cuLaunchKernel", d.launch) && find(library, "cuLaunchKernelEx", d.launch_ex) &&
                        find(library, "cuMemsetD8Async", d.clear) && find(library, "cuMemsetD32Async", d.fill) &&
                        find(library, "cuMemcpyDtoDAsync_v2", d.copy) &&
                        find(library, "cuGetErrorString", d.error_text);
  if (!complete) return false;
  if (const Result result = d.init(0)) return fail("cuInit", result);
  int version = 0;
  d.programmatic = d.version(&version) == 0 && version >= kProgrammaticInGraphs;
  opened = true;
  return true;
}

// The primary context of a device, the one torch works in; retained once and kept.
bool context_of(int device, Handle& context) {
  std::lock_guard<std::mutex> guard(opening);
  if (device < 0 || device >= kMaxDevices) {
    message = "no device " + std::to_string(device);
    return false;
  }
  if (contexts[device] == nullptr) {
    int handle = 0;
    if (const Result result = driver.device_get(&handle, device)) return fail("cuDeviceGet", result);
    if (const Result result = driver.retain(&contexts[device], handle)) return fail("cuDevicePrimaryCtxRetain", result);
  }
  context = contexts[device];
  return true;
}

// A kernel's binary; loaded on a device when a segment on it first runs.  That of a kernel with a number comes later, by
// `define`: until then nothing but name and number is there.
struct Kernel {
  std::int64_t number = 0;
  std::vector<char> image;
  std::string name;
  unsigned threads = 0;
  std::int64_t shared = 0;
  unsigned cluster[3] = {1, 1, 1};
  bool cooperative = false;
  bool programmatic = false;
  std::mutex lock;
  std::atomic<bool> defined{false};  // all above is there, and stays as it is
  std::atomic<Handle> functions[kMaxDevices] = {};

  unsigned cluster_size() const { return cluster[0] * cluster[1] * cluster[2]; }
  bool is_defined() const { return defined.load(std::memory_order_acquire); }

  // Does nothing the second time.
  void define(const char* binary, std::int64_t bytes, int count, std::int64_t dynamic, const std::int64_t* blocks,
              bool is_cooperative, bool is_programmatic) {
    std::lock_guard<std::mutex> guard(lock);
    if (is_defined()) return;
    image.assign(binary, binary + bytes);
    threads = static_cast<unsigned>(count);
    shared = dynamic;
    for (int i = 0; i < 3; ++i) cluster[i] = static_cast<unsigned>(blocks[i]);
    cooperative = is_cooperative;
    programmatic = is_programmatic;
    defined.store(true, std::memory_order_release);
  }

  // With the device's context current.
  bool function_on(int device, Handle& function) {
    function = functions[device].load(std::memory_order_acquire);
    return function != nullptr || loaded_on(device, function);
  }

 private:
  bool loaded_on(int device, Handle& function) {
    if (!is_defined()) {
      message = "kernel " + name + " is not compiled";
      return false;
    }
    std::lock_guard<std::mutex> guard(lock);
    if (functions[device].load(std::memory_order_relaxed) == nullptr) {
      Handle module = nullptr, found = nullptr;
      if (const Result r = load(&module)) return fail("loading kernel " + name, r);
      if (const Result r = driver.get_function(&found, module, name.c_str())) return fail("finding kernel " + name, r);
      if (shared > kSharedWithoutAsking) {
        if (const Result r = driver.set_attribute(found, kMaxDynamicShared, static_cast<int>(shared)))
          return fail("kernel " + name + " wants " + std::to_string(shared) + " bytes of shared memory", r);
      }
      if (cluster_size() > kPortableClusterSize) {
        if (const Result r = driver.set_attribute(found, kAnyClusterSize, 1)) return fail("kernel " + name, r);
      }
      functions[device].store(found, std::memory_order_release);
    }
    function = functions[device].load(std::memory_order_relaxed);
    return true;
  }

  // Whatever this thread captures meanwhile: loading queues nothing on a stream of its own.
  Result load(Handle* module) const {
    int mode = kRelaxed;
    const bool changed = driver.exchange_mode(&mode) == 0;
    const Result result = driver.load(module, image.data());
    if (changed) driver.exchange_mode(&mode);
    return result;
  }
};

// An int over sizes, in postfix order.
struct Expression {
  bool constant = true;
  std::int64_t value = 0;
  std::vector<std::int64_t> code;

  // Beyond 64 bits the rest is dropped, whatever a table says.
  static std::int64_t low(std::uint64_t value) { return static_cast<std::int64_t>(value); }

  static std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
    if (b == 0) return 0;  // sizes of zero elements: nothing is launched for them
    if (b == -1) return low(-static_cast<std::uint64_t>(a));
    const std::int64_t quotient = a / b;
    return quotient - ((a % b != 0) && ((a < 0) != (b < 0)));
  }

  std::int64_t at(const std::int64_t* sizes) const {
    if (constant) return value;
    std::int64_t stack[kMaxDepth];
    int top = -1;
    for (std::size_t i = 0; i < code.size(); ++i) {
      const std::int64_t op = code[i];
      if (op == Operation::NUMBER) {
        stack[++top] = code[++i];
        continue;
      }
      if (op == Operation::SIZE) {
        stack[++top] = sizes[code[++i]];
        continue;
      }
      const std::int64_t b = stack[top--];
      std::int64_t& a = stack[top];
      const std::uint64_t left = static_cast<std::uint64_t>(a), right = static_cast<std::uint64_t>(b);
      switch (op) {
        case Operation::ADD: a = low(left + right); break;
        case Operation::SUBTRACT: a = low(left - right); break;
        case Operation::MULTIPLY: a = low(left * right); break;
        case Operation::FLOOR_DIVIDE: a = floor_divide(a, b); break;
        case Operation::MODULO: a = low(left - static_cast<std::uint64_t>(floor_divide(a, b)) * right); break;
        case Operation::LESS: a = a < b; break;
        case Operation::MINIMUM: a = b < a ? b : a; break;
        default: a = b > a ? b : a;
      }
    }
    return stack[0];
  }
};

// Where a kernel parameter's eight bytes come from; an int32 is read from their low half.
struct Parameter {
  ParameterKind::Value kind;
  std::int64_t index = 0;
  Expression offset;
};

struct Step {
  Kernel* kernel = nullptr;  // null: clear memory at the one parameter, grid[0] bytes
  std::vector<Parameter> parameters;
  Expression grid[3];
  std::vector<Expression> assumes;  // each at most zero, or `otherwise` runs instead
  std::unique_ptr<Step> otherwise;

  bool holds(const std::int64_t* sizes) const {
    for (const Expression& assumed : assumes) {
      if (assumed.at(sizes) > 0) return false;
    }
    return true;
  }

  // The first of this one, what runs instead, and so on, of which all that it assumes holds; the last assumes nothing.
  const Step& chosen(const std::int64_t* sizes) const {
    const Step* step = this;
    while (!step->holds(sizes)) step = step->otherwise.get();
    return *step;
  }

  bool launches_nothing(const std::int64_t* sizes) const {
    return grid[0].at(sizes) <= 0 || grid[1].at(sizes) <= 0 || grid[2].at(sizes) <= 0;
  }

  // Whether one of this one, what runs instead, and so on is not compiled.
  bool awaits_kernels() const {
    return kernel != nullptr && (!kernel->is_defined() || (otherwise != nullptr && otherwise->awaits_kernels()));
  }
};

// The words of a table, and how many kernels, slots and sizes there are to refer to.
class Words {
 public:
  const std::int64_t kernels, slots, sizes;

  Words(const std::int64_t* begin, std::int64_t count, std::int64_t kernels, std::int64_t slots, std::int64_t sizes)
      : kernels(kernels), slots(slots), sizes(sizes), next_(begin), end_(begin + count) {}
  std::int64_t take() {
    if (next_ == end_) {
      good_ = false;
      return 0;
    }
    return *next_++;
  }
  std::int64_t count(std::int64_t limit) {
    const std::int64_t n = take();
    if (n < 0 || n > limit) good_ = false;
    return good_ ? n : 0;
  }
  bool good() const { return good_; }
  bool done() const { return good_ && next_ == end_; }
  void refuse() { good_ = false; }

 private:
  const std::int64_t* next_;
  const std::int64_t* end_;
  bool good_ = true;
};

std::int64_t status(Status::Value code, std::int64_t detail) { return code | (detail << 8); }

// Who is handed what this thread would launch, instead of the driver: the nodes of a recorded graph are written anew.
struct Redirection {
  int (*kernel)(void* graph, Handle function, const unsigned* grid, void* const* parameters, std::int64_t count) = nullptr;
  int (*clear)(void* graph, Address target, std::uint64_t bytes) = nullptr;
  int (*copy)(void* graph, Address target, Address source, std::uint64_t bytes) = nullptr;
  void* graph = nullptr;
};
thread_local Redirection redirection;

std::int64_t misaligned(const std::vector<std::int64_t>& aligned, void* const* slots) {
  for (const std::int64_t slot : aligned) {
    if (reinterpret_cast<Address>(slots[slot]) & 15) return status(Status::MISALIGNED, slot);
  }
  return Status::DONE;
}

// The status of `work`, which says whether it went well, with a context current.
template <typename Work>
std::int64_t in_context(Handle context, const Work& work) {
  Handle before = nullptr;
  driver.get_current(&before);
  if (before != context) {
    if (const Result result = driver.set_current(context)) {
      fail("making the device current", result);
      return Status::DRIVER_ERROR;
    }
  }
  const bool good = work();
  if (before != context) driver.set_current(before);
  return good ? Status::DONE : Status::DRIVER_ERROR;
}

class Segment {
 public:
  int device = 0;
  Handle context = nullptr;
  std::vector<std::int64_t> aligned;  // slots whose addresses kernels take for multiples of 16
  std::vector<std::int64_t> narrow;   // sizes that kernels take as int32
  std::vector<Step> steps;
  std::int64_t arena_slot = 0;

  // Loads what is compiled.
  bool prepare() {
    std::lock_guard<std::mutex> guard(lock_);
    if (ready_) return true;
    Handle function = nullptr;
    for (Step& step : steps) {
      for (Step* each = &step; each != nullptr; each = each->otherwise.get()) {
        const bool is_there = each->kernel != nullptr && each->kernel->is_defined();
        if (is_there && !each->kernel->function_on(device, function)) return false;
      }
    }
    ready_ = true;
    return true;
  }

  // Once all steps are there, which then stay where they are.
  void note_awaited() {
    for (const Step& step : steps) {
      if (step.awaits_kernels()) awaiting_.push_back(&step);
    }
  }

  std::int64_t run(void* const* slots, const std::int64_t* sizes, Handle stream) {
    if (const std::int64_t found = refusal(slots, sizes)) return found;
    return in_context(context, [&] { return launch_all(slots, sizes, stream); });
  }

  // The status of a run that cannot be, before anything is launched; DONE for one that can.
  std::int64_t refusal(void* const* slots, const std::int64_t* sizes) const {
    if (const std::int64_t found = misaligned(aligned, slots)) return found;
    for (const std::int64_t size : narrow) {
      if (sizes[size] > INT32_MAX || sizes[size] < INT32_MIN) return status(Status::SIZE_TOO_LARGE, size);
    }
    for (const Step* step : awaiting_) {
      if (!step->awaits_kernels()) continue;
      const Step& chosen = step->chosen(sizes);
      if (!chosen.kernel->is_defined() && !chosen.launches_nothing(sizes))
        return status(Status::NOT_COMPILED, chosen.kernel->number);
    }
    return Status::DONE;
  }

  // With the device's context current.
  bool launch_all(void* const* slots, const std::int64_t* sizes, Handle stream) {
    return (ready_.load(std::memory_order_acquire) || prepare()) && launch_steps(slots, sizes, stream);
  }

  static bool redirected() {
    message = "a recorded graph cannot take over a launch";  // it knows why
    return false;
  }

 private:
  std::atomic<bool> ready_{false};
  std::mutex lock_;
  std::vector<const Step*> awaiting_;  // with kernels that were not compiled when this was made

  bool launch_steps(void* const* slots, const std::int64_t* sizes, Handle stream) {
    std::int64_t values[kMaxParameters];
    void* pointers[kMaxParameters];
    for (const Step& each : steps) {
      const Step& step = each.chosen(sizes);
      int count = 0;
      for (const Parameter& parameter : step.parameters) {
        std::int64_t& value = values[count];
        pointers[count++] = &value;
        switch (parameter.kind) {
          case ParameterKind::SLOT: value = reinterpret_cast<std::int64_t>(slots[parameter.index]); break;
          case ParameterKind::SIZE: value = sizes[parameter.index]; break;
          case ParameterKind::ARENA:
            value = Expression::low(reinterpret_cast<Address>(slots[arena_slot]) +
                                    static_cast<std::uint64_t>(parameter.offset.at(sizes)));
            break;
          default: value = parameter.index;
        }
      }
      if (step.kernel == nullptr) {
        const std::int64_t bytes = step.grid[0].at(sizes);
        if (bytes <= 0) continue;
        if (redirection.graph != nullptr) {
          if (redirection.clear(redirection.graph, static_cast<Address>(values[0]), static_cast<std::uint64_t>(bytes)))
            return redirected();
          continue;
        }
        if (const Result r = driver.clear(static_cast<Address>(values[0]), 0, static_cast<std::size_t>(bytes), stream))
          return fail("clearing memory", r);
        continue;
      }
      const std::int64_t grid[3] = {step.grid[0].at(sizes), step.grid[1].at(sizes), step.grid[2].at(sizes)};
      if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) continue;
      Handle function = nullptr;
      if (!step.kernel->function_on(device, function)) return false;
      if (const Result r = launch(step, function, grid, pointers, stream)) {
        return fail("launching kernel " + step.kernel->name + " with grid (" + std::to_string(grid[0]) + ", " +
                        std::to_string(grid[1]) + ", " + std::to_string(grid[2]) + "), " +
                        std::to_string(step.kernel->threads) + " threads, " + std::to_string(step.kernel->shared) +
                        " bytes of shared memory",
                    r);
      }
    }
    return true;
  }

  static Result launch(const Step& step, Handle function, const std::int64_t* counts, void** pointers, Handle stream) {
    constexpr Result kInvalidValue = 1;
    const Kernel& kernel = *step.kernel;
    unsigned grid[3];
    for (int i = 0; i < 3; ++i) {
      std::int64_t whole = 0;
      if (__builtin_mul_overflow(counts[i], static_cast<std::int64_t>(kernel.cluster[i]), &whole) || whole > INT32_MAX)
        return kInvalidValue;
      grid[i] = static_cast<unsigned>(whole);
    }
    if (redirection.graph != nullptr) {
      const auto count = static_cast<std::int64_t>(step.parameters.size());
      return redirection.kernel(redirection.graph, function, grid, pointers, count) ? kInvalidValue : 0;
    }
    const unsigned shared = static_cast<unsigned>(kernel.shared);
    const bool plain = kernel.cluster_size() == 1 && !kernel.cooperative;
    // The driver then has less to put between two kernels: 2.3 us a launch on the host of an H200, 2.9 without.
    const bool programmatic = plain && kernel.programmatic && driver.programmatic;
    if (plain && !programmatic) {
      return driver.launch(function, grid[0], grid[1], grid[2], kernel.threads, 1, 1, shared, stream, pointers,
                           nullptr);
    }
    LaunchAttribute attributes[2] = {};
    LaunchConfig config = {{grid[0], grid[1], grid[2]}, {kernel.threads, 1, 1}, shared, stream, attributes, 0};
    if (kernel.cluster_size() != 1) {
      LaunchAttribute& attribute = attributes[config.count++];
      attribute.id = kClusterDimension;
      for (int i = 0; i < 3; ++i) attribute.value.words[i] = kernel.cluster[i];
    }
    if (kernel.cooperative) {
      LaunchAttribute& attribute = attributes[config.count++];
      attribute.id = kCooperative;
      attribute.value.words[0] = 1;
    }
    if (programmatic) {
      LaunchAttribute& attribute = attributes[config.count++];
      attribute.id = kProgrammatic;
      attribute.value.words[0] = 1;
    }
    return driver.launch_ex(&config, function, pointers, nullptr);
  }
};

// A library's kernel as it was launched once, over memory that lies elsewhere in each run.
class KnownLaunch {
 public:
  explicit KnownLaunch(Words& words) {
    function_ = reinterpret_cast<Handle>(words.take());
    for (unsigned& count : config_.grid) count = static_cast<unsigned>(words.take());
    for (unsigned& count : config_.block) count = static_cast<unsigned>(words.take());
    config_.shared = static_cast<unsigned>(words.take());
    in_buffer_ = words.take() != 0;
    const std::int64_t parameters = words.count(kMaxParameters), attributes = words.count(kMaxAttributes);
    for (std::int64_t n = 0; n < parameters; ++n) {
      offsets_.push_back(words.count(kMaxArguments));
      if (offsets_.back() + words.count(kMaxArguments) > kMaxArguments) words.refuse();
    }
    for (std::int64_t n = 0; n < attributes; ++n) {
      LaunchAttribute attribute = {};
      attribute.id = static_cast<int>(words.take());
      for (int word = 0; word < 8; ++word) {
        const std::int64_t value = words.take();
        std::memcpy(attribute.value.bytes + 8 * word, &value, 8);
      }
      attributes_.push_back(attribute);
    }
    arguments_.resize(static_cast<std::size_t>(words.count(kMaxArguments / 8)));
    for (std::int64_t& word : arguments_) word = words.take();
    const auto bytes = static_cast<std::int64_t>(8 * arguments_.size());
    for (std::int64_t n = words.count(kMaxArguments); n > 0 && words.good(); --n) {
      Place place;
      place.offset = words.count(bytes - 8);
      place.slot = words.count(words.slots - 1);
      place.delta = words.take();
      places_.push_back(place);
    }
    if (function_ == nullptr) words.refuse();
  }

  bool launch(void* const* slots, Handle stream) const {
    if (redirection.graph != nullptr) return Segment::redirected();
    alignas(64) std::int64_t arguments[kMaxArguments / 8];
    char* const bytes = reinterpret_cast<char*>(arguments);
    std::memcpy(arguments, arguments_.data(), 8 * arguments_.size());
    for (const Place& place : places_) {
      const Address address = reinterpret_cast<Address>(slots[place.slot]) + static_cast<Address>(place.delta);
      std::memcpy(bytes + place.offset, &address, sizeof address);
    }
    void* pointers[kMaxParameters];
    for (std::size_t n = 0; n < offsets_.size(); ++n) pointers[n] = bytes + offsets_[n];
    std::size_t size = 8 * arguments_.size();
    void* extra[] = {kBuffer, arguments, kBufferSize, &size, nullptr};
    LaunchConfig config = config_;
    config.stream = stream;
    config.attributes = const_cast<LaunchAttribute*>(attributes_.data());
    config.count = static_cast<unsigned>(attributes_.size());
    const Result result =
        driver.launch_ex(&config, function_, in_buffer_ ? nullptr : pointers, in_buffer_ ? extra : nullptr);
    return result == 0 || fail("launching a library's kernel", result);
  }

 private:
  struct Place {
    std::int64_t offset, slot, delta;  // these eight bytes of the arguments are a slot's address and so much
  };

  Handle function_ = nullptr;
  LaunchConfig config_ = {};
  bool in_buffer_ = false;
  std::vector<std::int64_t> offsets_, arguments_;
  std::vector<LaunchAttribute> attributes_;
  std::vector<Place> places_;
};

// Memory that a library fills with a number before it launches a kernel.
class KnownFill {
 public:
  explicit KnownFill(Words& words) {
    slot_ = words.count(words.slots - 1);
    delta_ = words.take();
    value_ = static_cast<unsigned>(words.take());
    const std::int64_t size = words.take();
    in_bytes_ = size == 1;
    count_ = static_cast<std::size_t>(words.count(INT64_MAX));
    if (size != 1 && size != 4) words.refuse();
  }

  bool launch(void* const* slots, Handle stream) const {
    if (redirection.graph != nullptr) return Segment::redirected();
    const Address target = reinterpret_cast<Address>(slots[slot_]) + static_cast<Address>(delta_);
    const Result result = in_bytes_ ? driver.clear(target, static_cast<unsigned char>(value_), count_, stream)
                                    : driver.fill(target, value_, count_, stream);
    return result == 0 || fail("filling memory", result);
  }

 private:
  std::int64_t slot_ = 0, delta_ = 0;
  unsigned value_ = 0;
  bool in_bytes_ = true;
  std::size_t count_ = 0;
};

// Segments and what libraries launch, one behind the other.
class Sequence {
 public:
  Handle context = nullptr;
  std::vector<std::int64_t> aligned;

  void add(Segment* segment) { parts_.emplace_back(segment); }
  void add(KnownLaunch launch) { parts_.emplace_back(std::move(launch)); }
  void add(KnownFill fill) { parts_.emplace_back(fill); }

  std::int64_t run(void* const* slots, const std::int64_t* sizes, Handle stream) const {
    if (const std::int64_t found = misaligned(aligned, slots)) return found;
    for (const Part& part : parts_) {
      Segment* const* segment = std::get_if<Segment*>(&part);
      if (segment == nullptr) continue;
      if (const std::int64_t found = (*segment)->refusal(slots, sizes)) return found;
    }
    return in_context(context, [&] {
      for (const Part& part : parts_) {
        if (!launch(part, slots, sizes, stream)) return false;
      }
      return true;
    });
  }

 private:
  using Part = std::variant<Segment*, KnownLaunch, KnownFill>;
  std::vector<Part> parts_;

  static bool launch(const Part& part, void* const* slots, const std::int64_t* sizes, Handle stream) {
    if (Segment* const* segment = std::get_if<Segment*>(&part)) return (*segment)->launch_all(slots, sizes, stream);
    if (const auto* known = std::get_if<KnownLaunch>(&part)) return known->launch(slots, stream);
    return std::get<KnownFill>(part).launch(slots, stream);
  }
};

Expression read_expression(Words& words) {
  Expression expression;
  const std::int64_t length = words.count(4096);
  int depth = 0;
  for (std::int64_t i = 0; i < length && words.good(); ++i) {
    const std::int64_t op = words.take();
    expression.code.push_back(op);
    if (op == Operation::NUMBER || op == Operation::SIZE) {
      expression.code.push_back(op == Operation::SIZE ? words.count(words.sizes - 1) : words.take());
      ++i;
      if (op == Operation::SIZE) expression.constant = false;
      ++depth;
    } else {
      --depth;
      if (op < 0 || op >= Operation::count) words.refuse();
    }
    if (depth < 1 || depth >= kMaxDepth) words.refuse();
  }
  if (depth != 1 || !words.good()) {
    words.refuse();
    return Expression();
  }
  if (expression.constant) {
    expression.constant = false;
    expression.value = expression.at(nullptr);
    expression.constant = true;
    expression.code.clear();
  }
  return expression;
}

std::int64_t read_index(Words& words, ParameterKind::Value kind) {
  if (kind == ParameterKind::NUMBER) return words.take();
  return words.count((kind == ParameterKind::SLOT ? words.slots : words.sizes) - 1);
}

// `variants`: how many steps there may be of which one is chosen, this one among them.
Step read_step(Words& words, void* const* kernels, int variants = kMaxVariants) {
  Step step;
  const std::int64_t kernel = words.count(words.kernels) - 1;  // 0: clear memory
  if (kernel >= 0) {
    step.kernel = static_cast<Kernel*>(kernels[kernel]);
    if (step.kernel == nullptr) words.refuse();
  }
  const std::int64_t parameters = words.count(kMaxParameters);
  for (std::int64_t i = 0; i < parameters && words.good(); ++i) {
    Parameter parameter;
    parameter.kind = static_cast<ParameterKind::Value>(words.count(ParameterKind::count - 1));
    if (parameter.kind == ParameterKind::ARENA) {
      parameter.offset = read_expression(words);
    } else {
      parameter.index = read_index(words, parameter.kind);
    }
    step.parameters.push_back(std::move(parameter));
  }
  if (kernel < 0 && step.parameters.size() != 1) words.refuse();
  for (int i = 0; i < (kernel < 0 ? 1 : 3); ++i) step.grid[i] = read_expression(words);
  if (kernel < 0) return step;
  for (std::int64_t n = words.count(kMaxAssumed); n > 0 && words.good(); --n)
    step.assumes.push_back(read_expression(words));
  if (!step.assumes.empty()) {
    if (variants == 1) words.refuse();
    if (words.good()) step.otherwise = std::make_unique<Step>(read_step(words, kernels, variants - 1));
  }
  return step;
}

}  // namespace

extern "C" {

// Opens the driver; 0, or 1 with a message.
int turret_open(const char* path) { return open_driver(path) ? 0 : 1; }

// What went wrong in the last call on this thread that said so.
const char* turret_message() { return message.c_str(); }

// A kernel from its binary (copied).  ``cluster`` has three numbers of blocks; a ``programmatic`` kernel waits by
// itself for the one ahead of it.
void* turret_kernel(const char* image, std::int64_t bytes, const char* name, int threads, std::int64_t shared,
                    const std::int64_t* cluster, int cooperative, int programmatic) {
  if (image == nullptr || name == nullptr || cluster == nullptr || bytes < 0) return nullptr;
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name;
  kernel->define(image, bytes, threads, shared, cluster, cooperative != 0, programmatic != 0);
  return kernel.release();
}

// A kernel that is not compiled yet: a run that wants it launches nothing, and says its number (NOT_COMPILED).
void* turret_lazy_kernel(std::int64_t number, const char* name) {
  auto kernel = std::make_unique<Kernel>();
  kernel->number = number;
  kernel->name = name;
  return kernel.release();
}

// The binary of a lazy kernel, and the rest as for ``turret_kernel``.
void turret_define_kernel(void* kernel, const char* image, std::int64_t bytes, int threads, std::int64_t shared,
                          const std::int64_t* cluster, int cooperative, int programmatic) {
  static_cast<Kernel*>(kernel)->define(image, bytes, threads, shared, cluster, cooperative != 0, programmatic != 0);
}

// A segment from its words, which refer to so many kernels, slots and sizes; null with a message where they are not well
// formed.
void* turret_segment(int device, const std::int64_t* words, std::int64_t count, void* const* kernels,
                     std::int64_t kernel_count, std::int64_t slots, std::int64_t sizes) {
  if (words == nullptr || count < 0 || kernel_count < 0 || (kernels == nullptr && kernel_count > 0)) {
    message = "a launch table is not there";
    return nullptr;
  }
  Words table(words, count, kernel_count, slots, sizes);
  auto segment = std::make_unique<Segment>();
  segment->device = device;
  if (!opened || !context_of(device, segment->context)) {
    if (!opened) message = "the CUDA driver is not open";
    return nullptr;
  }
  segment->arena_slot = table.count(slots - 1);
  for (std::int64_t n = table.count(INT32_MAX); n > 0 && table.good(); --n)
    segment->aligned.push_back(table.count(slots - 1));
  for (std::int64_t n = table.count(INT32_MAX); n > 0 && table.good(); --n)
    segment->narrow.push_back(table.count(sizes - 1));
  for (std::int64_t n = table.count(INT32_MAX); n > 0 && table.good(); --n)
    segment->steps.push_back(read_step(table, kernels));
  segment->note_awaited();
  if (!table.done()) {
    message = "a launch table is not well formed";
    return nullptr;
  }
  return segment.release();
}

// A sequence from its words: slots whose addresses are multiples of 16, then its parts (PartKind), the number of a segment
// or what a library launches.  The segments have to outlive it.  Null with a message where the words are not well formed.
void* turret_sequence(int device, const std::int64_t* words, std::int64_t count, void* const* segments,
                      std::int64_t segment_count, std::int64_t slots) {
  Words table(words, words == nullptr ? 0 : count, segment_count, slots, 0);
  auto made = std::make_unique<Sequence>();
  if (!opened || !context_of(device, made->context)) {
    if (!opened) message = "the CUDA driver is not open";
    return nullptr;
  }
  for (std::int64_t n = table.count(INT32_MAX); n > 0 && table.good(); --n) made->aligned.push_back(table.count(slots - 1));
  for (std::int64_t n = table.count(INT32_MAX); n > 0 && table.good(); --n) {
    const std::int64_t kind = table.count(PartKind::count - 1);
    if (kind == PartKind::KERNEL) {
      made->add(KnownLaunch(table));
    } else if (kind == PartKind::FILL) {
      made->add(KnownFill(table));
    } else {
      const std::int64_t number = table.count(segment_count - 1);
      if (table.good()) made->add(static_cast<Segment*>(segments[number]));
    }
  }
  if (table.done()) return made.release();
  message = "a table of library calls is not well formed";
  return nullptr;
}

void turret_sequence_free(void* sequence) { delete static_cast<Sequence*>(sequence); }

// As `turret_segment_run`.
std::int64_t turret_sequence_run(void* sequence, void* const* slots, const std::int64_t* sizes, void* stream) {
  if (sequence == nullptr || slots == nullptr || sizes == nullptr) {
    message = "a sequence, its slots or its sizes are not there";
    return Status::DRIVER_ERROR;
  }
  return static_cast<Sequence*>(sequence)->run(slots, sizes, stream);
}

void turret_segment_free(void* segment) { delete static_cast<Segment*>(segment); }

// Loads the segment's kernels now rather than at its first run; 0, or 1 with a message.
int turret_segment_prepare(void* handle) {
  auto* segment = static_cast<Segment*>(handle);
  if (segment == nullptr) return message = "a segment is not there", 1;
  Handle before = nullptr;
  driver.get_current(&before);
  if (driver.set_current(segment->context) != 0) return 1;
  const bool good = segment->prepare();
  driver.set_current(before);
  return good ? 0 : 1;
}

// From now on this thread's launches are handed to these functions of `graph`; null: to the driver, as before.
void turret_redirect(void* kernel, void* clear, void* copy, void* graph) {
  redirection.kernel = reinterpret_cast<decltype(redirection.kernel)>(kernel);
  redirection.clear = reinterpret_cast<decltype(redirection.clear)>(clear);
  redirection.copy = reinterpret_cast<decltype(redirection.copy)>(copy);
  redirection.graph = graph;
}

// Copies bytes between two places of a device's memory, in the order of ``stream``; 0, or a status with a message.
std::int64_t turret_copy(int device, std::uint64_t target, std::uint64_t source, std::uint64_t bytes, void* stream) {
  if (redirection.graph != nullptr) {
    if (!redirection.copy(redirection.graph, target, source, bytes)) return Status::DONE;
    Segment::redirected();
    return Status::DRIVER_ERROR;
  }
  Handle context = nullptr, before = nullptr;
  if (!context_of(device, context)) return Status::DRIVER_ERROR;
  driver.get_current(&before);
  if (before != context) driver.set_current(context);
  const Result result = driver.copy(target, source, bytes, stream);
  if (before != context) driver.set_current(before);
  return result == 0 || fail("copying memory", result) ? Status::DONE : Status::DRIVER_ERROR;
}

// Launches on ``stream``; 0, or a status in the low byte with a detail above it.
std::int64_t turret_segment_run(void* segment, void* const* slots, const std::int64_t* sizes, void* stream) {
  if (segment == nullptr || slots == nullptr || sizes == nullptr) {
    message = "a segment, its slots or its sizes are not there";
    return Status::DRIVER_ERROR;
  }
  return static_cast<Segment*>(segment)->run(slots, sizes, stream);
}
}
