// Nodes of autograd that torch's Python cannot make: those of one result among several of a node, and those of results
// that were computed of others.  And tensors that lead to a node.
#include <Python.h>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <atomic>
#include <optional>
#include <vector>

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Pointer = decltype(Edge::function);  // shared in some releases of torch, intrusive in others

template <class Made, class Held, class... Arguments>
Held make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Held, std::shared_ptr<Node>>)  // which torch deletes without a call for each of a chain
    return Held(new Made(std::forward<Arguments>(arguments)...), [](Made* made) { deleteNode(made); });
  else
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
}

// The node of one among several results of a node.
struct Result : Node {
  explicit Result(Edge next) : Node(std::vector<Edge>{std::move(next)}) {}
  std::string name() const override { return "ResultBackward"; }
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  variable_list apply_with_saved(const variable_list& gradients, torch::dynamo::autograd::SwapSavedVariables&) override {
    return gradients;
  }
};

// Whether the backward that runs was asked for the gradient of a result of a node.
bool is_captured(Node* node) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr) return false;
  const auto found = tasks->find(node);
  return found != tasks->end() && found->second.captures_ && !found->second.captures_->empty();
}

// Whether the backward that runs goes through a node that leads on.
bool is_run(Node* node) {
  const auto* tasks = torch::autograd::get_current_graph_task_exec_info();
  if (tasks == nullptr || tasks->empty()) return true;
  const auto found = tasks->find(node);
  return found != tasks->end() && found->second.should_execute();
}

// Whether somebody is told of the gradients that arrive at a node.
bool is_observed(Node* node) {
  return !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty() || !node->pre_hooks().empty() ||
         is_captured(node);
}

// What all calls of a graph have in common: ``cut(root, gradients, stops, edges)`` gives gradients of those sources.
struct Group {
  PyObject* cut;

  ~Group() {
    if (!Py_IsInitialized()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(cut);
    PyGILState_Release(state);
  }
};

// A node whose gradients somebody may be told of, and the source that they come to it from.
struct Seen {
  Pointer node;
  size_t source;
};

// The node of results that were computed of others, the sources.  It leads to the node of them all, the root, and to the
// sources.  As long as nobody looks at these, gradients go to the root, which computes with those of all results.
struct Derived : Node {
  Derived(std::shared_ptr<Group> group, std::vector<Edge> next, size_t results, std::vector<Seen> seen,
          std::optional<std::vector<const Derived*>> nearest)
      : Node(std::move(next)), group(std::move(group)), results(results), seen(std::move(seen)),
        nearest(std::move(nearest)) {}

  std::string name() const override { return "DerivedBackward"; }

  variable_list apply(variable_list&& gradients) override {
    variable_list found(num_outputs());
    bool is_there = false;
    for (const Variable& gradient : gradients) is_there |= gradient.defined();
    if (!is_there) return found;
    const std::vector<size_t> stops = stops_now();
    if (stops.empty())
      std::move(gradients.begin(), gradients.end(), found.begin());
    else
      cut(gradients, stops, found);
    return found;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

  // Torch's compiled autograd, which traces a backward.
  variable_list apply_with_saved(const variable_list& gradients, torch::dynamo::autograd::SwapSavedVariables&) override {
    TORCH_CHECK(observed().empty() && !is_above_observed(),
                "torch's compiled autograd goes over results of Turret of which one has hooks or retains its gradient, "
                "and others were computed of it; run this backward without it");
    variable_list found(num_outputs());
    std::copy(gradients.begin(), gradients.end(), found.begin());
    return found;
  }

  // The sources, in order, whose gradients somebody is told of.
  std::vector<size_t> observed() const {
    std::vector<size_t> found;
    for (const Seen& each : seen)
      if (is_observed(each.node.get()) && (found.empty() || found.back() != each.source)) found.push_back(each.source);
    return found;
  }

  // Whether gradients of a source, or of what that was computed of and so on, are told to somebody, where sources are
  // the nearest alone; asked once a backward, of which several may be under way.
  bool is_above_observed() const {
    if (!nearest) return false;
    const int64_t task = torch::autograd::get_current_graph_task_id();
    const int64_t known = answer.load();
    if (task >= 0 && known >> 1 == task) return known & 1;
    bool found = !observed().empty();
    for (const Derived* below : *nearest) found = found || below->is_above_observed();
    answer.store(task << 1 | int64_t(found));
    return found;
  }

  // The sources that gradients are to end at; none: they go to the root.
  std::vector<size_t> stops_now() const {
    std::vector<size_t> found = nearest ? std::vector<size_t>() : observed();
    if (is_above_observed() || (found.empty() && !is_run(next_edge(0).function.get())))
      for (size_t n = 0; n < num_outputs() - results; n++) found.push_back(n);
    return found;
  }

  void cut(const variable_list& gradients, const std::vector<size_t>& stops, variable_list& found) const {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* given = PyTuple_New(gradients.size());
    for (size_t n = 0; n < gradients.size(); n++) PyTuple_SET_ITEM(given, n, THPVariable_Wrap(gradients[n]));
    PyObject* numbers = PyTuple_New(stops.size());
    PyObject* edges = PyTuple_New(stops.size());
    for (size_t n = 0; n < stops.size(); n++) {
      const Edge& edge = next_edge(results + stops[n]);
      PyObject* function = torch::autograd::functionToPyObject(edge.function);
      PyTuple_SET_ITEM(numbers, n, PyLong_FromSize_t(stops[n]));
      PyTuple_SET_ITEM(edges, n, Py_BuildValue("NI", function, edge.input_nr));
    }
    PyObject* root = torch::autograd::functionToPyObject(next_edge(0).function);
    PyObject* made = PyObject_CallFunctionObjArgs(group->cut, root, given, numbers, edges, nullptr);
    for (PyObject* argument : {root, given, numbers, edges}) Py_DECREF(argument);
    if (made == nullptr) {
      python_error error;
      error.persist();
      PyGILState_Release(state);
      throw error;
    }
    for (size_t n = 0; n < stops.size(); n++) {
      PyObject* item = PyTuple_GET_ITEM(made, n);
      if (item != Py_None) found[results + stops[n]] = THPVariable_Unpack(item);
    }
    Py_DECREF(made);
    PyGILState_Release(state);
  }

  std::shared_ptr<Group> group;
  size_t results;
  std::vector<Seen> seen;
  std::optional<std::vector<const Derived*>> nearest;  // nodes that the edges keep
  mutable std::atomic<int64_t> answer{-4};  // of the backward that asked last: its number, and in the lowest bit what
};

PyObject* function_class = nullptr;

PyObject* setup(PyObject*, PyObject* base) {
  Py_XSETREF(function_class, Py_NewRef(base));
  Py_RETURN_NONE;
}

template <class Held>
auto held(const Held& pointer) {
  if constexpr (requires { pointer.lock(); })
    return pointer.lock();
  else
    return pointer;
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

// The tensors of a sequence in which all are such; false, with an error set, for others.
bool tensors_of(PyObject* sequence, std::vector<Variable>& tensors) {
  PyObject* items = PySequence_Fast(sequence, "expected a sequence of tensors");
  if (items == nullptr) return false;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); n++) {
    PyObject* item = PySequence_Fast_GET_ITEM(items, n);
    if (!THPVariable_Check(item)) {
      PyErr_Format(PyExc_TypeError, "expected a tensor, got %R", item);
      Py_DECREF(items);
      return false;
    }
    tensors.push_back(THPVariable_Unpack(item));
  }
  Py_DECREF(items);
  return true;
}

// Gives a result the node that its gradient goes to from now on.
void set_node(const Variable& result, const Pointer& node) {
  const uint32_t number = node->add_input_metadata(result);
  torch::autograd::impl::set_gradient_edge(result, Edge(node, number));
}

void part_results(const std::vector<Variable>& results) {
  if (results.size() < 2) return;
  for (const Variable& result : results)
    if (result.requires_grad() && !result.is_leaf() && !result.is_view())
      set_node(result, make_node<Result, Pointer>(torch::autograd::impl::gradient_edge(result)));
}

PyObject* part(PyObject*, PyObject* results) {
  std::vector<Variable> tensors;
  if (!tensors_of(results, tensors)) return nullptr;
  part_results(tensors);
  Py_RETURN_NONE;
}

constexpr const char* GROUP = "turret.autograd.group";

void drop_group(PyObject* capsule) {
  delete static_cast<std::shared_ptr<Group>*>(PyCapsule_GetPointer(capsule, GROUP));
}

PyObject* group(PyObject*, PyObject* cut) {
  auto made = std::make_shared<Group>(Py_NewRef(cut));
  return PyCapsule_New(new std::shared_ptr<Group>(std::move(made)), GROUP, drop_group);
}

// The node that made a result among several, where that is a derived one.
const Derived* derived_of(const Variable& result) {
  Node* node = torch::autograd::impl::gradient_edge(result).function.get();
  if (dynamic_cast<const Result*>(node) != nullptr) node = node->next_edge(0).function.get();
  return dynamic_cast<const Derived*>(node);
}

PyObject* derive(PyObject*, PyObject* arguments) {
  PyObject *capsule, *made, *of, *above;
  if (!PyArg_ParseTuple(arguments, "OOOO:derive", &capsule, &made, &of, &above)) return nullptr;
  auto* group = static_cast<std::shared_ptr<Group>*>(PyCapsule_GetPointer(capsule, GROUP));
  std::vector<Variable> results, sources;
  if (group == nullptr || !tensors_of(made, results) || !tensors_of(of, sources)) return nullptr;
  std::vector<Edge> next;
  for (const Variable& result : results) {
    if (!result.requires_grad()) Py_RETURN_NONE;  // autograd records none of it
    next.push_back(torch::autograd::impl::gradient_edge(result));
  }
  std::vector<Seen> seen;
  for (size_t n = 0; n < sources.size(); n++) {
    next.push_back(torch::autograd::impl::gradient_edge(sources[n]));
    seen.push_back({next.back().function, n});
    // A view that was written to shares its history with what it views.
    if (sources[n].is_view() && sources[n]._base().grad_fn()) seen.push_back({sources[n]._base().grad_fn(), n});
  }
  std::optional<std::vector<const Derived*>> nearest;
  if (above != Py_None) {
    std::vector<Variable> tensors;
    if (!tensors_of(above, tensors)) return nullptr;
    nearest.emplace();
    for (const Variable& tensor : tensors)
      if (const Derived* below = derived_of(tensor)) nearest->push_back(below);
  }
  const Pointer node =
      make_node<Derived, Pointer>(*group, std::move(next), results.size(), std::move(seen), std::move(nearest));
  for (const Variable& result : results) set_node(result, node);
  part_results(results);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"setup", setup, METH_O, nullptr},
    {"group", group, METH_O, nullptr},
    {"derive", derive, METH_VARARGS, nullptr},
    {"leading_to", leading_to, METH_VARARGS, nullptr},
    {"part", part, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_turret_nodes", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit__turret_nodes() { return PyModule_Create(&definition); }
