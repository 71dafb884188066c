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

namespace {

struct Function {
  std::string name;
  int parameters;
};

std::string record;
std::mutex lock;
thread_local void* current = nullptr;
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
int cuModuleLoadData(void** module, const void* image) {
  const char* words = static_cast<const char*>(image);
  if (std::strncmp(words, "fake ", 5) != 0 && std::strncmp(words, "\177ELF", 4) != 0) return 200;
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
  return launch("launch", function, sizes, shared, stream, parameters);
}
int cuLaunchKernelEx(const Config* c, void* function, void** parameters, void**) {
  const int* attributes = static_cast<const int*>(c->attributes);
  for (unsigned i = 0; i < c->count; ++i)
    note("attribute " + std::to_string(attributes[18 * i]) + " = " + std::to_string(attributes[18 * i + 2]));
  return launch("launch_ex", function, c->grid, c->shared, c->stream, parameters);
}
int cuMemsetD8Async(std::uint64_t address, unsigned char value, std::size_t bytes, void*) {
  note("clear " + std::to_string(bytes));
  if (!idle) std::memset(reinterpret_cast<void*>(address), value, bytes);
  return 0;
}
int cuGetErrorString(int code, const char** words) {
  *words = code == 1 ? "invalid argument" : code == 200 ? "device kernel image is invalid" : "unknown error";
  return 0;
}

// For tests.
const char* fake_log() { return record.c_str(); }
void fake_clear() { record.clear(); }
void fake_fail(int code) { failing = code; }
void fake_idle() { idle = true; }
void* fake_current() { return current; }
void fake_set_current(void* context) { current = context; }
}
