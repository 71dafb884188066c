// A CUDA driver for machines without one: it keeps a log of what the launcher asks for, and runs "kernels" that are
// C functions of this file, on the CPU's memory, at once.  A module's image is the text "fake <parameters>", or a real
// binary, whose kernels do nothing.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Function {
  std::string name;
  int parameters;
  std::vector<std::size_t> sizes;  // of its parameters, where a graph's node asks
};

std::string record;
std::mutex lock;
thread_local void* current = nullptr;
thread_local int capture_mode = 0;
int failing = 0;
bool idle = false;  // touches no memory

void note(const std::string& line) {
  std::lock_guard<std::mutex> guard(lock);
  record += line + "\n";
}

std::string text(unsigned value) { return std::to_string(value); }

// out[i] = in[i] + 1 and out[i] = in[i] * 2, for i < n.
void add_one(void** p) {
  const float* in = *static_cast<float**>(p[0]);
  float* out = *static_cast<float**>(p[1]);
  for (std::int64_t i = 0, n = *static_cast<std::int64_t*>(p[2]); i < n; ++i) out[i] = in[i] + 1;
}

void twice(void** p) {
  const float* in = *static_cast<float**>(p[0]);
  float* out = *static_cast<float**>(p[1]);
  for (std::int32_t i = 0, n = *static_cast<std::int32_t*>(p[2]); i < n; ++i) out[i] = in[i] * 2;
}

int launch(const char* kind, void* handle, const unsigned* sizes, unsigned shared, void* stream, void** parameters) {
  const Function& function = *static_cast<Function*>(handle);
  std::string line = std::string(kind) + " " + function.name;
  for (int i = 0; i < 6; ++i) line += (i == 3 ? " x " : " ") + text(sizes[i]);
  line += " shared " + text(shared) + " stream " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) + " (";
  for (int i = 0; i < function.parameters; ++i)
    line += (i ? ", " : "") + std::to_string(*static_cast<std::int64_t*>(parameters[i]));
  note(line + ")");
  if (failing) return failing;
  if (idle || function.parameters != 3) return 0;
  if (function.name == "add_one") add_one(parameters);
  if (function.name == "twice") twice(parameters);
  return 0;
}

// Graphs, as a capture leaves them behind: nodes with copies of what they were handed, and who waits for whom.

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2
  void* function;
  unsigned sizes[6], shared;
  void** parameters;
  void** extra;
  void* kernel;
  void* context;
};
struct CopyNode {  // CUDA_MEMCPY3D_v2, whose halves have 11 words each
  std::uint64_t words[25];
  enum { kSource = 6, kTarget = 17, kWidth = 22, kHeight = 23 };
};
struct ClearNode {  // CUDA_MEMSET_NODE_PARAMS_v1
  std::uint64_t target, pitch;
  unsigned value, element_size;
  std::uint64_t width, height;
};

struct Node {
  int type = 0;
  Function* function = nullptr;
  bool in_buffer = false, by_kernel = false, hidden = false;
  unsigned grid = 2, block = 64;
  std::vector<std::vector<char>> parameters;  // one alone where they are in a buffer
  CopyNode copy = {};
  ClearNode clear = {};
  // What the getter points to.
  std::vector<void*> pointers;
  void* extra[5];
  std::size_t size = 0;
};

struct Graph {
  std::vector<Node*> nodes;
  std::vector<std::pair<Node*, Node*>> edges;
};

// What was instantiated: each node as it was last set.
struct Executable {
  Graph* graph;
  std::map<Node*, Node> nodes;
};
std::mutex executing;
int failing_sets = 0;
Graph* capturing = nullptr;         // gets what is launched as nodes, one after the other
std::pair<void*, Graph*> captured;  // a stream, and the graph that its capture has so far

const char* of_parameter(const Node& node, std::size_t number) {
  if (!node.in_buffer) return node.parameters[number].data();
  std::size_t at = 0;
  for (std::size_t n = 0; n < number; ++n) at += node.function->sizes[n];
  return node.parameters[0].data() + at;
}

void run(const Node& node) {
  if (node.type == 1) {
    note("copied " + std::to_string(node.copy.words[CopyNode::kWidth]));
    std::memcpy(reinterpret_cast<void*>(node.copy.words[CopyNode::kTarget]),
                reinterpret_cast<void*>(node.copy.words[CopyNode::kSource]), node.copy.words[CopyNode::kWidth]);
  }
  if (node.type == 2) {
    note("cleared " + std::to_string(node.clear.width));
    std::memset(reinterpret_cast<void*>(node.clear.target), static_cast<int>(node.clear.value), node.clear.width);
  }
  if (node.type != 0) return;
  note("ran " + node.function->name);
  std::vector<void*> pointers;
  for (std::size_t n = 0; n < node.function->sizes.size(); ++n)
    pointers.push_back(const_cast<char*>(of_parameter(node, n)));
  if (node.function->name.find("add_one") != std::string::npos) add_one(pointers.data());
  if (node.function->name.find("twice") != std::string::npos) twice(pointers.data());
}

Node* capture(int type) {
  auto* node = new Node;
  node->type = type;
  if (!capturing->nodes.empty()) capturing->edges.emplace_back(capturing->nodes.back(), node);
  capturing->nodes.push_back(node);
  return node;
}

int capture_kernel(void* handle, const unsigned* sizes, void** parameters) {
  Node* node = capture(0);
  node->function = static_cast<Function*>(handle);
  node->function->sizes.assign(node->function->parameters, 8);
  node->grid = sizes[0];
  node->block = sizes[3];
  for (int n = 0; n < node->function->parameters; ++n) {
    const char* bytes = static_cast<const char*>(parameters[n]);
    node->parameters.emplace_back(bytes, bytes + 8);
  }
  return 0;
}

struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  void* attributes;
  unsigned count;
};

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 12080, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal < 4 ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  note("retain " + std::to_string(device));
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(1000 + device));
  return 0;
}
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(*mode, capture_mode), 0; }
int cuModuleLoadData(void** module, const void* image) {
  const char* words = static_cast<const char*>(image);
  if (std::strncmp(words, "fake ", 5) != 0 && std::strncmp(words, "\177ELF", 4) != 0) return 200;
  if (capturing != nullptr && capture_mode != 2) return 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
  note("load in context " + std::to_string(reinterpret_cast<std::uintptr_t>(current)));
  *module = const_cast<char*>(words);
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = new Function{name, std::atoi(static_cast<const char*>(module) + 5)};
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  note("attribute " + std::to_string(attribute) + " of " + static_cast<Function*>(function)->name + " = " +
       std::to_string(value));
  return value > 200000 ? 1 : 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void**) {
  const unsigned sizes[6] = {gx, gy, gz, bx, by, bz};
  if (capturing != nullptr) return capture_kernel(function, sizes, parameters);
  return launch("launch", function, sizes, shared, stream, parameters);
}
int cuLaunchKernelEx(const Config* c, void* function, void** parameters, void** extra) {
  std::vector<void*> pointers;
  if (parameters == nullptr) {  // they are one buffer, each behind the other
    char* next = static_cast<char*>(extra[1]);
    for (const std::size_t size : static_cast<Function*>(function)->sizes) {
      pointers.push_back(next);
      next += size;
    }
    parameters = pointers.data();
  }
  const int* attributes = static_cast<const int*>(c->attributes);
  for (unsigned i = 0; i < c->count; ++i)
    note("attribute " + std::to_string(attributes[18 * i]) + " = " + std::to_string(attributes[18 * i + 2]));
  return launch("launch_ex", function, c->grid, c->shared, c->stream, parameters);
}
int cuMemsetD8Async(std::uint64_t address, unsigned char value, std::size_t bytes, void*) {
  if (capturing != nullptr) return capture(2)->clear = {address, 0, value, 1, bytes, 1}, 0;
  note("clear " + std::to_string(bytes));
  if (!idle) std::memset(reinterpret_cast<void*>(address), value, bytes);
  return 0;
}
int cuMemsetD32Async(std::uint64_t address, unsigned value, std::size_t count, void*) {
  note("fill " + std::to_string(count) + " with " + std::to_string(value));
  for (std::size_t n = 0; n < count && !idle; ++n) reinterpret_cast<unsigned*>(address)[n] = value;
  return failing;
}
int cuMemcpyDtoDAsync_v2(std::uint64_t target, std::uint64_t source, std::size_t bytes, void* stream) {
  if (capturing != nullptr) {
    CopyNode copy = {};
    copy.words[CopyNode::kSource] = source;
    copy.words[CopyNode::kTarget] = target;
    copy.words[CopyNode::kWidth] = copy.words[9] = copy.words[20] = bytes;  // pitches
    copy.words[CopyNode::kHeight] = copy.words[24] = 1;
    copy.words[4] = copy.words[15] = 2;  // memory of the device
    return capture(1)->copy = copy, 0;
  }
  note("copy " + std::to_string(bytes) + " stream " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) + " in " +
       std::to_string(reinterpret_cast<std::uintptr_t>(current)));
  if (failing) return failing;
  if (!idle) std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes);
  return 0;
}
int cuGetErrorString(int code, const char** words) {
  *words = code == 1 ? "invalid argument" : code == 200 ? "device kernel image is invalid" : "unknown error";
  return 0;
}

int cuGraphGetNodes(Graph* graph, Node** nodes, std::size_t* count) {
  if (graph == nullptr) return 400;
  if (nodes != nullptr) std::memcpy(nodes, graph->nodes.data(), *count * sizeof(Node*));
  return *count = graph->nodes.size(), 0;
}
int cuGraphGetEdges_v2(Graph* graph, Node** from, Node** to, void* data, std::size_t* count) {
  if (from != nullptr && data == nullptr) return 911;  // CUDA_ERROR_LOSSY_QUERY: edges of early starts carry data
  for (std::size_t n = 0; from != nullptr && n < *count; ++n) {
    from[n] = graph->edges[n].first;
    to[n] = graph->edges[n].second;
  }
  return *count = graph->edges.size(), 0;
}
int cuGraphNodeGetType(Node* node, int* type) { return *type = node->type, 0; }
int cuGraphKernelNodeGetParams_v2(Node* node, KernelNode* found) {
  *found = {node->by_kernel ? nullptr : node->function, {node->grid, 1, 1, node->block, 1, 1}, 0, nullptr, nullptr,
            node->by_kernel ? node->function : nullptr, nullptr};
  if (node->hidden) return 0;
  node->pointers.clear();
  for (std::vector<char>& each : node->parameters) node->pointers.push_back(each.data());
  if (!node->in_buffer) return found->parameters = node->pointers.data(), 0;
  node->size = node->parameters[0].size();
  void* extra[] = {reinterpret_cast<void*>(2), &node->size, reinterpret_cast<void*>(1), node->pointers[0], nullptr};
  std::memcpy(node->extra, extra, sizeof extra);
  return found->extra = node->extra, 0;
}
// Clusters of two blocks, which every kernel of a graph has here.
int cuGraphKernelNodeGetAttribute(Node*, int attribute, std::int64_t* value) {
  if (attribute == 11) return 1;
  if (attribute == 4) value[0] = 1LL << 32 | 2;
  return 0;
}
int cuGraphMemcpyNodeGetParams(Node* node, CopyNode* found) { return *found = node->copy, node->hidden ? 1 : 0; }
int cuGraphMemsetNodeGetParams(Node* node, ClearNode* found) { return *found = node->clear, node->hidden ? 1 : 0; }
int cuKernelGetFunction(void** function, void* kernel) { return *function = kernel, 0; }
int cuFuncGetName(const char** name, Function* function) { return *name = function->name.c_str(), 0; }
int cuFuncGetParamInfo(Function* function, std::size_t number, std::size_t* offset, std::size_t* size) {
  if (number >= function->sizes.size()) return 1;
  *offset = 0;
  for (std::size_t n = 0; n <= number; ++n) {
    *size = function->sizes[n];
    const std::size_t aligned = *size >= 8 ? 8 : *size >= 4 ? 4 : *size >= 2 ? 2 : 1;
    *offset = (*offset + aligned - 1) / aligned * aligned;
    if (n < number) *offset += *size;
  }
  return 0;
}
int cuGraphExecKernelNodeSetParams_v2(Executable* executable, Node* node, const KernelNode* wanted) {
  std::lock_guard<std::mutex> guard(executing);
  note("set " + node->function->name + (wanted->sizes[0] == node->grid ? "" : " grid " + text(wanted->sizes[0])));
  if (failing_sets > 0 && --failing_sets == 0) return 1;
  Node& own = executable->nodes.at(node);
  if (wanted->function != (node->by_kernel ? nullptr : node->function)) return 1;
  if (wanted->sizes[0] == 0 || wanted->sizes[1] != 1 || wanted->sizes[3] != node->block) return 1;
  if ((wanted->extra != nullptr) != node->in_buffer || (wanted->parameters != nullptr) == node->in_buffer) return 1;
  if (node->in_buffer) {
    if (*static_cast<std::size_t*>(wanted->extra[3]) != own.parameters[0].size() || wanted->extra[4] != nullptr) return 1;
    std::memcpy(own.parameters[0].data(), wanted->extra[1], own.parameters[0].size());
  }
  for (std::size_t n = 0; !node->in_buffer && n < own.parameters.size(); ++n)
    std::memcpy(own.parameters[n].data(), wanted->parameters[n], own.parameters[n].size());
  return 0;
}
int cuGraphExecMemcpyNodeSetParams(Executable* executable, Node* node, const CopyNode* wanted, void* context) {
  std::lock_guard<std::mutex> guard(executing);
  note("set memcpy in " + std::to_string(reinterpret_cast<std::uintptr_t>(context)));
  const std::uint64_t* words = wanted->words;
  if (words[CopyNode::kHeight] > 1) return 1;
  for (const int pitch : {9, 20})
    if (words[pitch] != 0 && words[pitch] < words[CopyNode::kWidth]) return 1;
  return executable->nodes.at(node).copy = *wanted, 0;
}
int cuGraphExecMemsetNodeSetParams(Executable* executable, Node* node, const ClearNode* wanted, void* context) {
  std::lock_guard<std::mutex> guard(executing);
  note("set memset in " + std::to_string(reinterpret_cast<std::uintptr_t>(context)));
  return executable->nodes.at(node).clear = *wanted, 0;
}
int cuGraphLaunch(Executable* executable, void* stream) {
  std::lock_guard<std::mutex> guard(executing);
  note("launched on " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) + " in " +
       std::to_string(reinterpret_cast<std::uintptr_t>(current)));
  if (failing) return failing;
  for (Node* node : executable->graph->nodes) run(executable->nodes.at(node));
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) {
  static std::uintptr_t made = 0x5000;
  *stream = reinterpret_cast<void*>(++made);
  note("stream of " + std::to_string(flags) + " in " + std::to_string(reinterpret_cast<std::uintptr_t>(current)));
  return failing;
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  note("capture of " + std::to_string(mode) + " on " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) +
       " in " + std::to_string(reinterpret_cast<std::uintptr_t>(current)));
  return failing;
}
int cuStreamGetCaptureInfo_v2(void* stream, int* status, std::uint64_t*, Graph** graph, const Node***, std::size_t*) {
  *graph = stream == captured.first ? captured.second : nullptr;
  *status = *graph != nullptr;
  return failing;
}

// For tests: graphs.
void fake_capturing(void* stream, Graph* graph) { captured = {stream, graph}; }
Graph* fake_graph() { return new Graph; }
void fake_capture(Graph* graph) { capturing = graph; }
Node* fake_node(Graph* graph, int type) {
  graph->nodes.push_back(new Node);
  graph->nodes.back()->type = type;
  return graph->nodes.back();
}
void fake_edge(Graph* graph, Node* from, Node* to) { graph->edges.emplace_back(from, to); }
void fake_copy_word(Node* node, int word, int value) { node->copy.words[word] = value; }
void fake_hide(Node* node) { node->hidden = true; }
// A kernel with parameters of these sizes, whose bytes come one behind the other.
Node* fake_kernel(Graph* graph, const char* name, const std::int64_t* sizes, int count, const char* bytes, int in_buffer,
                  int by_kernel) {
  Node* node = fake_node(graph, 0);
  node->function = new Function{name, count, {sizes, sizes + count}};
  node->in_buffer = in_buffer;
  node->by_kernel = by_kernel;
  if (in_buffer) node->parameters.emplace_back();
  for (int n = 0; n < count; bytes += sizes[n++]) {
    if (in_buffer)
      node->parameters[0].insert(node->parameters[0].end(), bytes, bytes + sizes[n]);
    else
      node->parameters.emplace_back(bytes, bytes + sizes[n]);
  }
  return node;
}
void fake_copy(Node* node, std::uint64_t source, std::uint64_t target, std::uint64_t bytes, std::uint64_t height) {
  node->copy.words[CopyNode::kSource] = source;
  node->copy.words[CopyNode::kTarget] = target;
  node->copy.words[CopyNode::kWidth] = bytes;
  node->copy.words[CopyNode::kHeight] = height;
}
void fake_memset(Node* node, std::uint64_t target, std::uint64_t bytes) { node->clear = {target, 0, 7, 1, bytes, 1}; }
Executable* fake_instantiate(Graph* graph) {
  auto* made = new Executable{graph, {}};
  for (Node* node : graph->nodes) made->nodes.emplace(node, *node);
  return made;
}
void fake_fail_set(int number) { failing_sets = number; }

// For tests.
const char* fake_log() { return record.c_str(); }
void fake_clear() { record.clear(); }
void fake_fail(int code) { failing = code; }
void fake_idle() { idle = true; }
void* fake_current() { return current; }
void fake_set_current(void* context) { current = context; }
}
