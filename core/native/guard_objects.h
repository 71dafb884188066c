// Reading Python objects without running anybody's Python code, and noting down what a reading rests on.
//
// Every function here answers YES with what Python's own evaluation of the step would give, NO where that evaluation
// would raise, and UNSURE where it might run code of the user's (a property, an __eq__, a __getattr__): such a guard is
// left to Python.  Where a Notes is given, what was read is noted as words of memory that have to stay as they are.
#pragma once

#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_dict.h>
#undef Py_BUILD_CORE
#include <structmember.h>

#include <cmath>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "guard_tensors.h"

namespace turret {

// A reference that is held.
class Held {
 public:
  Held() = default;
  explicit Held(PyObject* stolen) : object_(stolen) {}
  static Held of(PyObject* borrowed) { return Held(Py_XNewRef(borrowed)); }
  Held(Held&& other) noexcept : object_(other.object_) { other.object_ = nullptr; }
  Held& operator=(Held&& other) noexcept {
    PyObject* old = object_;
    object_ = other.object_;
    other.object_ = nullptr;
    Py_XDECREF(old);
    return *this;
  }
  ~Held() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// One thing that has to stay as it is.  For a WORD the address of the word; for the other kinds the number of an entry in
// a list of its own, with the kind in the low bits, which in the address of a word are zero.
struct Note {
  uintptr_t address;
  uintptr_t value;
};
enum Look : uintptr_t { WORD = 0, HALF = 1, ARGUMENT = 2, FIND = 3, TENSOR = 4 };
constexpr uintptr_t LOOK_BITS = 7;

struct Find {  // a key of a dict that changes between calls
  PyObject* dict;
  PyObject* key;
  PyObject* value;  // null: no such key
};

struct TensorNote {
  PyObject* tensor;
  const TensorFacts* facts;
};

inline PyObject* text_dict = nullptr;      // "__dict__"
inline PyObject* object_getattr = nullptr;  // object.__getattribute__
inline PyObject* module_getattr = nullptr;  // types.ModuleType.__getattribute__
inline getter dict_getter = nullptr;        // what gives the __dict__ of instances of classes written in Python
inline PyTypeObject* ordered_dict_type = nullptr;
inline PyTypeObject* device_type = nullptr;
inline PyTypeObject* size_type = nullptr;

#if PY_VERSION_HEX >= 0x030D0000
// A watched dict has a stamp that each change makes another.
#include <unordered_map>
inline std::unordered_map<PyObject*, uint64_t*> stamps;  // stamps are never freed: notes may still point at them
inline int watcher = -1;

inline int on_dict_event(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
  auto found = stamps.find(dict);
  if (found == stamps.end()) return 0;
  ++*found->second;
  if (event == PyDict_EVENT_DEALLOCATED) stamps.erase(found);
  return 0;
}
#endif

// What was noted for a step the last time: it tells what changes between calls.
struct Habit {
  const void* dict = nullptr;
  uint64_t version = 0;
  bool dict_changes = false;  // items of the dict are noted one by one
  const void* value = nullptr;
  int value_changes = 0;
};

class Notes {
 public:
  explicit Notes(std::vector<Habit>& habits) : habits_(habits) {}

  std::vector<Note> notes;
  std::vector<const uint32_t*> halves;
  std::vector<Find> finds;
  std::vector<TensorNote> tensors;

  void word(const void* address, uintptr_t value) {
    if (noted_.insert(address).second) notes.push_back({reinterpret_cast<uintptr_t>(address), value});
  }
  void argument(size_t index, PyObject* object) {
    notes.push_back({index << 3 | ARGUMENT, reinterpret_cast<uintptr_t>(object)});
  }
  void tensor(PyObject* object, const TensorFacts& facts) {
    notes.push_back({tensors.size() << 3 | TENSOR, 0});
    tensors.push_back({object, &facts});
  }
  void type_of(PyObject* object) {
    // The class of an instance of a built-in class cannot be assigned; that of a module can.
    if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) || PyModule_Check(object))
      word(&object->ob_type, reinterpret_cast<uintptr_t>(Py_TYPE(object)));
  }
  // That a class and its bases have the attributes that they have.  False where the interpreter cannot tell.
  bool attributes(PyTypeObject* type) {
    if (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) return true;
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return false;
#endif
    if (type->tp_version_tag == 0) return false;
    if (noted_.insert(&type->tp_version_tag).second) {
      notes.push_back({halves.size() << 3 | HALF, type->tp_version_tag});
      halves.push_back(&type->tp_version_tag);
    }
    return true;
  }
  // That a key of a dict has the value that was found (null: that there is no such key).
  void item(int holder, PyObject* dict, PyObject* key, PyObject* value) {
    if (contents(holder, dict)) return;
    notes.push_back({finds.size() << 3 | FIND, 0});
    finds.push_back({dict, key, value});
  }
  // That a dict has the contents that it has; false where it is known to change often.
  bool contents(int holder, PyObject* dict) {
    Habit& last = habits_[holder];
    const uint64_t* version = last.dict_changes ? nullptr : version_of(dict);
    if (!version) return false;
    if (last.dict == dict && last.version != *version) {
      last.dict_changes = true;
      return false;
    }
    last.dict = dict;
    last.version = *version;
    word(version, *version);
    return true;
  }

 private:
  static const uint64_t* version_of(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
    if (watcher < 0) return nullptr;
    // Attributes kept inside their instance are changed there, of which watchers are not always told.
    if (reinterpret_cast<PyDictObject*>(dict)->ma_values) return nullptr;
    uint64_t*& stamp = stamps[dict];
    if (!stamp) stamp = new uint64_t(1);
    if (PyDict_Watch(watcher, dict) < 0) {
      PyErr_Clear();
      return nullptr;
    }
    return stamp;
#else
    return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#endif
  }
  std::vector<Habit>& habits_;
  std::unordered_set<const void*> noted_;
};

inline bool is_text(PyObject* object) { return PyUnicode_CheckExact(object); }

// Whether comparing and hashing a value runs nothing but the interpreter's own code.
inline bool is_plain(PyObject* object) {
  return is_text(object) || object == Py_None || PyLong_CheckExact(object) || PyBool_Check(object) ||
         PyFloat_CheckExact(object) || PyBytes_CheckExact(object) || PyFunction_Check(object) ||
         (PyType_Check(object) && Py_TYPE(object)->tp_richcompare == PyType_Type.tp_richcompare &&
          Py_TYPE(object)->tp_hash == PyType_Type.tp_hash);
}

// Whether a look-up of a plain key compares it with plain keys alone.
inline bool has_plain_keys(PyObject* dict) {
  if (DK_IS_UNICODE(reinterpret_cast<PyDictObject*>(dict)->ma_keys)) return true;
  if (PyDict_GET_SIZE(dict) > 256) return false;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value))
    if (!is_plain(key)) return false;
  return true;
}

// The value beside a plain key; null in `found` where there is none.
inline Answer find(PyObject* dict, PyObject* key, PyObject** found) {
  if (!has_plain_keys(dict)) return UNSURE;
  *found = PyDict_GetItemWithError(dict, key);
  if (*found || !PyErr_Occurred()) return YES;
  PyErr_Clear();
  return UNSURE;
}

// Where an instance keeps its __dict__; null where its class has none.  Makes the dict where it is not one yet.
inline PyObject** dict_slot(PyObject* object) {
  PyObject** slot = _PyObject_GetDictPtr(object);
#if PY_VERSION_HEX >= 0x030D0000
  if (slot && !*slot && PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    PyObject* made = PyObject_GenericGetDict(object, nullptr);
    if (!made) PyErr_Clear();
    Py_XDECREF(made);
  }
#endif
  return slot;
}

struct Reading {
  Held value;
  bool fixed = false;  // whether the notes vouch for it
};

// Reads one of the fields of a function that are no plain members.
inline PyObject** function_field(PyObject* function, PyObject* name) {
  PyFunctionObject* f = reinterpret_cast<PyFunctionObject*>(function);
  if (PyUnicode_CompareWithASCIIString(name, "__code__") == 0) return &f->func_code;
  if (PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0) return &f->func_defaults;
  if (PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0) return &f->func_kwdefaults;
  return nullptr;
}

// A word that holds an object or null.
inline Answer read_word(PyObject** address, bool null_is_none, Notes* notes, Reading& out) {
  if (notes) {
    notes->word(address, reinterpret_cast<uintptr_t>(*address));
    out.fixed = true;
  }
  if (!*address && !null_is_none) return NO;
  out.value = Held::of(*address ? *address : Py_None);
  return YES;
}

// An attribute that the class answers for, before (`data`) or after the instance.  UNSURE for all that runs code.
inline Answer read_descriptor(PyObject* object, PyObject* found, PyObject* name, Notes* notes, Reading& out) {
  if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
    if (!PyObject_TypeCheck(object, PyDescr_TYPE(found))) return UNSURE;
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
    if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return UNSURE;
    PyObject** address = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
    return read_word(address, member->type == T_OBJECT, notes, out);
  }
  if (!Py_IS_TYPE(found, &PyGetSetDescr_Type)) return UNSURE;
  if (PyDescr_TYPE(found) == &PyFunction_Type && PyFunction_Check(object)) {
    PyObject** field = function_field(object, name);
    return field ? read_word(field, true, notes, out) : UNSURE;
  }
  if (PyDescr_TYPE(found) == &PyCell_Type && PyCell_Check(object))
    return read_word(&reinterpret_cast<PyCellObject*>(object)->ob_ref, false, notes, out);
  return UNSURE;
}

// What a class attribute gives when it is read: of an instance (`object`), or of the class itself (`object` null).
inline Answer bind_class_attribute(PyObject* object, PyTypeObject* type, PyObject* found, bool settled, Reading& out) {
  descrgetfunc get = Py_TYPE(found)->tp_descr_get;
  if (!get || (!object && PyFunction_Check(found))) {
    out.value = Held::of(found);
    out.fixed = settled;
    return YES;
  }
  if (Py_IS_TYPE(found, &PyStaticMethod_Type) || PyFunction_Check(found)) {
    out.value = Held(get(found, object, reinterpret_cast<PyObject*>(type)));
    if (!out.value) PyErr_Clear();
    return out.value ? YES : UNSURE;
  }
  return UNSURE;
}

inline Answer read_class_attribute(PyTypeObject* type, PyObject* name, Notes* notes, Reading& out) {
  PyTypeObject* meta = Py_TYPE(type);
  if (meta->tp_getattro != PyType_Type.tp_getattro) return UNSURE;
  PyObject* of_meta = _PyType_Lookup(meta, name);
  if (of_meta && Py_TYPE(of_meta)->tp_descr_set) return UNSURE;  // __mro__, __name__, a metaclass's property
  PyObject* found = _PyType_Lookup(type, name);
  if (!found) return of_meta ? UNSURE : NO;
  bool settled = false;
  if (notes) {
    PyObject* object = reinterpret_cast<PyObject*>(type);
    notes->type_of(object);
    settled = notes->attributes(meta) && notes->attributes(type);
  }
  return bind_class_attribute(nullptr, type, found, settled, out);
}

// object.__dict__, past any __getattribute__.  Of a class: its own namespace, as a plain dict.
inline Answer read_dict(PyObject* object, Notes* notes, Reading& out) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject* found = _PyType_Lookup(type, text_dict);
  if (!found) return UNSURE;
  bool settled = false;
  if (notes) {
    notes->type_of(object);
    settled = notes->attributes(type);
  }
  if (!Py_IS_TYPE(found, &PyGetSetDescr_Type) && !Py_IS_TYPE(found, &PyMemberDescr_Type)) return UNSURE;
  if (PyType_Check(object)) {
    if (PyDescr_TYPE(found) != &PyType_Type) return UNSURE;
#if PY_VERSION_HEX >= 0x030C0000
    out.value = Held(PyType_GetDict(reinterpret_cast<PyTypeObject*>(object)));
#else
    out.value = Held::of(reinterpret_cast<PyTypeObject*>(object)->tp_dict);
#endif
    out.fixed = settled;
    return out.value ? YES : UNSURE;
  }
  const bool of_module = PyDescr_TYPE(found) == &PyModule_Type && PyModule_Check(object);
  if (!of_module) {
    if (!Py_IS_TYPE(found, &PyGetSetDescr_Type)) return UNSURE;
    getter get = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset->get;
    if (get != PyObject_GenericGetDict && get != dict_getter) return UNSURE;
  }
  PyObject** slot = dict_slot(object);
  if (!slot || !*slot || !PyDict_CheckExact(*slot)) return UNSURE;
  if (notes && settled) notes->word(slot, reinterpret_cast<uintptr_t>(*slot));
  out.value = Held::of(*slot);
  out.fixed = settled;
  return YES;
}

// object.name
inline Answer read_attribute(PyObject* object, PyObject* name, int holder, Notes* notes, Reading& out) {
  if (PyType_Check(object)) {
    if (name == text_dict && Py_TYPE(object)->tp_getattro == PyType_Type.tp_getattro)
      return read_dict(object, notes, out);
    return read_class_attribute(reinterpret_cast<PyTypeObject*>(object), name, notes, out);
  }
  PyTypeObject* type = Py_TYPE(object);
  if (!type->tp_getattro) return UNSURE;
  PyObject* getter = type->tp_getattro == PyObject_GenericGetAttr ? object_getattr : nullptr;
  if (!getter) {
    static PyObject* const text = PyUnicode_InternFromString("__getattribute__");
    getter = _PyType_Lookup(type, text);
  }
  if (getter != object_getattr && getter != module_getattr) return UNSURE;
  if (name == text_dict) return read_dict(object, notes, out);
  PyObject* of_class = _PyType_Lookup(type, name);
  bool settled = false;
  if (notes) {
    notes->type_of(object);
    settled = notes->attributes(type);
  }
  if (of_class && Py_TYPE(of_class)->tp_descr_set) {
    Answer answer = read_descriptor(object, of_class, name, notes, out);
    out.fixed = out.fixed && settled;
    return answer == NO && type->tp_getattro != PyObject_GenericGetAttr ? UNSURE : answer;
  }
  PyObject** slot = dict_slot(object);
  PyObject* own = nullptr;
  if (slot && *slot) {
    if (!PyDict_CheckExact(*slot)) return UNSURE;
    Answer answer = find(*slot, name, &own);
    if (answer != YES) return answer;
  }
  if (notes && settled && slot) {
    notes->word(slot, reinterpret_cast<uintptr_t>(*slot));
    if (*slot) notes->item(holder, *slot, name, own);
  }
  if (own) {
    out.value = Held::of(own);
    out.fixed = settled;
    return YES;
  }
  if (of_class) return bind_class_attribute(object, type, of_class, settled, out);
  return type->tp_getattro == PyObject_GenericGetAttr ? NO : UNSURE;  // else there may be a __getattr__
}

// Which container's own item look-up a step makes.
enum class Container { NONE, DICT, LIST, TUPLE };

// The container whose `[]` an object has, where its class does not make something else of it.
inline Container container_of(PyObject* object) {
  PyMappingMethods* methods = Py_TYPE(object)->tp_as_mapping;
  if (!methods) return Container::NONE;
  if (PyDict_Check(object) && methods->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript) return Container::DICT;
  if (PyList_Check(object) && methods->mp_subscript == PyList_Type.tp_as_mapping->mp_subscript) return Container::LIST;
  if (PyTuple_Check(object) && methods->mp_subscript == PyTuple_Type.tp_as_mapping->mp_subscript)
    return Container::TUPLE;
  return Container::NONE;
}

inline Answer read_sequence_item(PyObject* object, PyObject* key, Notes* notes, bool settled, Reading& out) {
  if (!PyLong_CheckExact(key) && !PyBool_Check(key)) return UNSURE;
  Py_ssize_t index = PyLong_AsSsize_t(key);
  if (index == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return UNSURE;
  }
  const Py_ssize_t size = Py_SIZE(object);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return NO;
  if (PyTuple_Check(object)) {
    out.value = Held::of(PyTuple_GET_ITEM(object, index));
    out.fixed = settled;
    return YES;
  }
  PyListObject* list = reinterpret_cast<PyListObject*>(object);
  if (notes && settled) {
    notes->word(&list->ob_item, reinterpret_cast<uintptr_t>(list->ob_item));
    notes->word(&reinterpret_cast<PyVarObject*>(object)->ob_size, static_cast<uintptr_t>(size));
    notes->word(&list->ob_item[index], reinterpret_cast<uintptr_t>(list->ob_item[index]));
  }
  out.value = Held::of(list->ob_item[index]);
  out.fixed = settled;
  return YES;
}

// object[key], or the container's own [] where the step says past which class (`container`).
inline Answer read_item(PyObject* object, PyObject* key, Container container, int holder, Notes* notes,
                        Reading& out) {
  const bool past = container != Container::NONE;
  if (!past) container = container_of(object);
  bool settled = false;
  if (notes) {
    notes->type_of(object);
    const bool exact = PyDict_CheckExact(object) || PyList_CheckExact(object) || PyTuple_CheckExact(object);
    static PyObject* const text = PyUnicode_InternFromString("__missing__");
    if (!exact) _PyType_Lookup(Py_TYPE(object), text);  // gives the class a version
    settled = exact || notes->attributes(Py_TYPE(object));
  }
  switch (container) {
    case Container::DICT: {
      if (past && !PyDict_Check(object)) return NO;
      if (!is_plain(key)) return UNSURE;
      PyObject* found = nullptr;
      Answer answer = find(object, key, &found);
      if (answer != YES) return answer;
      if (!found) return PyDict_CheckExact(object) ? NO : UNSURE;
      if (notes && settled) notes->item(holder, object, key, found);
      out.value = Held::of(found);
      out.fixed = settled;
      return YES;
    }
    case Container::LIST:
      if (past && !PyList_Check(object)) return NO;
      return read_sequence_item(object, key, notes, settled, out);
    case Container::TUPLE:
      if (past && !PyTuple_Check(object)) return NO;
      return read_sequence_item(object, key, notes, settled, out);
    case Container::NONE:
      break;
  }
  return UNSURE;
}

// What a mappingproxy stands before; other objects stand for themselves.
struct Proxy {
  PyObject_HEAD
  PyObject* mapping;
};

inline PyObject* behind_proxy(PyObject* object) {
  return Py_IS_TYPE(object, &PyDictProxy_Type) ? reinterpret_cast<Proxy*>(object)->mapping : object;
}

// list(dict)[index] or list(dict.values())[index]
inline Answer read_nth(PyObject* dict, Py_ssize_t index, bool value, int holder, Notes* notes, Reading& out) {
  if (!PyDict_CheckExact(dict)) return UNSURE;
  Py_ssize_t position = 0;
  PyObject *key, *item;
  for (Py_ssize_t n = 0; PyDict_Next(dict, &position, &key, &item); n++) {
    if (n != index) continue;
    out.value = Held::of(value ? item : key);
    out.fixed = notes && notes->contents(holder, dict);
    return YES;
  }
  return NO;
}

// Equality of plain values that tells types, signs of zero and NaN apart.
inline Answer same_constant(PyObject* found, PyObject* expected) {
  PyTypeObject* type = Py_TYPE(expected);
  if (Py_TYPE(found) != type) return NO;
  if (type == &PyFloat_Type) {
    const double a = PyFloat_AS_DOUBLE(found), b = PyFloat_AS_DOUBLE(expected);
    if (std::isnan(b)) return std::isnan(a) ? YES : NO;
    return a == b && std::signbit(a) == std::signbit(b) ? YES : NO;
  }
  if (type == &PyTuple_Type || type == &PyList_Type) {
    if (Py_SIZE(found) != Py_SIZE(expected)) return NO;
    for (Py_ssize_t n = 0; n < Py_SIZE(found); n++) {
      Answer answer = same_constant(PySequence_Fast_GET_ITEM(found, n), PySequence_Fast_GET_ITEM(expected, n));
      if (answer != YES) return answer;
    }
    return YES;
  }
  if (type->tp_richcompare == PyBaseObject_Type.tp_richcompare) return found == expected ? YES : NO;
  if (type == size_type) {
    for (Py_ssize_t n = 0; n < Py_SIZE(found); n++)
      if (!PyLong_CheckExact(PyTuple_GET_ITEM(found, n))) return UNSURE;
    for (Py_ssize_t n = 0; n < Py_SIZE(expected); n++)
      if (!PyLong_CheckExact(PyTuple_GET_ITEM(expected, n))) return UNSURE;
  } else if (!is_text(found) && type != &PyLong_Type && type != &PyBytes_Type && type != &PyComplex_Type &&
             type != &PyBool_Type && type != device_type) {
    return UNSURE;
  }
  PyObject* answer = PyObject_RichCompare(found, expected, Py_EQ);
  if (!answer) PyErr_Clear();
  const Answer result = !answer ? UNSURE : answer == Py_True ? YES : NO;
  Py_XDECREF(answer);
  return result;
}

// Whether a value cannot change without being another object.
inline bool is_immutable(PyObject* object) {
  if (PyTuple_CheckExact(object) || Py_TYPE(object) == size_type) {
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(object); n++)
      if (!is_immutable(PyTuple_GET_ITEM(object, n))) return false;
    return true;
  }
  return (is_plain(object) && !PyType_Check(object) && !PyFunction_Check(object)) || PyComplex_CheckExact(object) ||
         object == Py_Ellipsis || Py_TYPE(object) == device_type;
}

// Whether instances of a class that nobody can change are equal to themselves alone.
inline bool is_identity(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

// Whether len() of an object is its own size, untouched by a subclass; -1 where that is not known.
inline Py_ssize_t plain_length(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyDict_CheckExact(object) || type == ordered_dict_type) return PyDict_GET_SIZE(object);
  if (PyList_CheckExact(object) || PyTuple_CheckExact(object) || type == size_type) return Py_SIZE(object);
  if (PyAnySet_CheckExact(object)) return PySet_GET_SIZE(object);
  if (is_text(object)) return PyUnicode_GET_LENGTH(object);
  if (PyBytes_CheckExact(object)) return PyBytes_GET_SIZE(object);
  return -1;
}

// Notes that an object of a plain length keeps it.
inline void note_length(PyObject* object, Notes* notes) {
  if (PyDict_Check(object))
    notes->word(&reinterpret_cast<PyDictObject*>(object)->ma_used,
                static_cast<uintptr_t>(PyDict_GET_SIZE(object)));
  else if (PyList_Check(object))
    notes->word(&reinterpret_cast<PyVarObject*>(object)->ob_size, static_cast<uintptr_t>(Py_SIZE(object)));
  else if (PyAnySet_Check(object))
    notes->word(&reinterpret_cast<PySetObject*>(object)->used, static_cast<uintptr_t>(PySet_GET_SIZE(object)));
}

inline Answer same_key(PyObject* key, PyObject* expected) {
  if (key == expected) return YES;
  if (Py_TYPE(key) != Py_TYPE(expected)) return NO;
  if (!is_plain(key)) return UNSURE;
  const int equal = PyObject_RichCompareBool(key, expected, Py_EQ);
  if (equal >= 0) return equal ? YES : NO;
  PyErr_Clear();
  return UNSURE;
}

// The keys of an OrderedDict, whose order is not that of the dict which it is.
inline Answer same_ordered_keys(PyObject* dict, PyObject* expected) {
  if (!has_plain_keys(dict)) return UNSURE;
  Held iterator(PyObject_GetIter(dict));
  Answer answer = iterator ? YES : UNSURE;
  for (Py_ssize_t n = 0; answer == YES && n < PyTuple_GET_SIZE(expected); n++) {
    Held key(PyIter_Next(iterator.get()));
    answer = key ? same_key(key.get(), PyTuple_GET_ITEM(expected, n)) : UNSURE;
  }
  if (PyErr_Occurred()) PyErr_Clear();
  return answer;
}

// Whether the keys of a dict are the expected ones, in order.
inline Answer same_keys(PyObject* dict, PyObject* expected) {
  const bool ordered = Py_TYPE(dict) == ordered_dict_type;
  if (!PyDict_CheckExact(dict) && !ordered) return UNSURE;
  if (PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return NO;
  if (ordered) return same_ordered_keys(dict, expected);
  Py_ssize_t position = 0;
  PyObject *key, *value;
  for (Py_ssize_t n = 0; PyDict_Next(dict, &position, &key, &value); n++) {
    const Answer answer = same_key(key, PyTuple_GET_ITEM(expected, n));
    if (answer != YES) return answer;
  }
  return YES;
}

}  // namespace turret
