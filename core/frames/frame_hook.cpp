// Frame evaluation hook (PEP 523) for CPython 3.11 to 3.13.
//
// The hook is a property of the interpreter, but acts only on threads that are inside a compiled callable
// (`call`).  It is installed while at least one thread is, and taken out afterwards, so that programs which do not
// run compiled code pay nothing.  For a frame that is not to be skipped, the callback is asked once a call; it
// answers None (evaluate as usual) or a function to be called in the frame's place, with the frame's function
// and the values of its parameters.  That function may return a Tail: another call to make in tail position, so
// that loops which go on in resume functions need no deeper stack each time around.

#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030C0000
#include <internal/pycore_code.h>
#endif
#undef Py_BUILD_CORE

#include <algorithm>
#include <vector>

#include "turret_enums.h"  // FrameKind: the table is in frame_hook.py

namespace {

struct ThreadState {
  int active = 0;               // whether frames of this thread are looked at
  PyObject* pending = nullptr;  // code object of the root frame about to start (borrowed: `call` holds it)
  PyObject* token = nullptr;    // what the callback is told of that root (borrowed)
  PyObject* owner = nullptr;    // what the callback is told of the innermost `call` (borrowed: `call` is given it)
  PyObject** taken = nullptr;   // the arguments of the frame that `follow_tails` is about to start
  int depth = 0;                // nested `call`s
  _PyInterpreterFrame* passed = nullptr;  // the frame that `previous` was given and has not evaluated yet
};

thread_local ThreadState local;
int users = 0;  // threads inside `call`; guarded by the GIL
unsigned long long invocations = 0;  // outermost `call`s that began; guarded by the GIL
_PyFrameEvalFunction previous = _PyEval_EvalFrameDefault;  // the hook that was there before this one
Py_ssize_t extra_index = -1;
PyObject* frame_callback = nullptr;     // (function, arguments, token, owner) -> callable or None
PyObject* classify_callback = nullptr;  // (code) -> FrameKind

bool (*saves_through_hooks)() = nullptr;  // whether there are saved-tensor hooks in this thread; null: nobody says

PyObject* hook(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing);

PyCodeObject* code_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyCode_Check(frame->f_executable) ? reinterpret_cast<PyCodeObject*>(frame->f_executable) : nullptr;
#else
  return frame->f_code;
#endif
}

PyObject* function_of(_PyInterpreterFrame* frame) {
#if PY_VERSION_HEX >= 0x030C0000
  return frame->f_funcobj;
#else
  return reinterpret_cast<PyObject*>(frame->f_func);
#endif
}

// Evaluates a frame as usual.  Another hook may have been put on top of this one while it was itself the one below
// (torch.compile puts its own there at each outermost call), and then hands the frame back: it ends here.
PyObject* evaluate(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  if (previous == _PyEval_EvalFrameDefault) return _PyEval_EvalFrameDefault(thread, frame, throwing);
  _PyInterpreterFrame* passed = local.passed;
  local.passed = frame;
  PyObject* result = previous(thread, frame, throwing);
  local.passed = passed;
  return result;
}

#if PY_VERSION_HEX >= 0x030C0000
// From 3.12 on the evaluator itself clears and pops a frame.  It is made to do so by continuing the frame at a
// RETURN_VALUE of another code object with the result on its stack, or by throwing into it.
_Py_CODEUNIT* return_instruction = nullptr;
PyObject* return_code = nullptr;

bool prepare_return() {
  PyObject* scope = PyDict_New();
  PyObject* result = scope ? PyRun_String("f = (lambda x: x).__code__", Py_file_input, scope, scope) : nullptr;
  if (!result) return false;
  Py_DECREF(result);
  return_code = Py_XNewRef(PyDict_GetItemString(scope, "f"));
  Py_DECREF(scope);
  PyCodeObject* code = reinterpret_cast<PyCodeObject*>(return_code);
  _Py_CODEUNIT* instructions = _PyCode_CODE(code);
  for (Py_ssize_t i = 0; i < Py_SIZE(code); i++) {
    if (instructions[i].op.code == RETURN_VALUE_OPCODE) {
      return_instruction = instructions + i;
      return true;
    }
  }
  PyErr_SetString(PyExc_RuntimeError, "this interpreter's RETURN_VALUE was not found");
  return false;
}
#endif

#if PY_VERSION_HEX >= 0x030C0000
// Throws the exception that is set into a frame that was not evaluated.  From 3.13 on the evaluator adds an entry for
// the first line of the frame's code to the traceback, which has the program's own line already.
PyObject* throw_into(PyThreadState* thread, _PyInterpreterFrame* frame) {
  PyObject* error = PyErr_GetRaisedException();
  PyObject* trace = PyException_GetTraceback(error);
  PyErr_SetRaisedException(Py_NewRef(error));
  _PyEval_EvalFrameDefault(thread, frame, 1);
  PyObject* raised = PyErr_GetRaisedException();
  if (raised == error) PyException_SetTraceback(raised, trace == nullptr ? Py_None : trace);
  PyErr_SetRaisedException(raised);
  Py_XDECREF(trace);
  Py_DECREF(error);
  return nullptr;
}
#endif

// Ends a frame that was not evaluated: with `result`, or with the exception that is set where it is null.
PyObject* finish(PyThreadState* thread, _PyInterpreterFrame* frame, PyObject* result) {
#if PY_VERSION_HEX >= 0x030C0000
  if (!result) return throw_into(thread, frame);
  frame->localsplus[frame->stacktop++] = result;
#if PY_VERSION_HEX >= 0x030D0000
  frame->instr_ptr = return_instruction;
#else
  frame->prev_instr = return_instruction - 1;
#endif
  return _PyEval_EvalFrameDefault(thread, frame, 0);
#else
  (void)thread;
  (void)frame;
  return result;  // the caller of the hook clears the frame
#endif
}

struct Tail {
  PyObject_HEAD
  PyObject* function;
  PyObject* arguments;
};

void tail_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(reinterpret_cast<Tail*>(self)->function);
  Py_XDECREF(reinterpret_cast<Tail*>(self)->arguments);
  PyObject_GC_Del(self);
}

int tail_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Tail*>(self)->function);
  Py_VISIT(reinterpret_cast<Tail*>(self)->arguments);
  return 0;
}

PyTypeObject tail_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* make_tail(PyObject*, PyObject* args) {
  PyObject *function, *arguments;
  if (!PyArg_ParseTuple(args, "OO!", &function, &PyTuple_Type, &arguments)) return nullptr;
  if (!PyCallable_Check(function)) return PyErr_Format(PyExc_TypeError, "tail takes a callable, not %R", function);
  Tail* tail = PyObject_GC_New(Tail, &tail_type);
  if (!tail) return nullptr;
  tail->function = Py_NewRef(function);
  tail->arguments = Py_NewRef(arguments);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(tail));
  return reinterpret_cast<PyObject*>(tail);
}

constexpr Py_ssize_t MOST_DIRECT = 32;  // parameters of a frame whose units are walked here

intptr_t kind_of(PyCodeObject* code) {
  void* extra = nullptr;
  if (_PyCode_GetExtra(reinterpret_cast<PyObject*>(code), extra_index, &extra) < 0) {
    PyErr_Clear();
    return FrameKind::SKIP;
  }
  return reinterpret_cast<intptr_t>(extra);
}

// Looks a code object up, asking the callback the first time.  -1 with an exception set on failure.
intptr_t classify(PyCodeObject* code) {
  intptr_t kind = kind_of(code);
  if (kind != FrameKind::UNKNOWN) return kind;
  local.active = 0;
  PyObject* answer = PyObject_CallOneArg(classify_callback, reinterpret_cast<PyObject*>(code));
  local.active = 1;
  if (!answer) return -1;
  kind = PyLong_AsLong(answer);
  Py_DECREF(answer);
  if (kind < 0 || _PyCode_SetExtra(reinterpret_cast<PyObject*>(code), extra_index, reinterpret_cast<void*>(kind)) < 0)
    return -1;
  return kind;
}

// Asks what to run in place of a call of `function`; new reference, None for "as usual", null on error.
PyObject* ask(PyObject* function, PyObject* arguments, PyObject* token) {
  local.active = 0;
  PyObject* answer = PyObject_CallFunctionObjArgs(frame_callback, function, arguments, token, local.owner, nullptr);
  local.active = 1;
  return answer;
}

// The first of a list of units whose check holds for a call, moved to the front: what its `run` is (a new reference; None
// to evaluate as usual).  Null where there is none, with an exception set where a check raised.
PyObject* choose(PyObject* units, PyObject* function, PyObject* const* arguments, Py_ssize_t count) {
  static PyObject* const check_name = PyUnicode_InternFromString("check");
  static PyObject* const run_name = PyUnicode_InternFromString("run");
  PyObject* values[MOST_DIRECT + 1] = {function};
  std::copy(arguments, arguments + count, values + 1);
  for (Py_ssize_t n = 0; n < PyList_GET_SIZE(units); n++) {
    PyObject* unit = Py_NewRef(PyList_GET_ITEM(units, n));
    PyObject* check = PyObject_GetAttr(unit, check_name);
    PyObject* answer = check ? PyObject_Vectorcall(check, values, count + 1, nullptr) : nullptr;
    Py_XDECREF(check);
    PyObject* run = answer == Py_True ? PyObject_GetAttr(unit, run_name) : nullptr;
    const bool failed = !answer || (answer == Py_True && !run);
    Py_XDECREF(answer);
    if (run && n && n < PyList_GET_SIZE(units) && PyList_GET_ITEM(units, n) == unit) {
      if (PyList_SetSlice(units, n, n + 1, nullptr) < 0 || PyList_Insert(units, 0, unit) < 0) Py_CLEAR(run);
    }
    Py_DECREF(unit);
    if (run || failed) return run;
  }
  return nullptr;
}

PyObject* call_replacement(PyObject* replacement, PyObject* function, PyObject* arguments) {
  Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  std::vector<PyObject*> values(count + 1);
  values[0] = function;
  for (Py_ssize_t i = 0; i < count; i++) values[i + 1] = PyTuple_GET_ITEM(arguments, i);
  return PyObject_Vectorcall(replacement, values.data(), count + 1, nullptr);
}

// Lets go of arguments first to last, as a frame does of its variables at its end; a tuple would do so last to first.
void release_in_order(PyObject* arguments) {
  if (!arguments) return;
  if (Py_REFCNT(arguments) == 1) {
    if (PyObject_GC_IsTracked(arguments)) PyObject_GC_UnTrack(arguments);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
      PyObject* item = PyTuple_GET_ITEM(arguments, i);
      PyTuple_SET_ITEM(arguments, i, nullptr);
      Py_XDECREF(item);
    }
  }
  Py_DECREF(arguments);
}

// Runs tail calls until there is a result.  Steals `result`.
PyObject* follow_tails(PyObject* result) {
  while (result && Py_IS_TYPE(result, &tail_type)) {
    Tail* tail = reinterpret_cast<Tail*>(result);
    PyObject* function = Py_NewRef(tail->function);
    PyObject* arguments = Py_NewRef(tail->arguments);
    Py_DECREF(result);
    PyObject* replacement = nullptr;
    if (PyFunction_Check(function) && local.active) {
      intptr_t kind = classify(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)));
      if (kind == FrameKind::CAPTURE)
        replacement = ask(function, arguments, Py_None);
      else if (kind >= 0)
        replacement = Py_NewRef(Py_None);
    } else {
      replacement = Py_NewRef(Py_None);
    }
    if (!replacement) {
      result = nullptr;
    } else if (replacement == Py_None) {
      // The frame was looked at already: evaluate it without asking again.
      PyObject* pending = local.pending;
      PyObject* token = local.token;
      PyObject** taken = local.taken;
      local.pending = PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr;
      local.token = Py_False;
      local.taken = &arguments;
      result = PyObject_Call(function, arguments, nullptr);
      local.pending = pending;
      local.token = token;
      local.taken = taken;
    } else {
      result = call_replacement(replacement, function, arguments);
    }
    Py_XDECREF(replacement);
    Py_DECREF(function);
    release_in_order(arguments);
  }
  return result;
}

Py_ssize_t parameters(PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
         ((code->co_flags & CO_VARKEYWORDS) != 0);
}

PyObject* hook(PyThreadState* thread, _PyInterpreterFrame* frame, int throwing) {
  if (local.passed == frame) return _PyEval_EvalFrameDefault(thread, frame, throwing);
  if (!local.active || throwing) return evaluate(thread, frame, throwing);
  PyCodeObject* code = code_of(frame);
  PyObject* function = function_of(frame);
  const int suspendable = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  const int plain = CO_OPTIMIZED | CO_NEWLOCALS;
  if (!code || !function || (code->co_flags & suspendable) || (code->co_flags & plain) != plain ||
      code->co_stacksize < 1 || !PyFunction_Check(function))
    return evaluate(thread, frame, throwing);
  PyObject* token = Py_None;
  if (local.pending == reinterpret_cast<PyObject*>(code)) {
    token = local.token;
    local.pending = nullptr;
    local.token = nullptr;
    if (token == Py_False) {
      // The frame has its arguments: what they hold must go when the frame lets go of it, not when it ends.
      if (local.taken) Py_CLEAR(*local.taken);
      local.taken = nullptr;
      return evaluate(thread, frame, throwing);
    }
  } else {
    intptr_t kind = classify(code);
    if (kind < 0) return finish(thread, frame, nullptr);
    if (kind == FrameKind::SKIP) return evaluate(thread, frame, throwing);
    if (kind == FrameKind::SKIP_CALLEES) {
      local.active = 0;
      PyObject* result = evaluate(thread, frame, throwing);
      local.active = 1;
      return result;
    }
  }
  Py_ssize_t count = parameters(code);
  if (PyList_CheckExact(token) && count <= MOST_DIRECT && !(saves_through_hooks && saves_through_hooks())) {
    Py_INCREF(token);
    local.active = 0;
    PyObject* run = choose(token, function, frame->localsplus, count);
    local.active = 1;
    Py_DECREF(token);
    if (run == Py_None) {
      Py_DECREF(run);
      return evaluate(thread, frame, throwing);
    }
    if (run) {
      PyObject* values[MOST_DIRECT + 1] = {Py_NewRef(function)};
      std::copy(frame->localsplus, frame->localsplus + count, values + 1);
      PyObject* result = PyObject_Vectorcall(run, values, count + 1, nullptr);
      Py_DECREF(function);
      Py_DECREF(run);
      return finish(thread, frame, follow_tails(result));
    }
    if (PyErr_Occurred()) return finish(thread, frame, nullptr);
  }
  PyObject* arguments = PyTuple_New(count);
  if (!arguments) return finish(thread, frame, nullptr);
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(arguments, i, Py_NewRef(frame->localsplus[i]));
  Py_INCREF(token);
  PyObject* replacement = ask(function, arguments, token);
  Py_DECREF(token);
  if (replacement == Py_None) {
    Py_DECREF(replacement);
    Py_DECREF(arguments);
    return evaluate(thread, frame, throwing);
  }
  PyObject* result = nullptr;
  if (replacement) {
    Py_INCREF(function);
    result = call_replacement(replacement, function, arguments);
    Py_DECREF(function);
    Py_DECREF(replacement);
  }
  Py_DECREF(arguments);
  for (Py_ssize_t i = 0; i < count; i++) Py_CLEAR(frame->localsplus[i]);  // nor does this frame need them any more
  return finish(thread, frame, follow_tails(result));
}

// A call with the hook active: target(*args, **kwargs), whose own frame is that of `root`.
struct Invocation {
  PyObject *target, *args, *kwargs, *root, *token, *owner;

  // False with an exception set where it is none, or nobody is there to ask.
  bool check() const {
    if (!PyCallable_Check(target) || !PyTuple_Check(args) || !(kwargs == Py_None || PyDict_Check(kwargs)) ||
        !(root == Py_None || PyCode_Check(root))) {
      PyErr_Format(PyExc_TypeError, "call takes a callable, a tuple, a dict or None and a code object or None, not %R",
                   target);
      return false;
    }
    if (!frame_callback) PyErr_SetString(PyExc_TypeError, "call needs the callbacks that configure takes");
    return frame_callback != nullptr;
  }
};

PyObject* invoke(const Invocation& invocation) {
  ThreadState saved = local;
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  if (saved.depth == 0) {
    users++;
    invocations++;
  }
  _PyFrameEvalFunction found = _PyInterpreterState_GetEvalFrameFunc(interpreter), below = previous;
  if (found != hook) {
    previous = found;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, hook);
  }
  local.depth = saved.depth + 1;
  local.active = 1;
  local.pending = invocation.root == Py_None ? nullptr : invocation.root;
  local.token = invocation.token;
  local.owner = invocation.owner;
  PyObject* kwargs = invocation.kwargs == Py_None ? nullptr : invocation.kwargs;
  PyObject* result = PyObject_Call(invocation.target, invocation.args, kwargs);
  int depth = local.depth;
  local = saved;
  if (saved.depth == 0 && depth == 1 && users > 0) users--;
  const bool on_top = _PyInterpreterState_GetEvalFrameFunc(interpreter) == hook;
  if (found != hook && (saved.depth > 0 || users == 0)) {
    if (on_top) _PyInterpreterState_SetEvalFrameFunc(interpreter, found);
    previous = below;
  } else if (users == 0 && on_top) {  // put there by a thread that left before this one
    _PyInterpreterState_SetEvalFrameFunc(interpreter, previous);
  }
  return result;
}

// call(target, args, kwargs, root_code, token, owner): target(*args, **kwargs) with the hook active on this thread.
PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) {
    PyErr_SetString(PyExc_TypeError,
                    "call takes a target, a tuple, a dict or None, a code object or None, a token and an owner");
    return nullptr;
  }
  const Invocation invocation{args[0], args[1], args[2], args[3], args[4], args[5]};
  return invocation.check() ? invoke(invocation) : nullptr;
}

// What `enter` is to be told once: who enters where this is not as usual, and what shows that it is.
struct Entry {
  PyObject* otherwise = nullptr;       // called with the arguments of `enter` where something is not as usual
  PyObject* set_callback = nullptr;    // sets what torch's own frame hook calls, and returns what that was
  PyObject* stances = nullptr;         // the namespace in which the stance lies
  PyObject* default_stance = nullptr;
};
Entry entry;

// What stands under a name in a namespace; borrowed, null where there is none.
PyObject* named(PyObject* names, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(names, name);
  if (!found && PyErr_Occurred()) PyErr_Clear();
  return found;
}

// Whether the stance is the default, as `stances.stance` would find it; what it would have to look at anew is not.
bool has_default_stance() {
  static PyObject* const own = PyUnicode_InternFromString("_own");
  static PyObject* const torchs = PyUnicode_InternFromString("_torchs");
  static PyObject* const torchs_module = PyUnicode_InternFromString("torch._dynamo.eval_frame");
  static PyObject* const torchs_own = PyUnicode_InternFromString("_stance");
  if (named(entry.stances, own) != entry.default_stance) return false;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* theirs = modules && PyDict_CheckExact(modules) ? named(modules, torchs_module) : Py_False;
  if (!theirs) return true;  // that part of torch is not loaded
  PyObject* seen = named(entry.stances, torchs);
  return PyModule_Check(theirs) && seen && PyTuple_Check(seen) && PyTuple_GET_SIZE(seen) == 2 &&
         PyTuple_GET_ITEM(seen, 0) == named(PyModule_GetDict(theirs), torchs_own) &&
         PyTuple_GET_ITEM(seen, 1) == entry.default_stance;
}

// settings.root.units; a new reference.
PyObject* units_of(PyObject* settings) {
  static PyObject* const root_name = PyUnicode_InternFromString("root");
  static PyObject* const units_name = PyUnicode_InternFromString("units");
  PyObject* root = PyObject_GetAttr(settings, root_name);
  PyObject* units = root ? PyObject_GetAttr(root, units_name) : nullptr;
  Py_XDECREF(root);
  return units;
}

// The exception that is set, if one is, kept aside for as long as this lives; what is raised meanwhile comes instead.
class KeptError {
 public:
#if PY_VERSION_HEX >= 0x030C0000
  KeptError() : error_(PyErr_GetRaisedException()) {}
  ~KeptError() {
    if (error_ && PyErr_Occurred())
      Py_DECREF(error_);
    else if (error_)
      PyErr_SetRaisedException(error_);
  }
#else
  KeptError() { PyErr_Fetch(&type_, &error_, &trace_); }
  ~KeptError() {
    if (PyErr_Occurred()) {
      Py_XDECREF(type_);
      Py_XDECREF(error_);
      Py_XDECREF(trace_);
    } else {
      PyErr_Restore(type_, error_, trace_);
    }
  }
#endif
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;

 private:
#if PY_VERSION_HEX < 0x030C0000
  PyObject *type_ = nullptr, *trace_ = nullptr;
#endif
  PyObject* error_ = nullptr;
};

// enter(settings, target, root_code, args, kwargs): `call` with the units of the settings, while torch's hook keeps off.
PyObject* enter(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!entry.otherwise) return PyErr_Format(PyExc_TypeError, "enter needs what prepare_entry takes");
  if (count != 5 || !saves_through_hooks || !has_default_stance())
    return PyObject_Vectorcall(entry.otherwise, args, count, nullptr);
  PyObject* units = units_of(args[0]);
  if (!units) return nullptr;
  const Invocation invocation{args[1], args[3], args[4], args[2], units, args[0]};
  PyObject* before = invocation.check() ? PyObject_CallOneArg(entry.set_callback, Py_None) : nullptr;
  PyObject* result = before ? invoke(invocation) : nullptr;
  if (before) {
    const KeptError raised;
    PyObject* own = PyObject_CallOneArg(entry.set_callback, before);
    if (!own) Py_CLEAR(result);
    Py_XDECREF(own);
    Py_DECREF(before);
  }
  Py_DECREF(units);
  return result;
}

PyObject* prepare_entry(PyObject*, PyObject* args) {
  PyObject *otherwise, *set_callback, *stances, *default_stance;
  if (!PyArg_ParseTuple(args, "OOO!O", &otherwise, &set_callback, &PyDict_Type, &stances, &default_stance))
    return nullptr;
  if (!PyCallable_Check(otherwise) || !PyCallable_Check(set_callback))
    return PyErr_Format(PyExc_TypeError, "prepare_entry takes two callables, not %R and %R", otherwise, set_callback);
  Py_XSETREF(entry.otherwise, Py_NewRef(otherwise));
  Py_XSETREF(entry.set_callback, Py_NewRef(set_callback));
  Py_XSETREF(entry.stances, Py_NewRef(stances));
  Py_XSETREF(entry.default_stance, Py_NewRef(default_stance));
  Py_RETURN_NONE;
}

struct Suspended {
  PyObject_HEAD
  PyObject* function;
  vectorcallfunc vectorcall;
};

PyObject* suspended_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  int active = local.active;
  local.active = 0;
  PyObject* result = PyObject_Vectorcall(reinterpret_cast<Suspended*>(self)->function, args, count, names);
  local.active = active;
  return result;
}

void suspended_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Py_XDECREF(reinterpret_cast<Suspended*>(self)->function);
  PyObject_GC_Del(self);
}

int suspended_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Suspended*>(self)->function);
  return 0;
}

PyTypeObject suspended_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* suspend(PyObject*, PyObject* function) {
  if (!PyCallable_Check(function)) return PyErr_Format(PyExc_TypeError, "suspend takes a callable, not %R", function);
  Suspended* made = PyObject_GC_New(Suspended, &suspended_type);
  if (!made) return nullptr;
  made->function = Py_NewRef(function);
  made->vectorcall = suspended_call;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(made));
  return reinterpret_cast<PyObject*>(made);
}

// Raises an exception as it is: with its traceback, and without the one that is handled as its context.
PyObject* throw_as_is(PyObject*, PyObject* error) {
  if (!PyExceptionInstance_Check(error)) {
    PyErr_Format(PyExc_TypeError, "throw takes an exception, not %R", error);
    return nullptr;
  }
  PyObject* trace = PyException_GetTraceback(error);
  if (trace != nullptr && reinterpret_cast<PyTracebackObject*>(trace)->tb_lasti == -1) {
    // It stands for the frame that raises the error now, and that the interpreter puts there itself.
    PyObject* inner = reinterpret_cast<PyObject*>(reinterpret_cast<PyTracebackObject*>(trace)->tb_next);
    PyException_SetTraceback(error, inner == nullptr ? Py_None : inner);
  }
  Py_XDECREF(trace);
#if PY_VERSION_HEX >= 0x030C0000
  PyErr_SetRaisedException(Py_NewRef(error));
#else
  PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(error)), Py_NewRef(error), PyException_GetTraceback(error));
#endif
  return nullptr;
}

PyObject* configure(PyObject*, PyObject* args) {
  PyObject *frame, *classify;
  if (!PyArg_ParseTuple(args, "OO", &frame, &classify)) return nullptr;
  if (!PyCallable_Check(frame) || !PyCallable_Check(classify))
    return PyErr_Format(PyExc_TypeError, "configure takes two callables, not %R and %R", frame, classify);
  Py_XSETREF(frame_callback, Py_NewRef(frame));
  Py_XSETREF(classify_callback, Py_NewRef(classify));
  Py_RETURN_NONE;
}

// Takes the question whether there are saved-tensor hooks: while there are, units are not chosen here.
PyObject* watch_hooks(PyObject*, PyObject* capsule) {
  void* question = PyCapsule_GetPointer(capsule, "turret.saves_through_hooks");
  if (!question) return nullptr;
  saves_through_hooks = reinterpret_cast<bool (*)()>(question);
  Py_RETURN_NONE;
}

PyObject* mark(PyObject*, PyObject* args) {
  PyObject* code;
  long kind;
  if (!PyArg_ParseTuple(args, "O!l", &PyCode_Type, &code, &kind)) return nullptr;
  if (kind < 0 || kind >= FrameKind::count) return PyErr_Format(PyExc_TypeError, "mark takes 0 to 3, not %ld", kind);
  if (_PyCode_SetExtra(code, extra_index, reinterpret_cast<void*>(static_cast<intptr_t>(kind))) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* kind(PyObject*, PyObject* code) {
  if (!PyCode_Check(code)) {
    PyErr_SetString(PyExc_TypeError, "kind takes a code object");
    return nullptr;
  }
  return PyLong_FromLong(static_cast<long>(kind_of(reinterpret_cast<PyCodeObject*>(code))));
}

// frame(code, globals, locals): a frame that never runs and that no frame has called, for tracebacks.
PyObject* make_frame(PyObject*, PyObject* args) {
  PyCodeObject* code;
  PyObject *globals, *locals;
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyCode_Type, &code, &PyDict_Type, &globals, &PyDict_Type, &locals))
    return nullptr;
  if (code->co_nlocalsplus || code->co_flags & (CO_OPTIMIZED | CO_NEWLOCALS)) {
    PyErr_SetString(PyExc_TypeError, "frame takes code whose variables are all in a dict");
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(PyFrame_New(PyThreadState_Get(), code, globals, locals));
}

PyObject* is_active(PyObject*, PyObject*) { return PyBool_FromLong(local.active); }

PyObject* is_installed(PyObject*, PyObject*) {
  return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook);
}

PyObject* after_fork(PyObject*, PyObject*) {
  users = local.depth > 0;  // the other threads are gone
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  if (!users && _PyInterpreterState_GetEvalFrameFunc(interpreter) == hook)
    _PyInterpreterState_SetEvalFrameFunc(interpreter, previous);
  Py_RETURN_NONE;
}

// What a weak reference refers to (a new reference); null with an exception set where it is gone.
PyObject* referent_of(PyObject* reference) {
  PyObject* object = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  if (PyWeakref_GetRef(reference, &object) < 0) return nullptr;
#else
  object = PyWeakref_GET_OBJECT(reference);
  object = object == Py_None ? nullptr : Py_NewRef(object);
#endif
  if (!object) PyErr_SetString(PyExc_ReferenceError, "a module or parameter of compiled code is gone");
  return object;
}

// dereference(references, given): what weak references refer to, and, for numbers among them, what was given.
PyObject* dereference(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_CheckExact(args[1])) {
    PyErr_SetString(PyExc_TypeError, "dereference takes a tuple of weak references and numbers, and a tuple");
    return nullptr;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
  PyObject* found = PyTuple_New(count);
  for (Py_ssize_t n = 0; found && n < count; n++) {
    PyObject* item = PyTuple_GET_ITEM(args[0], n);
    PyObject* object = nullptr;
    if (PyWeakref_CheckRef(item)) {
      object = referent_of(item);
    } else {
      const Py_ssize_t place = PyLong_AsSsize_t(item);
      if (place >= 0 && place < PyTuple_GET_SIZE(args[1]))
        object = Py_NewRef(PyTuple_GET_ITEM(args[1], place));
      else if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "dereference was not given number %zd", place);
    }
    if (object)
      PyTuple_SET_ITEM(found, n, object);
    else
      Py_CLEAR(found);
  }
  return found;
}

PyObject* count_invocations(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(invocations); }

PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS, "configure(frame_callback, classify_callback)"},
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)), METH_FASTCALL,
     "call(target, args, kwargs, root_code, token, owner): call with the hook active on this thread; a token that is a "
     "list holds units, whose checks are made before the callback is asked"},
    {"enter", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(enter)), METH_FASTCALL,
     "enter(settings, target, root_code, args, kwargs): call with the units of the settings, if all is as usual"},
    {"prepare_entry", prepare_entry, METH_VARARGS,
     "prepare_entry(otherwise, set_torchs_callback, stances, default): what enter needs"},
    {"suspend", suspend, METH_O, "suspend(function): a callable that runs it with the hook inactive"},
    {"tail", make_tail, METH_VARARGS, "tail(function, args): what a replacement returns to go on elsewhere"},
    {"throw", throw_as_is, METH_O, "throw(exception): raise it as it is, its traceback and context kept"},
    {"dereference", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(dereference)), METH_FASTCALL,
     "dereference(references, given): a tuple of what weak references refer to, and of what was given for numbers"},
    {"watch_hooks", watch_hooks, METH_O, "watch_hooks(question): have the callback choose while hooks save tensors"},
    {"mark", mark, METH_VARARGS, "mark(code, kind): 0 ask, 1 skip, 2 capture, 3 skip with all that it calls"},
    {"kind", kind, METH_O, "kind(code): as marked, 0 where not asked yet"},
    {"invocations", count_invocations, METH_NOARGS, "how many calls began on a thread that was in none"},
    {"frame", make_frame, METH_VARARGS, "frame(code, globals, locals): a frame for tracebacks, which never runs"},
    {"is_active", is_active, METH_NOARGS, "whether frames of this thread are looked at"},
    {"is_installed", is_installed, METH_NOARGS, "whether the interpreter evaluates frames through the hook"},
    {"after_fork", after_fork, METH_NOARGS, "to be called in a forked child"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_frame_hook", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__turret_frame_hook(void) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "native parts of turret work in the main interpreter of a process alone");
    return nullptr;
  }
  tail_type.tp_name = "turret.Tail";
  tail_type.tp_basicsize = sizeof(Tail);
  tail_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  tail_type.tp_dealloc = tail_dealloc;
  tail_type.tp_traverse = tail_traverse;
  suspended_type.tp_name = "turret.Suspended";
  suspended_type.tp_basicsize = sizeof(Suspended);
  suspended_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  suspended_type.tp_dealloc = suspended_dealloc;
  suspended_type.tp_traverse = suspended_traverse;
  suspended_type.tp_call = PyVectorcall_Call;
  suspended_type.tp_vectorcall_offset = offsetof(Suspended, vectorcall);
  if (PyType_Ready(&tail_type) < 0 || PyType_Ready(&suspended_type) < 0) return nullptr;
#if PY_VERSION_HEX >= 0x030C0000
  if (!prepare_return()) return nullptr;
#endif
  if (extra_index < 0) extra_index = _PyEval_RequestCodeExtraIndex(nullptr);
  if (extra_index < 0) {
    PyErr_SetString(PyExc_RuntimeError, "no room for another field on code objects");
    return nullptr;
  }
  return PyModule_Create(&module);
}
