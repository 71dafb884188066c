// Comparing the plain values that guards hold with what was found, without running anybody's Python code.
#pragma once

#include <cmath>

#include "guard_notes.h"

namespace turret {

inline PyTypeObject* ordered_dict_type = nullptr;
inline PyTypeObject* default_dict_type = nullptr;

inline Answer same_double(double a, double b) {
  if (std::isnan(b)) return std::isnan(a) ? YES : NO;
  return a == b && std::signbit(a) == std::signbit(b) ? YES : NO;
}

// Equality of plain values that tells types, signs of zero and NaN apart.
inline Answer same_constant(PyObject* found, PyObject* expected) {
  PyTypeObject* type = Py_TYPE(expected);
  if (Py_TYPE(found) != type) return NO;
  if (type == &PyFloat_Type) return same_double(PyFloat_AS_DOUBLE(found), PyFloat_AS_DOUBLE(expected));
  if (type == &PyComplex_Type) {
    const Py_complex a = reinterpret_cast<PyComplexObject*>(found)->cval;
    const Py_complex b = reinterpret_cast<PyComplexObject*>(expected)->cval;
    return same_double(a.real, b.real) == YES && same_double(a.imag, b.imag) == YES ? YES : NO;
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
  } else if (!is_text(found) && type != &PyLong_Type && type != &PyBytes_Type && type != &PyBool_Type &&
             type != device_type) {
    return UNSURE;
  }
  PyObject* answer = PyObject_RichCompare(found, expected, Py_EQ);
  if (!answer) PyErr_Clear();
  const Answer result = !answer ? UNSURE : answer == Py_True ? YES : NO;
  Py_XDECREF(answer);
  return result;
}

// Whether instances of a class that nobody can change are equal to themselves alone.
inline bool is_identity(PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && type->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

// Whether an object is a dict whose items are those of the dict, in its order: what a missing key makes is another matter.
inline bool is_dict_in_order(PyObject* object) {
  return PyDict_CheckExact(object) || Py_TYPE(object) == default_dict_type;
}

// Whether len() of an object is its own size, untouched by a subclass; -1 where that is not known.
inline Py_ssize_t plain_length(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (is_dict_in_order(object) || type == ordered_dict_type) return PyDict_GET_SIZE(object);
  if (PyList_CheckExact(object) || PyTuple_CheckExact(object) || type == size_type) return Py_SIZE(object);
  if (PyAnySet_CheckExact(object)) return PySet_GET_SIZE(object);
  if (is_text(object)) return PyUnicode_GET_LENGTH(object);
  if (PyBytes_CheckExact(object)) return PyBytes_GET_SIZE(object);
  return -1;
}

// CachedReads that an object of a plain length keeps it.
inline void note_length(PyObject* object, CachedReads* notes) {
  if (PyDict_Check(object))
    notes->word(&reinterpret_cast<PyDictObject*>(object)->ma_used,
                static_cast<uintptr_t>(PyDict_GET_SIZE(object)));
  else if (PyList_Check(object) || PyTuple_Check(object))
    notes->word(&reinterpret_cast<PyVarObject*>(object)->ob_size, static_cast<uintptr_t>(Py_SIZE(object)));
  else if (PyAnySet_Check(object))
    notes->word(&reinterpret_cast<PySetObject*>(object)->used, static_cast<uintptr_t>(PySet_GET_SIZE(object)));
}

inline Answer same_key(PyObject* key, PyObject* expected) {
  if (key == expected) return YES;
  if (Py_TYPE(key) != Py_TYPE(expected)) return NO;
  if (!is_plain(key)) return UNSURE;
  const int equal = PyObject_RichCompareBool(key, expected, Py_EQ);
  if (equal >= 0) return !equal ? NO : PyFloat_CheckExact(key) ? same_constant(key, expected) : YES;
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

// Whether the keys of a dict, as the dict itself has them whatever its class makes of it, are the expected ones, in order.
inline Answer same_dict_keys(PyObject* dict, PyObject* expected) {
  if (PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(expected)) return NO;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  for (Py_ssize_t n = 0; PyDict_Next(dict, &position, &key, &value); n++) {
    const Answer answer = same_key(key, PyTuple_GET_ITEM(expected, n));
    if (answer != YES) return answer;
  }
  return YES;
}

// Whether the keys of a dict are the expected ones, in order.
inline Answer same_keys(PyObject* dict, PyObject* expected) {
  const bool ordered = Py_TYPE(dict) == ordered_dict_type;
  if (!is_dict_in_order(dict) && !ordered) return UNSURE;
  if (ordered && PyDict_GET_SIZE(dict) == PyTuple_GET_SIZE(expected)) return same_ordered_keys(dict, expected);
  return same_dict_keys(dict, expected);
}

}  // namespace turret
