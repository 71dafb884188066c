// A device for tests: "acme" is torch's PrivateUse1 with memory, an allocator and streams of its own.  Its memory is the
// host's, so that kernels made for the host can run on it; nothing but copies may cross over, as on a device behind a bus.

#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "acme_memory.h"
#include "acme_record.h"

namespace {

using acme::allocator;
using acme::current;
using acme::kAcme;
using acme::kDevices;
using acme::under_way;

thread_local c10::StreamId streams[kDevices] = {};

REGISTER_ALLOCATOR(kAcme, &allocator);

struct AcmeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kAcme; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return {kAcme, current}; }
  void setDevice(c10::Device to) const override { uncheckedSetDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0) current = to.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, streams[device.index() < 0 ? current : device.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    streams[stream.device_index()] = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, AcmeGuard);

struct AcmeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr fresh = allocator.allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0 && under_way != nullptr) acme::record_move("resize_", storage.data(), fresh.get(), kept);
    if (kept > 0 && under_way == nullptr) std::memcpy(fresh.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
const bool hooked = (at::RegisterPrivateUse1HooksInterface(new AcmeHooks), true);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kAcme, current)));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kAcme, current)));
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor on_host(const at::Tensor& value) {
  return value.is_cpu() ? value : acme::host_at(acme::address_of(value), value);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  if (under_way != nullptr) {
    acme::record_copy(source, target);
    return target;
  }
  on_host(target).copy_(on_host(source));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::native::resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes()) / self.element_size();
  return at::native::set_storage_cpu_(self, source, 0, {elements}, {1});
}

std::optional<at::Tensor> on_host(const std::optional<at::Tensor>& value) {
  return value.has_value() && value->defined() ? std::optional(on_host(*value)) : std::nullopt;
}

at::Tensor like(const at::Tensor& made, const at::Tensor& given) {
  return made.defined() ? made.to(given.device()) : made;
}

// The fallback copies back only what a schema says is written to, which running statistics are not.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double epsilon) {
  if (under_way != nullptr) {
    torch::jit::Stack made = acme::recorded("aten::native_batch_norm", input, weight, bias, mean, variance, training, momentum, epsilon);
    return {made[0].toTensor(), made[1].toTensor(), made[2].toTensor()};
  }
  auto [result, saved_mean, saved_scale] = at::native_batch_norm(
      on_host(input), on_host(weight), on_host(bias), on_host(mean), on_host(variance), training, momentum, epsilon);
  return {like(result, input), like(saved_mean, input), like(saved_scale, input)};
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  if (under_way != nullptr)
    return acme::recorded("aten::convolution", input, weight, bias, stride, padding, dilation, transposed, output_padding,
                          groups)[0].toTensor();
  return like(at::convolution(on_host(input), on_host(weight), on_host(bias), stride, padding, dilation, transposed,
                              output_padding, groups),
              input);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const std::vector<int64_t> bias = {gradient.size(1)};
  if (under_way != nullptr) {
    torch::jit::Stack made =
        acme::recorded("aten::convolution_backward", gradient, input, weight, at::IntArrayRef(bias), stride, padding, dilation,
                       transposed, output_padding, groups, c10::List<bool>({wanted[0], wanted[1], wanted[2]}));
    return {made[0].toTensor(), made[1].toTensor(), made[2].toTensor()};
  }
  auto [first, second, third] =
      at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef(bias), stride, padding,
                               dilation, transposed, output_padding, groups, wanted);
  return {like(first, input), like(second, input), like(third, input)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (under_way != nullptr)
    acme::Call(op, stack).record();
  else
    at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

// A copy reads the bits of its operands itself; without this, it would be copied from to get rid of them, without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
}

using Kernel = int64_t (*)(void**, int64_t*, int);

// A kernel of a plan: addresses for the slots of its table that it reads, and the table of sizes.
void record_kernel(const char* name, Kernel function, const int64_t* slots, int64_t count, void* const* table,
                   int64_t table_length, const int64_t* sizes, int64_t size_count) {
  acme::Words words;
  for (int64_t n = 0; n < count; ++n) words.push_back(reinterpret_cast<uint64_t>(table[slots[n]]));
  words.insert(words.end(), sizes, sizes + size_count);
  if (acme::rewriting.recording != nullptr) return acme::rewrite(name, words);
  auto run = [name = std::string(name), function, used = std::vector<int64_t>(slots, slots + count), table_length,
              size_count](const uint64_t* words) {
    std::vector<void*> table(table_length, nullptr);
    for (size_t n = 0; n < used.size(); ++n) table[used[n]] = reinterpret_cast<void*>(words[n]);
    std::vector<int64_t> sizes(words + used.size(), words + used.size() + size_count);
    const int64_t status = function(table.data(), sizes.data(), 1);
    TORCH_CHECK_INDEX(status == 0, "acme: status ", status, " of ", name);
  };
  acme::add("kernel", name, std::move(words), static_cast<size_t>(count), std::move(run));
}

thread_local std::string failure;

// Why something failed, for as long as the thread asks for nothing else; null where it did not.
template <class Body>
const char* reason(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  return failure.c_str();
}

std::shared_ptr<acme::Pool>& pool_of(void* handle) { return *static_cast<std::shared_ptr<acme::Pool>*>(handle); }
acme::Recording& recording_of(void* handle) { return *static_cast<acme::Recording*>(handle); }

}  // namespace

extern "C" {
int64_t acme_held() { return acme::held; }
int64_t acme_allocations() { return acme::allocations; }
int64_t acme_stream(int device) { return streams[device]; }
void acme_set_stream(int device, int64_t stream) { streams[device] = stream; }
int acme_device() { return current; }
void acme_set_device(int device) { current = static_cast<c10::DeviceIndex>(device); }
int acme_owns(void* address) { return acme::owns(address); }

int64_t acme_pools() {
  std::lock_guard<std::mutex> guard(acme::lock);
  return static_cast<int64_t>(acme::regions.size());
}
void* acme_pool(int device) {
  return new std::shared_ptr<acme::Pool>(std::make_shared<acme::Pool>(static_cast<c10::DeviceIndex>(device)));
}
void acme_pool_drop(void* pool) { delete &pool_of(pool); }
int64_t acme_pool_reserved(void* pool) { return static_cast<int64_t>(pool_of(pool)->reserved()); }

int64_t acme_pool_allocated(void* pool) { return pool_of(pool)->allocated; }
int64_t acme_pool_segment(void* pool, int64_t* length) {
  *length = acme::kRegion;
  return reinterpret_cast<int64_t>(pool_of(pool)->start());
}

// The thread allocates in this pool (null: in none) until it says otherwise; gives the pool before, to be handed in again.
void* acme_pool_enter(void* pool) {
  auto* before = acme::allocating_in == nullptr ? nullptr : new std::shared_ptr<acme::Pool>(acme::allocating_in);
  acme::allocating_in = pool == nullptr ? nullptr : pool_of(pool);
  return before;
}

// Writes as many pairs of address and length as there is room for, and gives how many blocks there are.
int64_t acme_pool_checkpoint(void* pool, int64_t* pairs, int64_t room) {
  const acme::Pool::Blocks found = pool_of(pool)->checkpoint();
  for (size_t n = 0; n < found.size() && static_cast<int64_t>(n) < room; ++n) {
    pairs[2 * n] = reinterpret_cast<int64_t>(found[n].first);
    pairs[2 * n + 1] = static_cast<int64_t>(found[n].second);
  }
  return static_cast<int64_t>(found.size());
}

const char* acme_pool_restore(void* pool, const int64_t* pairs, int64_t count, const int64_t* dead, int64_t dead_count) {
  return reason([&] {
    acme::Pool::Blocks wanted;
    for (int64_t n = 0; n < count; ++n) wanted.emplace_back(reinterpret_cast<char*>(pairs[2 * n]), pairs[2 * n + 1]);
    std::vector<char*> gone;
    for (int64_t n = 0; n < dead_count; ++n) gone.push_back(reinterpret_cast<char*>(dead[n]));
    pool_of(pool)->restore(wanted, gone);
  });
}

void acme_invalidate(void* storage, const char* message) {
  static_cast<c10::StorageImpl*>(storage)->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(message));
}

void acme_set_noise(int noisy) { acme::noisy = noisy != 0; }
int acme_recording() { return acme::recording_here || acme::rewriting.recording != nullptr; }
void acme_rewrite_begin(void* recording) { acme::rewriting = {&recording_of(recording), 0, {}}; }
// Why the launches since the beginning are not those that were recorded; null where they are.
const char* acme_rewrite_end() {
  static thread_local std::string refusal;
  refusal = acme::rewriting.refusal;
  if (refusal.empty() && acme::rewriting.next != acme::rewriting.recording->nodes.size())
    refusal = "acme: less is launched than was recorded";
  acme::rewriting = {};
  return refusal.empty() ? nullptr : refusal.c_str();
}
void acme_record_begin(void* pool) {
  under_way = std::make_unique<acme::Recording>(acme::Recording{pool_of(pool), {}, {}});
  acme::recording_here = true;
}
void* acme_record_end() {
  acme::recording_here = false;
  return under_way.release();
}
void acme_record_kernel(const char* name, void* function, const int64_t* slots, int64_t count, void* const* table,
                        int64_t table_length, const int64_t* sizes, int64_t size_count) {
  record_kernel(name, reinterpret_cast<Kernel>(function), slots, count, table, table_length, sizes, size_count);
}

void acme_copy(void* target, const void* source, int64_t bytes) {
  if (acme_recording())
    acme::record_move("copy", source, target, static_cast<size_t>(bytes));
  else
    std::memmove(target, source, static_cast<size_t>(bytes));
}

// Nodes of the recording that this thread makes.
int64_t acme_recorded_nodes() { return static_cast<int64_t>(under_way->nodes.size()); }
void acme_recording_drop(void* recording) { delete &recording_of(recording); }
const char* acme_recording_failure(void* recording) { return recording_of(recording).failure.c_str(); }
int64_t acme_recording_length(void* recording) { return static_cast<int64_t>(recording_of(recording).nodes.size()); }
const char* acme_node_kind(void* recording, int64_t node) { return recording_of(recording).nodes[node].kind; }
const char* acme_node_name(void* recording, int64_t node) { return recording_of(recording).nodes[node].name.c_str(); }
int64_t acme_node_bytes(void* recording, int64_t node) {
  return static_cast<int64_t>(recording_of(recording).nodes[node].words.size() * sizeof(uint64_t));
}
void* acme_node_arguments(void* recording, int64_t node) { return recording_of(recording).nodes[node].words.data(); }
// Gives the memory of a recording back: from now on its nodes run with other words alone.
void acme_recording_let_go(void* recording) { recording_of(recording).pool.reset(); }
// Runs one node with other words.
const char* acme_run_node(void* recording, int64_t node, const uint64_t* words) {
  return reason([&] { acme::run_with(recording_of(recording).nodes[node], words); });
}
const char* acme_replay(void* recording) {
  return reason([&] {
    TORCH_CHECK(!acme::recording_here, "acme: a replay cannot be recorded");
    acme::replay(recording_of(recording));
  });
}
}
