// Guards as a tree: each step to a source is taken once, on its way the guards on it are checked.
//
// A tree answers a call in one of two ways.  The full way takes every step.  What it read, it notes: words of memory
// (versions of dicts and of classes, types, list items, ...) that together imply that the same steps lead to the same
// objects and that the guards on them hold.  The next call compares those words, and checks in full only what they
// cannot vouch for: tensors, and what hangs on arguments that are others at each call.  No note keeps an object alive:
// the words are compared in the order in which they were read, so that each one lies in an object that the words before
// it have shown to be the one it was.
//
// No Python code of the user's runs in either way.  Guards for which that cannot be promised are left to Python, to be
// checked after all others hold; Python would have come to them only then, or not at all.

#include "guard_objects.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>

namespace turret {
namespace {

enum class StepKind { ARGUMENT, BOUND, ATTRIBUTE, ITEM, KEY, VALUE, DICT, TYPE, DICT_ITEM, LIST_ITEM, TUPLE_ITEM };

struct Step {
  StepKind kind;
  int base;        // number of the step that this one starts from, -1 for a root
  PyObject* key;   // the name, the key, or the object that is bound; may be null
  Py_ssize_t index;
};

constexpr int FICKLE = 3;  // so many other objects found at one step, and it is read anew at each call

enum class CheckKind { TYPE, ID, EQUALS, TENSOR, LENGTH, EMPTY, KEYS, HAS_KEY, NO_KEY, SAME, NOT_SAME, STORAGE, MODES };

struct Check {
  CheckKind kind;
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
  bool fixed = false;      // the notes vouch for it
  bool of_class = false;   // the namespace of a class, which Python sees through a proxy
};

// What the last full check that went well has left: the notes, and what they do not vouch for.
struct Memory {
  explicit Memory(std::vector<Habit>& habits) : notes(habits) {}

  Notes notes;
  std::vector<int> early, late;   // checks that the notes do not imply: to be made before the notes, and after them
  std::vector<PyObject*> known;   // for each step what the notes vouch for (borrowed)
  std::vector<int> unsure;        // guards that are left to Python
};

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
  uint64_t call = 0;
  bool busy = false;

  std::vector<Habit> habits;
  std::unique_ptr<Memory> memory;
  std::map<std::vector<int>, PyObject*> parts;  // Python's checks of some guards
  int failures = 0;  // times that notes were taken since they last held
  int pause = 0;     // full checks for which none are taken
  uint64_t full = 0, short_ = 0;

  ~Program() {
    for (Check& check : checks) delete check.tensor;
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
  const std::vector<PyObject*>* known_ = nullptr;  // what the notes, found unchanged, vouch for
  Notes* taking_ = nullptr;                        // the notes, where they are being taken

  // Checks in order; one that fails is tried first the next time.
  bool check_all(std::vector<int>& order, std::vector<int>& left) {
    for (size_t n = 0; n < order.size(); n++) {
      bool implied;
      const Check& check = p.checks[order[n]];
      const Answer answer = judge(check, implied);
      if (answer == UNSURE) left.push_back(check.guard);
      if (answer == NO) {
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
      memory = std::make_unique<Memory>(p.habits);
      taking_ = &memory->notes;
    }
    for (size_t n = 0; n < p.order.size(); n++) {
      const int number = p.order[n];
      const Check& check = p.checks[number];
      bool implied = false;
      const Answer answer = judge(check, implied);
      if (answer == NO) {
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
    memory->unsure = left;
    memory->known.resize(p.steps.size());
    for (size_t n = 0; n < p.steps.size(); n++) {
      const Register& found = p.registers[n];
      if (found.call == p.call && found.answer == YES && found.fixed) memory->known[n] = found.object;
    }
    p.memory = std::move(memory);
    // Notes that fail again and again are not worth taking.
    if (++p.failures > 4) p.pause = 1 << std::min(p.failures, 10);
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
  bool unchanged(const Notes& notes) const {
    for (const Note& note : notes.notes) {
      const uintptr_t look = note.address & LOOK_BITS;
      if (__builtin_expect(look == WORD, 1)) {
        if (*reinterpret_cast<const uintptr_t*>(note.address) != note.value) return false;
        continue;
      }
      const size_t number = note.address >> 3;
      switch (look) {
        case HALF:
          if (*notes.halves[number] != note.value) return false;
          break;
        case ARGUMENT:
          if (reinterpret_cast<uintptr_t>(arguments[number]) != note.value) return false;
          break;
        case FIND: {
          PyObject* found = nullptr;
          if (find(notes.finds[number].dict, notes.finds[number].key, &found) != YES) return false;
          if (found != notes.finds[number].value) return false;
          break;
        }
        case TENSOR:
          if (check_tensor(*notes.tensors[number].facts, notes.tensors[number].tensor) != YES) return false;
          break;
      }
    }
    return true;
  }

  const Register& load(int number) {
    Register& reg = p.registers[number];
    if (reg.call == p.call) return reg;
    reg.call = p.call;
    reg.fixed = reg.of_class = false;
    p.touched.push_back(number);
    if (known_ && (*known_)[number]) {
      reg.object = Py_NewRef((*known_)[number]);
      reg.answer = YES;
      const Step& step = p.steps[number];
      reg.of_class = step.base >= 0 && is_namespace(step, load(step.base));
      return reg;
    }
    Reading out;
    reg.answer = read(number, out);
    if (reg.answer != YES) return reg;
    PyObject* object = reg.object = Py_NewRef(out.value.get());
    if (taking_) reg.fixed = out.fixed && stays(number, object);
    const Step& step = p.steps[number];
    if (step.base >= 0) reg.of_class = is_namespace(step, p.registers[step.base]);
    return reg;
  }

  static bool is_namespace(const Step& step, const Register& base) {
    return (step.kind == StepKind::DICT || (step.kind == StepKind::ATTRIBUTE && step.key == text_dict)) &&
           PyType_Check(base.object);
  }

  // Whether a step leads to the same object as a rule.
  bool stays(int number, PyObject* object) {
    Habit& habit = p.habits[number];
    if (habit.value && habit.value != object && habit.value_changes < FICKLE) habit.value_changes++;
    habit.value = object;
    return habit.value_changes < FICKLE;
  }

  Answer read(int number, Reading& out) {
    const Step& step = p.steps[number];
    if (step.kind == StepKind::BOUND) {
      out.value = Held::of(step.key);
      out.fixed = true;
      return YES;
    }
    if (step.kind == StepKind::ARGUMENT) {
      PyObject* object = arguments[step.index];
      out.value = Held::of(object);
      // Tensors and plain containers are others at each call.
      out.fixed = taking_ && !is_plain_tensor(object) && !PyTuple_CheckExact(object) && !PyDict_CheckExact(object) &&
                  !PyList_CheckExact(object) && p.habits[number].value_changes < FICKLE;
      if (out.fixed) taking_->argument(static_cast<size_t>(step.index), object);
      return YES;
    }
    const Register& base = load(step.base);
    if (base.answer != YES) return base.answer;
    PyObject* object = base.object;
    Notes* notes = base.fixed && p.habits[number].value_changes < FICKLE ? taking_ : nullptr;
    if (base.of_class && step.kind != StepKind::ITEM && step.kind != StepKind::KEY && step.kind != StepKind::VALUE)
      return UNSURE;
    if (step.kind == StepKind::ITEM || step.kind == StepKind::KEY || step.kind == StepKind::VALUE)
      object = behind_proxy(object);
    switch (step.kind) {
      case StepKind::ATTRIBUTE:
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
    if (check.kind == CheckKind::MODES) return mode_values() == check.numbers ? YES : NO;
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
      implied = fixed;
      return (first.object == second.object) == (check.kind == CheckKind::SAME) ? YES : NO;
    }
    const bool of_keys = check.kind == CheckKind::LENGTH || check.kind == CheckKind::EMPTY ||
                         check.kind == CheckKind::KEYS || check.kind == CheckKind::HAS_KEY ||
                         check.kind == CheckKind::NO_KEY;
    return judge_one(check, of_keys ? behind_proxy(first.object) : first.object, fixed ? taking_ : nullptr, implied);
  }

  Answer judge_one(const Check& check, PyObject* object, Notes* notes, bool& implied) {
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
          notes->type_of(object);
          notes->tensor(object, *check.tensor);
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
      case CheckKind::HAS_KEY:
      case CheckKind::NO_KEY:
        return judge_key(check, object, notes, implied);
      default:
        return UNSURE;
    }
  }

  Answer judge_length(const Check& check, PyObject* object, Notes* notes, bool& implied) {
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

  Answer judge_key(const Check& check, PyObject* object, Notes* notes, bool& implied) {
    if ((!PyDict_CheckExact(object) && Py_TYPE(object) != ordered_dict_type) || !is_plain(check.expected)) return UNSURE;
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

  // Whether the tensors lie in the same storages as at capture: for each the number of the first in its storage.
  Answer same_storages(const Check& check) {
    if (!p.modes_checked && function_modes_in_use()) return UNSURE;
    std::vector<const void*> storages;
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

struct Tree {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Program* program;
};

// Python's check of some guards; borrowed, null with an exception set on failure.
PyObject* part(Program& p, const std::vector<int>& guards) {
  auto found = p.parts.find(guards);
  if (found != p.parts.end()) return found->second;
  PyObject* numbers = PyTuple_New(static_cast<Py_ssize_t>(guards.size()));
  if (!numbers) return nullptr;
  for (size_t n = 0; n < guards.size(); n++)
    PyTuple_SET_ITEM(numbers, static_cast<Py_ssize_t>(n), PyLong_FromLong(guards[n]));
  PyObject* made = PyObject_CallOneArg(p.python, numbers);
  Py_DECREF(numbers);
  if (made) p.parts.emplace(guards, made);
  return made;
}

PyObject* tree_call(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* names) {
  if (!reinterpret_cast<Tree*>(self)->program) Py_RETURN_FALSE;  // taken apart by the garbage collector
  Program& p = *reinterpret_cast<Tree*>(self)->program;
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count != p.parameters + 1 || (names && PyTuple_GET_SIZE(names))) {
    PyErr_Format(PyExc_TypeError, "this check takes the function and %zd arguments", p.parameters);
    return nullptr;
  }
  std::vector<int> left;
  if (p.busy) {  // entered again, by a finalizer that ran in the middle of a check
    for (const Check& check : p.checks) left.push_back(check.guard);
    left.insert(left.end(), p.left.begin(), p.left.end());
    std::sort(left.begin(), left.end());
  } else if (Run(p, arguments).check(left) != YES) {
    Py_RETURN_FALSE;
  }
  if (left.empty()) Py_RETURN_TRUE;
  PyObject* check = part(p, left);
  if (!check) return nullptr;
  Py_INCREF(check);
  PyObject* answer = PyObject_Vectorcall(check, arguments, static_cast<size_t>(count), nullptr);
  Py_DECREF(check);
  return answer;
}

int tree_traverse(PyObject* self, visitproc visit, void* arg) {
  Program* p = reinterpret_cast<Tree*>(self)->program;
  if (!p) return 0;
  for (const Step& step : p->steps) Py_VISIT(step.key);
  for (const Check& check : p->checks) Py_VISIT(check.expected);
  for (const auto& part : p->parts) Py_VISIT(part.second);
  Py_VISIT(p->python);
  return 0;
}

int tree_clear(PyObject* self) {
  Program* p = reinterpret_cast<Tree*>(self)->program;
  if (!p) return 0;
  reinterpret_cast<Tree*>(self)->program = nullptr;
  for (Step& step : p->steps) Py_CLEAR(step.key);
  for (Check& check : p->checks) Py_CLEAR(check.expected);
  for (auto& part : p->parts) Py_CLEAR(part.second);
  Py_CLEAR(p->python);
  delete p;
  return 0;
}

void tree_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  tree_clear(self);
  PyObject_GC_Del(self);
}

bool numbers_of(PyObject* sequence, std::vector<int64_t>& out) {
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(sequence); n++) {
    PyObject* item = PyTuple_GET_ITEM(sequence, n);
    out.push_back(item == Py_None ? ANY : PyLong_AsLongLong(item));
    if (PyErr_Occurred()) return false;
  }
  return true;
}

// Facts of a tensor from (type, dtype's name, device's name, requires_grad, is_leaf, raw keys, sizes, strides).
TensorFacts* facts_of(PyObject* tuple) {
  PyObject *type, *sizes, *strides;
  const char *dtype, *device;
  int requires_grad, is_leaf;
  unsigned long long keys;
  if (!PyArg_ParseTuple(tuple, "OssppKO!O!", &type, &dtype, &device, &requires_grad, &is_leaf, &keys, &PyTuple_Type,
                        &sizes, &PyTuple_Type, &strides))
    return nullptr;
  auto facts = std::make_unique<TensorFacts>();
  facts->type = reinterpret_cast<PyTypeObject*>(type);
  try {
    facts->dtype = c10::getStringToDtypeMap().at(dtype);
    facts->device = c10::Device(std::string(device));
  } catch (const std::exception&) {
    PyErr_Format(PyExc_ValueError, "%s on %s is not known here", dtype, device);
    return nullptr;
  }
  facts->requires_grad = requires_grad;
  facts->is_leaf = is_leaf;
  facts->keys = keys;
  if (!numbers_of(sizes, facts->sizes) || !numbers_of(strides, facts->strides)) return nullptr;
  return facts.release();
}

bool add_step(Program& p, PyObject* tuple) {
  int kind, base;
  PyObject* key;
  Py_ssize_t index;
  if (!PyArg_ParseTuple(tuple, "iiOn", &kind, &base, &key, &index)) return false;
  p.steps.push_back({static_cast<StepKind>(kind), base, Py_NewRef(key), index});
  return true;
}

bool add_check(Program& p, PyObject* tuple) {
  int kind, guard;
  PyObject *steps, *expected, *numbers;
  if (!PyArg_ParseTuple(tuple, "iO!OO!i", &kind, &PyTuple_Type, &steps, &expected, &PyTuple_Type, &numbers, &guard))
    return false;
  p.checks.push_back({static_cast<CheckKind>(kind), {}, Py_NewRef(expected), guard, {}, nullptr});
  Check& check = p.checks.back();
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(steps); n++)
    check.steps.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(steps, n))));
  if (PyErr_Occurred()) return false;
  if (check.kind == CheckKind::TENSOR) return (check.tensor = facts_of(expected)) != nullptr;
  return numbers_of(numbers, check.numbers);
}

PyTypeObject tree_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// tree(steps, checks, left, python, parameters, modes_checked)
PyObject* make_tree(PyObject*, PyObject* args) {
  PyObject *steps, *checks, *left, *python;
  Py_ssize_t parameters;
  int modes_checked;
  if (!PyArg_ParseTuple(args, "O!O!O!Onp", &PyList_Type, &steps, &PyList_Type, &checks, &PyTuple_Type, &left, &python,
                        &parameters, &modes_checked))
    return nullptr;
  Tree* tree = PyObject_GC_New(Tree, &tree_type);
  if (!tree) return nullptr;
  tree->vectorcall = tree_call;
  Program& p = *(tree->program = new Program);
  p.python = Py_NewRef(python);
  p.parameters = parameters;
  p.modes_checked = modes_checked;
  bool made = true;
  for (Py_ssize_t n = 0; made && n < PyList_GET_SIZE(steps); n++) made = add_step(p, PyList_GET_ITEM(steps, n));
  for (Py_ssize_t n = 0; made && n < PyList_GET_SIZE(checks); n++) made = add_check(p, PyList_GET_ITEM(checks, n));
  std::vector<int64_t> numbers;
  made = made && numbers_of(left, numbers);
  p.left.assign(numbers.begin(), numbers.end());
  for (size_t n = 0; n < p.checks.size(); n++) p.order.push_back(static_cast<int>(n));
  p.registers.resize(p.steps.size());
  p.habits.resize(p.steps.size());
  PyObject_GC_Track(reinterpret_cast<PyObject*>(tree));
  if (made) return reinterpret_cast<PyObject*>(tree);
  Py_DECREF(tree);
  return nullptr;
}

PyObject* statistics(PyObject* self, PyObject*) {
  if (!reinterpret_cast<Tree*>(self)->program) Py_RETURN_NONE;
  Program& p = *reinterpret_cast<Tree*>(self)->program;
  const Memory none(p.habits);
  const Memory& memory = p.memory ? *p.memory : none;
  return Py_BuildValue("{s:K,s:K,s:n,s:n,s:n,s:n}", "full", p.full, "short", p.short_, "notes",
                       memory.notes.notes.size(), "early", memory.early.size(), "late", memory.late.size(), "python",
                       memory.unsure.size());
}

// setup(tensors, addresses, Parameter, OrderedDict, device, Size, __dict__ descriptor of a class)
PyObject* setup(PyObject*, PyObject* args) {
  PyObject *tensors, *addresses, *parameter, *ordered, *device, *size, *descriptor;
  if (!PyArg_ParseTuple(args, "O!O!OOOOO!", &PyTuple_Type, &tensors, &PyTuple_Type, &addresses, &parameter, &ordered,
                        &device, &size, &PyGetSetDescr_Type, &descriptor))
    return nullptr;
  tensor_type = Py_TYPE(PyTuple_GET_ITEM(tensors, 0));
  parameter_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  ordered_dict_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(ordered));
  device_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(device));
  size_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(size));
  Py_INCREF(tensor_type);
  dict_getter = reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset->get;
  if (!find_tensor_offset(tensors, addresses)) {
    PyErr_SetString(PyExc_RuntimeError, "tensors are not kept where they were looked for in their Python objects");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* modes(PyObject*, PyObject*) {
  const std::vector<int64_t> values = mode_values();
  PyObject* made = PyTuple_New(static_cast<Py_ssize_t>(values.size()));
  for (size_t n = 0; made && n < values.size(); n++)
    PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(n), PyLong_FromLongLong(values[n]));
  return made;
}

PyObject* dtype_number(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (!text) return nullptr;
  const auto& known = c10::getStringToDtypeMap();
  const auto found = known.find(text);
  return PyLong_FromLong(found == known.end() ? -1 : static_cast<long>(found->second));
}

PyObject* plain(PyObject*, PyObject* object) { return PyBool_FromLong(is_plain(object)); }

PyMethodDef tree_methods[] = {{"statistics", statistics, METH_NOARGS, "how calls were answered, and what is noted"},
                              {nullptr, nullptr, 0, nullptr}};

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, "setup(tensors, addresses, Parameter, OrderedDict, device, Size, descriptor)"},
    {"tree", make_tree, METH_VARARGS, "tree(steps, checks, left, python, parameters, modes_checked): a check of guards"},
    {"modes", modes, METH_NOARGS, "torch's modes as numbers"},
    {"dtype_number", dtype_number, METH_O, "the number of a dtype, by its name; -1 where there is none"},
    {"plain", plain, METH_O, "whether looking a key up runs no code of the user's"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_guard_tree", nullptr, -1, methods};

}  // namespace
}  // namespace turret

PyMODINIT_FUNC PyInit__turret_guard_tree(void) {
  using namespace turret;
  tree_type.tp_name = "turret.GuardTree";
  tree_type.tp_basicsize = sizeof(Tree);
  tree_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  tree_type.tp_dealloc = tree_dealloc;
  tree_type.tp_traverse = tree_traverse;
  tree_type.tp_clear = tree_clear;
  tree_type.tp_methods = tree_methods;
  tree_type.tp_call = PyVectorcall_Call;
  tree_type.tp_vectorcall_offset = offsetof(Tree, vectorcall);
  if (PyType_Ready(&tree_type) < 0) return nullptr;
  text_dict = PyUnicode_InternFromString("__dict__");
  object_getattr = PyDict_GetItemString(PyBaseObject_Type.tp_dict, "__getattribute__");
  module_getattr = PyDict_GetItemString(PyModule_Type.tp_dict, "__getattribute__");
#if PY_VERSION_HEX >= 0x030D0000
  watcher = PyDict_AddWatcher(on_dict_event);
  if (watcher < 0) PyErr_Clear();
#endif
  return PyModule_Create(&module);
}
