// Whether anybody is told of the gradients that arrive at a node of autograd; torch's Python has no way to ask.
#include <Python.h>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>

namespace {

// What a function in Python holds its node by is a weak pointer in some releases of torch, and a strong one in others.
template <class Pointer>
auto held(const Pointer& pointer) {
  if constexpr (requires { pointer.lock(); })
    return pointer.lock();
  else
    return pointer;
}

bool is_captured(torch::autograd::Node* node) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr) return false;
  const auto found = tasks->find(node);
  return found != tasks->end() && found->second.captures_ && !found->second.captures_->empty();
}

bool is_observed(torch::autograd::Node* node) {
  return !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() || !node->pre_hooks().empty() ||
         is_captured(node);
}

PyObject* function_class = nullptr;

PyObject* setup(PyObject*, PyObject* base) {
  Py_XSETREF(function_class, Py_NewRef(base));
  Py_RETURN_NONE;
}

PyObject* is_observed_node(PyObject*, PyObject* function) {
  const int is_in_python = PyObject_IsInstance(function, function_class);
  if (is_in_python < 0) return nullptr;
  if (is_in_python) {
    const auto node = held(reinterpret_cast<THPFunction*>(function)->cdata);
    return PyBool_FromLong(node && is_observed(node.get()));
  }
  if (!torch::autograd::THPCppFunction_Check(function)) {
    PyErr_Format(PyExc_TypeError, "expected a node of autograd, got %R", function);
    return nullptr;
  }
  return PyBool_FromLong(is_observed(reinterpret_cast<torch::autograd::THPCppFunction*>(function)->cdata.get()));
}

PyMethodDef methods[] = {
    {"setup", setup, METH_O, nullptr},
    {"is_observed", is_observed_node, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_turret_nodes", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__turret_nodes() { return PyModule_Create(&definition); }
