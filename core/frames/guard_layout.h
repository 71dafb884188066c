// How CPython 3.11 to 3.13 lay objects out in memory: what of that guards read, and what tells that it has changed.
//
// The headers are those of the very interpreter, its internal ones included, for there is no public way to a dict's
// version or to attributes that are kept without a dict.
#pragma once

#include <pyconfig.h>
#undef HAVE_STD_ATOMIC  // C's <stdatomic.h> is no C++; Python's headers do without it where it is not there
#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>
#undef Py_BUILD_CORE
#include <structmember.h>

#include <cstdint>

#if PY_VERSION_HEX >= 0x030E0000
#error "written for CPython 3.11 to 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "written for a CPython with the global interpreter lock"
#endif

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

// Where an instance keeps its own attributes.
//
// On 3.11 that is a dict, made where there is none yet.  From 3.12 on it may be an array of values, in the order of keys
// which the class has for all its instances.  3.12 gives the array to a dict when `__dict__` is read, and often takes it
// back later; on 3.13 it stays in the instance, and a dict that is made shares it: stores to the instance then change
// the dict's items, but not its version.
struct OwnAttributes {
  PyObject** slot = nullptr;  // the word that says where they are; null: the class has no __dict__ for its instances
  PyObject* dict = nullptr;   // borrowed; null where there is none
  PyObject** values = nullptr;        // null: they are in the dict
  PyDictKeysObject* keys = nullptr;   // whose values they are
  const uint8_t* valid = nullptr;     // from 3.13 on: a byte that says whether the values still are the attributes
};

inline PyDictKeysObject* keys_of_class(PyObject* object) {
  return reinterpret_cast<PyHeapTypeObject*>(Py_TYPE(object))->ht_cached_keys;
}

inline OwnAttributes own_attributes(PyObject* object) {
  OwnAttributes own;
#if PY_VERSION_HEX >= 0x030C0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
#if PY_VERSION_HEX >= 0x030D0000
    own.slot = reinterpret_cast<PyObject**>(&_PyObject_ManagedDictPointer(object)->dict);
    own.dict = *own.slot;
    if (!PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_INLINE_VALUES)) return own;
    PyDictValues* values = _PyObject_InlineValues(object);
    if (!values->valid) return own;
    own.valid = &values->valid;
    own.values = values->values;
#else
    PyDictOrValues* place = _PyObject_DictOrValuesPointer(object);
    own.slot = reinterpret_cast<PyObject**>(place);
    if (!_PyDictOrValues_IsValues(*place)) {
      own.dict = _PyDictOrValues_GetDict(*place);
      return own;
    }
    own.values = _PyDictOrValues_GetValues(*place)->values;
#endif
    own.keys = keys_of_class(object);
    return own;
  }
#endif
  own.slot = _PyObject_GetDictPtr(object);
  own.dict = own.slot ? *own.slot : nullptr;
  return own;
}

// The same, with no dict made for them on 3.11 either, where they may be an array of values, too.
inline OwnAttributes attributes_in_place(PyObject* object) {
#if PY_VERSION_HEX < 0x030C0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    OwnAttributes own;
    PyDictValues** values = _PyObject_ValuesPointer(object);
    if (*values) {
      own.slot = reinterpret_cast<PyObject**>(values);
      own.values = (*values)->values;
      own.keys = keys_of_class(object);
    } else {
      own.slot = _PyObject_ManagedDictPointer(object);
      own.dict = *own.slot;
    }
    return own;
  }
#endif
  return own_attributes(object);
}

// The place of a name among the keys of a class; -1 where it is none of them.  Keys are never taken out.
inline Py_ssize_t index_among(PyDictKeysObject* keys, PyObject* name) {
  const PyDictUnicodeEntry* entries = DK_UNICODE_ENTRIES(keys);
  for (Py_ssize_t n = 0; n < keys->dk_nentries; n++)
    if (entries[n].me_key == name) return n;
  for (Py_ssize_t n = 0; n < keys->dk_nentries; n++)
    if (PyUnicode_GET_LENGTH(entries[n].me_key) == PyUnicode_GET_LENGTH(name) &&
        PyUnicode_Compare(entries[n].me_key, name) == 0)
      return n;
  return -1;
}

// The word that another value comes with whenever a dict changes, unique among all dicts that ever were; null for a dict
// that shares its values with an instance.
inline const uint64_t* version_of(PyObject* dict) {
  PyDictObject* found = reinterpret_cast<PyDictObject*>(dict);
#if PY_VERSION_HEX >= 0x030D0000
  if (found->ma_values && found->ma_values->embedded) return nullptr;
#endif
  return &found->ma_version_tag;
}

// Makes sure that a class has a version: a number, unique among classes, that changes with its attributes and with those
// of its bases.  False where it has none, as after too many changes.
inline bool has_version(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  if (!PyUnstable_Type_AssignVersionTag(type)) return false;
#else
  if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
    static PyObject* const any = PyUnicode_InternFromString("__dict__");
    _PyType_Lookup(type, any);  // a look-up gives a class its version
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return false;
  }
#endif
  return type->tp_version_tag != 0;
}

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

enum Answer : int { NO = 0, YES = 1, UNSURE = 2 };

// The value beside a plain key; null in `found` where there is none.
inline Answer find(PyObject* dict, PyObject* key, PyObject** found) {
  if (!has_plain_keys(dict)) return UNSURE;
  *found = PyDict_GetItemWithError(dict, key);
  if (*found || !PyErr_Occurred()) return YES;
  PyErr_Clear();
  return UNSURE;
}

// The value of an instance's own attribute; null in `found` where it has none of that name.
inline Answer find_own(const OwnAttributes& own, PyObject* key, PyObject** found) {
  *found = nullptr;
  if (own.values) {
    const Py_ssize_t index = is_text(key) ? index_among(own.keys, key) : -1;
    if (index >= 0) *found = own.values[index];
    return YES;
  }
  if (!own.dict) return YES;
  return PyDict_CheckExact(own.dict) ? find(own.dict, key, found) : UNSURE;
}

}  // namespace turret
