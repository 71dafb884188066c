// CachedReads of what a reading rests on: words of memory that have to stay as they are.
//
// A word that refers to an object proves the object's address alone, and addresses are used again.  What else may
// be relied on has to be noted too: the object's type and the words that were read in it; or the reference is held, where
// the object is a plain constant, which keeps nothing of the user's alive.  Versions are different, for no two dicts or
// classes ever have the same: what a version proves has been referred to ever since.
#pragma once

#include <unordered_set>
#include <vector>

#include "guard_layout.h"
#include "guard_tensors.h"

namespace turret {

inline PyTypeObject* device_type = nullptr;
inline PyTypeObject* size_type = nullptr;

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

// One word that has to stay as it is.
struct CachedRead {
  uintptr_t address;
  uintptr_t value;
};

// Another thing that has to, to be looked at after so many words: `number` in a list of its own kind.
enum class Look { HALF, ARGUMENT, FIND, BYTE };
struct OtherRead {
  size_t behind;
  Look look;
  size_t number;
  uintptr_t value;
};

struct Find {       // what is looked up anew at each call
  PyObject* owner;  // a dict, or the instance whose own attribute it is
  PyObject* key;
  PyObject* value;  // null: there is none
  bool own;
};

struct TensorNote {
  PyObject* tensor;
  TensorImage image;
  const TensorFacts* facts;

  // The same asked of torch, as the image does not show it.
  bool holds() const { return check_properties(*facts, tensor, image.base) == YES; }
};

constexpr int TENSORS_AHEAD = 8;  // so far ahead of what is looked at the memory is asked for
constexpr int WORDS_AHEAD = 24;

// The first of some tensors that is not shown to be as it was.
inline const TensorNote* first_in_doubt(const TensorNote* note, const TensorNote* end) {
  const TensorPlaces places = tensor_places;  // a copy, which calls in between cannot change
  for (; note != end; ++note) {
    note[end - note > TENSORS_AHEAD ? TENSORS_AHEAD : 0].image.prefetch(places);
    if (!note->image.shows(note->tensor, places)) break;
  }
  return note;
}

struct MarksNote {  // of a tensor that a program may mark
  PyObject* tensor;
  const TensorFacts* facts;
  Unmarked unmarked;

  bool holds() const { return unmarked.holds() || check_marks(*facts, tensor) == YES; }
};

constexpr int VOLATILE_AFTER = 3;  // so many changes found at one step, and it is read anew at each call

// What was noted for a step the last time: it tells what changes between calls.
struct AccessProfile {
  const void* dict = nullptr;
  uint64_t version = 0;
  bool dict_changes = false;  // items of the dict are noted one by one
  const void* owner = nullptr;
  const void* place = nullptr;
  int place_changes = 0;  // times that the owner kept its attributes elsewhere
  const void* value = nullptr;
  int value_changes = 0;
};

class CachedReads {
 public:
  explicit CachedReads(std::vector<AccessProfile>& profiles) : profiles_(profiles) {}

  std::vector<CachedRead> words;
  size_t count = 0;  // of words; behind them is room for looking ahead
  std::vector<OtherRead> others;
  std::vector<const uint32_t*> halves;
  std::vector<const uint8_t*> bytes;
  std::vector<Find> finds;
  std::vector<TensorNote> tensors;  // looked at when the words have shown that they are where they were
  std::vector<MarksNote> marks;

  // Says that all is taken.
  void close() {
    count = words.size();
    words.resize(count + WORDS_AHEAD, {reinterpret_cast<uintptr_t>(this), 0});
  }
  void word(const void* address, uintptr_t value) {
    if (noted_.insert(address).second) words.push_back({reinterpret_cast<uintptr_t>(address), value});
  }
  void reference(PyObject* const* address) { word(address, reinterpret_cast<uintptr_t>(*address)); }
  void argument(size_t index, PyObject* object) {
    other(Look::ARGUMENT, index, reinterpret_cast<uintptr_t>(object));
  }
  void tensor(PyObject* object, const TensorFacts& facts) {
    TensorImage image = image_of(object, facts, looks_);
    if (!image.impl) image.base = metadata_of_base(object);
    tensors.push_back({object, image, &facts});
    if (facts.watches_marks) marks.push_back({object, &facts, unmarked(object)});
  }
  // That an object is of its class, where it is known to be the same object.
  void type_of(PyObject* object) {
    // The class of an instance of a built-in class cannot be assigned; that of a module can.
    if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) || PyModule_Check(object)) type_word(object);
  }
  // That a dict, found where an instance keeps one, is a plain one.
  void plain_dict(PyObject* dict) { type_word(dict); }
  // That what lies at an address that was found in a word is still what it was, or at least of the same class.
  void prove(PyObject* object) {
    if (!is_immutable(object))
      type_word(object);
    else if (noted_.insert(object).second)
      held_.push_back(Held::of(object));
  }
  // That a class and its bases have the attributes that they have.  False where the interpreter cannot tell.
  bool attributes(PyTypeObject* type) {
    if ((type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return true;
    if (!has_version(type)) return false;
    if (noted_.insert(&type->tp_version_tag).second) {
      other(Look::HALF, halves.size(), type->tp_version_tag);
      halves.push_back(&type->tp_version_tag);
    }
    return true;
  }
  // That a key of a dict has the value that was found (null: that there is no such key).  Whether a version says so.
  bool item(int holder, PyObject* dict, PyObject* key, PyObject* value) {
    if (contents(holder, dict)) return true;
    look_up({dict, key, value, false});
    return false;
  }
  // That an instance, the attributes of whose class are noted, has this value of an own attribute (null: that it has
  // none of that name).  Whether a version says so.
  bool own_item(int holder, PyObject* object, const OwnAttributes& own, PyObject* key, PyObject* value) {
    if (!own_place(holder, object, own)) {
      look_up({object, key, value, true});
      return false;
    }
    if (own.values) {
      const Py_ssize_t index = is_text(key) ? index_among(own.keys, key) : -1;
      if (index >= 0)
        reference(&own.values[index]);
      else if (is_text(key))
        word(&own.keys->dk_nentries, static_cast<uintptr_t>(own.keys->dk_nentries));
      return false;
    }
    if (!own.dict || contents(holder, own.dict)) return true;
    type_word(own.dict);
    look_up({own.dict, key, value, false});
    return false;
  }
  // That an instance keeps its own attributes where it does; false where it is known to move them often.  Of a dict at
  // that place nothing but a version says more: the interpreter lets dicts alone be there, of a subclass, too.
  bool own_place(int holder, PyObject* object, const OwnAttributes& own) {
    AccessProfile& last = profiles_[holder];
    if (last.owner == object && last.place != *own.slot && last.place_changes < VOLATILE_AFTER) last.place_changes++;
    last.owner = object;
    last.place = *own.slot;
    if (last.place_changes == VOLATILE_AFTER) return false;
    reference(own.slot);
    if (own.valid && noted_.insert(own.valid).second) {
      other(Look::BYTE, bytes.size(), *own.valid);
      bytes.push_back(own.valid);
    }
    return true;
  }
  // That a dict has the contents that it has; false where it is known to change often, or has no version.
  bool contents(int holder, PyObject* dict) {
    AccessProfile& last = profiles_[holder];
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
  void type_word(PyObject* object) { word(&object->ob_type, reinterpret_cast<uintptr_t>(Py_TYPE(object))); }
  void other(Look look, size_t number, uintptr_t value) { others.push_back({words.size(), look, number, value}); }
  void look_up(Find find) {
    other(Look::FIND, finds.size(), 0);
    finds.push_back(find);
  }

  std::vector<AccessProfile>& profiles_;
  std::unordered_set<const void*> noted_;
  std::deque<TensorLook> looks_;
  std::vector<Held> held_;
};

}  // namespace turret
