// One guard tree: its steps, its checks, what it remembers, and the answering of calls.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "guard_members.h"
#include "guard_objects.h"
#include "guard_values.h"
#include "turret_enums.h"  // StepKind, CheckKind: the tables are in guard_tree.py

namespace turret {

struct Step {
  StepKind::Value kind;
  int base;        // number of the step that this one starts from, -1 for a root
  PyObject* key;   // the name, the key, or the object that is bound; may be null
  Py_ssize_t index;
};

struct Check {
  CheckKind::Value kind;
  std::vector<int> steps;
  PyObject* expected;
  int guard;
  std::vector<int64_t> numbers;
  TensorFacts* tensor;
};

// What a step led to in the call that is being checked.
struct Register {
  PyObject* object = nullptr;  // held
  uint64_t call = 0;           // the call that it was read in
  Answer answer = NO;
  bool fixed = false;          // the notes prove it
  bool referred = false;       // and it has been referred to ever since
  bool of_class = false;       // the namespace of a class, which Python sees through a proxy
  bool of_instance = false;    // the namespace of the instance `object`
};

// What the notes prove at a step.
struct Known {
  PyObject* object = nullptr;  // borrowed; null: nothing
  bool of_class = false;
  bool of_instance = false;
};

// What the last full check that went well has left: the notes, and what they do not prove.
struct Memory {
  explicit Memory(std::vector<AccessProfile>& profiles) : notes(profiles) {}

  CachedReads notes;
  std::vector<int> early, late;   // checks that the notes do not imply: to be made before the notes, and after them
  std::vector<Known> known;       // for each step what the notes prove
  std::vector<int> unsure;        // guards that are left to Python
};

// So many failures in a row are how the profiles of a few steps are learned, one after the other.
constexpr int PATIENCE = 10;

struct Program {
  std::vector<Step> steps;
  std::vector<Check> checks;
  std::vector<int> left;  // guards that are always left to Python
  PyObject* python = nullptr;
  Py_ssize_t parameters = 0;
  bool modes_checked = false;  // here, or by a guard that is left to Python

  std::vector<int> order;  // of checks in the full way
  std::vector<Register> registers;
  std::vector<int> touched;
  std::vector<const void*> storages;  // room for those of a call
  uint64_t call = 0;
  bool busy = false;

  std::vector<AccessProfile> profiles;
  std::unique_ptr<Memory> memory;
  std::map<std::vector<int>, PyObject*> parts;  // Python's checks of some guards
  std::vector<char> failed;  // by the number of a guard: whether a call has failed at it
  int failures = 0;  // times that notes were taken since they last held
  int pause = 0;     // full checks for which none are taken
  uint64_t full = 0, short_ = 0;

  ~Program() {
    for (Check& check : checks) delete check.tensor;
  }

  void fails_at(int guard) {
    if (guard >= static_cast<int>(failed.size())) failed.resize(guard + 1);
    failed[guard] = 1;
  }
};

// One check of a call.
class Run {
 public:
  Run(Program& program, PyObject* const* arguments) : p(program), arguments(arguments) {
    p.busy = true;
    p.call++;
  }
  ~Run() {
    for (int step : p.touched) Py_CLEAR(p.registers[step].object);
    p.touched.clear();
    p.busy = false;
  }

  // Checks what can be checked here; the guards that are left to Python are put in `left`.
  Answer check(std::vector<int>& left) {
    if (!p.memory) return check_in_full(left);
    Memory& memory = *p.memory;
    if (!check_all(memory.early, left)) return NO;
    if (unchanged(memory.notes)) {
      known_ = &memory.known;
      if (!check_all(memory.late, left)) return NO;
      p.failures = 0;
      p.short_++;
      left.insert(left.end(), memory.unsure.begin(), memory.unsure.end());
      std::sort(left.begin(), left.end());
      return YES;
    }
    left.clear();
    forget();
    return check_in_full(left);
  }

 private:
  Program& p;
  PyObject* const* arguments;
  const std::vector<Known>* known_ = nullptr;  // what the notes, found unchanged, prove
  CachedReads* taking_ = nullptr;                        // the notes, where they are being taken

  // Checks in order; one that fails is tried first the next time.
  bool check_all(std::vector<int>& order, std::vector<int>& left) {
    for (size_t n = 0; n < order.size(); n++) {
      bool implied;
      const Check& check = p.checks[order[n]];
      const Answer answer = judge(check, implied);
      if (answer == UNSURE) left.push_back(check.guard);
      if (answer == NO) {
        p.fails_at(check.guard);
        std::rotate(order.begin(), order.begin() + n, order.begin() + n + 1);
        return false;
      }
    }
    return true;
  }

  Answer check_in_full(std::vector<int>& left) {
    p.full++;
    std::unique_ptr<Memory> memory;
    if (p.pause) {
      p.pause--;
    } else {
      memory = std::make_unique<Memory>(p.profiles);
      taking_ = &memory->notes;
    }
    for (size_t n = 0; n < p.order.size(); n++) {
      const int number = p.order[n];
      const Check& check = p.checks[number];
      bool implied = false;
      const Answer answer = judge(check, implied);
      if (answer == NO) {
        p.fails_at(check.guard);
        std::rotate(p.order.begin(), p.order.begin() + n, p.order.begin() + n + 1);
        return NO;
      }
      if (answer == UNSURE) left.push_back(check.guard);
      if (memory && answer == YES && !implied) (hangs_on_notes(check) ? memory->late : memory->early).push_back(number);
    }
    left.insert(left.end(), p.left.begin(), p.left.end());
    std::sort(left.begin(), left.end());
    if (memory) remember(std::move(memory), left);
    return YES;
  }

  void remember(std::unique_ptr<Memory> memory, const std::vector<int>& left) {
    memory->notes.close();
    memory->unsure = left;
    memory->known.resize(p.steps.size());
    for (size_t n = 0; n < p.steps.size(); n++) {
      const Register& found = p.registers[n];
      if (found.call == p.call && found.answer == YES && found.fixed)
        memory->known[n] = {found.object, found.of_class, found.of_instance};
    }
    p.memory = std::move(memory);
    // CachedReads that fail again and again are not worth taking.
    if (++p.failures > PATIENCE) p.pause = 1 << std::min(p.failures - PATIENCE + 4, 10);
  }

  void forget() {
    for (int step : p.touched) Py_CLEAR(p.registers[step].object);
    p.touched.clear();
    p.call++;
  }

  bool hangs_on_notes(const Check& check) const {
    for (int step : check.steps)
      for (; step >= 0; step = p.steps[step].base)
        if (p.registers[step].fixed) return true;
    return false;
  }

  // Whether everything noted is as it was.
  bool unchanged(const CachedReads& notes) const {
    const CachedRead* const words = notes.words.data();
    size_t from = 0;
    for (const OtherRead& other : notes.others) {
      if (!are_as_read(words + from, words + other.behind) || !is_unchanged(notes, other)) return false;
      from = other.behind;
    }
    if (!are_as_read(words + from, words + notes.count)) return false;
    const TensorNote* const end = notes.tensors.data() + notes.tensors.size();
    for (const TensorNote* note = notes.tensors.data(); (note = first_in_doubt(note, end)) != end; ++note)
      if (!note->holds()) return false;
    for (const MarksNote& note : notes.marks)
      if (!note.holds()) return false;
    return true;
  }

  // What lies ahead is asked for early; an address that is no longer good does no harm in that.
  static bool are_as_read(const CachedRead* next, const CachedRead* end) {
    for (; next != end; ++next) {
      __builtin_prefetch(reinterpret_cast<const void*>(next[WORDS_AHEAD].address));
      if (*reinterpret_cast<const uintptr_t*>(next->address) != next->value) return false;
    }
    return true;
  }

  bool is_unchanged(const CachedReads& notes, const OtherRead& other) const {
    switch (other.look) {
      case Look::HALF: return *notes.halves[other.number] == other.value;
      case Look::ARGUMENT: return reinterpret_cast<uintptr_t>(arguments[other.number]) == other.value;
      case Look::BYTE: return *notes.bytes[other.number] == other.value;
      case Look::FIND: return is_found(notes.finds[other.number]);
    }
    return false;
  }

  static bool is_found(const Find& find) {
    PyObject* found = nullptr;
    const Answer answer = find.own ? find_own(own_attributes(find.owner), find.key, &found)
                                   : turret::find(find.owner, find.key, &found);
    return answer == YES && found == find.value;
  }

  const Register& load(int number) {
    Register& reg = p.registers[number];
    if (reg.call == p.call) return reg;
    reg.call = p.call;
    reg.fixed = reg.referred = reg.of_class = reg.of_instance = false;
    p.touched.push_back(number);
    if (known_ && (*known_)[number].object) {
      const Known& known = (*known_)[number];
      reg.object = Py_NewRef(known.object);
      reg.answer = YES;
      reg.of_class = known.of_class;
      reg.of_instance = known.of_instance;
      return reg;
    }
    Reading out;
    reg.answer = read(number, out);
    if (reg.answer != YES) return reg;
    PyObject* object = reg.object = Py_NewRef(out.value.get());
    if (taking_) reg.fixed = out.fixed && stays(number, object);
    reg.referred = out.referred;
    if (reg.fixed && !out.referred) taking_->prove(object);
    const Step& step = p.steps[number];
    if (step.base >= 0) reg.of_class = is_namespace(step, p.registers[step.base]);
    reg.of_instance = out.of_instance;
    return reg;
  }

  static bool is_namespace(const Step& step, const Register& base) {
    return (step.kind == StepKind::DICT || (step.kind == StepKind::ATTRIBUTE && step.key == text_dict)) &&
           PyType_Check(base.object);
  }

  // Whether a step leads to the same object as a rule.
  bool stays(int number, PyObject* object) {
    AccessProfile& profile = p.profiles[number];
    if (profile.value && profile.value != object && profile.value_changes < VOLATILE_AFTER) profile.value_changes++;
    profile.value = object;
    return profile.value_changes < VOLATILE_AFTER;
  }

  // Whether the notes say that a step leads to this very object.
  bool leads_to(int number, PyObject* object) {
    const Register& found = load(number);
    return found.answer == YES && found.object == object && found.fixed && found.referred;
  }

  Answer read(int number, Reading& out) {
    const Step& step = p.steps[number];
    if (step.kind == StepKind::BOUND) {
      out.value = Held::of(step.key);
      out.fixed = out.referred = true;
      return YES;
    }
    if (step.kind == StepKind::WEAK) {
      PyObject** referent = &reinterpret_cast<PyWeakReference*>(step.key)->wr_object;
      if (*referent == Py_None || Py_REFCNT(*referent) == 0) return NO;
      out.value = Held::of(*referent);
      // It never refers to another object.  While the way to the object is known to lead there still, it is alive.
      if (taking_ && !(step.index && leads_to(static_cast<int>(step.index) - 1, *referent))) taking_->reference(referent);
      out.fixed = out.referred = taking_ != nullptr;
      return YES;
    }
    if (step.kind == StepKind::ARGUMENT) {
      PyObject* object = arguments[step.index];
      out.value = Held::of(object);
      // Tensors and plain containers are others at each call.
      out.fixed = taking_ && !is_plain_tensor(object) && !PyTuple_CheckExact(object) && !PyDict_CheckExact(object) &&
                  !PyList_CheckExact(object) && p.profiles[number].value_changes < VOLATILE_AFTER;
      if (out.fixed) taking_->argument(static_cast<size_t>(step.index), object);
      return YES;
    }
    const Register& base = load(step.base);
    if (base.answer != YES) return base.answer;
    PyObject* object = base.object;
    CachedReads* notes = base.fixed && p.profiles[number].value_changes < VOLATILE_AFTER ? taking_ : nullptr;
    if (base.of_class && step.kind != StepKind::ITEM && step.kind != StepKind::KEY && step.kind != StepKind::VALUE)
      return UNSURE;
    if (base.of_instance) {
      if (step.kind == StepKind::ITEM || step.kind == StepKind::DICT_ITEM)
        return read_own_item(object, step.key, step.base, notes, out);
      bool fixed = false;
      object = dict_of_instance(object, step.base, notes, fixed);
      if (!object) return UNSURE;
      if (!fixed) notes = nullptr;
    }
    if (step.kind == StepKind::ITEM || step.kind == StepKind::KEY || step.kind == StepKind::VALUE)
      object = behind_proxy(object, notes);
    switch (step.kind) {
      case StepKind::ATTRIBUTE:
        if (is_plain_tensor(object) && is_autograd_field(step.key)) {
          if (!p.modes_checked && function_modes_in_use()) return UNSURE;
          return read_autograd_field(object, step.key, out);
        }
        return read_attribute(object, step.key, step.base, notes, out);
      case StepKind::ITEM:
        return read_item(object, step.key, Container::NONE, step.base, notes, out);
      case StepKind::DICT_ITEM:
        return read_item(object, step.key, Container::DICT, step.base, notes, out);
      case StepKind::LIST_ITEM:
        return read_item(object, step.key, Container::LIST, step.base, notes, out);
      case StepKind::TUPLE_ITEM:
        return read_item(object, step.key, Container::TUPLE, step.base, notes, out);
      case StepKind::KEY:
        return read_nth(object, step.index, false, step.base, notes, out);
      case StepKind::VALUE:
        return read_nth(object, step.index, true, step.base, notes, out);
      case StepKind::DICT:
        return read_dict(object, notes, out);
      case StepKind::SHOWN:
        if (!Py_IS_TYPE(object, &PyDictProxy_Type)) return NO;
        out.value = Held::of(behind_proxy(object, notes));
        out.fixed = notes != nullptr;
        return YES;
      case StepKind::TYPE:
        if (notes) notes->type_of(object);
        out.value = Held::of(reinterpret_cast<PyObject*>(Py_TYPE(object)));
        out.fixed = notes != nullptr;
        return YES;
      default:
        return UNSURE;
    }
  }

  // Whether a check holds; `implied`: as long as the notes do.
  Answer judge(const Check& check, bool& implied) {
    implied = false;
    if (check.kind == CheckKind::GLOBAL_STATE) return modes_are(check.numbers) ? YES : NO;
    bool fixed = taking_ != nullptr;
    for (int step : check.steps) {
      const Register& found = load(step);
      if (found.answer != YES) return found.answer;
      fixed = fixed && found.fixed;
    }
    if (check.kind == CheckKind::STORAGE) return same_storages(check);
    const Register& first = p.registers[check.steps[0]];
    if (first.of_class && check.kind != CheckKind::EMPTY && check.kind != CheckKind::KEYS &&
        check.kind != CheckKind::LENGTH && check.kind != CheckKind::HAS_KEY && check.kind != CheckKind::NO_KEY)
      return UNSURE;
    if (check.kind == CheckKind::SAME || check.kind == CheckKind::NOT_SAME) {
      const Register& second = p.registers[check.steps[1]];
      if (second.of_class) return UNSURE;
      PyObject* one = object_of(check.steps[0], fixed);
      PyObject* other = object_of(check.steps[1], fixed);
      if (!one || !other) return UNSURE;
      implied = fixed;
      return (one == other) == (check.kind == CheckKind::SAME) ? YES : NO;
    }
    if (first.of_instance && (check.kind == CheckKind::HAS_KEY || check.kind == CheckKind::NO_KEY))
      return judge_own_key(check, first.object, fixed ? taking_ : nullptr, implied);
    PyObject* object = object_of(check.steps[0], fixed);
    if (!object) return UNSURE;
    const bool of_keys = check.kind == CheckKind::LENGTH || check.kind == CheckKind::EMPTY ||
                         check.kind == CheckKind::KEYS || check.kind == CheckKind::HAS_KEY ||
                         check.kind == CheckKind::NO_KEY;
    CachedReads* notes = fixed ? taking_ : nullptr;
    return judge_one(check, of_keys ? behind_proxy(object, notes) : object, notes, implied);
  }

  // What a step has led to: of the namespace of an instance, its dict (null: UNSURE).  `fixed` stays true where that is
  // noted.
  PyObject* object_of(int step, bool& fixed) {
    const Register& found = p.registers[step];
    if (!found.of_instance) return found.object;
    bool noted = false;
    PyObject* dict = dict_of_instance(found.object, step, fixed ? taking_ : nullptr, noted);
    fixed = fixed && noted;
    return dict;
  }

  Answer judge_one(const Check& check, PyObject* object, CachedReads* notes, bool& implied) {
    const int step = check.steps[0];
    switch (check.kind) {
      case CheckKind::TYPE:
        if (notes) notes->type_of(object);
        implied = notes != nullptr;
        return reinterpret_cast<PyObject*>(Py_TYPE(object)) == check.expected ? YES : NO;
      case CheckKind::ID:
        implied = notes != nullptr;
        return object == check.expected ? YES : NO;
      case CheckKind::EQUALS:
        implied = notes && (is_immutable(object) || is_identity(Py_TYPE(object)));
        return same_constant(object, check.expected);
      case CheckKind::TENSOR: {
        if (!p.modes_checked && function_modes_in_use()) return UNSURE;
        const Answer answer = check_tensor(*check.tensor, object);
        if (answer == YES && notes && p.modes_checked) {
          notes->tensor(object, *check.tensor);  // its class among the rest
          implied = true;
        }
        return answer;
      }
      case CheckKind::LENGTH:
      case CheckKind::EMPTY:
        return judge_length(check, object, notes, implied);
      case CheckKind::KEYS: {
        const Answer answer = same_keys(object, check.expected);
        // The order of an OrderedDict can change while the dict in it does not.
        implied = answer == YES && notes && (PyDict_CheckExact(object) || PyDict_GET_SIZE(object) < 2) &&
                  notes->contents(step, object);
        return answer;
      }
      case CheckKind::OWN_KEYS: {
        if (!PyDict_Check(object)) return NO;
        const Answer answer = same_dict_keys(object, check.expected);
        implied = answer == YES && notes && notes->contents(step, object);
        return answer;
      }
      case CheckKind::OWN_LENGTH:
        if (!PyList_Check(object) && !PyTuple_Check(object)) return NO;
        if (Py_SIZE(object) != check.numbers[0]) return NO;
        if (notes) note_length(object, notes);
        implied = notes != nullptr;
        return YES;
      case CheckKind::HAS_KEY:
      case CheckKind::NO_KEY:
        return judge_key(check, object, notes, implied);
      case CheckKind::MEMBER:
      case CheckKind::OWNER:
        return judge_member(object, check.expected, check.kind == CheckKind::OWNER, notes, implied);
      case CheckKind::MRO:
        return judge_mro(object, check.expected, notes, implied);
      case CheckKind::NO_VIEW:
        return is_no_view(object);
      case CheckKind::ANSWER:
        return judge_answer(object, check.expected);
      default:
        return UNSURE;
    }
  }

  Answer judge_length(const Check& check, PyObject* object, CachedReads* notes, bool& implied) {
    if (check.kind == CheckKind::EMPTY && object == Py_None) {
      implied = notes != nullptr;
      return YES;
    }
    const Py_ssize_t length = plain_length(object);
    if (length < 0) return UNSURE;
    if (length != (check.kind == CheckKind::EMPTY ? 0 : check.numbers[0])) return NO;
    if (notes) note_length(object, notes);
    implied = notes != nullptr;
    return YES;
  }

  Answer judge_key(const Check& check, PyObject* object, CachedReads* notes, bool& implied) {
    if ((!is_dict_in_order(object) && Py_TYPE(object) != ordered_dict_type) || !is_plain(check.expected)) return UNSURE;
    PyObject* found = nullptr;
    const Answer answer = find(object, check.expected, &found);
    if (answer != YES) return answer;
    if ((found != nullptr) != (check.kind == CheckKind::HAS_KEY)) return NO;
    if (notes && found) {  // the value beside the key may change
      implied = notes->contents(check.steps[0], object);
    } else if (notes) {
      notes->item(check.steps[0], object, check.expected, nullptr);
      implied = true;
    }
    return YES;
  }

  Answer judge_own_key(const Check& check, PyObject* object, CachedReads* notes, bool& implied) {
    if (!is_plain(check.expected)) return UNSURE;
    const OwnAttributes own = own_attributes(object);
    PyObject* found = nullptr;
    const Answer answer = find_own(own, check.expected, &found);
    if (answer != YES) return answer;
    if ((found != nullptr) != (check.kind == CheckKind::HAS_KEY)) return NO;
    if (notes && !found) {
      notes->own_item(check.steps[0], object, own, check.expected, nullptr);
      implied = true;
    } else if (notes && !own.values) {
      implied = notes->own_place(check.steps[0], object, own) && notes->contents(check.steps[0], own.dict);
    }
    return YES;
  }

  // Whether the tensors lie in the same storages as at capture: for each the number of the first in its storage.
  Answer same_storages(const Check& check) {
    if (!p.modes_checked && function_modes_in_use()) return UNSURE;
    std::vector<const void*>& storages = p.storages;
    storages.clear();
    for (size_t n = 0; n < check.steps.size(); n++) {
      PyObject* object = p.registers[check.steps[n]].object;
      if (!is_plain_tensor(object)) return UNSURE;
      const void* storage = storage_of(object);
      if (!storage) return UNSURE;
      storages.push_back(storage);
      const auto first = std::find(storages.begin(), storages.end(), storage) - storages.begin();
      if (first != check.numbers[n]) return NO;
    }
    return YES;
  }
};

}  // namespace turret
