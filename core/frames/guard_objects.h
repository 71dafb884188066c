// Reading Python objects without running anybody's Python code, and noting down what a reading rests on.
//
// Every function here answers YES with what Python's own evaluation of the step would give, NO where that evaluation
// would raise, and UNSURE where it might run code of the user's (a property, an __eq__, a __getattr__): such a guard is
// left to Python.  Where a CachedReads is given, what was read is noted as words of memory that have to stay as they are.
#pragma once

#include "guard_notes.h"

namespace turret {

inline PyObject* text_dict = nullptr;       // "__dict__"
inline PyObject* object_getattr = nullptr;  // object.__getattribute__
inline PyObject* module_getattr = nullptr;  // types.ModuleType.__getattribute__
inline getter dict_getter = nullptr;        // what gives the __dict__ of instances of classes written in Python

struct Reading {
  Held value;
  bool fixed = false;        // whether the notes prove it
  bool referred = false;     // whether what they rest on has referred to it ever since, so that it is the same object
  bool of_instance = false;  // it is the __dict__ of the instance `value`, which need not be there as a dict
};

// Reads one of the fields of a function that are no plain members.
inline PyObject** function_field(PyObject* function, PyObject* name) {
  PyFunctionObject* f = reinterpret_cast<PyFunctionObject*>(function);
  if (PyUnicode_CompareWithASCIIString(name, "__code__") == 0) return &f->func_code;
  if (PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0) return &f->func_defaults;
  if (PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0) return &f->func_kwdefaults;
  return nullptr;
}

// What stands for the __dict__ of a function that has none yet.
inline PyObject* no_attributes() {
  static PyObject* const empty = PyDict_New();
  return empty;
}

// A word that holds an object or null.
inline Answer read_word(PyObject** address, bool null_is_none, CachedReads* notes, Reading& out) {
  if (notes) {
    notes->reference(address);
    out.fixed = true;
  }
  if (!*address && !null_is_none) return NO;
  out.value = Held::of(*address ? *address : Py_None);
  return YES;
}

// An attribute that the class answers for, before (`data`) or after the instance.  UNSURE for all that runs code.
inline Answer read_descriptor(PyObject* object, PyObject* found, PyObject* name, CachedReads* notes, Reading& out) {
  if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
    if (!PyObject_TypeCheck(object, PyDescr_TYPE(found))) return UNSURE;
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found)->d_member;
    if (member->type != T_OBJECT && member->type != T_OBJECT_EX) return UNSURE;
    PyObject** address = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
    return read_word(address, member->type == T_OBJECT, notes, out);
  }
  if (!Py_IS_TYPE(found, &PyGetSetDescr_Type)) return UNSURE;
  if (PyDescr_TYPE(found) == &PyFunction_Type && PyFunction_Check(object)) {
    if (PyUnicode_CompareWithASCIIString(name, "__dict__") == 0) {
      PyObject** attributes = &reinterpret_cast<PyFunctionObject*>(object)->func_dict;
      if (*attributes) return read_word(attributes, false, notes, out);
      if (notes) {
        notes->reference(attributes);
        out.fixed = true;
      }
      out.value = Held::of(no_attributes());
      return out.value ? YES : UNSURE;
    }
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
    out.fixed = out.referred = settled;
    return YES;
  }
  if (Py_IS_TYPE(found, &PyStaticMethod_Type) || PyFunction_Check(found)) {
    out.value = Held(get(found, object, reinterpret_cast<PyObject*>(type)));
    if (!out.value) PyErr_Clear();
    return out.value ? YES : UNSURE;
  }
  return UNSURE;
}

inline Answer read_class_attribute(PyTypeObject* type, PyObject* name, CachedReads* notes, Reading& out) {
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

// The namespace of a class, as a plain dict.
inline Answer read_class_dict(PyTypeObject* type, bool settled, CachedReads* notes, Reading& out) {
#if PY_VERSION_HEX >= 0x030C0000
  out.value = Held(PyType_GetDict(type));
#else
  out.value = Held::of(type->tp_dict);
#endif
  if (notes && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) notes->reference(&type->tp_dict);
  out.fixed = settled;
  return out.value ? YES : UNSURE;
}

// object.__dict__, past any __getattribute__.
inline Answer read_dict(PyObject* object, CachedReads* notes, Reading& out) {
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
    return read_class_dict(reinterpret_cast<PyTypeObject*>(object), settled, notes, out);
  }
  const bool of_module = PyDescr_TYPE(found) == &PyModule_Type && PyModule_Check(object);
  if (!of_module) {
    if (!Py_IS_TYPE(found, &PyGetSetDescr_Type)) return UNSURE;
    getter get = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset->get;
    if (get != PyObject_GenericGetDict && get != dict_getter) return UNSURE;
    if (type->tp_getattro != PyObject_GenericGetAttr) {
      // One written in Python is passed over; one in C may keep attributes elsewhere, as threading.local does.
      static PyObject* const text = PyUnicode_InternFromString("__getattribute__");
      PyObject* getter = _PyType_Lookup(type, text);
      if (getter != object_getattr && !(getter && PyFunction_Check(getter))) return UNSURE;
    }
  }
  const OwnAttributes own = own_attributes(object);
  if (!own.slot || (own.dict && !PyDict_CheckExact(own.dict))) return UNSURE;
  out.value = Held::of(object);
  out.fixed = out.referred = settled;
  out.of_instance = true;
  return YES;
}

// The __dict__ of an instance as a dict, made where there is none yet; borrowed from the instance.  Null: UNSURE.
inline PyObject* dict_of_instance(PyObject* object, int holder, CachedReads* notes, bool& fixed) {
  PyObject* made = own_attributes(object).dict;
  if (!made) {
    made = PyObject_GenericGetDict(object, nullptr);
    if (!made) PyErr_Clear();
    Py_XDECREF(made);  // the instance refers to it
  }
  if (!made || !PyDict_CheckExact(made)) return nullptr;
  fixed = notes && notes->own_place(holder, object, own_attributes(object));
  if (fixed) notes->plain_dict(made);
  return made;
}

// instance.__dict__[key]
inline Answer read_own_item(PyObject* object, PyObject* key, int holder, CachedReads* notes, Reading& out) {
  if (!is_plain(key)) return UNSURE;
  const OwnAttributes own = own_attributes(object);
  PyObject* found = nullptr;
  const Answer answer = find_own(own, key, &found);
  if (answer != YES || !found) return answer == YES ? NO : answer;
  if (notes) {
    out.referred = notes->own_item(holder, object, own, key, found);
    out.fixed = true;
  }
  out.value = Held::of(found);
  return YES;
}

// object.name
inline Answer read_attribute(PyObject* object, PyObject* name, int holder, CachedReads* notes, Reading& out) {
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
  const OwnAttributes own = own_attributes(object);
  PyObject* found = nullptr;
  if (own.slot) {
    const Answer answer = find_own(own, name, &found);
    if (answer != YES) return answer;
    const bool referred = notes && settled && notes->own_item(holder, object, own, name, found);
    if (found) {
      out.value = Held::of(found);
      out.fixed = settled;
      out.referred = referred;
      return YES;
    }
  }
  if (of_class) return bind_class_attribute(object, type, of_class, settled, out);
  return type->tp_getattro == PyObject_GenericGetAttr ? NO : UNSURE;  // else there may be a __getattr__
}

// Whether an attribute of tensors is one that autograd keeps for them: a gradient, or hooks.
inline bool is_autograd_field(PyObject* name) {
  static PyObject* const names[] = {PyUnicode_InternFromString("grad"), PyUnicode_InternFromString("_backward_hooks"),
                                    PyUnicode_InternFromString("_post_accumulate_grad_hooks")};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Such an attribute of a plain tensor.  Nothing tells when it changes, so it is read anew each time.
inline Answer read_autograd_field(PyObject* object, PyObject* name, Reading& out) {
  PyObject* of_class = _PyType_Lookup(Py_TYPE(object), name);
  if (!of_class || Py_TYPE(of_class) != &PyGetSetDescr_Type) return UNSURE;
  const PyGetSetDef* fields = reinterpret_cast<PyGetSetDescrObject*>(of_class)->d_getset;
  out.value = Held(fields->get(object, fields->closure));
  out.fixed = false;
  if (out.value) return YES;
  PyErr_Clear();
  return UNSURE;
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

inline Answer read_sequence_item(PyObject* object, PyObject* key, CachedReads* notes, bool settled, Reading& out) {
  if (!PyLong_CheckExact(key) && !PyBool_Check(key)) return UNSURE;
  Py_ssize_t index = PyLong_AsSsize_t(key);
  if (index == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return UNSURE;
  }
  const Py_ssize_t size = Py_SIZE(object);
  if (index < 0) index += size;
  if (index < 0 || index >= size) return NO;
  PyListObject* list = PyTuple_Check(object) ? nullptr : reinterpret_cast<PyListObject*>(object);
  PyObject** items = list ? list->ob_item : reinterpret_cast<PyTupleObject*>(object)->ob_item;
  if (notes && settled) {
    notes->word(&reinterpret_cast<PyVarObject*>(object)->ob_size, static_cast<uintptr_t>(size));
    if (list) notes->word(&list->ob_item, reinterpret_cast<uintptr_t>(items));
    notes->reference(&items[index]);
  }
  out.value = Held::of(items[index]);
  out.fixed = settled;
  return YES;
}

// object[key], or the container's own [] where the step says past which class (`container`).
inline Answer read_item(PyObject* object, PyObject* key, Container container, int holder, CachedReads* notes,
                        Reading& out) {
  const bool past = container != Container::NONE;
  if (!past) container = container_of(object);
  bool settled = false;
  if (notes) {
    notes->type_of(object);
    const bool exact = PyDict_CheckExact(object) || PyList_CheckExact(object) || PyTuple_CheckExact(object);
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
      out.referred = notes && settled && notes->item(holder, object, key, found);
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

inline PyObject* behind_proxy(PyObject* object, CachedReads* notes) {
  if (!Py_IS_TYPE(object, &PyDictProxy_Type)) return object;
  PyObject** mapping = &reinterpret_cast<Proxy*>(object)->mapping;
  if (notes) {
    notes->reference(mapping);
    notes->prove(*mapping);
  }
  return *mapping;
}

// list(dict)[index] or list(dict.values())[index]
inline Answer read_nth(PyObject* dict, Py_ssize_t index, bool value, int holder, CachedReads* notes, Reading& out) {
  if (!is_dict_in_order(dict)) return UNSURE;
  Py_ssize_t position = 0;
  PyObject *key, *item;
  for (Py_ssize_t n = 0; PyDict_Next(dict, &position, &key, &item); n++) {
    if (n != index) continue;
    out.value = Held::of(value ? item : key);
    out.fixed = out.referred = notes && notes->contents(holder, dict);
    return YES;
  }
  return NO;
}

}  // namespace turret
