// Stamps: has anything of a set of Python objects changed since they were looked at?
//
// A set is made of records, each a word or two to compare:
//   dict      its contents (which keys, in which order, and which values): a number that every change of it changes
//   type      its attributes and those of its bases: the interpreter's version tag
//   instance  the type of an object and which dict holds its attributes
//   function  code, defaults and keyword defaults
//   cell      its contents
//   slot      an attribute that the object itself has room for (__slots__)
// CPython 3.11 numbers the changes of dicts itself; from 3.12 on a dict watcher counts them.  Attributes that 3.13 keeps
// inside an object are changed there without the dict's being told: these are compared one by one.

#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE 1
#include <Python.h>
#include <structmember.h>
#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_dict.h>
#endif
#undef Py_BUILD_CORE

#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

#if PY_VERSION_HEX >= 0x030C0000
struct Watched {
  uint64_t version = 1;
  size_t users = 0;
};

int watcher = -1;
std::unordered_map<PyObject*, Watched> watched;  // guarded by the GIL

int on_change(PyDict_WatchEvent, PyObject* dict, PyObject*, PyObject*) {
  auto found = watched.find(dict);
  if (found != watched.end()) found->second.version++;
  return 0;
}

const uint64_t* watch(PyObject* dict) {
  Watched& entry = watched[dict];
  if (!entry.users && PyDict_Watch(watcher, dict) < 0) {
    watched.erase(dict);
    return nullptr;
  }
  entry.users++;
  return &entry.version;
}

void unwatch(PyObject* dict) {
  auto found = watched.find(dict);
  if (found == watched.end() || --found->second.users) return;
  PyDict_Unwatch(watcher, dict);
  watched.erase(found);
}
#else
const uint64_t* watch(PyObject* dict) { return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
void unwatch(PyObject*) {}
#endif

uint64_t type_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030C0000
  if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return type->tp_version_tag;
}

// Has the interpreter give a type a version; 0 where it has none to give.
uint64_t versioned(PyTypeObject* type) {
  if (uint64_t version = type_version(type)) return version;
#if PY_VERSION_HEX >= 0x030C0000
  PyUnstable_Type_AssignVersionTag(type);
#else
  static PyObject* name = PyUnicode_InternFromString("__init__");
  _PyType_Lookup(type, name);
#endif
  return type_version(type);
}

PyObject* dict_of(PyObject* object) {
  PyObject** place = _PyObject_GetDictPtr(object);
  return place ? *place : nullptr;
}

#if PY_VERSION_HEX >= 0x030D0000
// The values of a dict whose keys are shared (the attributes of an object), and their order.
struct Values {
  PyDictValues* place = nullptr;
  std::vector<PyObject*> held;
  std::vector<uint8_t> order;

  explicit Values(PyObject* dict) : place(reinterpret_cast<PyDictObject*>(dict)->ma_values) {
    if (!place) return;
    for (int i = 0; i < place->capacity; i++) held.push_back(Py_XNewRef(place->values[i]));
    order.assign(order_of(place), order_of(place) + place->size);
  }
  static const uint8_t* order_of(PyDictValues* values) {
    return reinterpret_cast<uint8_t*>(&values->values[values->capacity]);
  }
  bool same(PyObject* dict) const {
    if (reinterpret_cast<PyDictObject*>(dict)->ma_values != place) return false;
    return !place || (place->capacity == held.size() && place->size == order.size() &&
                      !std::memcmp(place->values, held.data(), held.size() * sizeof(PyObject*)) &&
                      !std::memcmp(order_of(place), order.data(), order.size()));
  }
  void clear() {
    for (PyObject* value : held) Py_XDECREF(value);
    held.clear();
  }
};
#else
struct Values {  // the version says it all
  explicit Values(PyObject*) {}
  bool same(PyObject*) const { return true; }
  void clear() {}
};
#endif

struct DictRecord {
  PyObject* dict;
  const uint64_t* place;
  uint64_t version;
  Values values;
};
struct TypeRecord {
  PyTypeObject* type;
  uint64_t version;
};
struct InstanceRecord {
  PyObject* object;
  PyTypeObject* type;
  PyObject* dict;  // null where it does not matter
};
struct WordRecord {
  PyObject* owner;
  PyObject** place;
  PyObject* value;
};

struct Contents {
  std::vector<DictRecord> dicts;
  std::vector<TypeRecord> types;
  std::vector<InstanceRecord> instances;
  std::vector<WordRecord> words;
  std::vector<std::pair<int, size_t>> order;  // of each record as given: which vector, and where; for `stale`
  unsigned long long hits = 0;
  bool sound = true;
};

struct Stamps {
  PyObject_HEAD
  Contents* contents;
};

bool same(const DictRecord& r) { return *r.place == r.version && r.values.same(r.dict); }
bool same(const TypeRecord& r) { return r.version && type_version(r.type) == r.version; }
bool same(const InstanceRecord& r) {
  return Py_TYPE(r.object) == r.type && (!r.dict || dict_of(r.object) == r.dict);
}
bool same(const WordRecord& r) { return *r.place == r.value; }

bool add_word(Contents* c, PyObject* owner, PyObject** place) {
  c->words.push_back({Py_NewRef(owner), place, Py_XNewRef(*place)});
  return true;
}

bool add(Contents* c, const std::string& kind, PyObject* object, PyObject* extra) {
  if (kind == "dict") {
    if (!PyDict_Check(object)) return false;
    const uint64_t* place = watch(object);
    if (!place) return false;
    c->order.emplace_back(0, c->dicts.size());
    c->dicts.push_back({Py_NewRef(object), place, *place, Values(object)});
  } else if (kind == "type") {
    if (!PyType_Check(object)) return false;
    PyTypeObject* type = reinterpret_cast<PyTypeObject*>(Py_NewRef(object));
    c->order.emplace_back(1, c->types.size());
    c->types.push_back({type, versioned(type)});
  } else if (kind == "instance") {
    PyObject* dict = extra == Py_True ? dict_of(object) : nullptr;
    if (extra == Py_True && !dict) return false;
    c->order.emplace_back(2, c->instances.size());
    c->instances.push_back({Py_NewRef(object), reinterpret_cast<PyTypeObject*>(Py_NewRef(Py_TYPE(object))),
                            Py_XNewRef(dict)});
  } else if (kind == "function") {
    if (!PyFunction_Check(object)) return false;
    PyFunctionObject* function = reinterpret_cast<PyFunctionObject*>(object);
    PyObject** places[] = {&function->func_code, &function->func_defaults, &function->func_kwdefaults};
    c->order.emplace_back(3, c->words.size());
    for (PyObject** place : places) add_word(c, object, place);
  } else if (kind == "cell") {
    if (!PyCell_Check(object)) return false;
    c->order.emplace_back(3, c->words.size());
    add_word(c, object, &reinterpret_cast<PyCellObject*>(object)->ob_ref);
  } else if (kind == "slot") {
    if (!Py_IS_TYPE(extra, &PyMemberDescr_Type)) return false;
    PyMemberDescrObject* slot = reinterpret_cast<PyMemberDescrObject*>(extra);
    if (slot->d_member->type != T_OBJECT_EX || !PyObject_TypeCheck(object, slot->d_common.d_type)) return false;
    c->order.emplace_back(3, c->words.size());
    add_word(c, object, reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + slot->d_member->offset));
  } else {
    return false;
  }
  return true;
}

void clear(Contents* c) {
  for (auto& r : c->dicts) {
    unwatch(r.dict);
    r.values.clear();
    Py_DECREF(r.dict);
  }
  for (auto& r : c->types) Py_DECREF(r.type);
  for (auto& r : c->instances) {
    Py_DECREF(r.object);
    Py_DECREF(r.type);
    Py_XDECREF(r.dict);
  }
  for (auto& r : c->words) {
    Py_DECREF(r.owner);
    Py_XDECREF(r.value);
  }
  c->dicts.clear();
  c->types.clear();
  c->instances.clear();
  c->words.clear();
  c->order.clear();
  c->sound = false;
}

PyObject* stamps_new(PyTypeObject* type, PyObject* args, PyObject*) {
  if (!PyArg_ParseTuple(args, "")) return nullptr;
  Stamps* self = reinterpret_cast<Stamps*>(type->tp_alloc(type, 0));
  if (self) self->contents = new Contents;
  return reinterpret_cast<PyObject*>(self);
}

PyObject* stamps_add(PyObject* self, PyObject* args) {
  const char* kind;
  PyObject *object, *extra = Py_None;
  if (!PyArg_ParseTuple(args, "sO|O", &kind, &object, &extra)) return nullptr;
  Contents* c = reinterpret_cast<Stamps*>(self)->contents;
  if (add(c, kind, object, extra)) return PyLong_FromSize_t(c->order.size() - 1);
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "no stamp of kind %s for %R", kind, object);
  return nullptr;
}

int stamps_traverse(PyObject* self, visitproc visit, void* arg) {
  Contents* c = reinterpret_cast<Stamps*>(self)->contents;
  if (!c) return 0;
  for (auto& r : c->dicts) {
    Py_VISIT(r.dict);
#if PY_VERSION_HEX >= 0x030D0000
    for (PyObject* value : r.values.held) Py_VISIT(value);
#endif
  }
  for (auto& r : c->types) Py_VISIT(r.type);
  for (auto& r : c->instances) {
    Py_VISIT(r.object);
    Py_VISIT(r.type);
    Py_VISIT(r.dict);
  }
  for (auto& r : c->words) {
    Py_VISIT(r.owner);
    Py_VISIT(r.value);
  }
  return 0;
}

int stamps_clear(PyObject* self) {
  if (Contents* c = reinterpret_cast<Stamps*>(self)->contents) clear(c);
  return 0;
}

void stamps_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Stamps* stamps = reinterpret_cast<Stamps*>(self);
  if (stamps->contents) clear(stamps->contents);
  delete stamps->contents;
  Py_TYPE(self)->tp_free(self);
}

template <typename Record>
bool all_same(const std::vector<Record>& records) {
  for (const Record& record : records)
    if (!same(record)) return false;
  return true;
}

PyObject* stamps_fresh(PyObject* self, PyObject*) {
  Contents* c = reinterpret_cast<Stamps*>(self)->contents;
  const bool fresh = c->sound && all_same(c->instances) && all_same(c->dicts) && all_same(c->types) &&
                     all_same(c->words);
  c->hits += fresh;
  return PyBool_FromLong(fresh);
}

PyObject* stamps_stale(PyObject* self, PyObject*) {
  Contents* c = reinterpret_cast<Stamps*>(self)->contents;
  PyObject* found = PyList_New(0);
  for (size_t i = 0; found && i < c->order.size(); i++) {
    auto [kind, at] = c->order[i];
    bool fresh = kind == 0 ? same(c->dicts[at]) : kind == 1 ? same(c->types[at]) : kind == 2 ? same(c->instances[at]) : true;
    if (kind == 3) {
      size_t end = c->words.size();
      for (size_t j = i + 1; j < c->order.size(); j++)
        if (c->order[j].first == 3) {
          end = c->order[j].second;
          break;
        }
      for (size_t j = at; j < end; j++) fresh = fresh && same(c->words[j]);
    }
    if (fresh) continue;
    PyObject* number = PyLong_FromSize_t(i);
    if (!number || PyList_Append(found, number) < 0) Py_CLEAR(found);
    Py_XDECREF(number);
  }
  return found;
}

PyObject* stamps_hits(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<Stamps*>(self)->contents->hits);
}

PyMethodDef stamps_methods[] = {
    {"add", stamps_add, METH_VARARGS, "add(kind, object, extra=None): watch from now; returns the record's number"},
    {"fresh", stamps_fresh, METH_NOARGS, "fresh(): whether nothing changed since it was added"},
    {"stale", stamps_stale, METH_NOARGS, "stale(): the numbers of the records that changed"},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef stamps_attributes[] = {
    {"hits", stamps_hits, nullptr, "how often fresh() was true", nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject stamps_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_stamps", nullptr, -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__turret_stamps(void) {
  stamps_type.tp_name = "turret.Stamps";
  stamps_type.tp_doc = "Stamps(): an empty set of records";
  stamps_type.tp_basicsize = sizeof(Stamps);
  stamps_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  stamps_type.tp_new = stamps_new;
  stamps_type.tp_dealloc = stamps_dealloc;
  stamps_type.tp_traverse = stamps_traverse;
  stamps_type.tp_clear = stamps_clear;
  stamps_type.tp_methods = stamps_methods;
  stamps_type.tp_getset = stamps_attributes;
  if (PyType_Ready(&stamps_type) < 0) return nullptr;
#if PY_VERSION_HEX >= 0x030C0000
  if (watcher < 0) watcher = PyDict_AddWatcher(on_change);
  if (watcher < 0) return nullptr;
#endif
  PyObject* made = PyModule_Create(&module);
  if (made && PyModule_AddObjectRef(made, "Stamps", reinterpret_cast<PyObject*>(&stamps_type)) < 0) Py_CLEAR(made);
  return made;
}
