// A device for tests: "acme" is torch's PrivateUse1 with memory, an allocator and streams of its own.  Its memory is the
// host's, so that kernels made for the host can run on it; nothing but copies may cross over, as on a device behind a bus.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

constexpr c10::DeviceType kAcme = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

std::atomic<int64_t> held{0}, allocations{0};
thread_local c10::DeviceIndex current = 0;
thread_local c10::StreamId streams[kDevices] = {};

constexpr size_t kAlignment = 256;
std::mutex lock;
std::map<char*, size_t> blocks;  // all memory of the device that is in use, by where it begins

void release(void* memory) {
  if (memory == nullptr) return;
  std::lock_guard<std::mutex> guard(lock);
  held -= static_cast<int64_t>(blocks.at(static_cast<char*>(memory)));
  blocks.erase(static_cast<char*>(memory));
  std::free(memory);
}

struct AcmeAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0) {
      TORCH_CHECK(posix_memalign(&memory, kAlignment, bytes) == 0, "acme is out of memory");
      std::lock_guard<std::mutex> guard(lock);
      blocks[static_cast<char*>(memory)] = bytes;
      held += static_cast<int64_t>(bytes);
      ++allocations;
    }
    return {memory, memory, &release, c10::Device(kAcme, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t bytes) const override { default_copy_data(target, source, bytes); }
};
AcmeAllocator allocator;
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
    if (bytes > 0 && storage.nbytes() > 0) std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
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
  if (value.is_cpu()) return value;
  at::Tensor same = at::from_blob(value.data_ptr(), value.sizes(), value.strides(), value.options().device(c10::kCPU));
  same._set_conj(value.is_conj());
  same._set_neg(value.is_neg());
  return same;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
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
  auto [result, saved_mean, saved_scale] = at::native_batch_norm(
      on_host(input), on_host(weight), on_host(bias), on_host(mean), on_host(variance), training, momentum, epsilon);
  return {like(result, input), like(saved_mean, input), like(saved_scale, input)};
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  return like(at::convolution(on_host(input), on_host(weight), on_host(bias), stride, padding, dilation, transposed,
                              output_padding, groups),
              input);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  const std::vector<int64_t> bias = {gradient.size(1)};
  auto [first, second, third] =
      at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef(bias), stride, padding,
                               dilation, transposed, output_padding, groups, wanted);
  return {like(first, input), like(second, input), like(third, input)};
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

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

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
}

}  // namespace

extern "C" {
int64_t acme_held() { return held; }
int64_t acme_allocations() { return allocations; }
int64_t acme_stream(int device) { return streams[device]; }
void acme_set_stream(int device, int64_t stream) { streams[device] = stream; }
int acme_device() { return current; }
void acme_set_device(int device) { current = static_cast<c10::DeviceIndex>(device); }

int acme_owns(void* address) {
  std::lock_guard<std::mutex> guard(lock);
  auto after = blocks.upper_bound(static_cast<char*>(address));
  if (after == blocks.begin()) return 0;
  --after;
  return static_cast<char*>(address) < after->first + after->second;
}
}
