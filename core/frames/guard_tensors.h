// What guards read of tensors and of torch's modes, by way of c10's headers and a few exported functions of ATen.
//
// The place of the tensor inside its Python object is not taken from torch's Python headers (they would make the build
// ten times as long): it is found once, from a tensor whose address Python tells.
#pragma once

#include "guard_layout.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <typeinfo>
#include <vector>

// Declared here and not included, for their headers bring in the whole of ATen; the linker checks the names.
namespace at {
class Context {
 public:
  bool deterministicAlgorithms() const;
  bool deterministicFillUninitializedMemory() const;
  bool userEnabledFlashSDP() const;
  bool userEnabledMemEfficientSDP() const;
  bool userEnabledMathSDP() const;
  bool userEnabledCuDNNSDP() const;
};
Context& globalContext();
namespace autocast {
bool is_autocast_enabled(c10::DeviceType);
c10::ScalarType get_autocast_dtype(c10::DeviceType);
bool is_autocast_cache_enabled();
}  // namespace autocast
namespace functorch {
struct DynamicLayer;
const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace functorch
}  // namespace at

namespace turret {

inline PyTypeObject* tensor_type = nullptr;
inline PyTypeObject* parameter_type = nullptr;

// Where things lie that are read past torch's own functions, which nothing inlines; all of them are found at the start.
struct TensorPlaces {
  Py_ssize_t tensor = -1;         // the at::Tensor within its Python object
  Py_ssize_t autograd = -1;       // the pointer to autograd's metadata within a TensorImpl; -1: torch is asked
  Py_ssize_t grad_fn = -1;        // the smart pointer to the node that computed it, within the metadata
  Py_ssize_t requires_grad = -1;  // the flag within the metadata; -1: torch is asked
};
inline TensorPlaces tensor_places;

// Only these two answer for themselves: a subclass may have a __torch_function__.
inline bool is_plain_tensor(PyObject* object) {
  return Py_TYPE(object) == tensor_type || Py_TYPE(object) == parameter_type;
}

inline const at::TensorBase& tensor_of(PyObject* object) {
  return *reinterpret_cast<const at::TensorBase*>(reinterpret_cast<const char*>(object) + tensor_places.tensor);
}

// Finds the place of the tensor, given plain tensors and their addresses.  False where there is no one place.
inline bool find_tensor_offset(PyObject* tensors, PyObject* addresses) {
  const Py_ssize_t words = tensor_type->tp_basicsize / static_cast<Py_ssize_t>(sizeof(void*));
  for (Py_ssize_t word = 2; word < words; word++) {
    bool all = PyTuple_GET_SIZE(tensors) > 0;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors) && all; n++) {
      void* address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, n));
      all = address && reinterpret_cast<void**>(PyTuple_GET_ITEM(tensors, n))[word] == address;
    }
    if (all) {
      tensor_places.tensor = word * static_cast<Py_ssize_t>(sizeof(void*));
      return true;
    }
  }
  return false;
}

// Where a tensor's autograd metadata is kept, and in it the node that computed the tensor.  Torch tells both by calls
// that nothing inlines, and they would be the dearest part of a check.  -1: not found, so torch is asked.
inline c10::AutogradMetaInterface* autograd_of(c10::TensorImpl* impl) {
  return *reinterpret_cast<c10::AutogradMetaInterface* const*>(reinterpret_cast<const char*>(impl) + tensor_places.autograd);
}

// What a smart pointer points to; torch has had two kinds of them for nodes.
template <typename Pointer>
const void* first_word(const Pointer& pointer) {
  return *reinterpret_cast<const void* const*>(&pointer);
}

// Finds both places, given tensors some of which (at least one) require gradients and are no views.
inline void find_autograd_offsets(PyObject* tensors) {
  constexpr Py_ssize_t word = sizeof(void*);
  Py_ssize_t found = -1, grad_fn = -1;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); n++) {
    const at::TensorBase& tensor = tensor_of(PyTuple_GET_ITEM(tensors, n));
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const char* meta = reinterpret_cast<const char*>(impl->autograd_meta());
    if (!meta || !tensor.requires_grad()) continue;
    Py_ssize_t places = 0, place = -1;
    for (Py_ssize_t at = 0; at + word <= static_cast<Py_ssize_t>(sizeof(c10::TensorImpl)); at += word)
      if (*reinterpret_cast<const char* const*>(reinterpret_cast<const char*>(impl) + at) == meta) places++, place = at;
    const Py_ssize_t from_meta = reinterpret_cast<const char*>(&tensor.grad_fn()) - meta;
    if (places != 1 || (found >= 0 && (found != place || grad_fn != from_meta))) return;
    found = place;
    grad_fn = from_meta;
  }
  if (grad_fn < word || grad_fn > 4096 || grad_fn % word) return;
  tensor_places.autograd = found;
  tensor_places.grad_fn = grad_fn;
}

// The first word of a tensor's history, null for a leaf.  That of a view whose base was written to is made when it is
// asked for, which in inference mode would lose it.
inline const void* history_of(const at::TensorBase& tensor) {
  if (!c10::InferenceMode::is_enabled()) return first_word(tensor.grad_fn());
  c10::InferenceMode off(false);
  return first_word(tensor.grad_fn());
}

// Whether a tensor requires gradients, and whether it is a leaf, as Python says.  A view whose base was written to learns
// only when it is asked that it was computed; `base` is metadata that is known to be of no view.
inline bool is_in_autograd(const at::TensorBase& tensor, bool requires_grad, bool is_leaf,
                           const c10::AutogradMetaInterface* base = nullptr) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::AutogradMetaInterface* meta = tensor_places.autograd < 0 ? impl->autograd_meta() : autograd_of(impl);
  if (!(meta && meta->requires_grad())) return !requires_grad && is_leaf;
  if (!requires_grad) return false;
  if (tensor_places.autograd < 0) return is_leaf == (history_of(tensor) == nullptr);
  bool computed = first_word(*(reinterpret_cast<const char*>(meta) + tensor_places.grad_fn)) != nullptr;
  if (!computed && meta != base && tensor.is_view()) computed = history_of(tensor) != nullptr;
  return is_leaf != computed;
}

constexpr int64_t ANY = -1;

struct TensorFacts {
  PyTypeObject* type;  // borrowed: one of the two plain types
  c10::ScalarType dtype;
  c10::Device device{c10::DeviceType::CPU};
  bool requires_grad;
  bool is_leaf;
  uint64_t keys;
  std::vector<int64_t> sizes, strides;  // ANY where dynamic
  bool watches_marks = false;           // whether other dimensions than those of `marks` may be marked as dynamic
  uint64_t marks = 0;                   // a bit a dimension
};

inline bool matches(c10::IntArrayRef found, const std::vector<int64_t>& expected) {
  if (found.size() != expected.size()) return false;
  for (size_t n = 0; n < expected.size(); n++)
    if (expected[n] != ANY && expected[n] != found[n]) return false;
  return true;
}

// Dimensions that a set of small numbers names, a bit each.  UNSURE where it is no such set.
inline Answer bits_of(PyObject* marks, uint64_t& bits) {
  bits = 0;
  if (!marks || marks == Py_None) return YES;
  if (!PyAnySet_CheckExact(marks)) return UNSURE;
  Held iterator(PyObject_GetIter(marks));
  while (iterator) {
    Held item(PyIter_Next(iterator.get()));
    if (!item) break;
    const Py_ssize_t number = PyLong_CheckExact(item.get()) ? PyLong_AsSsize_t(item.get()) : -1;
    if (number < 0 || number > 62) {
      PyErr_Clear();
      return UNSURE;
    }
    bits |= uint64_t{1} << number;
  }
  if (!PyErr_Occurred()) return YES;
  PyErr_Clear();
  return UNSURE;
}

constexpr int MARKS = 5;

// What attributes of a tensor say which dimensions a program marked: as static, and, in four ways, as dynamic.
inline PyObject* mark_name(int n) {
  static PyObject* const names[MARKS] = {
      PyUnicode_InternFromString("_dynamo_static_indices"), PyUnicode_InternFromString("_dynamo_dynamic_indices"),
      PyUnicode_InternFromString("_dynamo_weak_dynamic_indices"), PyUnicode_InternFromString("_dynamo_unbacked_indices"),
      PyUnicode_InternFromString("_dynamo_strict_unbacked_indices"),
  };
  return names[n];
}

// Whether a program marked no other dimensions of a tensor as dynamic than those that are known to be.
inline Answer check_marks(const TensorFacts& facts, PyObject* object) {
  const OwnAttributes own = attributes_in_place(object);
  if (!own.values && (!own.dict || PyDict_GET_SIZE(own.dict) == 0)) return YES;
  uint64_t marked[MARKS] = {};
  for (int n = 0; n < MARKS; n++) {
    PyObject* found = nullptr;
    if (find_own(own, mark_name(n), &found) != YES || bits_of(found, marked[n]) != YES) return UNSURE;
  }
  return (marked[1] | marked[2] | marked[3] | marked[4]) & ~marked[0] & ~facts.marks ? NO : YES;
}

// Two words that say that a tensor has no marks: where it keeps its attributes, and which names there are.
struct Unmarked {
  PyObject* const* slot = nullptr;  // null: nothing is known
  PyObject* place = nullptr;
  const uint64_t* names = nullptr;  // null: the first word says it all
  uint64_t version = 0;

  bool holds() const { return slot && *slot == place && (!names || *names == version); }
};

// What says that a tensor has no marks, where it has none and two words can tell.
inline Unmarked unmarked(PyObject* object) {
  const OwnAttributes own = attributes_in_place(object);
  if (!own.slot) return {};
  Unmarked made{own.slot, *own.slot};
  if (!own.values && !own.dict) return made;
  for (int n = 0; n < MARKS; n++) {
    PyObject* found = nullptr;
    if (own.values ? index_among(own.keys, mark_name(n)) >= 0
                   : find_own(own, mark_name(n), &found) != YES || found)
      return {};
  }
  static_assert(sizeof(own.keys->dk_nentries) == sizeof(uint64_t));
  made.names = own.values ? reinterpret_cast<const uint64_t*>(&own.keys->dk_nentries) : version_of(own.dict);
  if (!made.names) return {};
  made.version = *made.names;
  return made;
}

// What torch says about a tensor, whatever the program marked.
inline Answer check_properties(const TensorFacts& facts, PyObject* object,
                               const c10::AutogradMetaInterface* base = nullptr) {
  if (Py_TYPE(object) != facts.type) return NO;
  const at::TensorBase& tensor = tensor_of(object);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().raw_repr() != facts.keys) return NO;
  try {
    if (impl->dtype().toScalarType() != facts.dtype || impl->device() != facts.device) return NO;
    if (!matches(impl->sizes(), facts.sizes) || !matches(impl->strides(), facts.strides)) return NO;
    return is_in_autograd(tensor, facts.requires_grad, facts.is_leaf, base) ? YES : NO;
  } catch (...) {
    return UNSURE;
  }
}

// The metadata of a tensor that is no view; null for others.
inline const c10::AutogradMetaInterface* metadata_of_base(PyObject* object) {
  const at::TensorBase& tensor = tensor_of(object);
  return tensor.is_view() ? nullptr : tensor.unsafeGetTensorImpl()->autograd_meta();
}

// What a tensor's object ends with: sizes, strides, offset, dtype, device, policies and dispatch keys.  All that a guard on
// a tensor asks for is there, but for its class and for autograd; what changes when a tensor is used lies before it.
constexpr Py_ssize_t TAIL = sizeof(c10::impl::SizesAndStrides) + 3 * sizeof(int64_t) + sizeof(c10::DispatchKeySet);
constexpr Py_ssize_t TAIL_OFFSET = static_cast<Py_ssize_t>(sizeof(c10::TensorImpl)) - TAIL;

inline bool tail_found = false;  // whether it is where it is looked for

// Whether the number of dimensions and the sizes, with which it begins, are found in some tensors of few dimensions.
inline bool find_tail(PyObject* tensors) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); n++) {
    c10::TensorImpl* impl = tensor_of(PyTuple_GET_ITEM(tensors, n)).unsafeGetTensorImpl();
    const char* tail = reinterpret_cast<const char*>(impl) + TAIL_OFFSET;
    const bool begins = *reinterpret_cast<const size_t*>(tail) == static_cast<size_t>(impl->dim());
    const bool sizes = reinterpret_cast<const char*>(impl->sizes().data()) == tail + sizeof(size_t);
    if (!begins || !sizes) return false;
  }
  return true;
}

// Finds the flag by clearing it, for a moment, in a tensor that requires gradients: it is the one byte of the metadata that
// follows.
inline void find_requires_grad(PyObject* tensors) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors) && tensor_places.autograd >= 0; n++) {
    c10::TensorImpl* impl = tensor_of(PyTuple_GET_ITEM(tensors, n)).unsafeGetTensorImpl();
    c10::AutogradMetaInterface* meta = autograd_of(impl);
    if (!meta || !meta->requires_grad()) continue;
    const size_t size = malloc_usable_size(meta);
    const std::vector<char> on(reinterpret_cast<const char*>(meta), reinterpret_cast<const char*>(meta) + size);
    meta->set_requires_grad(false, impl);
    const std::vector<char> off(reinterpret_cast<const char*>(meta), reinterpret_cast<const char*>(meta) + size);
    meta->set_requires_grad(true, impl);
    Py_ssize_t changed = 0, place = -1;
    for (size_t at = 0; at < size; at++)
      if (on[at] != off[at]) changed++, place = static_cast<Py_ssize_t>(at);
    if (changed == 1 && on[place] == 1 && off[place] == 0) tensor_places.requires_grad = place;
    return;
  }
}

using Pair = uint64_t __attribute__((vector_size(16), aligned(8), may_alias));

inline Pair differences(const uint64_t* one, const uint64_t* other) {
  return *reinterpret_cast<const Pair*>(one) ^ *reinterpret_cast<const Pair*>(other);
}

// Whether two tails say the same of tensors of so many dimensions: words two at a time, without a branch on each.
inline bool is_same_tail(const uint64_t* one, const uint64_t* other, bool few_dimensions) {
  constexpr size_t words = TAIL / sizeof(uint64_t), strides = 1 + C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE;
  Pair differs = differences(one, other) | differences(one + words - 2, other + words - 2);
  if (few_dimensions) {  // the others lie in words that mean nothing, or follow from these
    differs |= differences(one + 2, other + 2) | differences(one + strides, other + strides);
  } else {
#pragma GCC unroll 16
    for (size_t n = 2; n + 1 < words; n += 2) differs |= differences(one + n, other + n);
  }
  return !(differs[0] | differs[1]);
}

// How tensors looked that were found to be as a guard says; many tensors of a model look alike.
struct TensorLook {
  PyTypeObject* type;
  bool requires_grad, few_dimensions;
  uint64_t tail[TAIL / sizeof(uint64_t)];

  bool operator==(const TensorLook& other) const { return std::memcmp(this, &other, sizeof(other)) == 0; }
};
static_assert(TAIL % sizeof(uint64_t) == 0 && TAIL_OFFSET % sizeof(uint64_t) == 0);

// A tensor that looked so, where its look can tell: it is in `base`, the metadata of no view, that it was not computed.
struct TensorImage {
  const c10::TensorImpl* impl = nullptr;  // null: there is no image
  const c10::AutogradMetaInterface* base = nullptr;
  const void* base_class = nullptr;  // the first word of the metadata: views have metadata of a class of their own
  const TensorLook* look = nullptr;

  // Whether the tensor is shown to be as it was; false where that is not known.
  bool shows(PyObject* object, const TensorPlaces& places) const {
    if (!impl || Py_TYPE(object) != look->type) return false;
    if (word_at(object, places.tensor) != impl || word_at(impl, places.autograd) != base) return false;
    if (!is_same_tail(tail_of(impl), look->tail, look->few_dimensions)) return false;
    if (!base) return true;
    return word_at(base, 0) == base_class && !word_at(base, places.grad_fn) &&
           reinterpret_cast<const char*>(base)[places.requires_grad] == look->requires_grad;
  }

  void prefetch(const TensorPlaces& places) const {
    __builtin_prefetch(tail_of(impl) + TAIL / sizeof(uint64_t) - 5);
    __builtin_prefetch(reinterpret_cast<const char*>(base) + places.requires_grad);
  }

  static const void* word_at(const void* object, Py_ssize_t offset) {
    return first_word(reinterpret_cast<const char*>(object)[offset]);
  }

  static const uint64_t* tail_of(const c10::TensorImpl* impl) {
    return reinterpret_cast<const uint64_t*>(reinterpret_cast<const char*>(impl) + TAIL_OFFSET);
  }
};

constexpr std::ptrdiff_t RECENT_LOOKS = 32;  // so many are gone through for one that a tensor has, too

// The image of a tensor of which a guard's facts hold.  There is none of a tensor of more dimensions than fit into the
// object, of one that works its sizes out, of a view that has metadata and of what autograd has computed.
inline TensorImage image_of(PyObject* object, const TensorFacts& facts, std::deque<TensorLook>& looks) {
  c10::TensorImpl* impl = tensor_of(object).unsafeGetTensorImpl();
  const bool plain = typeid(*impl) == typeid(c10::TensorImpl) && !impl->has_symbolic_sizes_strides();
  if (!tail_found || tensor_places.requires_grad < 0 || !plain || impl->dim() > C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE) return {};
  TensorImage made{impl, metadata_of_base(object)};
  if (autograd_of(impl) != made.base || !facts.is_leaf) return {};
  if (made.base) made.base_class = TensorImage::word_at(made.base, 0);
  TensorLook look;
  std::memset(&look, 0, sizeof(look));
  look.type = facts.type;
  look.requires_grad = facts.requires_grad;
  look.few_dimensions = impl->dim() <= 2;
  std::memcpy(look.tail, TensorImage::tail_of(impl), sizeof(look.tail));
  const auto recent = looks.end() - std::min<std::ptrdiff_t>(looks.size(), RECENT_LOOKS);
  const auto known = std::find(recent, looks.end(), look);
  made.look = known == looks.end() ? &looks.emplace_back(look) : &*known;
  if (!made.shows(object, tensor_places)) return {};
  return made;
}

inline Answer check_tensor(const TensorFacts& facts, PyObject* object) {
  const Answer answer = check_properties(facts, object);
  return answer == YES && facts.watches_marks ? check_marks(facts, object) : answer;
}

// Whether autograd takes a tensor for no view.
inline Answer is_no_view(PyObject* object) {
  if (!is_plain_tensor(object)) return UNSURE;
  try {
    return tensor_of(object).is_view() ? NO : YES;
  } catch (...) {
    return UNSURE;
  }
}

// The storage that a tensor lies in; null where it has none of its own.
inline const void* storage_of(PyObject* object) {
  try {
    const at::TensorBase& tensor = tensor_of(object);
    return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

inline std::vector<c10::DeviceType> autocast_devices;  // those that have an autocast, in Turret's order
inline bool autocast_asked = false;                    // of these devices
inline PyObject* forward_ad_names = nullptr;           // the namespace of torch.autograd.forward_ad

inline bool function_modes_in_use() { return at::impl::PythonTorchFunctionTLS::stack_len() > 0; }

// For which of `autocast_devices` autocast is on, a bit each.  That hangs on the keys that a thread excludes alone, so
// torch is asked anew only where they are not those of the last time.
inline uint64_t enabled_autocasts(uint64_t excluded) {
  static uint64_t excluded_then, enabled;
  if (autocast_asked && excluded == excluded_then) return enabled;
  enabled = 0;
  for (size_t n = 0; n < autocast_devices.size(); n++)
    enabled |= uint64_t{at::autocast::is_autocast_enabled(autocast_devices[n])} << n;
  excluded_then = excluded;
  autocast_asked = true;
  return enabled;
}

// Whether dual tensors may be about, by torch's own variable: what torch has in C++ takes a lock to read.
inline bool forward_ad_in_use() {
  static uint64_t version_then = 0;
  static bool in_use = false;
  const uint64_t* version = version_of(forward_ad_names);
  if (version && *version == version_then) return in_use;
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  PyObject* level = PyDict_GetItemWithError(forward_ad_names, name);
  const long number = level ? PyLong_AsLong(level) : 0;
  if (PyErr_Occurred()) PyErr_Clear();
  in_use = number >= 0;  // so is what cannot be read
  version_then = version ? *version : 0;
  return in_use;
}

// Whether autograd hands what it saves in this thread to hooks of the program.
inline bool saves_through_hooks() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }

// Gives torch's modes, in the order of Turret's `global_state`, to `take` until it answers false; of modes in Python only
// how many there are.  Returns whether it took them all.
template <typename Take>
inline bool each_mode(Take take) {
  const at::Context& context = at::globalContext();
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  if (!take(c10::GradMode::is_enabled()) || !take(c10::InferenceMode::is_enabled()) ||
      !take(static_cast<int64_t>(c10::get_default_dtype_as_scalartype())))
    return false;
  uint64_t enabled = enabled_autocasts(keys.excluded_.raw_repr());
  for (const c10::DeviceType device : autocast_devices) {
    if (!take(enabled & 1) || !take(static_cast<int64_t>(at::autocast::get_autocast_dtype(device)))) return false;
    enabled >>= 1;
  }
  return take(at::autocast::is_autocast_cache_enabled()) && take(context.deterministicAlgorithms()) &&
         take(context.deterministicFillUninitializedMemory()) && take(context.userEnabledFlashSDP()) &&
         take(context.userEnabledMemEfficientSDP()) && take(context.userEnabledMathSDP()) &&
         take(context.userEnabledCuDNNSDP()) && take(keys.included_.has(c10::DispatchKey::Tracer)) &&
         take(forward_ad_in_use()) && take(c10::impl::TorchDispatchModeTLS::stack_len()) &&
         take(at::functorch::getDynamicLayerStack().empty()) && take(at::impl::PythonTorchFunctionTLS::stack_len());
}

inline std::vector<int64_t> mode_values() {
  std::vector<int64_t> values;
  each_mode([&values](int64_t value) {
    values.push_back(value);
    return true;
  });
  return values;
}

// Whether torch's modes are those of a row that `mode_values` may have given.
inline bool modes_are(const std::vector<int64_t>& expected) {
  const int64_t* next = expected.data();
  const int64_t* const end = next + expected.size();
  return each_mode([&next, end](int64_t value) { return next != end && *next++ == value; }) && next == end;
}

}  // namespace turret
