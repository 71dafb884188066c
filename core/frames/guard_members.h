// What classes have under which names, and what functions written in C answer.
#pragma once

#include "guard_notes.h"
#include "guard_values.h"

namespace turret {

// The dict of a class; borrowed, for the class keeps it.
inline PyObject* dict_of_class(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* dict = PyType_GetDict(type);
  Py_XDECREF(dict);
  return dict;
#else
  return type->tp_dict;
#endif
}

// The first class along the method resolution order that defines a name; null where none does.
inline Answer find_owner(PyTypeObject* type, PyObject* name, PyObject** owner) {
  *owner = nullptr;
  if (!type->tp_mro) return UNSURE;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(type->tp_mro); n++) {
    PyObject* base = PyTuple_GET_ITEM(type->tp_mro, n);
    PyObject* dict = PyType_Check(base) ? dict_of_class(reinterpret_cast<PyTypeObject*>(base)) : nullptr;
    PyObject* found = nullptr;
    if (!dict || find(dict, name, &found) != YES) return UNSURE;
    if (found) {
      *owner = base;
      break;
    }
  }
  return YES;
}

// Whether a class has, itself or from a base, the very member `expected` is of: (name, member), or (name,) for none.
// `owner`: the expected one is the class that defines it instead.
inline Answer judge_member(PyObject* object, PyObject* expected, bool owner, CachedReads* notes, bool& implied) {
  if (!PyType_Check(object)) return NO;
  PyTypeObject* type = reinterpret_cast<PyTypeObject*>(object);
  PyObject* name = PyTuple_GET_ITEM(expected, 0);
  PyObject* wanted = PyTuple_GET_SIZE(expected) > 1 ? PyTuple_GET_ITEM(expected, 1) : nullptr;
  PyObject* found = nullptr;
  if (!owner)
    found = _PyType_Lookup(type, name);
  else if (find_owner(type, name, &found) != YES)
    return UNSURE;
  if (found != wanted) return NO;
  implied = notes && notes->attributes(type);
  return YES;
}

// Whether a class inherits as it did: the tuple of its bases is made anew when they are assigned.
inline Answer judge_mro(PyObject* object, PyObject* expected, CachedReads* notes, bool& implied) {
  if (!PyType_Check(object)) return NO;
  PyTypeObject* type = reinterpret_cast<PyTypeObject*>(object);
  if (!type->tp_mro || !PyTuple_Check(expected)) return UNSURE;
  if (PyTuple_GET_SIZE(type->tp_mro) != PyTuple_GET_SIZE(expected)) return NO;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(expected); n++)
    if (PyTuple_GET_ITEM(type->tp_mro, n) != PyTuple_GET_ITEM(expected, n)) return NO;
  if (notes) notes->reference(&type->tp_mro);
  implied = notes != nullptr;
  return YES;
}

// Whether a function written in C gives for (arguments, answer) the answer that it gave.
inline Answer judge_answer(PyObject* function, PyObject* expected) {
  if (!PyCFunction_CheckExact(function)) return UNSURE;
  Held found(PyObject_CallObject(function, PyTuple_GET_ITEM(expected, 0)));
  if (!found) PyErr_Clear();
  return found ? same_constant(found.get(), PyTuple_GET_ITEM(expected, 1)) : NO;
}

}  // namespace turret
