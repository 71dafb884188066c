// Guards as a tree: each step to a source is taken once, on its way the guards on it are checked.
//
// A tree answers a call in one of two ways.  The full way takes every step.  What it read, it notes: words of memory
// (versions of dicts and of classes, types, list items, ...) that together imply that the same steps lead to the same
// objects and that the guards on them hold.  The next call compares those words, and checks in full only what they
// cannot prove: tensors, and what hangs on arguments that are others at each call.  No note keeps more alive than
// plain constants: the words are compared in the order in which they were read, so that each one lies in an object that
// the words before it have shown to be the one it was, or one that would lead to the same answers.
//
// No Python code of the user's runs in either way.  Guards for which that cannot be promised are left to Python, to be
// checked after all others hold; Python would have come to them only then, or not at all.

#include <memory>
#include <string>

#include "guard_record.h"
#include "guard_run.h"

namespace turret {
namespace {

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
  const RecordedCheck recorded(arguments, count);
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
  if (answer == Py_False)  // any of them may be the one
    for (int guard : left) p.fails_at(guard);
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

// Facts of a tensor from (type, dtype's name, device's name, requires_grad, is_leaf, raw keys, sizes, strides, whether
// marks matter, dimensions that may be marked).
TensorFacts* facts_of(PyObject* tuple) {
  PyObject *type, *sizes, *strides;
  const char *dtype, *device;
  int requires_grad, is_leaf;
  int watches_marks;
  unsigned long long keys, marks;
  if (!PyArg_ParseTuple(tuple, "OssppKO!O!pK", &type, &dtype, &device, &requires_grad, &is_leaf, &keys, &PyTuple_Type,
                        &sizes, &PyTuple_Type, &strides, &watches_marks, &marks))
    return nullptr;
  if (!PyType_Check(type)) return PyErr_SetString(PyExc_TypeError, "a tensor's type is no class"), nullptr;
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
  facts->watches_marks = watches_marks;
  facts->marks = marks;
  if (!numbers_of(sizes, facts->sizes) || !numbers_of(strides, facts->strides)) return nullptr;
  return facts.release();
}

// Whether a step refers to what is there: an argument, a step before it, a key of the kind that it takes.
bool is_step(const Program& p, int kind, int base, PyObject* key, Py_ssize_t index) {
  if (kind < 0 || kind >= StepKind::count || index < 0) return false;
  switch (static_cast<StepKind::Value>(kind)) {
    case StepKind::ARGUMENT: return base == -1 && index <= p.parameters;
    case StepKind::BOUND: return base == -1;
    case StepKind::WEAK: return base == -1 && PyWeakref_CheckRef(key);
    default: break;
  }
  const bool named = static_cast<StepKind::Value>(kind) != StepKind::ATTRIBUTE || PyUnicode_CheckExact(key);
  return named && base >= 0 && base < static_cast<int>(p.steps.size());
}

// Whether a check has the steps, and the expected object, that its kind reads.
bool is_check(const Program& p, const Check& check) {
  for (int step : check.steps)
    if (step < 0 || step >= static_cast<int>(p.steps.size())) return false;
  const size_t count = check.steps.size();
  PyObject* expected = check.expected;
  const bool tuple = PyTuple_Check(expected);
  switch (check.kind) {
    case CheckKind::GLOBAL_STATE: return count == 0;
    case CheckKind::SAME:
    case CheckKind::NOT_SAME: return count == 2;
    case CheckKind::STORAGE: return count > 0 && check.numbers.size() == count;
    case CheckKind::LENGTH:
    case CheckKind::OWN_LENGTH: return count == 1 && check.numbers.size() == 1;
    case CheckKind::TENSOR:
    case CheckKind::KEYS:
    case CheckKind::OWN_KEYS:
    case CheckKind::MRO: return count == 1 && tuple;
    case CheckKind::MEMBER:
    case CheckKind::OWNER:
      return count == 1 && tuple && PyTuple_GET_SIZE(expected) > 0 && PyUnicode_CheckExact(PyTuple_GET_ITEM(expected, 0));
    case CheckKind::ANSWER:
      return count == 1 && tuple && PyTuple_GET_SIZE(expected) == 2 && PyTuple_Check(PyTuple_GET_ITEM(expected, 0));
    default: return count == 1;
  }
}

bool add_step(Program& p, PyObject* tuple) {
  if (!PyTuple_Check(tuple)) {
    PyErr_Format(PyExc_TypeError, "%R is no step of a tree", tuple);
    return false;
  }
  int kind, base;
  PyObject* key;
  Py_ssize_t index;
  if (!PyArg_ParseTuple(tuple, "iiOn", &kind, &base, &key, &index)) return false;
  if (!is_step(p, kind, base, key, index)) {
    PyErr_Format(PyExc_TypeError, "%R is no step of a tree", tuple);
    return false;
  }
  p.steps.push_back({static_cast<StepKind::Value>(kind), base, Py_NewRef(key), index});
  return true;
}

bool add_check(Program& p, PyObject* tuple) {
  int kind, guard;
  PyObject *steps, *expected, *numbers;
  if (!PyTuple_Check(tuple)) {
    PyErr_Format(PyExc_TypeError, "%R is no check of a tree", tuple);
    return false;
  }
  if (!PyArg_ParseTuple(tuple, "iO!OO!i", &kind, &PyTuple_Type, &steps, &expected, &PyTuple_Type, &numbers, &guard))
    return false;
  p.checks.push_back({static_cast<CheckKind::Value>(kind), {}, Py_NewRef(expected), guard, {}, nullptr});
  Check& check = p.checks.back();
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(steps); n++)
    check.steps.push_back(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(steps, n))));
  if (PyErr_Occurred() || !numbers_of(numbers, check.numbers)) return false;
  if (kind < 0 || kind >= CheckKind::count || !is_check(p, check)) {
    PyErr_Format(PyExc_TypeError, "%R is no check of a tree", tuple);
    return false;
  }
  return check.kind != CheckKind::TENSOR || (check.tensor = facts_of(expected)) != nullptr;
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
  if (!PyCallable_Check(python) || parameters < 0 || !tensor_type)
    return PyErr_Format(PyExc_TypeError, "tree takes a callable and a number of parameters, after setup");
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
  p.profiles.resize(p.steps.size());
  PyObject_GC_Track(reinterpret_cast<PyObject*>(tree));
  if (made) return reinterpret_cast<PyObject*>(tree);
  Py_DECREF(tree);
  return nullptr;
}

PyObject* statistics(PyObject* self, PyObject*) {
  if (!reinterpret_cast<Tree*>(self)->program) Py_RETURN_NONE;
  Program& p = *reinterpret_cast<Tree*>(self)->program;
  const Memory none(p.profiles);
  const Memory& memory = p.memory ? *p.memory : none;
  return Py_BuildValue("{s:K,s:K,s:n,s:n,s:n,s:n}", "full", p.full, "short", p.short_, "notes",
                       memory.notes.count + memory.notes.others.size(), "early", memory.early.size(), "late", memory.late.size(), "python",
                       memory.unsure.size());
}

PyObject* failed(PyObject* self, PyObject*) {
  PyObject* numbers = PyList_New(0);
  if (!numbers || !reinterpret_cast<Tree*>(self)->program) return numbers;
  const std::vector<char>& failed = reinterpret_cast<Tree*>(self)->program->failed;
  for (size_t n = 0; n < failed.size(); n++) {
    Held number(failed[n] ? PyLong_FromSize_t(n) : nullptr);
    if (failed[n] && (!number || PyList_Append(numbers, number.get()) < 0)) return Py_DECREF(numbers), nullptr;
  }
  return numbers;
}

// Whether all tensors are instances of the first one's class, with an address each.
bool is_setup(PyObject* tensors, PyObject* addresses, std::initializer_list<PyObject*> classes) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  if (count == 0 || PyTuple_GET_SIZE(addresses) != count) return false;
  PyTypeObject* first = Py_TYPE(PyTuple_GET_ITEM(tensors, 0));
  if (std::string(first->tp_name).find("Tensor") == std::string::npos) return false;
  for (Py_ssize_t n = 0; n < count; n++)
    if (!PyObject_TypeCheck(PyTuple_GET_ITEM(tensors, n), first) || !PyLong_Check(PyTuple_GET_ITEM(addresses, n)))
      return false;
  return std::all_of(classes.begin(), classes.end(), [](PyObject* value) { return PyType_Check(value); });
}

// Takes the names of the device types that have an autocast.  False with an exception set where one is unknown.
bool set_autocast_devices(PyObject* names) {
  autocast_devices.clear();
  autocast_asked = false;
  for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(names); n++) {
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, n));
    if (!name) return false;
    try {
      autocast_devices.push_back(c10::Device(name).type());
    } catch (...) {
      PyErr_Format(PyExc_RuntimeError, "torch knows no device type %s", name);
      return false;
    }
  }
  return true;
}

// setup(tensors, addresses, Parameter, OrderedDict, defaultdict, device, Size, __dict__ descriptor of a class, autocast devices,
//       namespace of torch.autograd.forward_ad)
PyObject* setup(PyObject*, PyObject* args) {
  PyObject *tensors, *addresses, *parameter, *ordered, *defaults, *device, *size, *descriptor, *autocast, *forward;
  if (!PyArg_ParseTuple(args, "O!O!OOOOOO!O!O!", &PyTuple_Type, &tensors, &PyTuple_Type, &addresses, &parameter, &ordered,
                        &defaults,                        &device, &size, &PyGetSetDescr_Type, &descriptor, &PyTuple_Type, &autocast, &PyDict_Type,
                        &forward) ||
      !set_autocast_devices(autocast))
    return nullptr;
  if (!is_setup(tensors, addresses, {parameter, ordered, defaults, device, size}))
    return PyErr_Format(PyExc_TypeError, "setup takes tensors, their addresses, five classes and a descriptor");
  tensor_type = Py_TYPE(PyTuple_GET_ITEM(tensors, 0));
  parameter_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  ordered_dict_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(ordered));
  default_dict_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(defaults));
  device_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(device));
  size_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(size));
  forward_ad_names = Py_NewRef(forward);
  Py_INCREF(tensor_type);
  dict_getter = reinterpret_cast<PyGetSetDescrObject*>(descriptor)->d_getset->get;
  if (!find_tensor_offset(tensors, addresses)) {
    PyErr_SetString(PyExc_RuntimeError, "tensors are not kept where they were looked for in their Python objects");
    return nullptr;
  }
  find_autograd_offsets(tensors);
  find_requires_grad(tensors);
  tail_found = find_tail(tensors);
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

// The question as a pointer to a function, for the frame hook, which is not linked with torch.
PyObject* hooks_question(PyObject*, PyObject*) {
  return PyCapsule_New(reinterpret_cast<void*>(&saves_through_hooks), "turret.saves_through_hooks", nullptr);
}

PyMethodDef tree_methods[] = {{"statistics", statistics, METH_NOARGS, "how calls were answered, and what is noted"},
                              {"failed", failed, METH_NOARGS, "the numbers of guards at which calls have failed"},
                              {nullptr, nullptr, 0, nullptr}};

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, "setup(tensors, addresses, Parameter, OrderedDict, device, Size, ...): to be called first"},
    {"tree", make_tree, METH_VARARGS, "tree(steps, checks, left, python, parameters, modes_checked): a check of guards"},
    {"modes", modes, METH_NOARGS, "torch's modes as numbers"},
    {"dtype_number", dtype_number, METH_O, "the number of a dtype, by its name; -1 where there is none"},
    {"hooks_question", hooks_question, METH_NOARGS, "asks whether there are saved-tensor hooks"},
    {"plain", plain, METH_O, "whether looking a key up runs no code of the user's"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_guard_tree", nullptr, -1, methods};

}  // namespace
}  // namespace turret

PyMODINIT_FUNC PyInit__turret_guard_tree(void) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "native parts of turret work in the main interpreter of a process alone");
    return nullptr;
  }
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
  object_getattr = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyBaseObject_Type), "__getattribute__");
  module_getattr = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyModule_Type), "__getattribute__");
  if (!text_dict || !object_getattr || !module_getattr) return nullptr;
  return PyModule_Create(&module);
}
