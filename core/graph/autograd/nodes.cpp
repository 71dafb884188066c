// What torch's Python has no way to: whether anybody is told of the gradients that arrive at a node of autograd, nodes
// that hand their gradient on, and tensors that lead to a node.
#include <Python.h>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Pointer = decltype(Edge::function);  // shared in some releases of torch, intrusive in others

// The node of one among several results of a node.
struct Result : Node {
  explicit Result(Edge next) : Node(std::vector<Edge>{std::move(next)}) {}
  std::string name() const override { return "ResultBackward"; }
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
};

template <class Made>
Made make_result(Edge next) {
  if constexpr (std::is_same_v<Made, std::shared_ptr<Node>>)
    return Made(new Result(std::move(next)));
  else
    return c10::make_intrusive<Result>(std::move(next));
}

template <class Held>
auto held(const Held& pointer) {
  if constexpr (requires { pointer.lock(); })
    return pointer.lock();
  else
    return pointer;
}

bool is_captured(Node* node) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr) return false;
  const auto found = tasks->find(node);
  return found != tasks->end() && found->second.captures_ && !found->second.captures_->empty();
}

bool is_observed(Node* node) {
  return !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() || !node->pre_hooks().empty() ||
         is_captured(node);
}

PyObject* function_class = nullptr;

PyObject* setup(PyObject*, PyObject* base) {
  Py_XSETREF(function_class, Py_NewRef(base));
  Py_RETURN_NONE;
}

// The node of an object of torch's; null, with an error set, for others.
Pointer node_of(PyObject* object) {
  const int is_in_python = PyObject_IsInstance(object, function_class);
  if (is_in_python < 0) return {};
  if (is_in_python) {
    Pointer node = held(reinterpret_cast<THPFunction*>(object)->cdata);
    if (!node) PyErr_SetString(PyExc_RuntimeError, "a node of autograd that is gone");
    return node;
  }
  if (torch::autograd::THPCppFunction_Check(object))
    return reinterpret_cast<torch::autograd::THPCppFunction*>(object)->cdata;
  PyErr_Format(PyExc_TypeError, "expected a node of autograd, got %R", object);
  return {};
}

PyObject* is_observed_node(PyObject*, PyObject* object) {
  const Pointer node = node_of(object);
  return node ? PyBool_FromLong(is_observed(node.get())) : nullptr;
}

PyObject* leading_to(PyObject*, PyObject* arguments) {
  PyObject* object;
  unsigned int number;
  if (!PyArg_ParseTuple(arguments, "OI:leading_to", &object, &number)) return nullptr;
  Pointer node = node_of(object);
  if (!node) return nullptr;
  Variable tensor = at::empty({0});
  torch::autograd::impl::set_gradient_edge(tensor, Edge(std::move(node), number));
  return THPVariable_Wrap(tensor);
}

PyObject* part(PyObject*, PyObject* results) {
  PyObject* items = PySequence_Fast(results, "expected a sequence of results");
  if (items == nullptr) return nullptr;
  std::vector<Variable> tensors;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); n++) {
    PyObject* item = PySequence_Fast_GET_ITEM(items, n);
    if (!THPVariable_Check(item)) continue;
    const Variable& tensor = THPVariable_Unpack(item);
    if (tensor.requires_grad() && !tensor.is_leaf() && !tensor.is_view()) tensors.push_back(tensor);
  }
  Py_DECREF(items);
  if (tensors.size() > 1) {
    for (const Variable& tensor : tensors) {
      Pointer node = make_result<Pointer>(torch::autograd::impl::gradient_edge(tensor));
      node->add_input_metadata(tensor);
      torch::autograd::impl::set_gradient_edge(tensor, Edge(std::move(node), 0));
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"setup", setup, METH_O, nullptr},
    {"is_observed", is_observed_node, METH_O, nullptr},
    {"leading_to", leading_to, METH_VARARGS, nullptr},
    {"part", part, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_turret_nodes", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__turret_nodes() { return PyModule_Create(&definition); }
