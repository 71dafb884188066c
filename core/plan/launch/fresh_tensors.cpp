// Makes many tensors over memory of their own in one call: what a replay hands out anew each time.
//
// Torch's own entry costs a Python call a tensor, and in it asks three times which device is current.  Here layouts are
// read once, the device is set once, and each tensor is one allocation by the allocator that a tensor of torch's has.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <ATen/core/TensorBase.h>

#include <exception>
#include <vector>

// Declared here and not included: torch's Python headers would make the build ten times as long.  Torch has had the first
// by reference and by value, which are called alike.
PyObject* wrap_reference(const at::TensorBase&) __asm__("_Z16THPVariable_WrapRKN2at10TensorBaseE") __attribute__((weak));
PyObject* wrap_value(const at::TensorBase&) __asm__("_Z16THPVariable_WrapN2at10TensorBaseE") __attribute__((weak));
namespace torch {
void translate_exception_to_python(const std::exception_ptr&);
}

namespace turret {
namespace {

struct Made {
  caffe2::TypeMeta dtype;
  std::vector<std::int64_t> shape, stride;
  std::size_t block;    // which of the blocks of memory it lies in
  std::int64_t offset;  // elements behind where that begins
};

struct Plan {
  c10::Device device{c10::DeviceType::CPU};
  c10::DispatchKeySet keys;
  c10::Allocator* allocator = nullptr;
  std::vector<std::size_t> blocks;  // bytes
  std::vector<Made> tensors;
  std::vector<std::size_t> told;  // the tensors whose addresses are wanted, in this order
};

struct Maker {
  PyObject_HEAD
  Plan* plan;
};

PyObject* wrapped(const at::TensorBase& tensor) {
  return wrap_reference != nullptr ? wrap_reference(tensor) : wrap_value(tensor);
}

bool read(PyObject* numbers, std::vector<std::int64_t>& found) {
  if (!PyTuple_Check(numbers)) {
    PyErr_SetString(PyExc_TypeError, "shapes, strides and numbers are tuples");
    return false;
  }
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(numbers); n++) {
    found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, n)));
    if (PyErr_Occurred()) return false;
  }
  return true;
}

const c10::TensorImpl* tensor_at(PyObject* address) {
  return static_cast<const c10::TensorImpl*>(PyLong_AsVoidPtr(address));
}

bool read_tensor(PyObject* item, Made& made) {
  PyObject *sample, *shape, *stride;
  Py_ssize_t block;
  long long offset;
  if (!PyArg_ParseTuple(item, "OOOnL", &sample, &shape, &stride, &block, &offset)) return false;
  const c10::TensorImpl* like = tensor_at(sample);
  if (like == nullptr || !read(shape, made.shape) || !read(stride, made.stride)) return false;
  made.dtype = like->dtype();
  made.block = static_cast<std::size_t>(block);
  made.offset = offset;
  return true;
}

bool read_plan(PyObject* arguments, Plan& plan) {
  PyObject *sample, *blocks, *tensors, *told;
  if (!PyArg_ParseTuple(arguments, "OOO!O", &sample, &blocks, &PyTuple_Type, &tensors, &told)) return false;
  const c10::TensorImpl* like = tensor_at(sample);
  if (like == nullptr) return false;
  plan.device = like->device();
  plan.keys = like->key_set() - c10::autograd_dispatch_keyset - c10::inplace_or_view_ks;  // those a tensor begins with
  plan.allocator = like->storage().unsafeGetStorageImpl()->allocator();
  if (plan.allocator == nullptr) {
    PyErr_SetString(PyExc_ValueError, "the sample's memory is of no allocator");
    return false;
  }
  std::vector<std::int64_t> bytes, numbers;
  if (!read(blocks, bytes) || !read(told, numbers)) return false;
  plan.blocks.assign(bytes.begin(), bytes.end());
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(tensors); n++) {
    plan.tensors.emplace_back();
    if (!read_tensor(PyTuple_GET_ITEM(tensors, n), plan.tensors.back())) return false;
    if (plan.tensors.back().block >= plan.blocks.size()) {
      PyErr_SetString(PyExc_IndexError, "a tensor lies in none of the blocks");
      return false;
    }
  }
  for (const std::int64_t number : numbers) {
    if (number < 0 || static_cast<std::size_t>(number) >= plan.tensors.size()) {
      PyErr_SetString(PyExc_IndexError, "the address of no tensor is wanted");
      return false;
    }
    plan.told.push_back(static_cast<std::size_t>(number));
  }
  return true;
}

at::TensorBase made_in(const Plan& plan, const Made& made, const c10::Storage& storage) {
  at::TensorBase tensor = at::detail::make_tensor_base<c10::TensorImpl>(c10::Storage(storage), plan.keys, made.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.shape, made.stride, made.offset);
  return tensor;
}

// A list of all tensors, and one of the addresses that are wanted; null with an exception set.
PyObject* made_by(const Plan& plan) {
  const c10::DeviceGuard here(plan.device);
  std::vector<c10::Storage> storages;
  storages.reserve(plan.blocks.size());
  for (const std::size_t bytes : plan.blocks)
    storages.emplace_back(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
                                                                plan.allocator->allocate(bytes), plan.allocator, true));
  PyObject* tensors = PyList_New(static_cast<Py_ssize_t>(plan.tensors.size()));
  PyObject* addresses = PyList_New(static_cast<Py_ssize_t>(plan.told.size()));
  PyObject* both = tensors != nullptr && addresses != nullptr ? PyTuple_Pack(2, tensors, addresses) : nullptr;
  Py_XDECREF(tensors);
  Py_XDECREF(addresses);
  if (both == nullptr) return nullptr;
  for (std::size_t n = 0; n < plan.tensors.size(); n++) {
    PyObject* tensor = wrapped(made_in(plan, plan.tensors[n], storages[plan.tensors[n].block]));
    if (tensor == nullptr) {
      Py_DECREF(both);
      return nullptr;
    }
    PyList_SET_ITEM(tensors, static_cast<Py_ssize_t>(n), tensor);
  }
  for (std::size_t n = 0; n < plan.told.size(); n++) {
    const Made& made = plan.tensors[plan.told[n]];
    const auto begin = reinterpret_cast<std::uintptr_t>(storages[made.block].data());
    PyObject* address = PyLong_FromSize_t(begin + static_cast<std::size_t>(made.offset) * made.dtype.itemsize());
    if (address == nullptr) {
      Py_DECREF(both);
      return nullptr;
    }
    PyList_SET_ITEM(addresses, static_cast<Py_ssize_t>(n), address);
  }
  return both;
}

PyObject* make(PyObject* self, PyObject* arguments, PyObject* names) {
  if (PyTuple_GET_SIZE(arguments) != 0 || (names != nullptr && PyDict_GET_SIZE(names) != 0)) {
    PyErr_SetString(PyExc_TypeError, "a maker of tensors takes no arguments");
    return nullptr;
  }
  try {
    return made_by(*reinterpret_cast<Maker*>(self)->plan);
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

void free_maker(PyObject* self) {
  delete reinterpret_cast<Maker*>(self)->plan;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject maker_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* maker(PyObject*, PyObject* arguments) {
  Plan plan;
  if (!read_plan(arguments, plan)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no tensor at the address of a sample");
    return nullptr;
  }
  Maker* made = PyObject_New(Maker, &maker_type);
  if (made != nullptr) made->plan = new Plan(std::move(plan));
  return reinterpret_cast<PyObject*>(made);
}

PyMethodDef methods[] = {
    {"maker", maker, METH_VARARGS,
     "maker(sample, block bytes, ((dtype sample, shape, stride, block, offset), ...), numbers): makes tensors when called"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_fresh_tensors", nullptr, -1, methods};

}  // namespace
}  // namespace turret

PyMODINIT_FUNC PyInit__turret_fresh_tensors(void) {
  using namespace turret;
  if (wrap_reference == nullptr && wrap_value == nullptr) {
    PyErr_SetString(PyExc_ImportError, "this torch has no function that wraps a tensor for Python");
    return nullptr;
  }
  maker_type.tp_name = "turret.TensorMaker";
  maker_type.tp_basicsize = sizeof(Maker);
  maker_type.tp_flags = Py_TPFLAGS_DEFAULT;
  maker_type.tp_dealloc = free_maker;
  maker_type.tp_call = make;
  if (PyType_Ready(&maker_type) < 0) return nullptr;
  return PyModule_Create(&module);
}
