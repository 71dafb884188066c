// Checks of guards as events of torch.profiler, by the name and line of the function that they are for.
#pragma once

#include "guard_layout.h"

#include <cstdint>
#include <string>

// Declared here and not included, for their headers bring in the whole of ATen; the linker checks the names.
namespace at {
bool hasCallbacks();
}
extern "C" {
struct AtenRecordFunctionOpaque;
int32_t aoti_record_function_start(const char* name, void* named, void* const* inputs, uint64_t count,
                                   AtenRecordFunctionOpaque** made);
int32_t aoti_record_function_end(AtenRecordFunctionOpaque* made);
}

namespace turret {

// An event for as long as it lives, where somebody records; what it costs otherwise is torch's own question.
class RecordedCheck {
 public:
  RecordedCheck(PyObject* const* arguments, Py_ssize_t count) {
    if (!at::hasCallbacks()) return;
    if (aoti_record_function_start(name_of(arguments, count).c_str(), nullptr, nullptr, 0, &event_)) event_ = nullptr;
  }
  RecordedCheck(const RecordedCheck&) = delete;
  RecordedCheck& operator=(const RecordedCheck&) = delete;
  ~RecordedCheck() {
    if (event_) aoti_record_function_end(event_);
  }

 private:
  // The function's name and place; those of ``forward`` for the call of a module, which torch's own function is.
  static std::string name_of(PyObject* const* arguments, Py_ssize_t count) {
    std::string called = "turret guards";
    PyObject* function = arguments[0];
    if (!PyFunction_Check(function)) return called;
    const PyCodeObject* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function));
    PyObject* forward = nullptr;
    if (count > 1 && PyUnicode_CompareWithASCIIString(code->co_qualname, "Module._wrapped_call_impl") == 0)
      forward = _PyType_Lookup(Py_TYPE(arguments[1]), text_of_forward());
    if (forward && PyFunction_Check(forward)) code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(forward));
    const char* const name = PyUnicode_AsUTF8(code->co_qualname);
    const char* const file = name ? PyUnicode_AsUTF8(code->co_filename) : nullptr;
    if (!file) {
      PyErr_Clear();
      return called;
    }
    return called + " of " + name + " (" + file + ":" + std::to_string(code->co_firstlineno) + ")";
  }
  static PyObject* text_of_forward() {
    static PyObject* const text = PyUnicode_InternFromString("forward");
    return text;
  }

  AtenRecordFunctionOpaque* event_ = nullptr;
};

}  // namespace turret
