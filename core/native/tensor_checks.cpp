// Checks of tensors' properties without making Python objects of them: type, dispatch keys, dtype, device, gradient
// state, sizes and strides; and which tensors share memory.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/TensorImpl.h>

#include <vector>

namespace {

PyObject* tensor_base = nullptr;  // torch's class that all tensors are instances of
PyGetSetDef* is_leaf = nullptr;   // how torch answers `tensor.is_leaf`
Py_ssize_t place_of_impl = -1;    // where a Python tensor keeps the address of its TensorImpl

c10::TensorImpl* impl_of(PyObject* tensor) {
  return *reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(tensor) + place_of_impl);
}

bool is_tensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(tensor_base));
}

struct Properties {
  PyObject* type;
  uint64_t keys;
  int scalar_type;
  c10::Device device;
  bool requires_grad, leaf;
  std::vector<int64_t> sizes, strides;  // ANY where it may be anything
};
constexpr int64_t ANY = -1;

struct Check {
  PyObject_HEAD
  Properties* properties;
  vectorcallfunc vectorcall;
};

bool match(c10::IntArrayRef found, const std::vector<int64_t>& expected) {
  if (found.size() != expected.size()) return false;
  for (size_t i = 0; i < expected.size(); i++)
    if (expected[i] != ANY && expected[i] != found[i]) return false;
  return true;
}

// 1, 0, or -1 with an exception set.
int holds(const Properties& p, PyObject* tensor) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(tensor)) != p.type) return 0;
  bool requires_grad;
  try {
    c10::TensorImpl* impl = impl_of(tensor);
    requires_grad = impl->requires_grad();
    if (impl->key_set().raw_repr() != p.keys || requires_grad != p.requires_grad ||
        static_cast<int>(c10::typeMetaToScalarType(impl->dtype())) != p.scalar_type || impl->device() != p.device ||
        !match(impl->sizes(), p.sizes) || !match(impl->strides(), p.strides))
      return 0;
  } catch (const std::exception&) {
    return 0;  // a tensor that has no such property
  }
  if (!requires_grad) return p.leaf;  // what needs no gradient is a leaf
  PyObject* leaf = is_leaf->get(tensor, is_leaf->closure);
  if (!leaf) return -1;
  const bool same = (leaf == Py_True) == p.leaf;
  Py_DECREF(leaf);
  return same;
}

PyObject* check_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  if (PyVectorcall_NARGS(count) != 1 || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a check takes one object");
    return nullptr;
  }
  int found = holds(*reinterpret_cast<Check*>(self)->properties, args[0]);
  return found < 0 ? nullptr : PyBool_FromLong(found);
}

bool numbers(PyObject* tuple, std::vector<int64_t>& into) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject* item = PyTuple_GET_ITEM(tuple, i);
    int64_t value = item == Py_None ? ANY : PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred()) return false;
    into.push_back(value);
  }
  return true;
}

PyObject* check_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *cls, *sizes, *strides;
  unsigned long long keys;
  int scalar_type, requires_grad, leaf;
  const char* device;
  if (!PyArg_ParseTuple(args, "O!KisppO!O!", &PyType_Type, &cls, &keys, &scalar_type, &device, &requires_grad, &leaf,
                        &PyTuple_Type, &sizes, &PyTuple_Type, &strides))
    return nullptr;
  if (!PyObject_IsSubclass(cls, tensor_base)) {
    PyErr_SetString(PyExc_TypeError, "a check is of tensors");
    return nullptr;
  }
  std::vector<int64_t> size_numbers, stride_numbers;
  if (!numbers(sizes, size_numbers) || !numbers(strides, stride_numbers)) return nullptr;
  c10::Device place(c10::DeviceType::CPU);
  try {
    place = c10::Device(std::string(device));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
  Check* self = reinterpret_cast<Check*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->properties = new Properties{Py_NewRef(cls), keys, scalar_type, place, bool(requires_grad), bool(leaf),
                                    std::move(size_numbers), std::move(stride_numbers)};
  self->vectorcall = check_call;
  return reinterpret_cast<PyObject*>(self);
}

int check_traverse(PyObject* self, visitproc visit, void* arg) {
  if (Properties* p = reinterpret_cast<Check*>(self)->properties) Py_VISIT(p->type);
  return 0;
}

void check_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (Properties* p = reinterpret_cast<Check*>(self)->properties) {
    Py_XDECREF(p->type);
    delete p;
  }
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject check_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// all_hold(((check, tensor), ...)): whether every check holds of its tensor.
PyObject* all_hold(PyObject*, PyObject* pairs) {
  if (!PyTuple_Check(pairs)) return PyErr_Format(PyExc_TypeError, "all_hold takes a tuple");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
    PyObject* pair = PyTuple_GET_ITEM(pairs, i);
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || !Py_IS_TYPE(PyTuple_GET_ITEM(pair, 0), &check_type))
      return PyErr_Format(PyExc_TypeError, "all_hold takes pairs of a check and a tensor");
    int found = holds(*reinterpret_cast<Check*>(PyTuple_GET_ITEM(pair, 0))->properties, PyTuple_GET_ITEM(pair, 1));
    if (found < 0) return nullptr;
    if (!found) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// storage_pattern(*tensors): for each tensor the number of the first one that lies in the same storage.
PyObject* storage_pattern(PyObject*, PyObject* const* tensors, Py_ssize_t count) {
  std::vector<const void*> storages(count);
  PyObject* found = PyTuple_New(count);
  if (!found) return nullptr;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!is_tensor(tensors[i])) {
      Py_DECREF(found);
      return PyErr_Format(PyExc_TypeError, "storage_pattern takes tensors");
    }
    try {
      storages[i] = impl_of(tensors[i])->storage().unsafeGetStorageImpl();
    } catch (const std::exception& error) {
      Py_DECREF(found);
      PyErr_SetString(PyExc_RuntimeError, "a tensor without storage");
      return nullptr;
    }
    Py_ssize_t first = 0;
    while (storages[first] != storages[i]) first++;
    PyTuple_SET_ITEM(found, i, PyLong_FromSsize_t(first));
  }
  return found;
}

// scalar_type(tensor): torch's number of its dtype.
PyObject* scalar_type(PyObject*, PyObject* tensor) {
  if (!is_tensor(tensor)) return PyErr_Format(PyExc_TypeError, "scalar_type takes a tensor");
  return PyLong_FromLong(static_cast<long>(c10::typeMetaToScalarType(impl_of(tensor)->dtype())));
}

// prepare(base, tensors): finds out where tensors keep what is theirs; False where that is not to be found.
PyObject* prepare(PyObject*, PyObject* args) {
  PyObject *base, *tensors;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &base, &PyTuple_Type, &tensors)) return nullptr;
  PyObject* leaf = PyObject_GetAttrString(base, "is_leaf");
  if (!leaf) return nullptr;
  const bool known = Py_IS_TYPE(leaf, &PyGetSetDescr_Type);
  if (known) is_leaf = reinterpret_cast<PyGetSetDescrObject*>(leaf)->d_getset;  // as static as the class
  Py_DECREF(leaf);
  if (!known) Py_RETURN_FALSE;
  const Py_ssize_t end = reinterpret_cast<PyTypeObject*>(base)->tp_basicsize;
  for (Py_ssize_t place = sizeof(PyObject); place + Py_ssize_t(sizeof(void*)) <= end; place += sizeof(void*)) {
    bool everywhere = PyTuple_GET_SIZE(tensors) > 0;
    for (Py_ssize_t i = 0; everywhere && i < PyTuple_GET_SIZE(tensors); i++) {
      PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
      PyObject* address = PyObject_GetAttrString(tensor, "_cdata");
      if (!address) return nullptr;
      void* expected = PyLong_AsVoidPtr(address);
      Py_DECREF(address);
      everywhere = *reinterpret_cast<void**>(reinterpret_cast<char*>(tensor) + place) == expected;
    }
    if (everywhere) {
      place_of_impl = place;
      Py_XSETREF(tensor_base, Py_NewRef(base));
      Py_RETURN_TRUE;
    }
  }
  Py_RETURN_FALSE;
}

PyMethodDef methods[] = {
    {"all_hold", all_hold, METH_O, "all_hold(((check, tensor), ...)): whether every check holds of its tensor"},
    {"storage_pattern", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(storage_pattern)), METH_FASTCALL,
     "storage_pattern(*tensors): for each the number of the first one in the same storage"},
    {"scalar_type", scalar_type, METH_O, "scalar_type(tensor): torch's number of its dtype"},
    {"prepare", prepare, METH_VARARGS, "prepare(base, tensors): find out how tensors are laid out"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_tensor_checks", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__turret_tensor_checks(void) {
  check_type.tp_name = "turret.TensorCheck";
  check_type.tp_doc = "TensorCheck(type, keys, scalar_type, device, requires_grad, leaf, sizes, strides); None: any size";
  check_type.tp_basicsize = sizeof(Check);
  check_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  check_type.tp_new = check_new;
  check_type.tp_dealloc = check_dealloc;
  check_type.tp_traverse = check_traverse;
  check_type.tp_call = PyVectorcall_Call;
  check_type.tp_vectorcall_offset = offsetof(Check, vectorcall);
  if (PyType_Ready(&check_type) < 0) return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (made && PyModule_AddObjectRef(made, "TensorCheck", reinterpret_cast<PyObject*>(&check_type)) < 0) Py_CLEAR(made);
  return made;
}
