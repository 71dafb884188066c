// Reads a captured CUDA graph through the driver API, and replays it over other memory: one call compares addresses with
// those of the replay before, writes the ones that changed into the arguments of nodes, and launches.
//
// The driver is opened at run time; the structures below are those of its API (CUDA Driver API, "Graph Management" and
// "Data types used by CUDA driver", CUDA 12.4 to 13.x), so that no CUDA header is needed, and none of torch's.

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "turret_enums.h"  // NodeKind: the tables are in enums.py

namespace {

using Result = int;
using Handle = void*;
using Address = std::uint64_t;

constexpr int kMaxDevices = 64;
constexpr std::size_t kWord = sizeof(Address), kMaxParameters = 4096;
enum NodeType : int { kKernelNode = 0, kCopyNode = 1, kClearNode = 2, kEmptyNode = 5, kEventRecordNode = 7 };
constexpr std::size_t kClearedStack = 1 << 16;  // bytes: more than a library's call is deep, far less than a stack has
enum : unsigned { kOfHost = 1, kOfArray = 3 };  // CU_MEMORYTYPE_*: where a copy is not within the device's memory
constexpr unsigned kNonBlockingStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kThreadLocalCapture = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
enum : std::uintptr_t { kExtraEnd = 0, kExtraBuffer = 1, kExtraSize = 2 };  // CU_LAUNCH_PARAM_*

struct KernelParameters {  // CUDA_KERNEL_NODE_PARAMS_v2
  Handle function;
  unsigned grid[3], block[3], shared;
  void** parameters;
  void** extra;
  Handle kernel;  // where `function` is null
  Handle context;
};
static_assert(sizeof(KernelParameters) == 72 && offsetof(KernelParameters, parameters) == 40);

struct CopySide {  // half of CUDA_MEMCPY3D_v2
  std::size_t x, y, z, lod;
  unsigned memory_type;
  const void* host;
  Address device;
  Handle array, reserved;
  std::size_t pitch, height;
};
struct CopyParameters {
  CopySide source, target;
  std::size_t width, height, depth;
};
static_assert(sizeof(CopySide) == 88 && sizeof(CopyParameters) == 200 && offsetof(CopySide, device) == 48);

struct ClearParameters {  // CUDA_MEMSET_NODE_PARAMS_v1
  Address target;
  std::size_t pitch;
  unsigned value, element_size;
  std::size_t width, height;
};
static_assert(sizeof(ClearParameters) == 40 && offsetof(ClearParameters, width) == 24);

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char pad[4];
  std::int64_t value[8];
};
static_assert(sizeof(LaunchAttribute) == 72);
// Cooperative launches, clusters, how these are scheduled, and clusters that are preferred.
constexpr int kLaunchAttributes[] = {2, 4, 5, 11};

struct EdgeData {  // CUgraphEdgeData
  unsigned char bytes[8];
};

struct Driver {
  Result (*init)(unsigned);
  Result (*device_get)(int*, int);
  Result (*retain)(Handle*, int);
  Result (*get_current)(Handle*);
  Result (*set_current)(Handle);
  Result (*error_text)(Result, const char**);
  Result (*nodes)(Handle, Handle*, std::size_t*);
  Result (*edges)(Handle, Handle*, Handle*, EdgeData*, std::size_t*);
  Result (*type)(Handle, int*);
  Result (*kernel_get)(Handle, KernelParameters*);
  Result (*attribute_get)(Handle, int, void*);
  Result (*copy_get)(Handle, CopyParameters*);
  Result (*clear_get)(Handle, ClearParameters*);
  Result (*kernel_set)(Handle, Handle, const KernelParameters*);
  Result (*copy_set)(Handle, Handle, const CopyParameters*, Handle);
  Result (*clear_set)(Handle, Handle, const ClearParameters*, Handle);
  Result (*function_of)(Handle*, Handle);
  Result (*parameter)(Handle, std::size_t, std::size_t*, std::size_t*);
  Result (*name)(const char**, Handle);
  Result (*launch)(Handle, Handle);
  Result (*make_stream)(Handle*, unsigned);
  Result (*begin_capture)(Handle, int);
  Result (*capture_info)(Handle, int*, std::uint64_t*, Handle*, const Handle**, std::size_t*);
};

Driver driver;
bool opened = false;
std::mutex opening;
Handle contexts[kMaxDevices];
thread_local std::string message;

bool fail(const std::string& what, Result result) {
  const char* text = nullptr;
  const bool known = opened && driver.error_text(result, &text) == 0 && text != nullptr;
  message = what + ": " + (known ? text : "driver error " + std::to_string(result));
  return false;
}

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr)
    message = std::string("the CUDA driver has no ") + name + "; recorded graphs need a driver of CUDA 12.4 or later";
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
  const bool complete =
      find(library, "cuInit", d.init) && find(library, "cuDeviceGet", d.device_get) &&
      find(library, "cuDevicePrimaryCtxRetain", d.retain) && find(library, "cuCtxGetCurrent", d.get_current) &&
      find(library, "cuCtxSetCurrent", d.set_current) && find(library, "cuGetErrorString", d.error_text) &&
      find(library, "cuGraphGetNodes", d.nodes) && find(library, "cuGraphGetEdges_v2", d.edges) &&
      find(library, "cuGraphNodeGetType", d.type) && find(library, "cuGraphKernelNodeGetParams_v2", d.kernel_get) &&
      find(library, "cuGraphKernelNodeGetAttribute", d.attribute_get) &&
      find(library, "cuGraphMemcpyNodeGetParams", d.copy_get) &&
      find(library, "cuGraphMemsetNodeGetParams", d.clear_get) &&
      find(library, "cuGraphExecKernelNodeSetParams_v2", d.kernel_set) &&
      find(library, "cuGraphExecMemcpyNodeSetParams", d.copy_set) &&
      find(library, "cuGraphExecMemsetNodeSetParams", d.clear_set) &&
      find(library, "cuKernelGetFunction", d.function_of) && find(library, "cuFuncGetParamInfo", d.parameter) &&
      find(library, "cuFuncGetName", d.name) && find(library, "cuGraphLaunch", d.launch) &&
      find(library, "cuStreamCreate", d.make_stream) && find(library, "cuStreamBeginCapture_v2", d.begin_capture) &&
      find(library, "cuStreamGetCaptureInfo_v2", d.capture_info);
  if (!complete) return false;
  if (const Result result = d.init(0)) return fail("cuInit", result);
  opened = true;
  return true;
}

// The primary context of a device, the one torch works in; retained once and kept.
bool context_of(int device, Handle& context) {
  std::lock_guard<std::mutex> guard(opening);
  if (!opened || device < 0 || device >= kMaxDevices) {
    message = opened ? "no device " + std::to_string(device) : "the CUDA driver is not open";
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

// A device's context is the thread's for as long as this lives.
class Current {
 public:
  explicit Current(Handle context) : context_(context) {
    driver.get_current(&before_);
    if (before_ != context_) driver.set_current(context_);
  }
  ~Current() {
    if (before_ != context_) driver.set_current(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  Handle context_, before_ = nullptr;
};

std::string readable(const char* symbol) {
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? text.get() : symbol;
}

// One node, with arguments of its own that the driver reads when they are set.
class Node {
 public:
  NodeKind::Value kind = NodeKind::OTHER;
  std::string name;
  std::vector<char> arguments;
  bool dirty = false;

  explicit Node(Handle handle) : handle_(handle) {}

  bool read(int type) {
    type_ = type;
    if (type == kKernelNode) return read_kernel();
    if (type == kCopyNode) return read_copy();
    if (type == kClearNode) return read_clear();
    name = "node of type " + std::to_string(type);
    return true;
  }

  bool holds(std::int64_t offset) const {
    return offset >= 0 && arguments.size() >= kWord && static_cast<std::size_t>(offset) <= arguments.size() - kWord;
  }

  void write(std::int64_t offset, Address address) {
    std::memcpy(arguments.data() + offset, &address, kWord);
    dirty = true;
  }

  // Takes over a launch of the same kernel: its grid and arguments.  Null, or why it cannot.
  const char* take_over(Handle function, const unsigned* grid, void* const* parameters, std::int64_t count) {
    if (kind != NodeKind::KERNEL || function != function_) return "another kernel is launched than was recorded";
    if (in_buffer_ || static_cast<std::size_t>(count) != offsets_.size()) return "its arguments are not one by one";
    for (int n = 0; n < 3; ++n) {
      dirty = dirty || kernel_.grid[n] != grid[n];
      kernel_.grid[n] = grid[n];
    }
    for (std::size_t n = 0; n < offsets_.size(); ++n) {
      char* const own = arguments.data() + offsets_[n];
      dirty = dirty || std::memcmp(own, parameters[n], sizes_[n]) != 0;
      std::memcpy(own, parameters[n], sizes_[n]);
    }
    return nullptr;
  }

  // Takes over the clearing of memory.
  const char* take_over(Address target, std::uint64_t bytes) {
    if (kind != NodeKind::CLEAR) return "memory is cleared where something else was recorded";
    ClearParameters wanted = clear_;
    wanted.target = target;
    wanted.value = 0;
    wanted.element_size = 1;
    wanted.width = bytes;
    wanted.height = 1;
    wanted.pitch = 0;
    dirty = dirty || std::memcmp(arguments.data(), &wanted, sizeof wanted) != 0;
    std::memcpy(arguments.data(), &wanted, sizeof wanted);
    return nullptr;
  }

  // Takes over a copy of bytes within the device's memory.
  const char* take_over(Address target, Address source, std::uint64_t bytes) {
    if (kind != NodeKind::COPY) return "memory is copied where something else was recorded";
    if (is_elsewhere(copy_.source) || is_elsewhere(copy_.target)) return "memory of the host is copied";
    CopyParameters wanted = copy_;
    wanted.source.device = source;
    wanted.target.device = target;
    wanted.width = bytes;
    for (CopySide* const side : {&wanted.source, &wanted.target}) {
      if (side->pitch != 0) side->pitch = bytes;  // it is that of one row
    }
    dirty = dirty || std::memcmp(arguments.data(), &wanted, sizeof wanted) != 0;
    std::memcpy(arguments.data(), &wanted, sizeof wanted);
    return nullptr;
  }

  // What launching the kernel by itself takes, beside its arguments: the function, three numbers of blocks and of threads,
  // bytes of shared memory, whether arguments are one buffer, how many parameters there are and attributes; then offset
  // and size of each parameter, then id and eight words of each attribute.
  std::vector<std::int64_t> launch() const {
    std::vector<std::int64_t> found = {static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(function_))};
    found.insert(found.end(), kernel_.grid, kernel_.grid + 3);
    found.insert(found.end(), kernel_.block, kernel_.block + 3);
    found.push_back(kernel_.shared);
    found.push_back(in_buffer_);
    found.push_back(static_cast<std::int64_t>(offsets_.size()));
    std::int64_t attributes = 0;
    std::vector<std::int64_t> further;
    for (std::size_t n = 0; n < offsets_.size(); ++n) {
      further.push_back(static_cast<std::int64_t>(offsets_[n]));
      further.push_back(static_cast<std::int64_t>(sizes_[n]));
    }
    for (const int id : kLaunchAttributes) {
      LaunchAttribute attribute = {};
      if (driver.attribute_get(handle_, id, attribute.value) != 0) continue;  // this driver has no such attribute
      if (std::all_of(attribute.value, attribute.value + 8, [](std::int64_t word) { return word == 0; })) continue;
      ++attributes;
      further.push_back(id);
      further.insert(further.end(), attribute.value, attribute.value + 8);
    }
    found.push_back(attributes);
    found.insert(found.end(), further.begin(), further.end());
    return found;
  }

  Result set(Handle executable, Handle context) {
    if (kind == NodeKind::COPY) {
      std::memcpy(&copy_, arguments.data(), sizeof copy_);
      return driver.copy_set(executable, handle_, &copy_, context);
    }
    if (kind == NodeKind::CLEAR) {
      std::memcpy(&clear_, arguments.data(), sizeof clear_);
      return driver.clear_set(executable, handle_, &clear_, context);
    }
    std::vector<void*> pointers;
    for (const std::size_t offset : offsets_) pointers.push_back(arguments.data() + offset);
    std::size_t size = arguments.size();
    void* extra[] = {reinterpret_cast<void*>(kExtraBuffer), arguments.data(), reinterpret_cast<void*>(kExtraSize), &size,
                     reinterpret_cast<void*>(kExtraEnd)};
    kernel_.parameters = in_buffer_ ? nullptr : pointers.data();
    kernel_.extra = in_buffer_ ? extra : nullptr;
    return driver.kernel_set(executable, handle_, &kernel_);
  }

 private:
  Handle handle_;
  int type_ = -1;
  KernelParameters kernel_ = {};
  CopyParameters copy_ = {};
  ClearParameters clear_ = {};
  Handle function_ = nullptr;
  std::vector<std::size_t> offsets_, sizes_;  // of a kernel's parameters
  bool in_buffer_ = false;            // handed over as one buffer

  static bool is_elsewhere(const CopySide& side) {
    return side.memory_type == kOfHost || side.memory_type == kOfArray || side.x != 0 || side.y != 0 || side.z != 0;
  }

  bool read_kernel() {
    if (const Result r = driver.kernel_get(handle_, &kernel_)) return fail("reading a kernel node", r);
    Handle function = kernel_.function;
    if (function == nullptr) {
      if (const Result r = driver.function_of(&function, kernel_.kernel)) return fail("finding a node's kernel", r);
    }
    function_ = function;
    const char* symbol = nullptr;
    name = driver.name(&symbol, function) == 0 && symbol != nullptr ? readable(symbol) : "unnamed kernel";
    kind = NodeKind::KERNEL;
    if (kernel_.parameters == nullptr && kernel_.extra != nullptr) return read_buffer();
    std::size_t end = 0, offset = 0, size = 0;
    std::vector<std::pair<std::size_t, std::size_t>> found;
    while (found.size() < kMaxParameters && driver.parameter(function, found.size(), &offset, &size) == 0) {
      found.emplace_back(offset, size);
      end = offset + size > end ? offset + size : end;
    }
    if (!found.empty() && kernel_.parameters == nullptr) {
      kind = NodeKind::OTHER;  // what it is handed cannot be seen
      return true;
    }
    arguments.assign((end + kWord - 1) / kWord * kWord, 0);
    for (std::size_t n = 0; n < found.size(); ++n) {
      std::memcpy(arguments.data() + found[n].first, kernel_.parameters[n], found[n].second);
      offsets_.push_back(found[n].first);
      sizes_.push_back(found[n].second);
    }
    return true;
  }

  bool read_buffer() {
    const char* buffer = nullptr;
    std::size_t size = 0;
    for (void** each = kernel_.extra; reinterpret_cast<std::uintptr_t>(*each) != kExtraEnd; each += 2) {
      const auto what = reinterpret_cast<std::uintptr_t>(*each);
      if (what == kExtraBuffer) buffer = static_cast<const char*>(each[1]);
      if (what == kExtraSize) size = *static_cast<std::size_t*>(each[1]);
    }
    in_buffer_ = true;
    if (buffer == nullptr)
      kind = NodeKind::OTHER;
    else
      arguments.assign(buffer, buffer + size);
    return true;
  }

  bool read_copy() {
    name = "memcpy";
    if (driver.copy_get(handle_, &copy_) != 0) return true;  // what it works on is not known
    arguments.resize(sizeof copy_);
    std::memcpy(arguments.data(), &copy_, sizeof copy_);
    if (copy_.height <= 1 && copy_.depth <= 1) kind = NodeKind::COPY;  // others the driver does not let change
    return true;
  }

  bool read_clear() {
    name = "memset";
    if (driver.clear_get(handle_, &clear_) != 0) return true;
    arguments.resize(sizeof clear_);
    std::memcpy(arguments.data(), &clear_, sizeof clear_);
    if (clear_.height <= 1) kind = NodeKind::CLEAR;
    return true;
  }
};

struct Word {
  std::int64_t node, offset, delta;
};

// Which words of which nodes hold the addresses that a replay is given, and which they are now.
struct Binding {
  std::vector<std::vector<Word>> words;  // by address
  std::vector<Address> current;
  std::uint64_t version = 0;  // of the graph's arguments that hold `current`
};

class Graph {
 public:
  std::vector<Node> nodes;
  Handle context = nullptr, executable = nullptr;

  bool read(Handle graph) {
    std::vector<Handle> handles;
    std::vector<std::pair<Handle, Handle>> edges;
    if (!list(graph, handles, edges)) return false;
    for (const Handle handle : in_order(handles, edges)) {
      int type = 0;
      if (const Result r = driver.type(handle, &type)) return fail("reading a node's type", r);
      if (type == kEmptyNode || type == kEventRecordNode) continue;  // they work on no memory
      nodes.emplace_back(handle);
      if (!nodes.back().read(type)) return false;
    }
    return true;
  }

  bool check(std::int64_t node, std::int64_t offset) const {
    const bool there = node >= 0 && static_cast<std::size_t>(node) < nodes.size() && nodes[node].holds(offset);
    if (there && nodes[node].kind != NodeKind::OTHER) return true;
    message = "an address at byte " + std::to_string(offset) + " of node " + std::to_string(node) +
              (there ? " (" + nodes[node].name + "), which cannot be patched"
                     : ", where a graph of " + std::to_string(nodes.size()) + " nodes has no arguments");
    return false;
  }

  bool patch(const Word* words, const Address* addresses, std::int64_t count) {
    std::lock_guard<std::mutex> guard(lock_);
    for (std::int64_t n = 0; n < count; ++n) {
      if (!check(words[n].node, words[n].offset)) return false;
    }
    for (std::int64_t n = 0; n < count; ++n) write(words[n], addresses[n]);
    ++version_;
    const Current current(context);
    return set_dirty();
  }

  bool replay(Binding* binding, const Address* addresses, Handle stream, bool launches) {
    std::lock_guard<std::mutex> guard(lock_);
    const Current current(context);
    if (binding != nullptr && !follow(*binding, addresses)) return false;
    if (!launches) return true;
    if (const Result r = driver.launch(executable, stream)) return fail("launching a graph", r);
    return true;
  }

  // From here to `end_rewriting`, launches are written over the nodes, the first over the first.
  void begin_rewriting() {
    std::lock_guard<std::mutex> guard(lock_);
    ++version_;
    next_ = 0;
    refusal.clear();
  }

  template <class... Launch>
  bool rewrite(const Launch&... launch) {
    if (next_ == nodes.size()) return refuse("more is launched than was recorded");
    Node& node = nodes[next_];
    if (const char* why = node.take_over(launch...)) return refuse(std::string(why) + " (" + node.name + ")");
    ++next_;
    return true;
  }

  // Hands what changed to the driver, and launches.
  bool end_rewriting(Handle stream) {
    if (next_ != nodes.size()) return refuse("less is launched than was recorded");
    std::lock_guard<std::mutex> guard(lock_);
    const Current current(context);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (!nodes[n].dirty) continue;
      if (const Result r = nodes[n].set(executable, context))  // it stays to be set
        return fail("writing node " + std::to_string(n) + " (" + nodes[n].name + ")", r);
      nodes[n].dirty = false;
      ++rewritten;
    }
    if (const Result r = driver.launch(executable, stream)) return fail("launching a graph", r);
    return true;
  }

  std::int64_t rewritten = 0;  // nodes that launches of other sizes or memory changed
  std::string refusal;         // why the launches since `begin_rewriting` cannot be written over the nodes

 private:
  std::mutex lock_;
  std::vector<std::size_t> dirty_;
  std::size_t next_ = 0;
  std::uint64_t version_ = 0;  // of all arguments: another one whenever somebody wrote some of them

  bool refuse(const std::string& why) {
    refusal = why;
    message = why;
    return false;
  }

  void write(const Word& word, Address address) {
    Node& node = nodes[word.node];
    if (!node.dirty) dirty_.push_back(static_cast<std::size_t>(word.node));
    node.write(word.offset, address + static_cast<Address>(word.delta));
  }

  bool follow(Binding& binding, const Address* addresses) {
    const bool known = binding.version == version_;
    for (std::size_t n = 0; n < binding.current.size(); ++n) {
      if (known && binding.current[n] == addresses[n]) continue;
      binding.current[n] = addresses[n];
      for (const Word& word : binding.words[n]) write(word, addresses[n]);
    }
    if (!dirty_.empty()) ++version_;
    binding.version = version_;
    if (set_dirty()) return true;
    ++version_;  // what the nodes hold is not known
    return false;
  }

  bool set_dirty() {
    bool good = true;
    for (const std::size_t number : dirty_) {
      nodes[number].dirty = false;
      if (!good) continue;
      if (const Result r = nodes[number].set(executable, context))
        good = fail("patching node " + std::to_string(number) + " (" + nodes[number].name + ")", r);
    }
    dirty_.clear();
    return good;
  }

  static bool list(Handle graph, std::vector<Handle>& handles, std::vector<std::pair<Handle, Handle>>& edges) {
    std::size_t count = 0;
    if (const Result r = driver.nodes(graph, nullptr, &count)) return fail("listing a graph's nodes", r);
    handles.resize(count);
    if (count > 0) {
      if (const Result r = driver.nodes(graph, handles.data(), &count)) return fail("listing a graph's nodes", r);
    }
    if (const Result r = driver.edges(graph, nullptr, nullptr, nullptr, &count)) return fail("listing its edges", r);
    std::vector<Handle> from(count), to(count);
    std::vector<EdgeData> data(count);  // edges of kernels that start early carry data, which has to be asked for
    if (count > 0) {
      if (const Result r = driver.edges(graph, from.data(), to.data(), data.data(), &count))
        return fail("listing its edges", r);
    }
    for (std::size_t n = 0; n < count; ++n) edges.emplace_back(from[n], to[n]);
    return true;
  }

  // As they depend on each other, and otherwise as the driver lists them, which is how they were made.
  static std::vector<Handle> in_order(const std::vector<Handle>& handles,
                                      const std::vector<std::pair<Handle, Handle>>& edges) {
    std::map<Handle, std::size_t> number;
    for (std::size_t n = 0; n < handles.size(); ++n) number[handles[n]] = n;
    std::vector<std::size_t> waits(handles.size(), 0);
    std::vector<std::vector<std::size_t>> followers(handles.size());
    for (const auto& [from, to] : edges) {
      followers[number.at(from)].push_back(number.at(to));
      ++waits[number.at(to)];
    }
    std::set<std::size_t> ready;
    for (std::size_t n = 0; n < handles.size(); ++n) {
      if (waits[n] == 0) ready.insert(n);
    }
    std::vector<Handle> ordered;
    while (!ready.empty()) {
      const std::size_t next = *ready.begin();
      ready.erase(ready.begin());
      ordered.push_back(handles[next]);
      for (const std::size_t follower : followers[next]) {
        if (--waits[follower] == 0) ready.insert(follower);
      }
    }
    return ordered;
  }
};

Graph& graph_of(void* handle) { return *static_cast<Graph*>(handle); }

}  // namespace

extern "C" {

// Opens the driver; 0, or 1 with a message.
int turret_open(const char* path) { return open_driver(path) ? 0 : 1; }

// What went wrong in the last call on this thread that said so.
const char* turret_message() { return message.c_str(); }

// Writes zeros where the next calls of this thread have their local variables.
void turret_clear_stack() {
  volatile char memory[kClearedStack];
  for (std::size_t n = 0; n < kClearedStack; ++n) memory[n] = 0;
}

// A new stream of a device, which does not wait for the default one; null with a message.
void* turret_make_stream(int device) {
  Handle context = nullptr, stream = nullptr;
  if (!context_of(device, context)) return nullptr;
  const Current current(context);
  const Result result = driver.make_stream(&stream, kNonBlockingStream);
  return result == 0 || fail("making a stream", result) ? stream : nullptr;
}

// Has a stream capture what this thread queues on it; 0, or 1 with a message.
int turret_begin_capture(int device, void* stream) {
  Handle context = nullptr;
  if (!context_of(device, context)) return 1;
  const Current current(context);
  const Result result = driver.begin_capture(stream, kThreadLocalCapture);
  return result == 0 || fail("beginning a capture", result) ? 0 : 1;
}

// How many nodes a stream's capture under way has; -1 with a message where there is none.
std::int64_t turret_captured_nodes(int device, void* stream) {
  Handle context = nullptr, graph = nullptr;
  if (!context_of(device, context)) return -1;
  const Current current(context);
  int status = 0;
  std::size_t count = 0;
  Result result = driver.capture_info(stream, &status, nullptr, &graph, nullptr, nullptr);
  if (result == 0 && graph == nullptr) {
    message = "nothing is captured on this stream";
    return -1;
  }
  if (result == 0) result = driver.nodes(graph, nullptr, &count);
  return result == 0 || fail("counting captured nodes", result) ? static_cast<std::int64_t>(count) : -1;
}

// The nodes of a captured graph, which has to outlive this; null with a message where they cannot be read.
void* turret_graph(int device, void* graph) {
  auto made = std::make_unique<Graph>();
  if (!context_of(device, made->context)) return nullptr;
  const Current current(made->context);
  return made->read(graph) ? made.release() : nullptr;
}

// What was instantiated from it, before it is patched or replayed.
void turret_graph_executable(void* graph, void* executable) { graph_of(graph).executable = executable; }

void turret_graph_free(void* graph) { delete static_cast<Graph*>(graph); }
std::int64_t turret_graph_length(void* graph) { return static_cast<std::int64_t>(graph_of(graph).nodes.size()); }

// Of node number `node`: what it is (kernel, copy, clear, other), its name, and the bytes that it is handed.
int turret_node_kind(void* graph, std::int64_t node) { return graph_of(graph).nodes[node].kind; }
const char* turret_node_name(void* graph, std::int64_t node) { return graph_of(graph).nodes[node].name.c_str(); }
std::int64_t turret_node_bytes(void* graph, std::int64_t node) {
  return static_cast<std::int64_t>(graph_of(graph).nodes[node].arguments.size());
}
const void* turret_node_arguments(void* graph, std::int64_t node) { return graph_of(graph).nodes[node].arguments.data(); }

// How a kernel node is launched by itself (Node::launch): writes at most `room` words, gives how many there are.
std::int64_t turret_node_launch(void* graph, std::int64_t node, std::int64_t* words, std::int64_t room) {
  const Current current(graph_of(graph).context);
  const std::vector<std::int64_t> found = graph_of(graph).nodes[node].launch();
  const auto count = static_cast<std::int64_t>(found.size());
  std::copy_n(found.begin(), std::min(count, room), words);
  return count;
}

// Writes `count` addresses where triples of node, offset and what to add say; 0, or 1 with a message.
int turret_graph_patch(void* graph, const std::int64_t* words, const std::uint64_t* addresses, std::int64_t count) {
  return graph_of(graph).patch(reinterpret_cast<const Word*>(words), addresses, count) ? 0 : 1;
}

// Says where the addresses lie that replays are given: `counts[n]` triples for number n, one behind the other.  Null
// with a message where an address lies in no node's arguments, or where it cannot be changed.
void* turret_binding(void* graph, const std::int64_t* words, const std::int64_t* counts, const std::uint64_t* addresses,
                     std::int64_t length) {
  auto made = std::make_unique<Binding>();
  const Word* next = reinterpret_cast<const Word*>(words);
  for (std::int64_t n = 0; n < length; ++n) {
    made->words.emplace_back(next, next + counts[n]);
    next += counts[n];
    for (const Word& word : made->words.back()) {
      if (!graph_of(graph).check(word.node, word.offset)) return nullptr;
    }
  }
  made->current.assign(addresses, addresses + length);
  return made.release();
}

void turret_binding_free(void* binding) { delete static_cast<Binding*>(binding); }

// Replays on a stream, over other addresses where there is a binding; with `launches` 0 only writes them.  0, or 1 with a
// message.
int turret_graph_replay(void* graph, void* binding, const std::uint64_t* addresses, void* stream, int launches) {
  return graph_of(graph).replay(static_cast<Binding*>(binding), addresses, stream, launches != 0) ? 0 : 1;
}

// Launches of this thread (turret_redirect of the launcher) are written over the nodes: begin, each launch, end.  The
// calls of one graph follow one another.
void turret_rewrite_begin(void* graph) { graph_of(graph).begin_rewriting(); }
int turret_rewrite_kernel(void* graph, void* function, const unsigned* grid, void* const* parameters, std::int64_t count) {
  return graph_of(graph).rewrite(function, grid, parameters, count) ? 0 : 1;
}
int turret_rewrite_clear(void* graph, std::uint64_t target, std::uint64_t bytes) {
  return graph_of(graph).rewrite(target, bytes) ? 0 : 1;
}

int turret_rewrite_copy(void* graph, std::uint64_t target, std::uint64_t source, std::uint64_t bytes) {
  return graph_of(graph).rewrite(target, source, bytes) ? 0 : 1;
}

// Launches the graph as it was rewritten; 0, or 1 with a message.
int turret_rewrite_end(void* graph, void* stream) { return graph_of(graph).end_rewriting(stream) ? 0 : 1; }

// Why launches since the beginning do not fit the graph; empty where they do.
const char* turret_rewrite_refusal(void* graph) { return graph_of(graph).refusal.c_str(); }
std::int64_t turret_rewritten(void* graph) { return graph_of(graph).rewritten; }
}
